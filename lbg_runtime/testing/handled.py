"""What was handled: combines the members' records with the calls of their handlers."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lbg_runtime.core.parking.identity import MessageIdentity
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.ids import DeliveryId, Epoch, QueueName
from lbg_runtime.model.message import Message
from lbg_runtime.model.record import DispatchRecord
from lbg_runtime.testing.handler_watch import Attempt, DeliveryName
from lbg_runtime.testing.life import Life

Payload = bytes | str
"""Text stands for its UTF-8 bytes."""


@dataclass(frozen=True, slots=True)
class Handled:
    """A message that one member handled successfully."""

    member: str
    queue: QueueName
    message: Message
    redelivered: bool
    """The broker's flag: it was sent to a member before."""
    attempts: int
    """How often this member called its handler for this delivery."""

    @property
    def key(self) -> str | None:
        """The key that it was published with."""
        return self.message.key

    @property
    def number(self) -> int | None:
        """Its number within the key, from 1."""
        return self.message.key_sequence

    @property
    def payload(self) -> bytes:
        """The payload of the message."""
        return self.message.payload


def handled_by(lives: Sequence[Life], shape: GroupShape) -> list[Handled]:
    """Everything that was handled successfully, in the order in which it ended."""
    found: list[tuple[int, Handled]] = []
    for life in lives:
        for ending, attempts in zip(life.records.endings, attempts_of_endings(life, shape), strict=True):
            record = ending.record
            # What is moved away is settled as well.
            is_handled = record.outcome == "accepted" and attempts and attempts[-1].is_good
            if is_handled and not attempts[-1].is_given_up:
                queue = shape.queue_name(record.queue)
                message = attempts[-1].message
                handled = Handled(life.member, queue, message, record.redelivered, record.attempts)
                found.append((ending.written_ns, handled))
    return [handled for _, handled in sorted(found, key=lambda entry: entry[0])]


def attempts_of_endings(life: Life, shape: GroupShape) -> list[list[Attempt]]:
    """For every record of a delivery, the calls of its handler, including those that came later."""
    places: dict[DeliveryName, int] = {}
    starts: dict[MessageIdentity, list[tuple[int, int]]] = defaultdict(list)
    for place, ending in enumerate(life.records.endings):
        record = ending.record
        name = (shape.queue_name(record.queue), Epoch(record.bind_epoch), DeliveryId(record.delivery_id))
        places[name] = place
        identity = identity_of_record(record)
        if identity is not None:
            starts[identity].append((record.start_mono_ns, place))
    found: list[list[Attempt]] = [[] for _ in life.records.endings]
    for attempt in life.watch.attempts:
        known = places.get(attempt.delivery) if attempt.delivery is not None else _latest_before(starts, attempt)
        if known is not None:
            found[known].append(attempt)
    return found


def _latest_before(starts: Mapping[MessageIdentity, list[tuple[int, int]]], attempt: Attempt) -> int | None:
    """If a wrapper has deferred a message, this is the delivery that was begun last."""
    entries = starts.get(attempt.identity, []) if attempt.identity is not None else []
    position = bisect_right(entries, attempt.start_mono_ns, key=lambda entry: entry[0]) - 1
    return entries[position][1] if position >= 0 else None


def identity_of_record(record: DispatchRecord) -> MessageIdentity | None:
    """The same as `identity_of` for the delivered message."""
    if record.key is None or record.publisher is None or record.seq is None:
        return None
    return record.key, record.publisher, record.seq


def differences(expected: Mapping[str, Sequence[Payload]], handled: Sequence[Handled]) -> list[str]:
    """Where the messages of the keys, each counted when first handled, are not exactly these in this order."""
    found: dict[str, dict[int | None, bytes]] = {}
    for each in handled:
        found.setdefault(each.key or "", {}).setdefault(each.number, each.payload)
    lines = []
    for key in sorted({*expected, *found}):
        wanted = [payload.encode() if isinstance(payload, str) else payload for payload in expected.get(key, ())]
        had = list(found.get(key, {}).values())
        if wanted != had:
            lines.append(f"key {key!r}: expected {wanted}, handled {had}")
    return lines
