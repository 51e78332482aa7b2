"""Keeps a member safe from a log that its handlers have set up in their own way: no line of it raises."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger


class _Ours(Protocol):
    """Where lines went before the handlers set the log up."""

    def msg(self, line: str) -> None: ...


@contextmanager
def users_log() -> Iterator[None]:
    """If structlog is set up anew while the context lasts (`structlog.configure` in a module), no line raises later.

    The runtime writes through it too, in the middle of its work: an error, as of a pipe that nobody reads any more,
    would end the member. A line that cannot be made, or not be written, is written as before instead.
    """
    before = structlog.get_config()
    steps_before, make_before = [*before["processors"]], before["logger_factory"]
    yield
    found = structlog.get_config()
    steps, make = [*found["processors"]], found["logger_factory"]
    if steps == steps_before and make is make_before:
        return
    ours: _Ours = make_before()

    def render(logger: WrappedLogger, name: str, event: EventDict) -> Any:
        given, rendered = dict(event), event
        try:
            for step in steps:
                rendered = step(logger, name, rendered)
        except structlog.DropEvent:
            raise
        except Exception:  # noqa: BLE001 - the user's code may raise anything
            ours.msg(_rendered(steps_before, name, given))
            raise structlog.DropEvent from None
        return rendered

    structlog.configure(processors=[render], logger_factory=lambda *args: _Unfailing(make(*args), ours))


def _rendered(steps: list[Processor], name: str, event: EventDict) -> str:
    rendered: Any = event
    for step in steps:
        rendered = step(None, name, rendered)
    return str(rendered)


class _Unfailing:
    """A logger below structlog of which no method raises."""

    def __init__(self, logger: WrappedLogger, ours: _Ours) -> None:
        self._logger = logger
        self._ours = ours

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._logger, name)
        if not callable(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return found(*args, **kwargs)
            except Exception:  # noqa: BLE001 - as above
                line = args[0] if args else kwargs.get("event", "")
                self._ours.msg(line.decode(errors="replace") if isinstance(line, bytes) else str(line))

        return call
