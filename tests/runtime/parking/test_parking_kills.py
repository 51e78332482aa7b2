"""The owner of a parked key is killed after each step of a whole story: parked, followed, unparked, replayed.

A step is anything that leaves the member, or that it is told by the parking queue: a message sent, settlements sent, a
turn of the ledger. The story is told once for each of them, and the kill comes right behind it.
"""

import asyncio

import pytest

from lbg_runtime.broker.engine.engine import DEFAULT_VPN
from lbg_runtime.broker.engine.settings import QueueSettings
from lbg_runtime.core.parking.records import ParkedMessage, UnparkAsked, decode_entry, encode_entry, parking_queue
from lbg_runtime.model.errors import PublishRefused
from lbg_runtime.runtime.flow.runner import FlowRunner
from lbg_runtime.runtime.handlers.registry import Handlers
from lbg_runtime.runtime.parking.room import KEPT_FOR_ORDERS_BYTES
from lbg_runtime.runtime.parking.stay import ParkingStay
from lbg_runtime.testing import LifeState
from lbg_runtime.testing.group_context import running
from lbg_runtime.transport.memory.transport import MemoryTransport

SETTINGS = {
    "group": {"queue_count": 1, "hash_count": 4},
    "failure": {"attempts": 2, "then": "park", "backoff": {"initial": "10ms", "maximum": "1s"}},
}
COUNT = 6
MOST_STEPS = 200
FENCE_BYTES = 5
"""A memory broker counts payloads alone, and each message of the story has one byte."""


class Steps:
    """Counts the steps of the story, and kills whoever takes the one that is meant."""

    def __init__(self, monkeypatch):
        self.left, self.group = 0, None
        for kind, name in (
            (ParkingStay, "_obey"),
            (ParkingStay, "_settle_at_once"),
            (FlowRunner, "_settle"),
            (MemoryTransport, "send"),
        ):
            self._watch(monkeypatch, kind, name)

    def _watch(self, monkeypatch, kind, name):
        original = getattr(kind, name)

        def step(owner, *arguments):
            answer = original(owner, *arguments)
            self._take()
            return answer

        monkeypatch.setattr(kind, name, step)

    def _take(self):
        if self.group is None:
            return
        self.left -= 1
        if self.left == 0:
            asyncio.get_running_loop().call_soon(self._kill, self.group)

    def _kill(self, group):
        owner = group.owner("a")
        if owner is not None and group.members[owner] is LifeState.RUNNING:
            group.kill(owner)


def parked(group):
    entries = [decode_entry(message) for message in group.broker.left_on(parking_queue(group.shape.name, 0))]
    return [entry for entry in entries if isinstance(entry, ParkedMessage)]


async def unpark(group):
    session = group.broker.make_transport("operator")
    await session.open()
    while True:
        try:
            await session.send(encode_entry(UnparkAsked("key a"), parking_queue(group.shape.name, 0)))
        except PublishRefused:
            await asyncio.sleep(1)
        else:
            break
    await session.close()


async def tell(steps, kill_behind, quota_bytes):
    """The whole story; whether there was such a step."""
    is_mended = False
    handlers = Handlers()

    @handlers.handler("orders/>")
    async def handle(message):
        await asyncio.sleep(0.01)
        if message.key == "a" and message.key_sequence == 2 and not is_mended:
            raise ValueError("poison")

    payloads = [b"%d" % number for number in range(1, COUNT + 1)]
    async with running(handlers, members=2, settings=SETTINGS) as group:
        changed = QueueSettings(quota_bytes=quota_bytes)
        queue = parking_queue(group.shape.name, 0)
        group.broker.post(group.broker.engine.administration.change_queue(DEFAULT_VPN, queue, changed))
        steps.left, steps.group = kill_behind, group
        await group.publish("orders/new", *payloads[:4], key="a")
        await group.publish("orders/new", *payloads, key="b")
        await group.settled()
        is_mended = True
        await unpark(group)
        await group.publish("orders/new", *payloads[4:], key="a")
        # The order to unpark outlives the owner that has read it, so it is given once.
        await group.until(lambda: len({each.number for each in group.handled("a")}) == COUNT and not parked(group))
        await group.settled()
        was_taken, steps.group = steps.left <= 0, None
        group.assert_handled({"a": payloads, "b": payloads})
    return was_taken


@pytest.mark.parametrize("quota_bytes", [QueueSettings().quota_bytes, KEPT_FOR_ORDERS_BYTES + FENCE_BYTES + COUNT - 1])
async def test_a_kill_behind_any_step_loses_and_reorders_nothing(monkeypatch, quota_bytes):
    """With all the room that there can be, and with so little that no fence fits beside what is kept and parked."""
    steps = Steps(monkeypatch)
    for kill_behind in range(1, MOST_STEPS):
        if not await tell(steps, kill_behind, quota_bytes):
            break
    else:
        raise AssertionError("the story has no end")
    assert kill_behind > 30
