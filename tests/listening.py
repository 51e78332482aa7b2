"""Servers of a test that leave no connection behind."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from tests.addresses import OWN_HOST

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listening(serve: Serve, *, port: int = 0, unix: str | None = None) -> AsyncIterator[int | str]:
    """Serve at an address, which this is: a port of `OWN_HOST`, or the path of a Unix socket. At the end who still
    serves is cancelled, and every connection is closed.

    An `asyncio.Server` that is closed while it takes a connection leaves that one open, and so do others that are not
    waited for; the next search for garbage finds them, and fails a test that has nothing to do with it.
    """
    loop = asyncio.get_running_loop()
    accepted: dict[asyncio.StreamWriter, asyncio.Task[Any]] = {}
    is_over = False

    async def accept(listener: socket.socket) -> None:
        while True:
            connection, _ = await loop.sock_accept(listener)
            if is_over:
                connection.close()
                return
            reader, writer = await asyncio.open_connection(sock=connection)
            accepted[writer] = asyncio.ensure_future(serve(reader, writer))

    family = socket.AF_INET if unix is None else socket.AF_UNIX
    with socket.socket(family) as listener, socket.socket(family) as last:
        if unix is None:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((OWN_HOST, port) if unix is None else unix)
        listener.listen()
        listener.setblocking(False)
        accepting = asyncio.create_task(accept(listener))
        try:
            yield listener.getsockname()[1] if unix is None else unix
        finally:
            is_over = True
            # Not cancelled: that could come between a connection and whoever takes it.
            last.setblocking(False)
            await loop.sock_connect(last, listener.getsockname())
            await accepting
            for writer, task in accepted.items():
                task.cancel()
                writer.transport.abort()
            await asyncio.gather(*accepted.values(), return_exceptions=True)
            for writer in accepted:
                with suppress(ConnectionError):
                    await writer.wait_closed()
