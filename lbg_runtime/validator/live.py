"""Checks order and ownership as they happen, from the notes that members send about what they handled.

Called by `lbg validate --live`. Notes are direct messages, which can be lost on the way, so a gap here is a hint, not a
proof; the verdict on a run comes from its journals. A shard that a re-striping moves to another queue keeps its order
and its keys: the old owner's notes are sent before the new one may handle anything of it. Pure: the caller receives,
prints and stops.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

import orjson

DEFAULT_MAX_KEYS = 100_000


@dataclass(frozen=True, slots=True)
class Note:
    """One message that a member handled."""

    member: str
    queue: str
    shard: int | None
    key: str | None
    seq: int | None
    publisher: str | None
    topic: str
    redelivered: bool


class SequenceErrorKind(Enum):
    """How a number can differ from the one expected after the last."""

    GAP = "gap"
    """Numbers are missing: not handled, handled later, or their notes were lost."""
    REPEAT_FLAGGED = "repeat_flagged"
    """A number was handled before, and is flagged as redelivered: what a crash leaves."""
    REPEAT_UNFLAGGED = "repeat_unflagged"
    """A number comes after a higher one without being flagged: out of order, or a second copy."""


@dataclass(frozen=True, slots=True)
class SequenceError:
    """A key's numbers do not follow each other."""

    kind: SequenceErrorKind
    expected: int
    note: Note

    def __str__(self) -> str:
        note = self.note
        flag = ", redelivered" if note.redelivered else ""
        return (
            f"sequence error: key {note.key} expected {self.expected} got {note.seq} "
            f"(publisher {note.publisher}, member {note.member}, topic {note.topic}{flag})"
        )


@dataclass(frozen=True, slots=True)
class ShardMove:
    """A shard is handled by a different member than before: its queue was handed over, or it moved to another queue."""

    shard: int
    old_member: str
    old_queue: str
    note: Note

    def __str__(self) -> str:
        note = self.note
        old, new = self.old_member, note.member
        if note.queue != self.old_queue:
            old, new = f"{old} in {self.old_queue}", f"{new} in {note.queue}"
        return f"shard {self.shard} was {old}, now {new} (topic {note.topic})"


LiveFinding = SequenceError | ShardMove


@dataclass(slots=True)
class _KeyState:
    highest: int
    last: int
    was_redelivered: bool
    """Whether the last message was flagged."""
    heard_after: int
    """The number of interruptions before it."""


class LiveValidator:
    """Takes one note after another, from one task. Remembers the `max_keys` keys seen last."""

    def __init__(self, max_keys: int = DEFAULT_MAX_KEYS) -> None:
        self.notes = 0
        self.malformed = 0
        self.unnumbered = 0
        """Notes without publisher, key or number; only their shard is followed."""
        self.moves = 0
        self.sequence_errors = dict.fromkeys(SequenceErrorKind, 0)
        """A run of repeated numbers counts once, provided that all of them are flagged or none is."""
        self.forgotten_keys = 0
        """Keys dropped for lack of room; their next number is accepted as it comes."""
        self.interruptions = 0
        """How often notes were missed, as the caller says."""
        self._max_keys = max_keys
        self._keys: OrderedDict[tuple[str, str], _KeyState] = OrderedDict()
        self._last_of_shard: dict[int, tuple[str, str]] = {}

    def feed(self, payload: bytes) -> list[LiveFinding]:
        """Take a note as a member sent it; anything that is not a note is counted and changes nothing else."""
        note = parse_note(payload)
        if note is None:
            self.malformed += 1
            return []
        self.notes += 1
        findings: list[LiveFinding] = []
        if (error := self._follow_key(note)) is not None:
            self.sequence_errors[error.kind] += 1
            findings.append(error)
        if (move := self._follow_shard(note)) is not None:
            self.moves += 1
            findings.append(move)
        return findings

    def interrupt(self) -> None:
        """From now on notes may have been missed: numbers that a key lacks at its next note are no gap."""
        self.interruptions += 1

    def summary(self) -> Mapping[str, int]:
        """The counts, under stable names."""
        return {
            "notes": self.notes,
            "shard_moves": self.moves,
            **{f"sequence_errors_{kind.value}": count for kind, count in self.sequence_errors.items()},
            "unnumbered": self.unnumbered,
            "malformed": self.malformed,
            "forgotten_keys": self.forgotten_keys,
            "interruptions": self.interruptions,
        }

    def _follow_key(self, note: Note) -> SequenceError | None:
        if note.publisher is None or note.key is None or note.seq is None:
            self.unnumbered += 1
            return None
        state = self._keys.get((note.publisher, note.key))
        if state is None:
            # Members may have been at work before this validator listened.
            first = _KeyState(note.seq, note.seq, note.redelivered, self.interruptions)
            self._remember((note.publisher, note.key), first)
            return None
        self._keys.move_to_end((note.publisher, note.key))
        expected = state.highest + 1
        # After a crash a run of flagged numbers comes again, and its first one has been reported. An unflagged one
        # among them is worse.
        goes_on = note.seq == state.last + 1 and note.redelivered == state.was_redelivered
        may_have_missed, state.heard_after = state.heard_after < self.interruptions, self.interruptions
        state.highest, state.last, state.was_redelivered = max(state.highest, note.seq), note.seq, note.redelivered
        if note.seq == expected or goes_on:
            return None
        if note.seq > expected:
            return None if may_have_missed else SequenceError(SequenceErrorKind.GAP, expected, note)
        kind = SequenceErrorKind.REPEAT_FLAGGED if note.redelivered else SequenceErrorKind.REPEAT_UNFLAGGED
        return SequenceError(kind, expected, note)

    def _follow_shard(self, note: Note) -> ShardMove | None:
        if note.shard is None:
            return None
        old_member, old_queue = self._last_of_shard.get(note.shard, (note.member, note.queue))
        self._last_of_shard[note.shard] = (note.member, note.queue)
        return None if old_member == note.member else ShardMove(note.shard, old_member, old_queue, note)

    def _remember(self, key: tuple[str, str], state: _KeyState) -> None:
        self._keys[key] = state
        if len(self._keys) > self._max_keys:
            self._keys.popitem(last=False)
            self.forgotten_keys += 1


def parse_note(payload: bytes) -> Note | None:
    """The note that a member sent, or None if the payload is something else."""
    try:
        row = orjson.loads(payload)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(row, dict):
        return None
    member, queue, topic, redelivered = (row.get(name) for name in ("member", "queue", "topic", "redelivered"))
    shard, seq, key, publisher = (row.get(name) for name in ("shard", "seq", "key", "publisher"))
    if not (isinstance(member, str) and isinstance(queue, str) and isinstance(topic, str)):
        return None
    if not (_is_number(shard) and _is_number(seq) and _is_text(key) and _is_text(publisher)):
        return None
    return Note(member, queue, shard, key, seq, publisher, topic, redelivered is True)


def _is_number(value: object) -> bool:
    return value is None or type(value) is int


def _is_text(value: object) -> bool:
    return value is None or isinstance(value, str)
