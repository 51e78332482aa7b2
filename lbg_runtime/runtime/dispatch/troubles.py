"""Counts and logs what goes wrong in a dispatcher."""

from collections.abc import Mapping

import structlog

from lbg_runtime.core.first_times import FirstTimes
from lbg_runtime.model.errors import BodyRefused, HandlerMissing, LbgError
from lbg_runtime.model.failure import Then
from lbg_runtime.model.ids import QueueName
from lbg_runtime.runtime.parking.parked_queue import FOLLOWS
from lbg_runtime.runtime.runners.dispatch_counts import DispatchCounts
from lbg_runtime.runtime.runners.failure_report import FailureReport, error_text
from lbg_runtime.runtime.runners.handling import Handling, facts_of

_log = structlog.get_logger(__name__)

MAX_ERROR_LENGTH = 200
"""Characters of an error that are kept while its message is tried again."""

MAX_TOPICS_TOLD = 1_000
"""Topics without a handler that are logged: bounds memory and log, should every message have its own topic."""


class Troubles:
    """One per dispatcher, which reports to it; decides nothing."""

    def __init__(self, counts: DispatchCounts) -> None:
        self._counts = counts
        self._has_foreign_stamps = False
        self._unhandled_topics = FirstTimes(MAX_TOPICS_TOLD)

    def foreign_stamp(self, handling: Handling) -> None:
        """The message is stamped with another key than that of its lane. Logged once."""
        if not self._has_foreign_stamps:
            self._has_foreign_stamps = True
            expected = "publishers that take the key by the rule of group.key"
            effect = "handlers get such messages without a fencing token"
            _log.error("key_differs_from_stamp", **facts_of(handling), expected=expected, effect=effect)

    def attempt_failed(
        self, handling: Handling, failure: BaseException, follows: Mapping[str, str | int], *, with_stack: bool
    ) -> None:
        """The handler failed, or there is none. `follows`: what happens next, as fields of the log line."""
        self._counts.failed_attempts += 1
        reason = error_text(failure)
        handling.last_error = reason[:MAX_ERROR_LENGTH]
        if isinstance(failure, HandlerMissing):
            self._warn_of_topic(handling, failure, follows)
            return
        if isinstance(failure, BodyRefused):
            self._counts.bodies_refused += 1
        # Our own errors say everything in their text, unless they have a cause.
        has_stack = with_stack and not (isinstance(failure, LbgError) and failure.__cause__ is None)
        facts = {**facts_of(handling), **follows, "reason": reason}
        # One stack is enough to find the place; later attempts log the reason only.
        if handling.attempts == 1 and has_stack:
            try:
                _log.warning("handling_failed", **facts, exc_info=failure)
            except Exception as error:  # noqa: BLE001 - the user may have configured a log that cannot show every error
                _log.warning("handling_failed", **facts, exception=f"it cannot be told: {type(error).__name__}")
        else:
            _log.warning("handling_failed", **facts)

    def queue_stopped(self, handling: Handling, report: FailureReport) -> None:
        """Nothing more of the flow handle is started."""
        self._counts.stops += 1
        _log.error("queue_stopped", **facts_of(handling), reason=report.error, stack_digest=report.stack)

    def moved(self, handling: Handling, report: FailureReport, to: QueueName) -> None:
        """The message is on the error queue or the dead message queue, or parked."""
        facts = {**facts_of(handling), "to": to, "reason": report.error, "stack_digest": report.stack}
        if report.then is not Then.PARK:
            self._counts.moved += 1
            _log.error("message_moved", then=report.then.value, **facts)
            return
        self._counts.parked += 1
        if report is FOLLOWS:
            _log.debug("message_parked", **facts_of(handling), to=to)
        else:
            _log.error("key_parked", **facts)

    def move_failed(self, handling: Handling, failure: BaseException) -> None:
        """The move failed; it will be tried again."""
        self._counts.moves_failed += 1
        reason = error_text(failure)
        handling.last_error = reason[:MAX_ERROR_LENGTH]
        _log.error("move_failed", **facts_of(handling), reason=reason)

    def handler_ignored_cancellation(self, handling: Handling) -> None:
        """Its runner is replaced for as long as the handler goes on."""
        _log.error("handler_ignored_cancellation", **facts_of(handling))

    def _warn_of_topic(self, handling: Handling, failure: HandlerMissing, follows: Mapping[str, str | int]) -> None:
        if self._unhandled_topics.is_first(handling.topic):
            _log.warning(
                "handler_not_found", **facts_of(handling), **follows, handlers_take=list(failure.subscriptions)
            )
