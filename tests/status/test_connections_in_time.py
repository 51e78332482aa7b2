"""How long a connection waits for what, and which one gives way to another, without a socket and in virtual time."""

import asyncio
import logging

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn import Config
from uvicorn.server import ServerState

from lbg_runtime.status import connections
from lbg_runtime.status.connections import READ_WITHIN_S, REQUEST_WITHIN_S, BoundedConnection

ASKED = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
ANSWER_S = 100.0


class Watched(asyncio.Transport):
    """Notes how it is ended."""

    def __init__(self) -> None:
        super().__init__()
        self.is_closed = False
        self.aborted_at_s: float | None = None
        self.written = b""

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def abort(self) -> None:
        self.aborted_at_s = asyncio.get_running_loop().time()


async def answer_late(_: Scope, __: Receive, send: Send) -> None:
    await asyncio.sleep(ANSWER_S)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"{}"})


async def answer_in_parts(_: Scope, __: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"{", "more_body": True})
    await send({"type": "http.response.body", "body": b"}"})


def made(state: ServerState | None = None, answer: ASGIApp = answer_late) -> BoundedConnection:
    config = Config(answer, log_config=None)
    return BoundedConnection(config, state or ServerState(), {}, asyncio.get_running_loop())


@pytest.fixture
async def connection() -> BoundedConnection:
    return made()


async def test_a_client_that_has_read_in_time_is_not_ended_for_having_paused(connection: BoundedConnection) -> None:
    transport = Watched()
    connection.connection_made(transport)
    # Or it would be ended for having asked nothing, and have time from then on.
    connection.data_received(ASKED)
    connection.pause_writing()
    await asyncio.sleep(1)
    connection.resume_writing()
    await asyncio.sleep(READ_WITHIN_S)
    assert (transport.is_closed, transport.aborted_at_s) == (False, None)
    connection.connection_lost(None)


async def test_an_answer_waits_for_its_client_to_read_and_then_goes_on() -> None:
    connection, transport = made(answer=answer_in_parts), Watched()
    connection.connection_made(transport)
    connection.pause_writing()
    connection.data_received(ASKED)
    await asyncio.sleep(1)
    assert transport.written == b""
    connection.resume_writing()
    await asyncio.sleep(1)
    assert transport.written.endswith(b"{}")
    connection.connection_lost(None)


async def test_but_where_the_connection_is_closing_it_has_to_read_the_rest(connection: BoundedConnection) -> None:
    """Or one that reads a little now and then would keep it for good."""
    loop, transport = asyncio.get_running_loop(), Watched()
    connection.connection_made(transport)
    await asyncio.sleep(REQUEST_WITHIN_S)
    assert transport.is_closed
    due_at_s = loop.time() + READ_WITHIN_S
    connection.pause_writing()
    await asyncio.sleep(1)
    connection.resume_writing()
    await asyncio.sleep(READ_WITHIN_S)
    assert transport.aborted_at_s == pytest.approx(due_at_s)
    connection.connection_lost(None)


async def test_a_request_may_take_as_long_as_its_answer_takes_and_then_the_next_one_has_to_come(
    connection: BoundedConnection, caplog: pytest.LogCaptureFixture
) -> None:
    """A stream of events may last for days."""
    caplog.set_level(logging.INFO)
    transport = Watched()
    connection.connection_made(transport)
    for _ in range(2):
        await asyncio.sleep(REQUEST_WITHIN_S - 2)
        transport.written = b""
        connection.data_received(ASKED)
        await asyncio.sleep(ANSWER_S + 1)
        assert transport.written.endswith(b"{}")
        assert not transport.is_closed
    await asyncio.sleep(REQUEST_WITHIN_S)
    assert transport.is_closed
    connection.connection_lost(None)
    assert [record.name for record in caplog.records] == [], "nor has each request a line in the log"


async def test_nothing_is_done_with_a_connection_that_is_gone(connection: BoundedConnection) -> None:
    transport = Watched()
    connection.connection_made(transport)
    connection.pause_writing()
    connection.connection_lost(None)
    await asyncio.sleep(2 * (REQUEST_WITHIN_S + READ_WITHIN_S))
    assert transport.aborted_at_s is None


@pytest.mark.parametrize(
    ("made_at_s", "asked_at_s", "full_at_s", "given_way"),
    [
        ((0, 1), (None, 2), 3, 0),
        ((0, 1), (2, None), 3, 1),
        ((0, 1), (2, 3), 4, 0),
        ((0, 1), (3, 2), 4, 1),
        ((0, 1), (3, 2), ANSWER_S + 2.5, 1),
        ((0, ANSWER_S), (1, None), ANSWER_S + 2, 1),
        ((0, ANSWER_S + 2), (1, None), ANSWER_S + 3, 0),
    ],
    ids=[
        "silent",
        "silent and newer",
        "older",
        "newer that asked first",
        "answered",
        "silent for longer",
        "answered earlier",
    ],
)
async def test_the_one_gives_way_that_asks_nothing_or_else_has_waited_longest_for_its_answer(
    monkeypatch: pytest.MonkeyPatch,
    made_at_s: tuple[float, float],
    asked_at_s: tuple[float | None, float | None],
    full_at_s: float,
    given_way: int,
) -> None:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 2)
    loop, state, transports = asyncio.get_running_loop(), ServerState(), (Watched(), Watched(), Watched())
    every = [made(state) for _ in transports]
    for one, transport, at_s in zip(every, transports, (*made_at_s, full_at_s), strict=True):
        loop.call_later(at_s, one.connection_made, transport)
    for one, asks_at_s in zip(every, asked_at_s, strict=False):
        if asks_at_s is not None:
            loop.call_later(asks_at_s, one.data_received, ASKED)
            # Whoever says more meanwhile has not waited for less.
            loop.call_later(asks_at_s + 1.4, one.data_received, ASKED[:1])
    await asyncio.sleep(full_at_s + 0.1)
    assert [transport.aborted_at_s is not None for transport in transports] == [
        index == given_way for index in range(3)
    ]
    await asyncio.sleep(ANSWER_S)
    for one in every:
        one.connection_lost(None)
