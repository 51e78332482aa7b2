"""Shared subscriptions: which of its subscribers gets a message.

In `#share/<name>/<subscription>` they take turns. A name that ends in `:count` or `:from:count` makes them sticky: so
many topic levels, from the first or from the one named (counted from 0), choose the subscriber. All topics that are
alike in them go to the same one. A subscriber that joins takes topics from the others and none moves between those;
what a subscriber had that leaves goes to the others, and comes back with it.
"""

import re
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Generic, TypeVar

from lbg_runtime.model.errors import BrokerRefusal

REMEMBERED_CHOICES = 100_000
"""Slices of topics whose subscriber is kept until one joins or leaves."""

_STICKY = re.compile(r"[^:]+(?::(?P<first>[0-9]{1,3}))?:(?P<count>[0-9]{1,3})")

S = TypeVar("S", bound=Hashable)


@dataclass(frozen=True, slots=True)
class TopicSlice:
    """Some levels of a topic."""

    first: int
    count: int

    def of(self, topic: str) -> str:
        """The levels, as far as the topic has them."""
        return "/".join(topic.split("/", self.first + self.count)[self.first : self.first + self.count])


def slice_of(name: str) -> TopicSlice | None:
    """What the name of a share says of stickiness; 400 `Subscription Parse Error` for a slice of no levels.

    A name that has colons and no such end is a name like others.
    """
    found = _STICKY.fullmatch(name)
    if found is None:
        return None
    count = int(found["count"])
    if not count:
        raise BrokerRefusal(400, "Subscription Parse Error")
    return TopicSlice(int(found["first"] or 0), count)


class Share(Generic[S]):
    """The subscribers of one shared subscription. Called by `Subscriptions` only."""

    def __init__(self, name: str, name_of: Callable[[S], str]) -> None:
        """`name_of` names a subscriber, the same in all its lives."""
        self._slice = slice_of(name)
        self._name_of = name_of
        self._members: deque[S] = deque()
        self._chosen: dict[str, S] = {}

    def __bool__(self) -> bool:
        return bool(self._members)

    def join(self, member: S) -> None:
        """Add a subscriber."""
        self._members.append(member)
        self._chosen.clear()

    def leave(self, member: S) -> None:
        """Remove a subscriber that is there."""
        self._members.remove(member)
        self._chosen.clear()

    def next(self, topic: str) -> S:
        """Who gets a message on this topic; there must be somebody."""
        if self._slice is None:
            self._members.rotate(-1)
            return self._members[-1]
        slice_ = self._slice.of(topic)
        chosen = self._chosen.get(slice_)
        if chosen is None:
            # Every subscriber has a weight for every slice, which depends on nobody else: the heaviest has it.
            chosen = max(self._members, key=lambda member: _weight(self._name_of(member), slice_))
            if len(self._chosen) >= REMEMBERED_CHOICES:
                self._chosen.clear()
            self._chosen[slice_] = chosen
        return chosen


def _weight(name: str, slice_: str) -> tuple[bytes, str]:
    # Not a sum like CRC-32, whose differences between two names are the same for all topics of one length.
    return blake2b(f"{name}\0{slice_}".encode(), digest_size=8).digest(), name
