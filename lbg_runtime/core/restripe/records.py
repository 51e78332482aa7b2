"""What a re-striping writes into the queues it changes: persistent messages that members read in queue order.

All kinds are published on one topic, to which every queue of the old and of the new layout is subscribed, so one
publish puts a record into each of them, at one point in the group's stream. Members settle them late
(core/restripe/gate.py), so a member that binds a queue in mid-move is told everything again, before any message that
depends on it.
"""

import json
from collections import Counter
from dataclasses import dataclass, field

from lbg_runtime.model.errors import RestripeRecordRefused
from lbg_runtime.model.group import LARGEST_HASH_COUNT
from lbg_runtime.model.message import Message
from lbg_runtime.model.whole import whole_number

RECORD_VERSION = 1
MAX_SECRET_LENGTH = 64
_MAX_NUMBER = 2**63 - 1
_SHOWN_BYTES = 16
"""How much of a refused record is shown: its version and kind, and nothing of a secret, which would come later."""


@dataclass(frozen=True, slots=True)
class StripePlan:
    """First record of a re-striping: in every queue, it comes before any copy of a message of a moving shard."""

    generation: int
    """Identifies the re-striping; larger than that of any earlier one of the group."""
    from_count: int
    to_count: int
    secret: str = field(repr=False)
    """Known to anyone who can read the group's queues or their subscriptions; proves what is said about the re-striping
    on the control topic. Letters and digits. Left out of `repr`, which gets into logs."""

    @property
    def queue_total(self) -> int:
        """Number of queues that exist during the re-striping."""
        return max(self.from_count, self.to_count)

    def old_index(self, shard: int) -> int:
        """Index of the queue that holds the shard before its move."""
        return shard % self.from_count

    def new_index(self, shard: int) -> int:
        """Index of the queue that holds the shard after its move."""
        return shard % self.to_count

    def moving(self, hash_count: int) -> list[int]:
        """The shards that change their queue, in the order of their moves."""
        return [shard for shard in range(hash_count) if self.old_index(shard) != self.new_index(shard)]

    def marker_counts(self, hash_count: int) -> Counter[int]:
        """How many markers each queue keeps until the finish, by index: those of the shards that leave it or come."""
        moving = self.moving(hash_count)
        return Counter(map(self.old_index, moving)) + Counter(map(self.new_index, moving))


@dataclass(frozen=True, slots=True)
class ShardMarker:
    """Cuts a shard's stream: messages before it are handled from the old queue, messages after it from the new one.

    Only the first marker of a shard counts in a generation.
    """

    generation: int
    shard: int


@dataclass(frozen=True, slots=True)
class StripeFinish:
    """Follows the last move: every shard has moved, and no queue has anything of an old shard after this."""

    generation: int
    from_count: int
    to_count: int


@dataclass(frozen=True, slots=True)
class StripeEnd:
    """Last record of a re-striping: nothing of it is left in any queue, and queues no longer needed are empty."""

    generation: int
    to_count: int


StripeRecord = StripePlan | ShardMarker | StripeFinish | StripeEnd


def record_prefix(control_topic: str) -> str:
    """The prefix of the topics of a group's records."""
    return f"{control_topic}/restripe/"


def record_topic(control_topic: str, plan: StripePlan) -> str:
    """The topic of one re-striping's records. A queue's subscription to it names the re-striping that is under way."""
    return f"{record_prefix(control_topic)}{_levels(plan)}"


def plan_of_topic(control_topic: str, topic: str) -> StripePlan | None:
    """The re-striping whose records have this topic; None if it is not one of this group."""
    return plan_with_prefix(record_prefix(control_topic), topic)


def without_secret(control_topic: str, topic: str) -> str:
    """A topic of a queue in a form that may be shown: a topic of records loses its last level, the secret."""
    return topic.rpartition("/")[0] if plan_of_topic(control_topic, topic) is not None else topic


def plan_with_prefix(prefix: str, topic: str) -> StripePlan | None:
    """Like `plan_of_topic`, for a group whose records' topics begin with `prefix`."""
    parts = topic[len(prefix) :].split("/") if topic.startswith(prefix) else []
    numbers = [number for part in parts[:3] if (number := whole_number(part, 19)) is not None]
    if len(parts) != 4 or len(numbers) != 3:
        return None
    generation, from_count, to_count = numbers
    if not (_are_numbers(generation) and generation > 0 and _are_counts(from_count, to_count)):
        return None
    plan = StripePlan(generation, from_count, to_count, parts[3])
    # Only the exact spelling counts, because a conductor subscribes and publishes with a topic made from the plan.
    return plan if _is_secret(plan.secret) and f"{prefix}{_levels(plan)}" == topic else None


def encode_record(record: StripeRecord, topic: str) -> Message:
    """The message to publish on the re-striping's topic."""
    match record:
        case StripePlan(generation, from_count, to_count, secret):
            items: list[object] = ["plan", generation, from_count, to_count, secret]
        case ShardMarker(generation, shard):
            items = ["marker", generation, shard]
        case StripeFinish(generation, from_count, to_count):
            items = ["finish", generation, from_count, to_count]
        case StripeEnd(generation, to_count):
            items = ["end", generation, to_count]
    return Message(topic, json.dumps([RECORD_VERSION, *items], separators=(",", ":")).encode())


def decode_record(payload: bytes) -> StripeRecord:
    """The record in a message; raises `RestripeRecordRefused` for anything else."""
    try:
        items = json.loads(payload)
    except (ValueError, RecursionError):
        items = None
    match items:
        case [version, kind, generation, *facts] if (
            _are_numbers(version, generation) and version == RECORD_VERSION and generation > 0
        ):
            record = _record_of(kind, generation, facts)
        case _:
            record = None
    if record is None:
        raise RestripeRecordRefused(payload[:_SHOWN_BYTES])
    return record


def _record_of(kind: object, generation: int, facts: list[object]) -> StripeRecord | None:
    match kind, *facts:
        case "plan", int(from_count), int(to_count), str(secret):
            is_valid = _are_counts(from_count, to_count) and _is_secret(secret)
            return StripePlan(generation, from_count, to_count, secret) if is_valid else None
        case "marker", int(shard):
            return ShardMarker(generation, shard) if _are_numbers(shard) else None
        case "finish", int(from_count), int(to_count):
            return StripeFinish(generation, from_count, to_count) if _are_counts(from_count, to_count) else None
        case "end", int(to_count):
            return StripeEnd(generation, to_count) if _are_counts(to_count) else None
        case _:
            return None


def _are_numbers(*items: object) -> bool:
    # Not isinstance: true is not a number here, though Python's bool is an int.
    return all(type(item) is int and 0 <= item <= _MAX_NUMBER for item in items)


def _are_counts(*items: object) -> bool:
    # Of queues, which every reader goes through one by one; no group has more of them than shards.
    return all(type(item) is int and 0 < item <= LARGEST_HASH_COUNT for item in items)


def _levels(plan: StripePlan) -> str:
    return f"{plan.generation}/{plan.from_count}/{plan.to_count}/{plan.secret}"


def _is_secret(text: str) -> bool:
    return 0 < len(text) <= MAX_SECRET_LENGTH and text.isascii() and text.isalnum()
