"""Whatever is done to a group while keys are parked and come back, nothing is lost and no key's order is broken."""

import asyncio
import contextlib
import random

import pytest

from lbg_runtime.broker.engine.engine import DEFAULT_VPN
from lbg_runtime.broker.engine.settings import QueueSettings
from lbg_runtime.core.flow.events import MessageReceived
from lbg_runtime.core.parking.records import (
    OwnerFence,
    ParkedMessage,
    UnparkAsked,
    decode_entry,
    encode_entry,
    parking_queue,
)
from lbg_runtime.model.errors import BrokerRefusal, PublishRefused
from lbg_runtime.runtime.handlers.registry import Handlers
from lbg_runtime.runtime.parking.room import KEPT_FOR_ORDERS_BYTES
from lbg_runtime.runtime.parking.stay import ParkingStay
from lbg_runtime.testing.group_context import running
from tests.testing.troubles import mend, trouble

FENCE_BYTES = 5
"""A memory broker counts payloads alone."""

ROUNDS = 14
KEYS = 5
PARK = {"attempts": 2, "then": "park", "backoff": {"initial": "10ms", "maximum": "50ms"}}


class Story:
    """One run by a seed: handlers that fail, an operator, and troubles."""

    def __init__(self, seed):
        self.chance = random.Random(seed)
        self.published: dict[str, list[bytes]] = {}
        self.failing = 0.4
        self.unparked = 0

    def handlers(self):
        handlers = Handlers()

        @handlers.handler("orders/>")
        async def handle(message):
            await asyncio.sleep(self.chance.choice((0, 0.05, 1)))
            if self.chance.random() < self.failing:
                raise ValueError("bad luck")

        return handlers

    async def publish(self, group):
        for _ in range(self.chance.randrange(12)):
            key = f"k{self.chance.randrange(KEYS)}"
            payloads = self.published.setdefault(key, [])
            payloads.append(b"%d" % len(payloads))
            await group.publish("orders/new", payloads[-1], key=key)

    def limit(self, group, quota_bytes):
        """So much, a few messages more or less, is the quota of each parking queue."""
        for index in range(group.shape.queue_count):
            changed = QueueSettings(quota_bytes=quota_bytes + self.chance.randrange(9))
            queue = parking_queue(group.shape.name, index)
            group.broker.post(group.broker.engine.administration.change_queue(DEFAULT_VPN, queue, changed))

    def parked(self, group):
        """Parked messages by lane and queue."""
        found = {}
        for index in range(group.shape.queue_count):
            queue = parking_queue(group.shape.name, index)
            for message in group.broker.left_on(queue):
                entry = decode_entry(message)
                if isinstance(entry, ParkedMessage):
                    found.setdefault((queue, entry.lane), []).append(entry)
        return found

    async def unpark(self, group, share=1.0):
        session = group.broker.make_transport(f"operator-{self.unparked}")
        self.unparked += 1
        await session.open()
        for queue, lane in self.parked(group):
            if self.chance.random() < share:
                with contextlib.suppress(PublishRefused):
                    await session.send(encode_entry(UnparkAsked(lane), queue))
        await session.close()

    def deafen(self, group, share):
        """Each parking queue has its subscription or, with this chance, has it not."""
        for index in range(group.shape.queue_count):
            queue = parking_queue(group.shape.name, index)
            with contextlib.suppress(BrokerRefusal):
                group.broker.engine.remove_queue_subscription(DEFAULT_VPN, queue, queue)
            if self.chance.random() >= share:
                group.broker.engine.add_queue_subscription(DEFAULT_VPN, queue, queue)

    def mend(self, group):
        mend(group)
        self.failing = 0


@pytest.mark.parametrize("mode", ["cooperative", "cycle"])
@pytest.mark.parametrize("seed", [3, 5, 13, 20, 38])
async def test_parked_keys_survive_everything_in_order(seed, mode):
    await tell(Story(seed), seed, mode)


@pytest.mark.parametrize("mode", ["cooperative", "cycle"])
@pytest.mark.parametrize("seed", [1, 2, 7])
async def test_parked_keys_survive_everything_in_order_where_there_is_hardly_room(seed, mode):
    await tell(Story(seed), seed, mode, quota_bytes=KEPT_FOR_ORDERS_BYTES + 2 * FENCE_BYTES)


@pytest.mark.parametrize("mode", ["cooperative", "cycle"])
@pytest.mark.parametrize("seed", [1, 4, 9])
async def test_parked_keys_survive_everything_in_order_where_parking_queues_lose_what_is_confirmed(seed, mode):
    await tell(Story(seed), seed, mode, deaf_share=0.3)


@pytest.mark.parametrize("mode", ["cooperative", "cycle"])
@pytest.mark.parametrize("seed", [1, 4, 9])
async def test_parked_keys_survive_everything_in_order_where_parking_queues_are_slow(seed, mode, monkeypatch):
    """So slow that fences and copies are sent again although the first ones come."""
    story, chance, take, due_s = Story(seed), random.Random(seed), ParkingStay._take_event, {}

    def take_later(stay, event):
        loop = asyncio.get_running_loop()
        if isinstance(event, MessageReceived):
            # No two at the same time, as nobody says in which order a loop takes those.
            delay_s = chance.choice((0, 0, 0, 1, 12, 25)) if story.failing else 0
            due_s[stay] = max(due_s.get(stay, 0) + 0.001, loop.time() + delay_s)
            loop.call_at(due_s[stay], take, stay, event)
        else:
            take(stay, event)

    monkeypatch.setattr(ParkingStay, "_take_event", take_later)
    await tell(story, seed, mode, deaf_share=0.1)


async def tell(story, seed, mode, quota_bytes=None, deaf_share=0):
    settings = {"rebind": {"mode": mode, "interval": "10s"}, "failure": PARK}
    if mode == "cycle":
        settings["membership"] = {"mode": "static", "count": 3}
    async with running(story.handlers(), members=3, settings=settings, seed=seed) as group:
        if quota_bytes is not None:
            story.limit(group, quota_bytes)
        for _ in range(ROUNDS):
            await story.publish(group)
            await group.advance(story.chance.choice((0, 0.05, 0.5, 5, 20)))
            if story.chance.random() < 0.4 and group.broker.is_reachable:
                await story.unpark(group, 0.5)
                await group.advance(story.chance.choice((0, 0.01, 0.2)))
            await trouble(story.chance, group)
            if deaf_share:
                story.deafen(group, deaf_share)
        story.mend(group)
        if deaf_share:
            story.deafen(group, 0)
        if quota_bytes is not None:
            # What is not parked for want of room waits for what is.
            async with asyncio.timeout(3_600):
                while any(group.broker.depth(queue) for queue in group.shape.queue_names()):
                    await story.unpark(group)
                    await group.advance(20)
        await group.settled(within_s=600)
        while story.parked(group):
            await story.unpark(group)
            await group.advance(20)
            await group.settled(within_s=600)
        group.assert_handled(story.published)
        assert story.unparked

        def kinds():
            lots = [group.broker.left_on(parking_queue(group.shape.name, index)) for index in range(4)]
            return [{type(decode_entry(message)) for message in lot} for lot in lots]

        # What is slow may have orders to read that are done.
        await group.until(lambda: kinds() == [{OwnerFence}] * 4)
