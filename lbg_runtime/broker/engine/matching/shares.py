"""Shared subscriptions: which of the subscribers gets a message.

The subscribers of `#share/<name>/<subscription>` take turns. A name that ends in `:count` or `:from:count` makes the
share sticky: `count` topic levels, from the first or from level `from` (counted from 0), choose the subscriber. All
topics that agree in these levels go to the same one. A subscriber that joins takes topics from the others, and none
moves between those; when a subscriber leaves, its topics go to the others, and come back when it does.
"""

import re
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Generic, TypeVar

from lbg_runtime.model.errors import BrokerRefusal

REMEMBERED_CHOICES = 100_000
"""Topic slices whose subscriber is cached until one joins or leaves."""

_STICKY = re.compile(r"[^:]+(?::(?P<first>[0-9]{1,3}))?:(?P<count>[0-9]{1,3})")

S = TypeVar("S", bound=Hashable)


@dataclass(frozen=True, slots=True)
class TopicSlice:
    """Some levels of a topic."""

    first: int
    count: int

    def of(self, topic: str) -> str:
        """These levels, as far as the topic has them."""
        return "/".join(topic.split("/", self.first + self.count)[self.first : self.first + self.count])


def slice_of(name: str) -> TopicSlice | None:
    """The stickiness given in the name of a share; 400 `Subscription Parse Error` for a slice of no levels.

    A name with colons but without such an ending is an ordinary name.
    """
    found = _STICKY.fullmatch(name)
    if found is None:
        return None
    count = int(found["count"])
    if not count:
        raise BrokerRefusal(400, "Subscription Parse Error")
    return TopicSlice(int(found["first"] or 0), count)


class Share(Generic[S]):
    """The subscribers of one shared subscription. Called only by `Subscriptions`."""

    def __init__(self, name: str, name_of: Callable[[S], str]) -> None:
        """`name_of` returns a subscriber's name, which is the same in all its lives."""
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
        """Remove a subscriber, which must be there."""
        self._members.remove(member)
        self._chosen.clear()

    def next(self, topic: str) -> S:
        """The subscriber that gets a message on this topic; there must be one."""
        if self._slice is None:
            self._members.rotate(-1)
            return self._members[-1]
        slice_ = self._slice.of(topic)
        chosen = self._chosen.get(slice_)
        if chosen is None:
            # Rendezvous hashing: a subscriber's weight for a slice depends on no other subscriber, and the heaviest
            # gets it.
            chosen = max(self._members, key=lambda member: _weight(self._name_of(member), slice_))
            if len(self._chosen) >= REMEMBERED_CHOICES:
                self._chosen.clear()
            self._chosen[slice_] = chosen
        return chosen


def _weight(name: str, slice_: str) -> tuple[bytes, str]:
    # Not a checksum like CRC-32, with which the difference between two names is the same for all topics of one length.
    return blake2b(f"{name}\0{slice_}".encode(), digest_size=8).digest(), name
