"""Waiting for what must come to its end, whoever is cancelled meanwhile."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

import anyio

Result = TypeVar("Result")


async def wait_to_the_end(awaited: Awaitable[Result]) -> Result:
    """Return the result of a future, or of a coroutine in a task of its own, waiting through any cancellation; a
    cancellation is raised when it has ended."""
    future = asyncio.ensure_future(awaited)
    cancellation: asyncio.CancelledError | None = None
    # The scope holds off anyio's cancellations, repeated on every turn; the loop below absorbs asyncio's own.
    with anyio.CancelScope(shield=True):
        while not future.done():
            try:
                await asyncio.wait([future])
            except asyncio.CancelledError as error:
                cancellation = error
    if cancellation is not None:
        if not future.cancelled():
            future.exception()  # Mark it as retrieved: the caller asked for the end, not for the outcome.
        raise cancellation
    return future.result()
