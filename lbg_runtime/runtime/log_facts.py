"""What every log line says of the message that is handled where it is written."""

from structlog.typing import EventDict, WrappedLogger

from lbg_runtime.runtime.runners.handling import CURRENT_HANDLING


def add_handling(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """A processor of structlog: queue, epoch and key of the message, unless the line has its own.

    Tasks that a handler starts tell of its message for as long as they live. A message costs nothing for this but to be
    named as the current one; all else is done where there is a line.
    """
    handling = CURRENT_HANDLING.get(None)
    if handling is not None:
        event.setdefault("queue", handling.queue)
        event.setdefault("epoch", handling.epoch)
        if handling.key is not None:
            event.setdefault("key", handling.key)
    return event
