"""Keeps the runtime's log out of the output of a failed test, unless the user has set up logging.

What a test needs to know is in its error. By default, structlog also renders each failure of a handler with all local
variables, which takes longer than the test.
"""

from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import structlog

_TOLD = frozenset({"error", "critical", "exception"})


class _RuntimeLogger(structlog.PrintLogger):
    """The logger of a module of this package."""


@contextmanager
def quiet_log() -> Iterator[None]:
    """While the context lasts, the runtime logs only errors. The user's own lines are unchanged."""
    if structlog.is_configured():
        yield
        return
    structlog.configure(logger_factory=_make_logger, processors=[_drop_ours, *structlog.get_config()["processors"]])
    try:
        yield
    finally:
        structlog.reset_defaults()


def _make_logger(*names: object) -> structlog.PrintLogger:
    is_ours = bool(names) and str(names[0]).startswith("lbg_runtime.")
    return _RuntimeLogger() if is_ours else structlog.PrintLogger()


def _drop_ours(logger: object, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    if method not in _TOLD and isinstance(logger, _RuntimeLogger):
        raise structlog.DropEvent
    return event
