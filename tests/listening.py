"""Servers of a test that leave no connection behind."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listening(serve: Serve, *, port: int = 0, unix: str | None = None) -> AsyncIterator[asyncio.Server]:
    """Serve on loopback, or on a Unix socket; at the end who still serves is cancelled, and every connection is closed.

    Until Python 3.12.1 `Server.wait_closed` does not wait for connections that were accepted, and one that is still
    open when the loop ends is found by the next search for garbage, which fails a test that has nothing to do with it.
    """
    accepted: dict[asyncio.StreamWriter, asyncio.Task[Any]] = {}
    is_over = False

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        accepted[writer] = task
        if is_over:
            writer.close()
        else:
            await serve(reader, writer)

    if unix is not None:
        server = await asyncio.start_unix_server(accept, unix)
    else:
        server = await asyncio.start_server(accept, "127.0.0.1", port)
    try:
        yield server
    finally:
        is_over = True
        # Who was accepted last is on its way to `accept` for some turns. This connection comes after it, and is closed.
        with suppress(OSError):
            await _be_accepted(port=server.sockets[0].getsockname()[1] if unix is None else None, unix=unix)
        server.close()
        for writer, task in accepted.items():
            task.cancel()
            writer.transport.abort()
        await asyncio.gather(*accepted.values(), return_exceptions=True)
        for writer in accepted:
            with suppress(ConnectionError):
                await writer.wait_closed()


async def _be_accepted(*, port: int | None, unix: str | None) -> None:
    """Connect, and return when the server has closed the connection."""
    if unix is not None:
        reader, writer = await asyncio.open_unix_connection(unix)
    else:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    await reader.read()
    writer.close()
    await writer.wait_closed()
