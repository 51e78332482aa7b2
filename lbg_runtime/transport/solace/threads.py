"""The few threads on which a transport makes blocking calls to the client."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

from lbg_runtime.transport.threads import started_threads
from lbg_runtime.transport.to_the_end import wait_to_the_end

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

THREAD_COUNT = 6
"""At most four of them are occupied by binds (`BINDS_AT_ONCE`), each of which may wait for its answer; the others
remain for unbinds and everything else."""


class ControlThreads:
    """Owned by one transport, which calls `start` first. `run` and `begin` are called on the loop's thread.

    When all threads are occupied, calls wait for their turn, in order. A call that must not wait needs another
    `ControlThreads`.
    """

    def __init__(self, count: int = THREAD_COUNT) -> None:
        """`count`: how many threads there are."""
        self._count = count
        # This pool starts no thread: `start` replaces it.
        self._pool = ThreadPoolExecutor(count)
        self._under_way: set[asyncio.Future[Any]] = set()

    def start(self) -> None:
        """Start all threads; raises what `started_threads` raises, and may then be called again."""
        self._pool = started_threads(self._count, "solace-control")

    def begin(
        self, call: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> asyncio.Future[Result]:
        """Start a call, which runs to its end whether or not anybody waits for it. `close` waits for it."""
        future = asyncio.wrap_future(self._pool.submit(call, *args, **kwargs))
        self._under_way.add(future)
        future.add_done_callback(self._under_way.discard)
        return future

    async def run(self, call: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        """Run a call to its end even if the caller is cancelled; the cancellation is raised afterwards."""
        return await wait_to_the_end(self.begin(call, *args, **kwargs))

    def refuse_more(self) -> None:
        """Refuse further calls; the threads end when the calls under way have ended. `start` may be called again."""
        self._pool.shutdown(wait=False)

    async def close(self) -> None:
        """Refuse further calls and wait for those under way, each of which is bounded by a timeout of the client.

        The only call that was seen to have none, a subscription during an outage, is never made.
        """
        self.refuse_more()
        for future in tuple(self._under_way):
            await wait_to_the_end(asyncio.wait([future]))
