"""A parking queue that is fed all the time: whoever reads it comes to an end, and knows what was there."""

import asyncio

import pytest

from lbg_runtime.config.load import parse_settings
from lbg_runtime.core.parking.records import ParkedMessage, RoomKept, decode_entry, parking_queue
from lbg_runtime.model.errors import BindFailed, PublishRefused, TransportError
from lbg_runtime.model.message import Message
from lbg_runtime.runtime.parking.reading import FIRST_MARK_S, LONGEST_S, QUIET_S, read_parking_queue
from lbg_runtime.runtime.parking.view import READ_AT_ONCE, ParkedView
from lbg_runtime.testing.group_context import running
from lbg_runtime.transport.memory.broker import MemoryBroker
from lbg_runtime.transport.memory.transport import MemoryTransport
from tests.runtime.parking.poisoned import Poisoned, entries, parked, parking

PARK = {
    "group": {"queue_count": 1, "hash_count": 4},
    "failure": {"attempts": 1, "then": "park", "backoff": {"initial": "10ms", "maximum": "1s"}},
}
QUEUE = parking_queue("orders", 0)
SETTINGS = parse_settings({"group": {"hash_prefix": "h", "name": "orders", **PARK["group"]}}, "test", {})
FEED_S = QUIET_S / 4


class Watched(MemoryTransport):
    """Knows which marks were sent."""

    def __init__(self, broker, *, refusal=None, lose=0):
        """`refusal`: why nothing can be published. `lose`: so many marks are gone before anybody can see them."""
        super().__init__(broker, "operator")
        self.refusal, self.lose, self.marked_s = refusal, lose, []

    def send(self, message):
        assert isinstance(decode_entry(message), RoomKept)
        self.marked_s.append(asyncio.get_running_loop().time())
        if self.refusal is None and len(self.marked_s) > self.lose:
            return super().send(message)
        done = asyncio.get_running_loop().create_future()
        if self.refusal is None:
            done.set_result(None)
        else:
            done.set_exception(PublishRefused(message.topic, self.refusal))
        return done


@pytest.fixture
def broker():
    made = MemoryBroker()
    made.create_queue(QUEUE, (QUEUE,))
    return made


@pytest.fixture
async def publisher(broker):
    session = MemoryTransport(broker, "publisher")
    await session.open()
    yield session
    await session.close()


async def send(publisher, *payloads):
    for payload in payloads:
        await publisher.send(Message(QUEUE, payload))


async def read(publisher, reader, *, is_fed):
    """Read the queue, which is fed with c, d and so on more often than any pause."""

    async def feed():
        while True:
            await asyncio.sleep(FEED_S)
            await send(publisher, b"more")

    await reader.open()
    began_s = asyncio.get_running_loop().time()
    async with asyncio.TaskGroup() as tasks:
        feeding = tasks.create_task(feed()) if is_fed else None
        async with asyncio.timeout(2 * LONGEST_S):
            contents = await read_parking_queue(reader, QUEUE)
        took_s = asyncio.get_running_loop().time() - began_s
        if feeding is not None:
            feeding.cancel()
    await reader.close()
    return contents, took_s


async def test_traffic_does_not_put_off_the_end(broker, publisher):
    await send(publisher, b"a", b"b")
    contents, took_s = await read(publisher, Watched(broker), is_fed=True)
    assert [each.payload for each in contents.messages[:3]] == [b"a", b"b", b"more"]
    assert (contents.cut, took_s < FIRST_MARK_S + QUIET_S) == ("", True)


async def test_a_mark_that_the_owner_was_quicker_to_settle_is_followed_by_another(broker, publisher):
    await send(publisher, b"a")
    reader = Watched(broker, lose=2)
    contents, _ = await read(publisher, reader, is_fed=True)
    assert (contents.cut, len(reader.marked_s)) == ("", 3)


async def test_where_there_is_a_pause_nothing_is_put_into_the_queue(broker, publisher):
    await send(publisher, b"a", b"b")
    reader = Watched(broker)
    contents, took_s = await read(publisher, reader, is_fed=False)
    assert ([each.payload for each in contents.messages], contents.cut) == ([b"a", b"b"], "")
    assert (reader.marked_s, took_s) == ([], pytest.approx(QUIET_S))


async def test_a_mark_that_an_earlier_reading_left_is_no_end(broker, publisher):
    await read(publisher, Watched(broker), is_fed=True)
    await send(publisher, b"z")
    contents, _ = await read(publisher, Watched(broker), is_fed=False)
    assert contents.messages[-1].payload == b"z"


@pytest.mark.parametrize(
    ("refusal", "why"),
    [("no right", f"cannot publish to {QUEUE}: no right"), (None, "a mark put there has not come")],
)
async def test_where_the_end_cannot_be_marked_the_reading_is_cut_and_says_so(broker, publisher, refusal, why):
    await send(publisher, b"a")
    reader = Watched(broker, refusal=refusal, lose=99)
    contents, took_s = await read(publisher, reader, is_fed=True)
    assert contents.cut == f"{QUEUE} is fed all the time, and was read for {LONGEST_S:g} s without an end: {why}"
    assert took_s < LONGEST_S + QUIET_S
    assert contents.messages[0].payload == b"a"
    assert len(reader.marked_s) < 8, "where nobody settles them, few are left"


async def test_what_was_cut_is_told_by_the_view(broker, publisher, monkeypatch):
    monkeypatch.setattr("lbg_runtime.runtime.parking.reading.LONGEST_S", 5.0)
    reader = Watched(broker, lose=99)
    await reader.open()
    feeding = asyncio.create_task(_feed(publisher))
    view = ParkedView(reader, SETTINGS)
    assert [lane.messages for lane in await view.lanes()] == [()]
    cut, stray = view.unread
    assert cut.what.startswith(f"{QUEUE} is fed all the time")
    assert stray.what.startswith(f"{QUEUE}: this version cannot read"), "all that is fed there, once"
    feeding.cancel()
    await reader.close()


async def test_the_queues_of_a_group_are_read_side_by_side():
    broker, count = MemoryBroker(), 3 * READ_AT_ONCE
    for index in range(count):
        broker.create_queue(parking_queue("orders", index), (parking_queue("orders", index),))
    reader = MemoryTransport(broker, "operator")
    await reader.open()
    group = {"hash_prefix": "h", "name": "orders", "queue_count": count, "hash_count": count}
    view = ParkedView(reader, parse_settings({"group": group}, "test", {}))
    began_s = asyncio.get_running_loop().time()
    assert (await view.lanes(), view.unread) == ([], [])
    assert asyncio.get_running_loop().time() - began_s == pytest.approx(3 * QUIET_S)
    await reader.close()


async def _feed(publisher):
    while True:
        await asyncio.sleep(FEED_S)
        await send(publisher, b"more")


async def test_a_queue_that_cannot_be_read_is_told_as_itself():
    reader = MemoryTransport(MemoryBroker(), "operator")
    await reader.open()
    with pytest.raises(TransportError, match="Unknown Queue"):
        await read_parking_queue(reader, QUEUE)
    await reader.close()


class Shut:
    """A session that may not read these queues; if it is `silent`, not even whether they are there is known."""

    def __init__(self, *indices, silent=False):
        self.queues = [parking_queue("orders", index) for index in indices]
        self.silent = silent

    async def has_queue(self, queue):
        if self.silent and queue == QUEUE:
            raise BindFailed(queue, "Timed Out")
        return queue in self.queues

    async def browse(self, queue, quiet_s, is_last):
        raise BindFailed(queue, "Permission Not Allowed" if queue in self.queues else "Unknown Queue")


@pytest.mark.parametrize(
    ("session", "what"),
    [
        (Shut(0), f"{QUEUE}: Permission Not Allowed"),
        (Shut(), "group orders has no parking queues"),
        (Shut(silent=True), f"{QUEUE}: Unknown Queue"),
    ],
)
async def test_what_cannot_be_read_is_told_at_each_look_and_not_more_than_that(session, what):
    view = ParkedView(session, SETTINGS)
    for _ in range(2):
        assert await view.lanes() == []
        (unread,) = view.unread
        assert what in unread.what


async def test_a_queue_beyond_those_of_the_settings_that_cannot_be_read_is_no_end():
    with pytest.raises(BindFailed, match="orders/1"):
        await ParkedView(Shut(0, 1), SETTINGS).lanes()


async def test_a_key_goes_on_while_its_publisher_does():
    story = Poisoned()
    async with running(story.handlers, settings=PARK) as group:
        await group.publish("orders/new", b"1", b"2", key="a")
        await group.until(lambda: len(parked(group)) == 2)
        publishing = asyncio.create_task(_publish(group))
        session = group.broker.make_transport("operator")
        await session.open()
        settings = parse_settings({"group": {"hash_prefix": "h", "name": group.shape.name, **PARK["group"]}}, "t", {})
        view = ParkedView(session, settings)
        async with asyncio.timeout(60):
            (lane,) = await view.lanes()
        assert (lane.lane, len(lane.messages) >= 2, view.unread) == ("key a", True, [])
        story.is_mended = True
        async with asyncio.timeout(60):
            await view.unpark(await view.lanes())
        await group.until(lambda: len(group.handled("a")) > 5)
        publishing.cancel()
        await group.until(lambda: not any(isinstance(entry, ParkedMessage) for entry in entries(group)))
        await session.close()
        await group.settled()
        await group.until(lambda: len(group.broker.left_on(parking(group))) == 1, within_s=60)


async def _publish(group):
    while True:
        await asyncio.sleep(FEED_S)
        await group.publish("orders/new", b"more", key="a")
