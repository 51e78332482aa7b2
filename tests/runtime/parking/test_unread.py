"""Whole members and parking queues with something that they cannot read: nothing newer passes it until it is gone."""

import asyncio
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from lbg_runtime.core.parking.records import (
    ATTEMPTS_PROPERTY,
    KIND_PROPERTY,
    LANE_PROPERTY,
    UNREAD_LANE,
    DropAsked,
    OwnerFence,
    ParkedMessage,
    ParkingOwner,
    UnparkAsked,
    UnreadEntry,
    decode_entry,
    encode_entry,
    parking_queue,
)
from lbg_runtime.model.message import KEY_SEQUENCE_PROPERTY, PARTITION_KEY_PROPERTY, PUBLISHER_PROPERTY, Message
from lbg_runtime.runtime.handlers.registry import Handlers
from lbg_runtime.runtime.parking.fence import FENCE_PATIENCE_S
from lbg_runtime.testing.group_context import running
from lbg_runtime.transport.memory.transport import MemoryTransport
from tests.runtime.parking.poisoned import entries, parking
from tests.runtime.test_member_status import shown

__all__ = ["shown"]

PARK = {"failure": {"attempts": 1, "then": "park"}, "ops": {"status": "127.0.0.1:0"}}
PARKING = parking_queue("orders", 1)
LATER = Message(PARKING, b"x", {KIND_PROPERTY: "later"})


class Work:
    """Refuses one key until it is mended."""

    is_mended = False

    async def __call__(self, message):
        if message.key == "k1" and not self.is_mended:
            raise ValueError("no")


async def put(trial, *messages):
    session = MemoryTransport(trial.broker, "stranger")
    await session.open()
    for message in messages:
        await session.send(message)
    await session.close()


async def lying(trial):
    session = MemoryTransport(trial.broker, "reader")
    await session.open()
    found = await session.browse(PARKING, 0)
    await session.close()
    return found


async def ready(trial):
    await trial.until_fed()
    await asyncio.sleep(1)


def flow_of(shown, name="member-0"):
    return next(flow for flow in shown[name].picture().flows if flow.queue == "orders/1")


async def rewrite(trial, **properties):
    """Put the first parked message there as another version might have written it, and the rest as it is."""
    found = await lying(trial)
    first = next(place for place, each in enumerate(found) if isinstance(decode_entry(each), ParkedMessage))
    found[first] = replace(found[first], properties={**found[first].properties, **properties})
    trial.broker.post(trial.broker.engine.administration.delete_messages("default", PARKING))
    await put(trial, *found)


async def park_as_a_later_version(trial):
    """A fence that can be read, one that cannot, and what the owner of that one has parked."""
    trial.broker.create_queue(PARKING, [PARKING])
    later = ParkingOwner(7, "later")
    stamps = {PARTITION_KEY_PROPERTY: "k1", PUBLISHER_PROPERTY: "p", KEY_SEQUENCE_PROPERTY: 1}
    parked = ParkedMessage("key k1", later, 8, Message("h/1/orders/new", b"x", stamps), 1, "e", "s", "m", 5)
    fence = Message(PARKING, b"f", {KIND_PROPERTY: "fence2", "lbg_parked_owner": str(later)})
    await put(trial, encode_entry(OwnerFence(ParkingOwner(5, "old")), PARKING), fence, encode_entry(parked, PARKING))


async def park_some(trial, work):
    """Leave three messages of one key in the parking queue, and no member."""
    async with trial.running(trial.member(work=work, **PARK)):
        await ready(trial)
        await trial.publish(12)
        await trial.until(lambda: trial.group_depth() == 0)
    work.is_mended = True


@pytest.mark.parametrize("is_dropped_alone", [True, False])
async def test_nothing_of_a_key_passes_what_cannot_be_read_of_it(trial, shown, *, is_dropped_alone):
    work = Work()
    await park_some(trial, work)
    await rewrite(trial, **{ATTEMPTS_PROPERTY: "1"})
    (unread,) = [entry for entry in map(decode_entry, await lying(trial)) if isinstance(entry, UnreadEntry)]
    assert unread.lane == "key k1"
    await put(trial, encode_entry(UnparkAsked("key k1"), PARKING))
    with capture_logs() as logs:
        async with trial.running(trial.member(work=work, **PARK)):
            await ready(trial)
            await trial.publish(8)
            await trial.until(lambda: trial.group_depth() == 0)
            await asyncio.sleep(5)
            assert "k1" not in trial.sequences()
            parking = shown["member-0"].reading().parking
            assert (parking.keys, parking.messages) == (1, 5)
            only = unread.only if is_dropped_alone else None
            await put(trial, encode_entry(DropAsked("key k1", only), PARKING))
            if is_dropped_alone:
                await trial.until(lambda: trial.sequences().get("k1") == [2, 3, 4, 5])
            await trial.publish(4)
            await trial.until(lambda: trial.sequences().get("k1", [])[-1:] == [6])
    assert trial.sequences()["k1"] == ([2, 3, 4, 5, 6] if is_dropped_alone else [6])
    (kept,) = [log for log in logs if log["event"] == "parking_entry_kept"]
    assert (kept["parking"], kept["lane"], kept["is_ours"]) == (PARKING, "key k1", True)
    assert kept["reason"] == "lbg_parked_attempts '1'"
    assert len(await lying(trial)) == 1, "its fence"


async def test_nothing_of_a_queue_is_handled_behind_what_says_no_key(trial, shown):
    work = Work()
    await park_some(trial, work)
    await rewrite(trial, **{LANE_PROPERTY: 1})
    await trial.publish(8)
    with capture_logs() as logs:
        async with trial.running(trial.member(work=work, **PARK)):
            await trial.until(lambda: trial.depths() == [0, 2, 0, 0])
            await asyncio.sleep(3 * FENCE_PATIENCE_S)
            assert "k1" not in trial.sequences()
            reason = "something lies there that this version cannot read (lbg_parked_lane 1): see `lbg parked list`"
            assert flow_of(shown).parking_wait.reason == reason
            await put(trial, encode_entry(DropAsked(UNREAD_LANE), PARKING))
            await trial.until(lambda: flow_of(shown).parking_wait is None)
            await put(trial, encode_entry(UnparkAsked("key k1"), PARKING))
            await trial.until(lambda: trial.sequences().get("k1") == [2, 3, 4, 5])
    told = [log["event"] for log in logs]
    assert told.count("parking_entry_kept") == 1
    assert "parking_queue_silent" not in told, "its fence has come"


async def test_a_queue_is_given_up_when_something_comes_that_says_no_key(trial, shown):
    async with trial.running(trial.member(work=Work(), **PARK)):
        await ready(trial)
        await trial.publish(12)
        await trial.until(lambda: trial.group_depth() == 0)
        await put(trial, LATER)
        await trial.until(lambda: flow_of(shown).parking_wait is not None)
        await trial.publish(4)
        await trial.until(lambda: trial.depths() == [0, 1, 0, 0])
        await asyncio.sleep(5)
        assert trial.depths() == [0, 1, 0, 0]
        assert "(lbg_parking 'later')" in flow_of(shown).parking_wait.reason
        await put(trial, encode_entry(DropAsked(UNREAD_LANE), PARKING))
        await trial.until(lambda: trial.group_depth() == 0)
    parked = [entry for entry in map(decode_entry, await lying(trial)) if isinstance(entry, ParkedMessage)]
    assert [entry.original.key_sequence for entry in parked] == [1, 2, 3, 4]


async def test_what_lies_behind_an_unread_fence_stays_for_who_can_read_it(trial):
    """Its owner may have parked it, and settled the original."""
    await park_as_a_later_version(trial)
    async with trial.running(trial.member(work=Work(), **PARK)):
        await asyncio.sleep(3 * FENCE_PATIENCE_S)
    left = [decode_entry(each) for each in await lying(trial)]
    assert [type(each) for each in left[:3]] == [OwnerFence, UnreadEntry, ParkedMessage]


async def test_what_could_be_read_behind_a_fence_that_is_dropped_stays_parked(trial):
    """Its owner parks only behind its own fence, so it is itself the proof that there was one."""
    await park_as_a_later_version(trial)
    async with trial.running(trial.member(work=Work(), **PARK)):
        await asyncio.sleep(5)
        await put(trial, encode_entry(DropAsked(UNREAD_LANE), PARKING))
        await asyncio.sleep(5)
    async with trial.running(trial.member(work=Work(), **PARK)):
        await asyncio.sleep(5)
    assert ParkedMessage in [type(decode_entry(each)) for each in await lying(trial)]


async def test_nothing_is_parked_on_the_strength_of_a_drop_that_the_broker_does_not_have():
    """A kill in between would leave the fence, by which a later version judges what was parked since."""
    is_mended = False
    handlers = Handlers()

    @handlers.handler("orders/>")
    async def handle(message):
        if not is_mended:
            raise ValueError("poison")

    settings = {"group": {"queue_count": 1, "hash_count": 4}, "failure": {"attempts": 1, "then": "park"}}
    async with running(handlers, members=1, settings=settings) as group:
        queue, operator = parking(group), group.broker.make_transport("operator")
        await operator.open()
        ahead = ParkingOwner(1 << 60, "ahead")
        await operator.send(Message(queue, b"f", {KIND_PROPERTY: "fence2", "lbg_parked_owner": str(ahead)}))
        await group.advance(3)
        await group.publish("orders/new", b"1", b"2", b"3", key="a")
        await group.advance(3)
        await operator.send(encode_entry(DropAsked(UNREAD_LANE), queue))
        while any(isinstance(each, UnreadEntry) for each in entries(group)):
            assert group.broker.depth(group.shape.queue_name(0)) == 3
            await group.advance(0.01)
        await group.until(lambda: group.broker.depth(group.shape.queue_name(0)) == 0)
        await operator.close()
        is_mended = True
        await group.unpark("a")
        await group.advance(5)
