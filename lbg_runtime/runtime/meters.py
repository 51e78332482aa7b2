"""Counts a member's work in plain integers: a message costs some additions and two look-ups, but no object.

Called by the journal, which is told of everything that happens, whether or not it is recorded.
"""

from bisect import bisect_left

from lbg_runtime.core.flow.events import ReleaseCause
from lbg_runtime.metrics.durations import BOUNDS_NS, Durations
from lbg_runtime.metrics.reading import MetersReading
from lbg_runtime.model.record import OwnerRecord
from lbg_runtime.runtime.runners.handling import Handling


class MemberMeters:
    """One per life of a member, on its loop."""

    def __init__(self) -> None:
        self.redelivered = 0
        """Messages settled that the broker had delivered before, to any member."""
        self.retried = 0
        """Messages settled after more than one attempt."""
        self.fenced = 0
        """Handlings that reached an outcome, but too late for their handle: the settlement was not sent (L4)."""
        self.returned = 0
        """Deliveries that ended without an outcome: given back, or cancelled (L7)."""
        self._handling = Durations()
        self._waiting = Durations()
        self._drains = Durations()
        self._first_handlings = Durations()
        # All series exist from the beginning: Prometheus sees no increase in one that begins with its first change.
        self._owner_changes: dict[tuple[str, str], int] = dict.fromkeys(
            [("taken", "elected"), ("taken", "handback"), *(("given", cause.value) for cause in ReleaseCause)], 0
        )
        self._untouched: dict[int, int] = {}
        """Queues that came to this member and of which nothing was started yet, with the time (ns) when they came."""

    def ended(self, handling: Handling, is_settled: bool) -> None:
        """Count a delivery that has ended; if `is_settled` is False, it is never settled here."""
        if not is_settled:
            if handling.outcome is None:
                self.returned += 1
            else:
                self.fenced += 1
            return
        delivery = handling.delivery
        start_ns = handling.start_mono_ns
        if delivery.redelivered:
            self.redelivered += 1
        if handling.attempts != 1:
            if not handling.attempts:
                # Its handler was not started, so there is no duration.
                return
            self.retried += 1
        took_ns = handling.done_mono_ns - start_ns
        handled = self._handling
        handled.counts[bisect_left(BOUNDS_NS, took_ns)] += 1
        handled.sum_ns += took_ns
        waited_ns = start_ns - delivery.received_at_ns
        waited = self._waiting
        waited.counts[bisect_left(BOUNDS_NS, waited_ns)] += 1
        waited.sum_ns += waited_ns

    def owner_changed(self, record: OwnerRecord) -> None:
        """Count that a queue was taken or given up."""
        change = (record.event, record.cause)
        self._owner_changes[change] = self._owner_changes.get(change, 0) + 1
        if record.event == "taken":
            self._untouched[record.queue] = record.mono_ns
            return
        self._untouched.pop(record.queue, None)
        if record.drain_ms is not None and ReleaseCause(record.cause).is_in_good_order:
            self._drains.count(record.drain_ms * 1_000_000)

    def first_started(self, queue_index: int, start_ns: int) -> None:
        """Count that the first handling of a queue that came to this member has begun. Not told when that ends, as
        another may end before it, and one whose message is parked ends untold."""
        taken_ns = self._untouched.pop(queue_index, None)
        if taken_ns is not None:
            self._first_handlings.count(start_ns - taken_ns)

    def read(self) -> MetersReading:
        """The counts until now."""
        return MetersReading(
            redelivered=self.redelivered,
            retried=self.retried,
            fenced=self.fenced,
            returned=self.returned,
            handling=self._handling.read(),
            waiting=self._waiting.read(),
            drains=self._drains.read(),
            first_handlings=self._first_handlings.read(),
            owner_changes=dict(self._owner_changes),
        )
