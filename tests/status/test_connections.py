"""Connections that ask nothing, ask slowly or do not read: they are ended, and take nothing from who asks."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from lbg_runtime.config.listen_address import ListenAddress
from lbg_runtime.status import connections, routes
from lbg_runtime.status.member_loop import Blocked
from lbg_runtime.status.picture import MemberPicture
from lbg_runtime.status.server import StatusServer
from tests.patience import PATIENCE_S
from tests.status.asking import ShownMember, ask
from tests.status.test_server import FACTS, PROBES, READY, serving

pytestmark = pytest.mark.real_time

LIVE = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
ASKED = LIVE.replace(b"livez", b"readyz")


class Client:
    """A socket, read from a thread."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE_S)

    async def read(self) -> bytes:
        """What comes next; nothing where the server has ended the connection."""
        try:
            return await asyncio.to_thread(self.socket.recv, 1 << 16)
        except ConnectionResetError:
            return b""


@pytest.fixture
def ending() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def connect(ending: ExitStack, port: int) -> Client:
    client = Client(port)
    ending.callback(client.socket.close)
    return client


def answered_late(monkeypatch: pytest.MonkeyPatch) -> tuple[asyncio.Event, asyncio.Event]:
    """From now on a question to the member sets the first event, and is answered when the second is set."""
    is_asked, is_answered = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    async def look_late(_: object, __: object) -> Blocked:
        loop.call_soon_threadsafe(is_asked.set)
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(is_answered.wait(), loop))
        return Blocked(1)

    monkeypatch.setattr(routes.StatusRoutes, "_look", look_late)
    return is_asked, is_answered


async def test_silent_connections_take_no_answer_from_a_probe(ending: ExitStack) -> None:
    async with serving(ShownMember(READY)) as (port, _):
        silent = [connect(ending, port) for _ in range(connections.MAX_CONNECTIONS + 20)]
        for path in (*PROBES, *FACTS, "/metrics"):
            assert (await ask(port, path)).status == 200
        # The oldest ones gave way, and not the newest.
        assert await silent[0].read() == b""
        silent[-1].socket.sendall(LIVE)
        assert (await silent[-1].read()).startswith(b"HTTP/1.1 200")


async def test_one_that_asks_nothing_gives_way_before_one_that_waits_for_its_answer(
    ending: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 2)
    is_asked, is_answered = answered_late(monkeypatch)
    async with StatusServer(ListenAddress("127.0.0.1", 0), None) as server:
        waits = connect(ending, server.address.port)
        waits.socket.sendall(ASKED)
        await is_asked.wait()
        silent = connect(ending, server.address.port)
        assert (await ask(server.address.port, "/livez")).status == 200
        assert await silent.read() == b""
        is_answered.set()
        assert (await waits.read()).startswith(b"HTTP/1.1 503")


async def test_where_all_others_wait_for_their_answers_the_oldest_of_them_gives_way_and_not_a_new_one(
    ending: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 1)
    is_asked, is_answered = answered_late(monkeypatch)
    async with StatusServer(ListenAddress("127.0.0.1", 0), None) as server:
        waits = connect(ending, server.address.port)
        waits.socket.sendall(ASKED)
        await is_asked.wait()
        assert (await ask(server.address.port, "/livez")).status == 200
        assert await waits.read() == b""
        is_answered.set()


@pytest.mark.parametrize("said", [b"", b"GET /livez HTTP/1.1\r\nHost: loc", ASKED, ASKED + b"GET /l"])
async def test_a_connection_that_does_not_say_a_whole_request_in_time_is_ended(
    ending: ExitStack, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    class Asked(ShownMember):
        """From its first question on the time is short; until then a busy machine may take its own."""

        def picture(self) -> MemberPicture:
            monkeypatch.setattr(connections, "REQUEST_WITHIN_S", 0.1)
            return super().picture()

    is_whole = said.startswith(ASKED)
    monkeypatch.setattr(connections, "REQUEST_WITHIN_S", PATIENCE_S if is_whole else 0.1)
    async with serving(Asked(READY)) as (port, _):
        client = connect(ending, port)
        client.socket.sendall(said)
        told = b""
        while part := await client.read():
            told += part
        assert told.count(b"HTTP/1.1 200") == is_whole


async def test_a_client_that_does_not_read_is_ended(ending: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "READ_WITHIN_S", 0.1)
    is_lost = asyncio.Event()

    class Watched(connections.BoundedConnection):
        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            loop.call_soon_threadsafe(is_lost.set)

    loop = asyncio.get_running_loop()
    monkeypatch.setattr("lbg_runtime.status.server.BoundedConnection", Watched)
    async with serving(ShownMember(READY, changes=1_000)) as (port, _), asyncio.timeout(PATIENCE_S):
        deaf = connect(ending, port)
        asked = LIVE.replace(b"/livez", b"/v1/moves?limit=1000")
        deaf.socket.settimeout(0.1)
        # Until there is no more room, or the server has ended it.
        with suppress(OSError):
            while True:
                deaf.socket.sendall(asked)
        await is_lost.wait()


async def test_questions_beyond_the_bound_are_refused_and_probes_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "MAX_QUESTIONS", 0)
    async with serving(ShownMember(READY)) as (port, _):
        for path in FACTS:
            assert "too many questions" in str((await ask(port, path)).told["error"])
        assert {(await ask(port, path)).status for path in (*PROBES, "/metrics")} == {200}


async def test_a_question_that_is_answered_makes_room_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "MAX_QUESTIONS", 1)
    async with serving(ShownMember(READY)) as (port, _), asyncio.timeout(PATIENCE_S):
        for _ in range(3):
            assert (await ask(port, "/v1/status")).status == 200
        is_asked, is_answered = answered_late(monkeypatch)
        waiting = asyncio.create_task(ask(port, "/v1/status"))
        await is_asked.wait()
        refused = await ask(port, "/v1/status")
        is_answered.set()
        assert (refused.status, refused.told) == (503, {"error": "too many questions at once; try again"})
        late = [(await waiting).told["error"], (await ask(port, "/v1/status")).told["error"]]
    assert late == ["the member's event loop does not answer"] * 2
