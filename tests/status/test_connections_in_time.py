"""How long a connection waits for a client that reads late, without a socket and in virtual time."""

import asyncio

import pytest
from starlette.types import Receive, Scope, Send
from uvicorn import Config
from uvicorn.server import ServerState

from lbg_runtime.status.connections import READ_WITHIN_S, REQUEST_WITHIN_S, BoundedConnection


class Watched(asyncio.Transport):
    """Notes how it is ended."""

    def __init__(self) -> None:
        super().__init__()
        self.is_closed = False
        self.aborted_at_s: float | None = None

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.aborted_at_s = asyncio.get_running_loop().time()


async def nothing(_: Scope, __: Receive, ___: Send) -> None:
    """An application that nobody asks."""


@pytest.fixture
async def connection() -> BoundedConnection:
    return BoundedConnection(Config(nothing, log_config=None), ServerState(), {}, asyncio.get_running_loop())


async def test_a_client_that_has_read_in_time_is_not_ended_for_having_paused(connection: BoundedConnection) -> None:
    transport = Watched()
    connection.connection_made(transport)
    connection.pause_writing()
    await asyncio.sleep(1)
    connection.resume_writing()
    await asyncio.sleep(READ_WITHIN_S)
    assert transport.aborted_at_s is None
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
