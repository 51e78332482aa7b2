"""Ends a process that a handler has forked, if it returns from the handler into the member's event loop.

Such a process shares the member's connection, event loop and descriptors, so whatever it did would happen to the member
too: even its orderly end would make the member deaf to signals. A process that ends by itself or runs another program,
as those of `multiprocessing` and `subprocess` do, never returns there.
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
"""The loops on which members run."""


def _end_on_return() -> None:
    for loop in _loops:
        # However the forked process comes back, this is what it finds on the loop first. If it was forked on another
        # thread, it comes back to no loop, and debug mode refuses this call.
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
