"""A parking queue at its quota: what is parked leaves room for the orders and fences that make it empty again."""

import asyncio
from itertools import pairwise

import pytest
from structlog.testing import capture_logs

from lbg_runtime.broker.engine.engine import DEFAULT_VPN
from lbg_runtime.broker.engine.settings import QueueSettings
from lbg_runtime.config.load import parse_settings
from lbg_runtime.core.parking.records import OwnerFence, RoomKept, decode_entry, parking_queue
from lbg_runtime.model.errors import PublishFailed, PublishRefused
from lbg_runtime.runtime.parking.reading import QUIET_S
from lbg_runtime.runtime.parking.room import (
    KEPT_FOR_FENCES_BYTES,
    KEPT_FOR_ORDERS_BYTES,
    LINGER_S,
    PAUSE_S,
    ParkingRoom,
    with_remedy,
)
from lbg_runtime.runtime.parking.view import ParkedView
from lbg_runtime.testing import LifeState
from lbg_runtime.testing.failures import LawsBroken
from lbg_runtime.testing.group_context import running
from lbg_runtime.transport.memory.transport import MemoryTransport
from tests.runtime.parking.poisoned import Poisoned, entries, parked, parking

SETTINGS = {
    "group": {"queue_count": 1, "hash_count": 4},
    "failure": {"attempts": 2, "then": "park", "backoff": {"initial": "10ms", "maximum": "1s"}},
}
QUEUE = parking_queue("orders", 0)

FENCE_BYTES = 5
"""A memory broker counts payloads alone."""


class Story(Poisoned):
    """And an operator."""

    async def ask(self, group, act):
        """What `lbg parked` does, as the operator."""
        session = group.broker.make_transport("operator")
        await session.open()
        group_settings = {"hash_prefix": "h", "name": group.shape.name, **SETTINGS["group"]}
        try:
            await act(ParkedView(session, parse_settings({"group": group_settings}, "test", {})))
        finally:
            await session.close()

    async def mend(self, group):
        self.is_mended = True
        await self.unpark(group)

    async def unpark(self, group):
        async def act(view):
            await view.unpark(await view.lanes())

        await self.ask(group, act)

    async def drop(self, group):
        async def act(view):
            await view.drop(await view.lanes())

        await self.ask(group, act)


def limit(group, quota_bytes):
    changed = QueueSettings(quota_bytes=quota_bytes)
    group.broker.post(group.broker.engine.administration.change_queue(DEFAULT_VPN, parking(group), changed))


def used_bytes(group):
    return sum(len(message.payload) for message in group.broker.left_on(parking(group)))


async def test_what_would_leave_no_room_for_an_order_waits_at_its_queue():
    story, payloads = Story(), [b"x" * 10_000, b"y" * 10_000, b"z" * (19_998 - FENCE_BYTES)]
    with capture_logs() as logs:
        async with running(story.handlers, settings=SETTINGS) as group:
            limit(group, 40_000)
            await group.publish("orders/new", *payloads, key="a")
            await group.publish("orders/new", b"1", key="b")
            await group.until(lambda: len(parked(group)) == 2 and bool(group.handled("b")))
            await group.advance(30)
            assert len(parked(group)) == 2
            assert used_bytes(group) == 20_000 + FENCE_BYTES, "what kept the room is gone when nothing is being parked"
            await story.mend(group)
            await group.settled()
            group.assert_handled({"a": payloads, "b": [b"1"]})
            assert [type(entry) for entry in entries(group)] == [OwnerFence]
    refused = [log["reason"] for log in logs if log["event"] == "move_failed"]
    assert all("Spool Over Quota: raise maxMsgSpoolUsage of queue lbg-parked/" in reason for reason in refused)
    assert refused


async def test_a_full_parking_queue_is_left_alone_long_enough_to_be_read(monkeypatch):
    story, sent_at_s = Story(), []
    send = MemoryTransport.send

    def note(transport, message):
        if message.topic == parking_queue("test", 0):
            sent_at_s.append(asyncio.get_running_loop().time())
        return send(transport, message)

    monkeypatch.setattr(MemoryTransport, "send", note)
    async with running(story.handlers, settings=SETTINGS) as group:
        limit(group, 40_000)
        await group.publish("orders/new", *[b"x" * 10_000] * 4, key="a")
        await group.until(lambda: len(parked(group)) == 2)
        await group.advance(5)
        sent_at_s.clear()
        await group.advance(60)
        pauses_s = [later - earlier for earlier, later in pairwise(sent_at_s)]
        assert pauses_s
        assert all(pause_s < 0.1 or pause_s > 2 * QUIET_S for pause_s in pauses_s)
        await story.mend(group)
        await group.settled()


async def test_a_full_parking_queue_can_be_emptied_by_dropping():
    story, payloads = Story(), [b"x" * 10_000, b"y" * 10_000, b"z" * (19_998 - FENCE_BYTES)]

    async def drop_what_is_parked():
        async with running(story.handlers, settings=SETTINGS) as group:
            limit(group, 40_000)
            await group.publish("orders/new", *payloads, key="a")
            await group.until(lambda: len(parked(group)) == 2)
            await story.drop(group)
            # The rest of the key is handled when nothing of it is parked any more.
            await group.until(lambda: [one.number for one in group.handled("a")] == [3])
            await group.until(lambda: [type(entry) for entry in entries(group)] == [OwnerFence])

    with pytest.raises(LawsBroken, match=r"loss, 2 times"):
        await drop_what_is_parked()


async def test_a_new_owner_of_a_full_parking_queue_handles_other_keys():
    story, payloads = Story(), [b"x" * 10_000, b"y" * 10_000, b"z" * (19_998 - FENCE_BYTES)]
    async with running(story.handlers, members=2, settings=SETTINGS) as group:
        limit(group, 40_000)
        await group.publish("orders/new", *payloads, key="a")
        await group.until(lambda: len(parked(group)) == 2)
        await group.advance(5)
        group.kill(group.owner("a"))
        await group.publish("orders/new", b"1", key="b")
        await group.until(lambda: bool(group.handled("b")))
        await story.mend(group)
        await group.settled()
        group.assert_handled({"a": payloads, "b": [b"1"]})


async def test_orders_that_nobody_reads_leave_room_for_the_fence_of_who_will():
    story, payloads = Story(), [b"x" * 10_000, b"y" * 10_000]
    refused = 0
    async with running(story.handlers, settings=SETTINGS) as group:
        limit(group, 40_000)
        await group.publish("orders/new", *payloads, key="a")
        await group.until(lambda: len(parked(group)) == 2)
        await group.advance(1)
        (member,) = group.members
        group.kill(member)
        for _ in range(100):
            try:
                await story.unpark(group)
            except PublishRefused as refusal:
                told = refusal
                refused += 1
        assert refused > 50
        assert "Spool Over Quota: raise maxMsgSpoolUsage of queue lbg-parked/" in str(told)
        story.is_mended = True
        group.start(member)
        await group.settled()
        await group.until(lambda: [type(entry) for entry in entries(group)] == [OwnerFence])
        group.assert_handled({"a": payloads})
        assert group.members[member] is LifeState.RUNNING


class Desk:
    """A session whose sends are answered by the test."""

    def __init__(self):
        self.sent = []
        self.answers = []
        self.settled = []
        self.room = ParkingRoom(QUEUE, self, self.settled.extend)

    def send(self, message):
        self.sent.append(decode_entry(message))
        self.answers.append(asyncio.get_running_loop().create_future())
        return self.answers[-1]

    async def park(self, parked):
        async with self.room.kept():
            self.sent.append("message")
            await parked


async def turn():
    """Everything that can go on has gone on."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_nothing_is_sent_before_the_filler_is_confirmed_and_all_that_is_parked_shares_it():
    desk, parked = Desk(), asyncio.get_running_loop().create_future()
    tasks = [asyncio.ensure_future(desk.park(parked)) for _ in range(2)]
    await turn()
    assert desk.sent == [RoomKept(KEPT_FOR_ORDERS_BYTES)]
    desk.answers[0].set_result(None)
    await turn()
    assert desk.sent[1:] == ["message", "message"]
    desk.room.take(7, KEPT_FOR_ORDERS_BYTES)
    parked.set_result(None)
    await asyncio.wait(tasks)
    assert desk.settled == []
    await desk.park(parked)
    assert len(desk.answers) == 1, "the next message comes soon enough to have the same one"
    await asyncio.sleep(LINGER_S)
    assert desk.settled == [7]


async def test_a_filler_of_somebody_else_is_settled_at_once():
    desk = Desk()
    desk.room.take(3, KEPT_FOR_ORDERS_BYTES)
    assert desk.settled == [3]


async def test_marks_of_readers_do_not_pile_up_while_a_key_is_never_idle():
    desk, parked = Desk(), asyncio.get_running_loop().create_future()
    task = asyncio.ensure_future(desk.park(parked))
    await turn()
    desk.answers[0].set_result(None)
    desk.room.take(7, KEPT_FOR_ORDERS_BYTES)
    desk.room.take(8, 1)
    assert desk.settled == [8], "while one is being parked"
    parked.set_result(None)
    await task
    for mark in range(9, 20):
        desk.room.take(mark, 1)
        assert desk.settled[-1] == mark, "between one message and the next"
        await asyncio.sleep(LINGER_S / 2)
        await desk.park(parked)
    assert len(desk.answers) == 1, "what keeps the room stays"
    await asyncio.sleep(LINGER_S)
    assert desk.settled == [*range(8, 20), 7]


@pytest.mark.parametrize("size_bytes", [1, KEPT_FOR_FENCES_BYTES])
async def test_a_mark_or_the_filler_of_an_order_does_not_stand_in_for_one_that_may_lie_nowhere(size_bytes):
    desk, parked = Desk(), asyncio.get_running_loop().create_future()
    tasks = [asyncio.ensure_future(desk.park(parked))]
    await turn()
    desk.answers[0].set_result(None)
    desk.room.take(5, size_bytes)
    desk.room.doubt()
    tasks.append(asyncio.ensure_future(desk.park(parked)))
    await turn()
    assert len(desk.answers) == 2
    desk.answers[1].set_result(None)
    parked.set_result(None)
    await asyncio.wait(tasks)


async def test_a_filler_that_comes_behind_the_end_of_parking_is_settled_and_not_relied_on():
    desk, parked = Desk(), asyncio.get_running_loop().create_future()
    parked.set_result(None)
    task = asyncio.ensure_future(desk.park(parked))
    await turn()
    desk.answers[0].set_result(None)
    await task
    await asyncio.sleep(LINGER_S)
    desk.room.take(3, KEPT_FOR_ORDERS_BYTES)
    assert desk.settled == [3]
    task = asyncio.ensure_future(desk.park(parked))
    await turn()
    assert len(desk.answers) == 2
    desk.answers[1].set_result(None)
    await task


async def test_what_is_on_its_way_when_the_queue_is_given_up_leaves_the_filler_to_the_next_owner():
    """It was settled some time later, on a handle that was gone by then."""
    desk, parked = Desk(), asyncio.get_running_loop().create_future()
    task = asyncio.ensure_future(desk.park(parked))
    await turn()
    desk.answers[0].set_result(None)
    desk.room.take(3, KEPT_FOR_ORDERS_BYTES)
    await turn()
    desk.room.end()
    task.cancel()
    await asyncio.wait([task])
    await asyncio.sleep(2 * LINGER_S)
    assert desk.settled == []


async def test_a_filler_that_may_lie_nowhere_is_not_relied_on():
    desk, parked = Desk(), asyncio.get_running_loop().create_future()
    tasks = [asyncio.ensure_future(desk.park(parked))]
    await turn()
    desk.answers[0].set_result(None)
    await turn()
    desk.room.doubt()
    tasks.append(asyncio.ensure_future(desk.park(parked)))
    await turn()
    assert len(desk.answers) == 2
    desk.answers[1].set_result(None)
    desk.room.take(7, KEPT_FOR_ORDERS_BYTES)
    desk.room.doubt()
    tasks.append(asyncio.ensure_future(desk.park(parked)))
    await turn()
    assert len(desk.answers) == 2, "one lies there for certain"
    desk.room.take(8, KEPT_FOR_ORDERS_BYTES)
    parked.set_result(None)
    await asyncio.wait(tasks)
    await asyncio.sleep(LINGER_S)
    assert desk.settled == [7, 8]


async def test_a_filler_without_room_is_a_refusal_and_nothing_is_tried_for_a_while():
    desk, parked = Desk(), asyncio.get_running_loop().create_future()
    task = asyncio.ensure_future(desk.park(parked))
    await turn()
    desk.answers[0].set_exception(PublishRefused(QUEUE, "Spool Over Quota"))
    with pytest.raises(PublishRefused, match="Over Quota"):
        await task
    with pytest.raises(PublishRefused, match="Over Quota"):
        await desk.park(parked)
    assert desk.sent == [RoomKept(KEPT_FOR_ORDERS_BYTES)]
    await asyncio.sleep(PAUSE_S)
    task = asyncio.ensure_future(desk.park(parked))
    await turn()
    assert len(desk.answers) == 2
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_the_filler_stays_while_anything_is_being_parked_and_a_little_longer():
    desk, loop = Desk(), asyncio.get_running_loop()
    first, second = loop.create_future(), loop.create_future()
    tasks = [asyncio.ensure_future(desk.park(parked)) for parked in (first, second)]
    await turn()
    desk.answers[0].set_result(None)
    for filler, size_bytes in ((4, KEPT_FOR_FENCES_BYTES), (5, KEPT_FOR_ORDERS_BYTES)):
        desk.room.take(filler, size_bytes)
    first.set_result(None)
    await asyncio.sleep(2 * LINGER_S)
    assert desk.settled == []
    desk.room.doubt()
    second.set_result(None)
    await asyncio.wait(tasks)
    await asyncio.sleep(LINGER_S / 2)
    desk.room.take(6, KEPT_FOR_ORDERS_BYTES)
    await desk.park(second)
    assert (len(desk.answers), desk.settled) == (1, [])
    await asyncio.sleep(LINGER_S)
    assert desk.settled == [4, 5, 6]
    desk.room.take(7, KEPT_FOR_ORDERS_BYTES)
    assert desk.settled == [4, 5, 6, 7], "each once"


async def test_a_filler_that_only_lingers_is_settled_as_the_queue_is_given_up():
    desk, parked = Desk(), asyncio.get_running_loop().create_future()
    parked.set_result(None)
    task = asyncio.ensure_future(desk.park(parked))
    await turn()
    desk.answers[0].set_result(None)
    desk.room.take(3, KEPT_FOR_ORDERS_BYTES)
    await task
    desk.room.end()
    assert desk.settled == [3]
    desk.room.take(4, 1)
    await asyncio.sleep(2 * LINGER_S)
    assert desk.settled == [3, 4]


async def test_a_filler_that_is_refused_for_another_reason_is_tried_again_at_once_and_names_no_quota():
    desk, parked = Desk(), asyncio.get_running_loop().create_future()
    for number in range(2):
        task = asyncio.ensure_future(desk.park(parked))
        await turn()
        desk.answers[number].set_exception(PublishRefused(QUEUE, "Publish ACL Denied"))
        with pytest.raises(PublishRefused, match="ACL Denied"):
            await task
    assert len(desk.answers) == 2
    for error in (PublishRefused(QUEUE, "Publish ACL Denied"), PublishFailed(QUEUE, "over quota")):
        assert with_remedy(error) is error
