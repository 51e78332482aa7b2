"""The broker as a process: runs until a signal asks it to leave, or its parent is gone."""

import asyncio
import gc
import os
import signal
from collections.abc import Callable

from lbg_runtime.broker.server.server import BrokerServer

_PARENT_CHECK_S = 0.2

# Spooled messages live long and form no cycles, so looking through all of them for garbage is a pause for nothing:
# 150 ms with 300 000 of them spooled, 7 ms with these thresholds (2 cores, Python 3.11, 256-byte messages).
_GC_THRESHOLDS = (50_000, 20, 100)


async def serve(server: BrokerServer, *, exit_with_parent: bool, on_ready: Callable[[], None]) -> None:
    """Run the broker until SIGTERM or SIGINT; `on_ready` is called once clients can connect.

    Raises `UserError` when the address cannot be had.
    """
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    parent = os.getppid()
    async with server:
        on_ready()
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(_wait_until_orphaned(parent)) if exit_with_parent else None
            if watch is not None:
                watch.add_done_callback(lambda _: stop.set())
            # Unbounded on purpose: this is the life of the process.
            await stop.wait()
            if watch is not None:
                watch.cancel()


async def _wait_until_orphaned(parent: int) -> None:
    # Watched, not asked of the kernel: its death signal comes when the *thread* that forked us ends, which for a
    # process started from a thread pool is long before its parent does. It also exists on Linux only.
    while os.getppid() == parent:  # noqa: ASYNC110  # nothing tells of it
        await asyncio.sleep(_PARENT_CHECK_S)
