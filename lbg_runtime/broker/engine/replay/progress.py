"""How far the replays to one queue have come."""

from dataclasses import dataclass
from enum import Enum

from lbg_runtime.broker.engine.spool import NO_DELIVERY, Spool


class ReplayState(Enum):
    """The words are SEMP's; all that is replayed is on the queue at once, so some of them are never true here."""

    PENDING_COMPLETE = "pending-complete"
    """Replayed messages are on the queue."""
    COMPLETE = "complete"
    """None are, or there never was a replay."""


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
    """Replayed messages that left the queue, nearly always as a consumer settled them."""


class ReplayProgress:
    """Called by `Replays` only. Looks at what it follows when it is asked: messages pay nothing for it.

    A replay's messages have places of their own, one after the other, and go out in this order, so the two marks only
    move forward. Between them is what consumers hold.
    """

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._started = self._succeeded = self._failed = 0
        self._sent_before = self._gone_before = 0
        """Of replays that are over."""
        self._first = self._end = 0
        """Places of what is replayed now; none where they are the same."""
        self._held_from = 0
        """Everything before is gone."""
        self._unsent_from = 0
        """Everything before was sent, or is gone."""

    def began(self, first: int) -> None:
        """The places from there to the last one of the queue are a new replay's; the one before was ended."""
        self._started += 1
        self._first = self._held_from = self._unsent_from = first
        self._end = self._spool.last_sequence + 1

    def failed(self) -> None:
        """A replay could not begin."""
        self._started += 1
        self._failed += 1

    def end(self) -> range:
        """The replay ends here, if there is one, and has failed if some of it is left; answers its places.

        To be called before what is left is removed, which would count as done.
        """
        places = range(self._first, self._end)
        status = self.status()
        self._succeeded = status.succeeded_count
        self._failed += status.state is ReplayState.PENDING_COMPLETE
        self._sent_before, self._gone_before = status.sent_count, status.gone_count
        self._first = self._end = self._held_from = self._unsent_from = 0
        return places

    def status(self) -> ReplayStatus:
        """What there is to see now. In proportion to what consumers hold and what happened since the last call."""
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
