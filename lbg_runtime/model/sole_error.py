"""Raises the only error of a task group as it would be without the group."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def sole_error() -> Iterator[None]:
    """A context around a task group: if the group has a single error, that is raised with its own cause; several are
    raised as a group."""
    try:
        yield
    except BaseExceptionGroup as group:
        if len(group.exceptions) > 1:
            raise
        error = group.exceptions[0]
        # Not `from None`, which would take the cause of the error from it.
        raise error from error.__cause__
