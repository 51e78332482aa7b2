"""Queues that we and another member both say we are fed from: told of when neither takes it back."""

from collections.abc import Set

from lbg_runtime.core.flow.commands import Note
from lbg_runtime.model.ids import MemberId, QueueName


class Contests:
    """Of one member; looks at each heartbeat of another one, in the order in which they are heard.

    For a moment two may say so, as one of them does not know yet. For longer only where the broker feeds both: then the
    queue is not exclusive any more, and no order is kept.
    """

    def __init__(self, patience_ms: int) -> None:
        """`patience_ms`: for so long nothing is told."""
        self._patience_ms = patience_ms
        self._since_ms: dict[tuple[MemberId, QueueName], int] = {}
        self._told: set[tuple[MemberId, QueueName]] = set()

    def look(self, other: MemberId, both: Set[QueueName], now_ms: int) -> list[Note]:
        """Take the queues that both claim now; a note for each that has been so for too long, once until it is over."""
        if not both and not self._since_ms:
            return []
        notes = []
        for name in [name for name in self._since_ms if name[0] == other and name[1] not in both]:
            del self._since_ms[name]
            self._told.discard(name)
        for queue in sorted(both):
            name = other, queue
            lasts_ms = now_ms - self._since_ms.setdefault(name, now_ms)
            if lasts_ms >= self._patience_ms and name not in self._told:
                self._told.add(name)
                notes.append(Note("queue_fed_to_two", {"queue": queue, "other": other, "for_ms": lasts_ms}))
        return notes
