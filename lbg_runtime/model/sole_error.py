"""An error that left a task group alone, as it would be without the group."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def sole_error() -> Iterator[None]:
    """Around a task group: its only error is raised by itself, with its cause; several are raised as a group."""
    try:
        yield
    except BaseExceptionGroup as group:
        if len(group.exceptions) > 1:
            raise
        error = group.exceptions[0]
        # Not `from None`, which would take the cause of the error from it.
        raise error from error.__cause__
