"""Writes the changes of a flow into the journal and the log."""

from collections.abc import Mapping

import structlog

from lbg_runtime.core.flow.events import ReleaseCause
from lbg_runtime.core.flow.machine import FlowMachine
from lbg_runtime.model.errors import NOT_CONNECTED
from lbg_runtime.runtime.journal import FlowEventName, MemberJournal

_log = structlog.get_logger(__name__)

ALARMING_NOTES = frozenset(
    {
        "bind_failed",
        "bind_refused",
        "flow_lost",
        "handling_abandoned",
        "handback_given_up",
        "restripe_record_kept",
        "restripe_plan_outdated",
    }
)
"""Notes of the machine that someone should look at; the others report ordinary moves."""

_UNANSWERED = "the broker did not answer the unbind"


class FlowRecords:
    """Writes the records and log lines of one flow; its runner calls it when the machine has taken an event."""

    def __init__(self, queue_index: int, machine: FlowMachine, journal: MemberJournal) -> None:
        self._queue_index = queue_index
        self._machine = machine
        self._journal = journal

    def changed(self, event: FlowEventName, cause: ReleaseCause | None = None) -> None:
        """Record a change of the flow, in journal and log."""
        self._write(event, "" if cause is None else cause.value)
        _log.info("flow_changed", **self._facts(), change=event, **_cause_fact(cause))

    def unanswered(self, cause: ReleaseCause | None) -> None:
        """Record the end of a handle whose unbind the broker left unanswered, so that it may or may not be released."""
        self._write("down", _UNANSWERED)
        _log.warning("unbind_unanswered", **self._facts(), **_cause_fact(cause))

    def noted(self, name: str, facts: Mapping[str, str | int | None]) -> None:
        """Log a note of the machine; the loss of the handle is recorded in the journal, too."""
        if name == "flow_lost":
            self._write("down", str(facts["reason"]))
        # In a long outage, each of many queues would warn again and again; the session warns once.
        is_alarming = name in ALARMING_NOTES and facts.get("reason") != NOT_CONNECTED
        tell = _log.warning if is_alarming else _log.debug
        tell(name, **{**self._facts(), **facts})

    def _write(self, event: FlowEventName, cause: str) -> None:
        self._journal.flow_changed(self._queue_index, self._machine, event, cause)

    def _facts(self) -> dict[str, str | int]:
        # Not the role, as in the journal: that calls every place but home secondary, even if the member has no place.
        machine = self._machine
        return {"queue": machine.queue, "epoch": machine.epoch, "place": str(machine.place)}


def _cause_fact(cause: ReleaseCause | None) -> dict[str, str]:
    return {} if cause is None else {"cause": cause.value}
