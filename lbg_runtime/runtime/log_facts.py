"""Adds to each log line which message is being handled where the line is written, and its trace."""

import sys

from structlog.typing import EventDict, WrappedLogger

from lbg_runtime.model.trace_context import PARENT, TRACE_ID, trace_context
from lbg_runtime.runtime.runners.handling import CURRENT_HANDLING, Handling


def add_handling(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """A structlog processor: adds queue, epoch and key of the message, and the ids of its trace and span, unless the
    line has its own.

    Lines of tasks that a handler starts have its message as long as these live. For a message, this costs no more than
    setting the current one; the rest is done per line.
    """
    handling = CURRENT_HANDLING.get(None)
    if handling is not None:
        event.setdefault("queue", handling.queue)
        event.setdefault("epoch", handling.epoch)
        if handling.key is not None:
            event.setdefault("key", handling.key)
    for name, value in _trace_of(handling).items():
        event.setdefault(name, value)
    return event


def _trace_of(handling: Handling | None) -> dict[str, str]:
    """Trace and span, if a span is or was made here; otherwise the trace that the message belongs to, if any."""
    # Looked up and not imported: if spans are made, it has been imported.
    spans = sys.modules.get("lbg_runtime.metrics.spans")
    if spans is not None and (ids := spans.ids_of(getattr(handling, "span", None))):
        return {"trace_id": ids[0], "span_id": ids[1]}
    context = {} if handling is None else trace_context(handling.delivery.message.properties)
    return {"trace_id": context[PARENT][TRACE_ID]} if context else {}
