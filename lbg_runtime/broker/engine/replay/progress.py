"""How far the replays to one queue have come."""

from dataclasses import dataclass
from enum import Enum

from lbg_runtime.broker.engine.spool import Spool
from lbg_runtime.broker.engine.waiting import NO_DELIVERY


class ReplayState(Enum):
    """The words are SEMP's; all replayed messages are on the queue at once, so some of SEMP's never occur here."""

    PENDING_COMPLETE = "pending-complete"
    """Replayed messages are on the queue."""
    COMPLETE = "complete"
    """No replayed messages are on the queue, or there never was a replay."""


@dataclass(frozen=True, slots=True)
class ReplayStatus:
    """The replays to one queue in this life of the broker, as an administrator sees them."""

    state: ReplayState = ReplayState.COMPLETE
    started_count: int = 0
    succeeded_count: int = 0
    failed_count: int = 0
    sent_count: int = 0
    """Replayed messages that went to a consumer."""
    gone_count: int = 0
    """Replayed messages that left the queue, nearly always because a consumer settled them."""


class ReplayProgress:
    """Called only by `Replays`. Examines the queue only when asked, at no cost per message.

    A replay's messages have consecutive places, and go out in this order, so the two marks only move forward. Consumers
    hold what is between them.
    """

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._started = self._succeeded = self._failed = 0
        self._sent_before = self._gone_before = 0
        """The counts of replays that are over."""
        self._first = self._end = 0
        """The places of the current replay; none if they are equal."""
        self._held_from = 0
        """Everything before this place is gone."""
        self._unsent_from = 0
        """Everything before this place was sent, or is gone."""

    def began(self, first: int) -> None:
        """The places from `first` to the last of the queue belong to a new replay; the previous one has been ended."""
        self._started += 1
        self._first = self._held_from = self._unsent_from = first
        self._end = self._spool.last_sequence + 1

    def failed(self) -> None:
        """A replay could not begin."""
        self._started += 1
        self._failed += 1

    def end(self) -> range:
        """End the replay, if there is one, failed if some of it is left; return its places.

        Call this before the rest is removed, which would otherwise count as done.
        """
        places = range(self._first, self._end)
        status = self.status()
        self._succeeded = status.succeeded_count
        self._failed += status.state is ReplayState.PENDING_COMPLETE
        self._sent_before, self._gone_before = status.sent_count, status.gone_count
        self._first = self._end = self._held_from = self._unsent_from = 0
        return places

    def status(self) -> ReplayStatus:
        """The current status. Costs in proportion to what consumers hold and what happened since the last call."""
        spool = self._spool
        while self._held_from < self._end and spool.at(self._held_from) is None:
            self._held_from += 1
        self._unsent_from = max(self._unsent_from, self._held_from)
        while self._unsent_from < self._end and self._was_sent(self._unsent_from):
            self._unsent_from += 1
        is_over = self._held_from == self._end
        gone = sum(spool.at(place) is None for place in range(self._held_from, self._unsent_from))
        return ReplayStatus(
            ReplayState.COMPLETE if is_over else ReplayState.PENDING_COMPLETE,
            self._started,
            self._succeeded + (is_over and self._first != 0),
            self._failed,
            self._sent_before + self._unsent_from - self._first,
            self._gone_before + self._held_from - self._first + gone,
        )

    def _was_sent(self, place: int) -> bool:
        message = self._spool.at(place)
        return message is None or message.delivery_id != NO_DELIVERY
