"""The streams on which an application without a port takes its events, and the events that are open on each; no clock,
no I/O."""

from dataclasses import dataclass, field

import orjson

from lbg_runtime.model.errors import UserError
from lbg_runtime.sidecar.answer import MAX_SHOWN, Answer, Status, read_status

_STATUSES = tuple(each.value for each in Status)


@dataclass(slots=True)
class Stream:
    """One request of the application that is being answered with events."""

    number: int
    capacity: int
    """How many events the application wants to have open at a time."""
    open_ids: set[str] = field(default_factory=set)
    """The events that were given out on it and are not settled."""
    given: int = 0
    is_overdue: bool = False
    """Whether an event that was given out on it was not settled in time, and none was settled since: its reader may be
    frozen."""

    @property
    def room(self) -> int:
        """How many more events it may be given now. If it is overdue, one at a time, which shows whether it still
        is."""
        return (1 if self.is_overdue else self.capacity) - len(self.open_ids)


class Streams:
    """Decides which stream gets the next event, and knows to which one an event id belongs."""

    def __init__(self, life: str) -> None:
        """`life` differs in each life of the sidecar, so that a settlement of an event of an earlier life finds no
        event."""
        self._life = life
        self._streams: dict[int, Stream] = {}
        self._owners: dict[str, Stream] = {}
        self._opened = 0

    @property
    def has_room(self) -> bool:
        """Whether `give` will find a stream."""
        return any(stream.room > 0 for stream in self._streams.values())

    def open(self, capacity: int) -> Stream:
        """A new stream."""
        self._opened += 1
        stream = self._streams[self._opened] = Stream(self._opened, capacity)
        return stream

    def close(self, stream: Stream) -> tuple[str, ...]:
        """Forget a stream; return the ids that were open on it, which nobody can settle any more. Idempotent."""
        self._streams.pop(stream.number, None)
        lost = tuple(sorted(stream.open_ids))
        for event_id in lost:
            self.take_back(event_id)
        return lost

    def give(self) -> tuple[Stream, str] | None:
        """Open an event on the stream with the most room; return that stream and the event's id, or None if no stream
        has room.

        A stream that is overdue is given only events that no other has room for.
        """
        with_room = [stream for stream in self._streams.values() if stream.room > 0]
        if not with_room:
            return None
        stream = max(with_room, key=lambda each: (not each.is_overdue, each.room))
        stream.given += 1
        event_id = f"{self._life}-{stream.number}-{stream.given}"
        stream.open_ids.add(event_id)
        self._owners[event_id] = stream
        return stream, event_id

    def take_back(self, event_id: str) -> None:
        """Close an event: it is settled, or nobody waits for it any more. Does nothing if the id is not open."""
        stream = self._owners.pop(event_id, None)
        if stream is not None:
            stream.open_ids.remove(event_id)


def read_settlements(body: bytes) -> list[tuple[str, Answer]]:
    """The answers to events by id, from one JSON object or a list of them. Raises `UserError` for anything else.

    A status must be one of the three words: with another one, the application would get its event again without end.
    """
    expected = '{"id": ..., "status": "SUCCESS" | "RETRY" | "DROP"}, or a list of such'
    try:
        told = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise UserError("body", "no JSON", expected) from None
    found = []
    for entry in told if isinstance(told, list) else [told]:
        if not isinstance(entry, dict) or not isinstance(entry.get("id"), str):
            raise UserError("body", "an entry without id", expected)
        if "status" not in entry:
            raise UserError("body", "an entry without status", expected)
        status = entry["status"]
        if status not in _STATUSES:
            raise UserError("body", f"an entry with status {ascii(status)[:MAX_SHOWN]}", expected)
        found.append((entry["id"], read_status(status)))
    return found
