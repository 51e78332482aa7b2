"""What a test has made and left is freed at a moment that it chooses."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def own_garbage() -> Iterator[None]:
    """Frees, in the end, what was made meanwhile and is left: what nobody has awaited or retrieved is told then.

    Nothing older is looked through: what all earlier tests have made is many times more.
    """
    # What was made shortly before is none of it, and is not looked through in the end either.
    gc.collect(1)
    gc.disable()
    try:
        yield
    finally:
        gc.collect(0)
        gc.enable()
