"""A command that connects, and goes on until it is asked to leave."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TypeVar

from lbg_runtime.runtime.shutdown import Interruption
from lbg_runtime.runtime.stop import StopCause, stop_requests

S = TypeVar("S")


@asynccontextmanager
async def connected_unless_stopped(
    connection: AbstractAsyncContextManager[S],
    on_stop: Callable[[StopCause], object],
    *,
    parent_pid: int | None = None,
) -> AsyncIterator[S | None]:
    """What the connection yields; None if this process is asked to leave first, which breaks off the connecting.

    `on_stop` is called each time it is asked, before and after; `parent_pid` is as for `stop_requests`.
    """
    connecting = Interruption()
    is_asked = False

    def stop(cause: StopCause) -> None:
        nonlocal is_asked
        is_asked = True
        connecting.cut()
        on_stop(cause)

    with stop_requests(stop, parent_pid=parent_pid):
        async with AsyncExitStack() as connected:
            session: S | None = None
            with connecting:
                # A parent that has gone already has asked before there was anything to break off.
                if not is_asked:
                    session = await connected.enter_async_context(connection)
            yield session
