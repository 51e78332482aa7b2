"""A connection without a socket, on virtual time: silence, slow readers, ends."""

import asyncio
import zlib
from collections.abc import Callable
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from lbg_runtime.broker.engine.effects import ClientId, DeliverRun, FlowId, Published
from lbg_runtime.broker.engine.engine import Engine
from lbg_runtime.broker.server.connection import LOGIN_TIMEOUT_S, NO_TROUBLE, Connection, Trouble
from lbg_runtime.broker.server.session import Session
from lbg_runtime.model.ids import DeliveryId
from lbg_runtime.smf.frame import Frame, Parameter, ParameterKind, Protocol, encode_frame
from lbg_runtime.smf.message import make_relay

KEEP_ALIVE = bytes.fromhex("038b00010000000c0000000c")
KEEP_ALIVE_ANSWER = bytes.fromhex("038b00ff0000000c0000000c")
# Client name "cl-1", VPN "default", a keep-alive interval of 3 s.
LOGIN = bytes.fromhex(
    "038c0001 0000000c 00000032 8100 00000026 050000000a 636c2d3100 860000000d 64656661756c7400 1800000009 00000003"
)
# The same, to be compressed within its TLS from then on: both of the vendor's clients ask for it so.
LOGIN_TO_COMPRESS = bytes.fromhex(
    "038c0001 0000000c 00000038 8100 0000002c 050000000a 636c2d3100 860000000d 64656661756c7400 9500000006 02"
    "1800000009 00000003"
)


class Wire(asyncio.Transport):
    """A transport that keeps what is written, until it is told that the peer reads no more."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 4711)})
        self.written: list[bytes] = []
        self.reading = True
        self.closing = False
        self.aborted = False
        self.on_write: Callable[[], None] = lambda: None

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))
        self.on_write()

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = True
        self.aborted = True


class Owner:
    """Flushes at once, as the server does at the end of a turn."""

    def __init__(self) -> None:
        self.lost_count = 0

    def opened(self, connection: Connection) -> None:
        pass

    def written_to(self, connection: Connection) -> None:
        connection.flush()

    def lost(self, connection: Connection) -> None:
        self.lost_count += 1


def connect() -> tuple[Connection, Wire]:
    engine = Engine()

    def make_session(connection: Connection) -> Session:
        return Session(engine, lambda effects: None, lambda client: None, "anonymous")

    connection, wire = Connection(Owner(), make_session), Wire()
    connection.connection_made(wire)
    return connection, wire


def logged_in() -> tuple[Connection, Wire]:
    connection, wire = connect()
    connection.data_received(LOGIN)
    return connection, wire


def delivery(number: int, size: int = 1000) -> DeliverRun:
    relay = make_relay("a/b", bytes(size))
    message = Published("a/b", relay, relay.size_bytes)
    return DeliverRun(ClientId(1), FlowId(2), DeliveryId(number), DeliveryId(number - 1), (message,), redelivered=False)


async def test_a_connection_without_a_login_is_dropped_in_time() -> None:
    _, wire = connect()
    await asyncio.sleep(LOGIN_TIMEOUT_S - 0.1)
    assert not wire.aborted
    with capture_logs() as logs:
        await asyncio.sleep(0.2)
    assert wire.aborted
    assert [(log["event"], log["reason"]) for log in logs] == [("peer_dropped", "no login in time")]


async def test_a_client_that_falls_silent_is_dropped_after_three_intervals() -> None:
    connection, wire = logged_in()
    for _ in range(10):
        await asyncio.sleep(3)
        connection.data_received(KEEP_ALIVE)
    await asyncio.sleep(9)
    assert not wire.aborted
    await asyncio.sleep(2)
    assert wire.aborted


@pytest.mark.parametrize("is_logged_in", [False, True])
async def test_a_turn_of_the_loop_that_takes_very_long_is_no_silence(
    is_logged_in: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, wire = connect()
    if is_logged_in:
        connection.data_received(LOGIN)
    loop = asyncio.get_running_loop()
    time, looked = loop.time, asyncio.Event()
    monkeypatch.setattr(loop, "time", lambda: time() + 1_000)
    # Like uvloop: what is due comes before what has arrived.
    loop.call_later(-1, looked.set)
    await looked.wait()
    connection.data_received(KEEP_ALIVE if is_logged_in else LOGIN)
    await asyncio.sleep(3)
    assert not wire.aborted


async def test_a_client_that_is_silent_from_its_login_on_is_dropped() -> None:
    _, wire = logged_in()
    await asyncio.sleep(10.4)
    assert not wire.aborted
    await asyncio.sleep(3)
    assert wire.aborted


async def test_a_client_that_promised_no_signs_of_life_may_be_silent() -> None:
    connection, wire = connect()
    connection.data_received(LOGIN.removesuffix(bytes.fromhex("00000003")) + bytes(4))
    await asyncio.sleep(100_000)
    assert not wire.closing


async def test_bytes_that_are_not_the_protocol_end_the_connection_with_one_line() -> None:
    connection, wire = logged_in()
    with capture_logs() as logs:
        connection.data_received(b"GET / HTTP/1.1\r\n\r\n")
    assert wire.aborted
    (line,) = logs
    assert line == {
        "event": "peer_dropped",
        "log_level": "warning",
        "peer": "127.0.0.1:4711",
        "client_name": "cl-1",
        "reason": "version 7 where 3 is spoken",
        "offset": 0,
    }


async def test_deliveries_wait_unwritten_while_the_peer_does_not_read() -> None:
    connection, wire = logged_in()
    wire.written.clear()
    wire.on_write = connection.pause_writing
    for number in range(1, 2001):
        connection.session.apply([delivery(number)])
    connection.flush()
    connection.flush()
    assert len(wire.written) == 1
    assert len(wire.written[0]) < 300_000
    wire.on_write = lambda: None
    connection.resume_writing()
    assert sum(map(len, wire.written)) == 2000 * (12 + 29 + 9 + 1000)


async def test_what_a_fault_keeps_back_is_kept_back_at_once_and_comes_as_soon_as_it_is_over() -> None:
    connection, wire = logged_in()
    for number, trouble in enumerate((Trouble(is_stalled=True), Trouble(stops_egress=True)), 1):
        wire.written.clear()
        connection.suffer(trouble)
        assert wire.reading is not trouble.is_stalled
        connection.session.apply([delivery(number)])
        connection.flush()
        assert wire.written == []
        connection.suffer(NO_TROUBLE)
        assert wire.reading
        assert len(b"".join(wire.written)) == 12 + 29 + 9 + 1000


async def test_what_is_written_keeps_its_order_when_a_delay_ends_and_the_end_comes_last() -> None:
    connection, wire = logged_in()
    wire.written.clear()
    wire.on_write = lambda: closing.append(wire.closing)
    closing: list[bool] = []
    connection.suffer(Trouble(delay_ms=100))
    for number in range(1, 51):
        connection.session.apply([delivery(number, size=number)])
        connection.flush()
        connection.suffer(NO_TROUBLE)
    connection.session.end_reason = "for a test"
    connection.flush()
    assert wire.written == []
    await asyncio.sleep(0.2)
    assert [len(data) for data in wire.written] == sorted(len(data) for data in wire.written)
    assert closing == [False] * 50
    assert wire.closing


@pytest.mark.parametrize("is_told", [False, True])
async def test_what_is_delayed_is_not_written_to_a_connection_that_is_cut_meanwhile(is_told: bool) -> None:
    """uvloop raised, once for each write."""
    connection, wire = logged_in()
    wire.written.clear()
    connection.suffer(Trouble(delay_ms=100))
    connection.session.apply([delivery(1)])
    connection.flush()
    connection.abort()
    if is_told:
        connection.connection_lost(None)
    await asyncio.sleep(1)
    assert wire.written == []


async def test_what_is_written_does_not_overtake_what_is_due_but_not_yet_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connection, wire = logged_in()
    wire.written.clear()
    connection.suffer(Trouble(delay_ms=100))
    connection.session.apply([delivery(1, size=1)])
    connection.flush()
    connection.suffer(NO_TROUBLE)
    loop = asyncio.get_running_loop()
    time = loop.time
    # A turn of the loop that takes long.
    monkeypatch.setattr(loop, "time", lambda: time() + 1)
    connection.session.apply([delivery(2, size=2)])
    connection.flush()
    monkeypatch.undo()
    await asyncio.sleep(2)
    assert len(wire.written[0]) < len(wire.written[1])


async def test_a_client_that_asks_and_does_not_read_is_not_read_either() -> None:
    connection, wire = logged_in()
    connection.pause_writing()
    for _ in range(10):
        connection.data_received(KEEP_ALIVE * 10_000)
    assert not wire.reading
    connection.resume_writing()
    assert wire.reading


async def test_a_client_that_acknowledges_what_it_does_not_read_is_not_read_either() -> None:
    connection, wire = logged_in()
    connection.pause_writing()
    one = delivery(1, size=0)
    connection.session.apply([replace(one, messages=one.messages * 100_001)])
    connection.flush()
    assert not wire.reading
    connection.resume_writing()
    assert wire.reading


async def test_a_refused_client_is_told_and_then_closed_even_if_it_does_not_read() -> None:
    connection, wire = connect()
    connection.data_received(LOGIN.replace(b"default", b"nowhere"))
    assert b"Message VPN Not Allowed" in wire.written[0]
    assert wire.closing
    assert not wire.aborted
    await asyncio.sleep(10)
    assert wire.aborted


async def test_nothing_is_left_running_after_the_end() -> None:
    connection, _ = connect()
    with capture_logs() as logs:
        connection.connection_lost(None)
        connection.data_received(LOGIN)
        connection.flush()
        before = asyncio.get_running_loop().time()
        await asyncio.sleep(60)
    assert asyncio.get_running_loop().time() - before == pytest.approx(60)
    assert logs == []


async def test_a_flood_of_messages_is_taken_in_turns_and_is_no_silence() -> None:
    connection, wire = connect()
    message = encode_frame(Frame(Protocol.MESSAGE, (Parameter(ParameterKind.TOPIC, b"a\0", mark=2),)))
    connection.data_received(LOGIN + message * 5_000 + KEEP_ALIVE)
    assert not wire.reading
    assert KEEP_ALIVE_ANSWER not in b"".join(wire.written)
    await asyncio.sleep(1)
    assert wire.reading
    assert wire.written[-1] == KEEP_ALIVE_ANSWER


async def test_compressed_input_that_comes_behind_a_flood_is_inflated_all_the_same() -> None:
    """Reading is paused by then, but what the layers below have read may still come."""
    connection, wire = connect()
    deflater, inflater = zlib.compressobj(6, zlib.DEFLATED, -15), zlib.decompressobj(-15)
    message = encode_frame(Frame(Protocol.MESSAGE, (Parameter(ParameterKind.TOPIC, b"a\0", mark=2),)))
    for sent in (LOGIN + message * 2_500, KEEP_ALIVE):
        connection.data_received(deflater.compress(sent) + deflater.flush(zlib.Z_SYNC_FLUSH))
    await asyncio.sleep(1)
    assert inflater.decompress(b"".join(wire.written)).endswith(KEEP_ALIVE_ANSWER)


async def test_what_follows_a_login_is_compressed_if_that_was_asked_for() -> None:
    connection, wire = connect()
    connection.data_received(LOGIN_TO_COMPRESS)
    login_answer = b"".join(wire.written)
    assert login_answer.startswith(bytes.fromhex("038c00ff"))
    wire.written.clear()
    deflater, inflater = zlib.compressobj(6, zlib.DEFLATED, -15), zlib.decompressobj(-15)
    for _ in range(2):
        connection.data_received(deflater.compress(KEEP_ALIVE) + deflater.flush(zlib.Z_SYNC_FLUSH))
    assert inflater.decompress(b"".join(wire.written)) == KEEP_ALIVE_ANSWER * 2


async def test_a_compressed_flood_is_taken_in_turns() -> None:
    deflater = zlib.compressobj(9, zlib.DEFLATED, -15)
    flood = deflater.compress(LOGIN + KEEP_ALIVE * 200_000) + deflater.flush(zlib.Z_SYNC_FLUSH)
    connection, wire = connect()
    connection.data_received(flood)
    assert not wire.reading
    turns = 0
    while not wire.reading:
        turns += 1
        await asyncio.sleep(0)
    assert turns >= 9
    inflated = zlib.decompressobj(-15).decompress(b"".join(wire.written))
    assert inflated.count(KEEP_ALIVE_ANSWER) == 200_000
