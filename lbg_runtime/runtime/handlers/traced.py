"""Makes every attempt of a handler a span."""

from typing import TYPE_CHECKING

from lbg_runtime.model.message import Message
from lbg_runtime.runtime.handlers.registry import Handler, Handlers
from lbg_runtime.runtime.runners.handling import CURRENT_HANDLING, HandlerFunction, refuse_unrun

if TYPE_CHECKING:
    from lbg_runtime.metrics.spans import MessageSpans


def traced(handlers: Handlers, spans: "MessageSpans") -> Handlers:
    """The same handlers, with a span of its own for every attempt."""

    def wrap(handler: Handler) -> HandlerFunction:
        async def handle(message: Message) -> object:
            handling = CURRENT_HANDLING.get()
            route = handling.route

            def overdue() -> TimeoutError | None:
                return route.policy.overdue() if route.attempts.has_timed_out(handling) else None

            with spans.handling(
                message,
                queue=handling.queue,
                key=handling.key,
                shard=handling.shard,
                epoch=handling.epoch,
                attempt=handling.attempts,
                is_redelivered=handling.delivery.redelivered,
                overdue=overdue,
            ) as span:
                # For log lines about the attempt that are written after it.
                handling.span = span
                answer = await handler.function(message)
                if answer is not None:
                    # Refused here already, so that the span shows the failure.
                    refuse_unrun(answer, handler.where)
                return answer

        return handle

    return handlers.wrapped(wrap)
