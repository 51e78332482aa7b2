"""When two states of a small group have the same future."""

from collections import defaultdict, deque
from collections.abc import Collection, Hashable
from enum import Enum
from typing import Any, ClassVar

from lbg_runtime.core.flow.machine import FlowMachine
from lbg_runtime.core.group.control_messages import Life
from lbg_runtime.core.group.membership import MembershipMachine
from lbg_runtime.model.ids import MemberId, QueueName
from tests.core.group.small_group import FLOWS, MOVES, SILENCE_MS, TIMING, Letter, Member, SmallGroup

UNIMPORTANT = frozenset(
    (
        *("_settings", "_silence_ms", "_looks_ms_per_thousand", "_stamp", "_leap", "_random", "chance", "message"),
        *(
            "settings",
            "queues",
            "incarnations",
            "accepted",
            "begun",
            "_sequence",
            "_move_count",
            "__orig_class__",
            "name",
        ),
        *("placement", "_view", "view_digest", "in_flight", "contested", "_noted", "disregarded"),
        *("reason", "owners"),
    )
)
"""Fields that stay as they are, that only count or are told, or that follow from others; what is wrong here shows."""
PAST_MS = {
    "gone_at_ms": TIMING.forget_ms,
    "_changed_at_ms": TIMING.settle_ms,
    "_complete_at_ms": TIMING.settle_ms,
    "since_ms": MOVES.min_tenure_ms,
    "_not_before_ms": 0,
    "_rested_at_ms": 0,
    "_bound_at_ms": FLOWS.bind_backoff_max_ms,
    "claims": 2 * TIMING.heartbeat_ms,
    "_claims": 2 * TIMING.heartbeat_ms,
}
"""For how long a moment in the past makes a difference; `SILENCE_MS` for all others."""

ROWS = frozenset((list, tuple, deque))


def likeness(group: SmallGroup) -> int:
    """Equal for groups that have the same future, if the same happens to them. Heartbeats are on a grid of time."""
    return hash((_Likeness(group).of(group, "", None, None), group.now_ms % TIMING.heartbeat_ms))


class _Likeness:
    """What matters of a group for its future: moments are relative to now, and numbers to the newest of their life.

    It knows no fields but those named above, so a new one makes a difference.
    """

    _fields: ClassVar[dict[type, tuple[str, ...]]] = {}

    def __init__(self, group: SmallGroup) -> None:
        self._group = group
        self._told: set[int] = set()

    def of(self, thing: Any, name: str, who: Member | None, queue: QueueName | None) -> Hashable:
        """Of the value of a field of this name. `who` is the life that it is about, None if that has ended."""
        kind = type(thing)
        if kind is int:
            return self._number(thing, name, who, queue)
        if kind is str:
            return self._move(thing) if name == "move_id" and "/" in thing else thing
        if thing is None or kind is bool:
            return thing
        if name == "_echoes" and who is not None:
            newest = who.control.membership._sequence
            return tuple([(newest - key, self.of(each, "", who, queue)) for key, each in thing.items()])
        if kind in (dict, defaultdict):
            return tuple([(key, self.of(thing[key], name, who, key)) for key in sorted(thing)])
        if kind in ROWS:
            return tuple([self.of(each, name, who, queue) for each in thing])
        if isinstance(thing, (Enum, frozenset)):
            return thing
        if kind is set:
            return frozenset(thing)
        if kind is Life:
            return None if who is None else (who.name, sum(each.life < who.life for each in self._lives(who.member)))
        if kind in (Member, FlowMachine, MembershipMachine):
            if id(thing) in self._told:
                return None
            self._told.add(id(thing))
        if (fields := self._fields.get(kind)) is None:
            all_fields = vars(thing) if hasattr(thing, "__dict__") else kind.__slots__
            assert not isinstance(thing, Collection), f"nobody has said how a {kind.__name__} is looked at"
            fields = self._fields[kind] = tuple(each for each in all_fields if each not in UNIMPORTANT)
        about = thing.header if "header" in fields else self._group.members[thing.to] if kind is Letter else thing
        if about is not thing or "life" in fields:
            who = next((each for each in self._lives(about.member) if each.life == about.life), None)
        queue = thing.queue if "queue" in fields else queue
        return kind.__name__, tuple([self.of(getattr(thing, each), each, who, queue) for each in fields])

    def _move(self, move_id: str) -> Hashable:
        giver, incarnation, _, number = move_id.split("/")
        for each in self._lives(MemberId(giver)):
            if each.life.incarnation == int(incarnation):
                return each.name, each.control.rebalance._move_count - int(number)
        return giver, None

    def _lives(self, member: MemberId) -> list[Member]:
        return [each for each in self._group.members.values() if each.member == member]

    def _number(self, number: int, name: str, who: Member | None, queue: QueueName | None) -> int:
        if name.endswith(("_ms", "claims")):
            # Made large, as -1 and -2 have the same hash.
            return 1_000_000 + max(number - self._group.now_ms, -PAST_MS.get(name, SILENCE_MS))
        if name == "epoch" and who is not None and queue is not None:
            return who.flows[queue].epoch - number
        if name == "sequence":
            # What a life that has ended has sent arrives in order, so it is newer than what came before.
            return who.control.membership._sequence - number if who is not None else 0
        return number
