"""Raises the only error of a task group as it would be without the group."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn


@contextmanager
def sole_error() -> Iterator[None]:
    """A context around a task group: if the group has a single error, that is raised as it was, with its own cause and
    context; several are raised as a group."""
    try:
        yield
    except BaseExceptionGroup as group:
        if len(group.exceptions) > 1:
            raise
        raise_alone(group.exceptions[0])


def raise_alone(error: BaseException) -> NoReturn:
    """Raise an error of a group that is being handled as if there were no group."""
    context = error.__context__
    try:
        raise error
    finally:
        # Not `from None` or the like: it would hide what the error itself was raised from.
        error.__context__ = context
