"""Adds to every log line the message that is being handled where the line is written."""

from structlog.typing import EventDict, WrappedLogger

from lbg_runtime.runtime.runners.handling import CURRENT_HANDLING


def add_handling(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """A structlog processor: adds queue, epoch and key of the message, unless the line has its own.

    Tasks that a handler starts log its message as long as they live. All that this costs a message is being set as the
    current one; the rest is done per line.
    """
    handling = CURRENT_HANDLING.get(None)
    if handling is not None:
        event.setdefault("queue", handling.queue)
        event.setdefault("epoch", handling.epoch)
        if handling.key is not None:
            event.setdefault("key", handling.key)
    return event
