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

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        accepted[writer] = task
        await serve(reader, writer)

    if unix is not None:
        server = await asyncio.start_unix_server(accept, unix)
    else:
        server = await asyncio.start_server(accept, "127.0.0.1", port)
    try:
        yield server
    finally:
        server.close()
        # Who was accepted last is on its way to `accept` for some turns, and would be left behind.
        for _ in range(10):
            await asyncio.sleep(0)
        for writer, task in accepted.items():
            task.cancel()
            writer.transport.abort()
        await asyncio.gather(*accepted.values(), return_exceptions=True)
        for writer in accepted:
            with suppress(ConnectionError):
                await writer.wait_closed()
