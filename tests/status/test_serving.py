"""The end of a server on the loop of what uses it."""

import asyncio
import errno
import socket

import pytest
from starlette.applications import Starlette
from starlette.types import Receive, Scope, Send

from lbg_runtime.config.listen_address import ListenAddress
from lbg_runtime.model.errors import ConfigError
from lbg_runtime.status.connections import BoundedConnection
from lbg_runtime.status.serving import LoopServer, QuietServer, listen
from tests.addresses import OWN_HOST
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.real_time


async def test_who_is_cancelled_again_while_it_ends_leaves_no_port_taken() -> None:
    """The second cancellation went on into the server, which left its socket open for the rest of the process."""
    quiet = QuietServer(Starlette(), BoundedConnection, last_answers_s=1)
    server = LoopServer(quiet, ListenAddress(OWN_HOST, 0), "--listen")
    has_begun = asyncio.Event()

    async def serve() -> None:
        async with server:
            has_begun.set()
            await asyncio.Event().wait()

    async with asyncio.timeout(PATIENCE_S):
        serving = asyncio.create_task(serve())
        await has_begun.wait()
        # Once one is accepted, it has started.
        reader, writer = await asyncio.open_connection(server.address.host, server.address.port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert await reader.read()
        writer.close()
        serving.cancel()
        await asyncio.sleep(0)
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()}, return_exceptions=True)
    listen(server.address, "--listen").close()


async def test_a_server_that_is_to_end_before_it_has_begun_leaves_no_port_taken() -> None:
    """As that of a member whose broker refuses it at once; older versions of the library went on listening."""
    quiet = QuietServer(Starlette(), BoundedConnection, last_answers_s=1)
    async with LoopServer(quiet, ListenAddress(OWN_HOST, 0), "--listen") as server:
        pass
    listen(server.address, "--listen").close()


async def test_an_answer_without_end_does_not_keep_a_server_that_ends() -> None:
    is_asked = asyncio.Event()

    async def answer(_: Scope, __: Receive, ___: Send) -> None:
        is_asked.set()
        await asyncio.Event().wait()

    quiet = QuietServer(answer, BoundedConnection, last_answers_s=0)
    async with asyncio.timeout(PATIENCE_S):
        async with LoopServer(quiet, ListenAddress(OWN_HOST, 0), "sidecar.listen") as server:
            _, writer = await asyncio.open_connection(server.address.host, server.address.port)
            writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await is_asked.wait()
        writer.close()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.EADDRINUSE, "no server on this address"), "Address already in use"),
        (socket.gaierror(socket.EAI_NONAME, "Name not known"), "Name not known"),
        (OSError("in no words of the system"), "in no words of the system"),
    ],
)
def test_why_an_address_cannot_be_had_is_said_beside_it(
    monkeypatch: pytest.MonkeyPatch, error: OSError, reason: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(socket, "create_server", refuse)
    with pytest.raises(ConfigError) as refused:
        listen(ListenAddress("here", 9280), "ops.status")
    assert (
        str(refused.value) == f"ops.status: here:9280: {reason}; expected an address of this machine with a free port"
    )


@pytest.mark.parametrize(("host", "family"), [("::1", socket.AF_INET6), ("127.0.0.1", socket.AF_INET)])
def test_a_host_with_colons_is_an_address_of_ipv6(
    monkeypatch: pytest.MonkeyPatch, host: str, family: socket.AddressFamily
) -> None:
    asked: list[object] = []

    def refuse(_: object, *, family: socket.AddressFamily) -> None:
        asked.append(family)
        raise OSError("not on this machine")

    monkeypatch.setattr(socket, "create_server", refuse)
    with pytest.raises(ConfigError):
        listen(ListenAddress(host, 9280), "ops.status")
    assert asked == [family]
