"""Finds coroutines that were made and never awaited: work that somebody has forgotten, perhaps in a handler.

Python tells of such a coroutine when it is freed: mostly at once, in the line that made it, or where its function
returns. No attempt fails because of it: a coroutine that is part of a cycle is freed whenever the garbage collector
comes by, perhaps while another message is handled, and nobody could say whose attempt it was.
"""

import gc
import sys
import warnings
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

UNAWAITED_HOOK = "_warn_unawaited_coroutine"
"""The function that Python calls with each such coroutine: internal, and the same in 3.11 to 3.14. Its own warning is
shown once for each line of code, and may be filtered away."""

_Hook = Callable[[Coroutine[object, object, object]], object]

_PYTHONS_OWN: _Hook = getattr(warnings, UNAWAITED_HOOK)


@dataclass(frozen=True, slots=True)
class Unawaited:
    """One coroutine that was never awaited."""

    coroutine: str
    """`function (file:line)`: what was called."""
    place: str
    """`file:line` of what ran when it was freed."""


def tell_of_unawaited(tell: Callable[[Unawaited], object]) -> None:
    """From now on, have `tell` called for each, on any thread, in place of Python's warning."""
    setattr(warnings, UNAWAITED_HOOK, lambda coroutine: tell(_seen(coroutine)))


@contextmanager
def noticed(notice: Callable[[Unawaited], object]) -> Iterator[None]:
    """While the context lasts, have `notice` called for each, except for those that only the garbage collector finds.

    It is called in the context of what made the coroutine, and before what would have been called without it.
    """
    before: _Hook = getattr(warnings, UNAWAITED_HOOK)
    is_collecting = False

    def watch(phase: str, _: object) -> None:
        nonlocal is_collecting
        is_collecting = phase == "start"

    def tell(coroutine: Coroutine[object, object, object]) -> None:
        if not is_collecting:
            notice(_seen(coroutine))
        if before is _PYTHONS_OWN:
            _warn(coroutine)
        else:
            before(coroutine)

    gc.callbacks.append(watch)
    setattr(warnings, UNAWAITED_HOOK, tell)
    try:
        yield
    finally:
        setattr(warnings, UNAWAITED_HOOK, before)
        gc.callbacks.remove(watch)


def _warn(coroutine: Coroutine[object, object, object]) -> None:
    """Warn in Python's words. Python itself would name our code as the place."""
    file, _, line = _seen(coroutine).place.rpartition(":")
    text = f"coroutine {_name(coroutine)!r} was never awaited"
    warnings.warn_explicit(text, RuntimeWarning, file, int(line), source=coroutine)


def _seen(coroutine: Coroutine[object, object, object]) -> Unawaited:
    code = getattr(coroutine, "cr_code", None)
    made = f" ({code.co_filename}:{code.co_firstlineno})" if code is not None else ""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    place = f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else "?:0"
    return Unawaited(f"{_name(coroutine)}{made}", place)


def _name(coroutine: Coroutine[object, object, object]) -> str:
    return getattr(coroutine, "__qualname__", "?")
