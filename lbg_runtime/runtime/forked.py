"""A process that a handler forks, and that comes back from there into the member, is ended at once.

It shares connection, event loop and descriptors with the member, so what it did as one would happen to the member too:
its own end alone made the member deaf to signals. One that ends by itself or runs another program, as all of
`multiprocessing` and `subprocess` do, never comes back.
"""

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

import structlog

from lbg_runtime.runtime.shutdown import end_process

_Answer = TypeVar("_Answer")

_log = structlog.get_logger(__name__)

_loops: list[asyncio.AbstractEventLoop] = []
"""Those of members."""


def _end_on_return() -> None:
    for loop in _loops:
        # What it finds on the loop first, however it comes back. One that was forked on another thread comes back to
        # no loop, which debug mode does not let it call either.
        with suppress(RuntimeError):
            loop.call_soon(_end)


os.register_at_fork(after_in_child=_end_on_return)


@contextmanager
def forked_ended() -> Iterator[None]:
    """While the context lasts, end each process that is forked from this one and comes back to the running loop."""
    loop = asyncio.get_running_loop()
    _loops.append(loop)
    try:
        yield
    finally:
        _loops.remove(loop)


def call_as_one(call: Callable[[], _Answer]) -> _Answer:
    """Make a call on a thread, and end whatever process comes back from it that did not make it."""
    caller = os.getpid()
    try:
        return call()
    finally:
        if os.getpid() != caller:
            _end()


def _end() -> None:
    end_process(1, lambda: _log.error("forked_process_ended", forked_from=os.getppid()))
