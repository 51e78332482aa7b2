"""Who wants a topic: the subscriptions of one VPN as a tree of topic levels, so that a publish visits only matches."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from lbg_runtime.broker.engine.matching.shares import Share, slice_of
from lbg_runtime.model.errors import BrokerRefusal

SHARE_PREFIX = "#share/"
LARGEST_SUBSCRIPTION_BYTES = 250
REMEMBERED_TOPICS = 10_000
"""Topics whose matches are cached until a subscription changes."""

S = TypeVar("S", bound=Hashable)


@dataclass(slots=True)
class _Level(Generic[S]):
    """A node of the tree: all subscriptions that begin with the same levels."""

    literal: dict[str, "_Level[S]"] = field(default_factory=dict)
    prefixed: dict[str, "_Level[S]"] = field(default_factory=dict)
    """Levels written `abc*`, by `abc`; `*` alone is the empty prefix."""
    subscribers: dict[S | Share[S], None] = field(default_factory=dict)
    """Subscribers whose subscription ends here."""
    subscribers_of_rest: dict[S | Share[S], None] = field(default_factory=dict)
    """Subscribers whose subscription ends here with `>`."""

    @property
    def is_empty(self) -> bool:
        return not (self.literal or self.prefixed or self.subscribers or self.subscribers_of_rest)


class Subscriptions(Generic[S]):
    """Subscriptions by subscriber, matched by topic as `lbg_runtime.model.topic.matches` does. Called only by a VPN.

    `#share/<share name>/<subscription>` gives each message to one of its subscribers, as described in `shares.py`. A
    subscriber that a topic reaches in several ways is returned once.
    """

    def __init__(self, name_of: Callable[[S], str] = str) -> None:
        """`name_of` returns a subscriber's name, which is the same in all its lives."""
        self._name_of = name_of
        self._root: _Level[S] = _Level()
        self._texts: dict[S, dict[str, None]] = {}
        self._shares: dict[str, Share[S]] = {}
        self._matched: dict[str, tuple[tuple[S, ...], tuple[Share[S], ...]]] = {}

    def add(self, subscriber: S, text: str) -> None:
        """Subscribe; 400 `Subscription Already Exists`, 400 `Subscription Parse Error`."""
        topic = topic_of(text)
        texts = self._texts.setdefault(subscriber, {})
        if text in texts:
            raise BrokerRefusal(400, "Subscription Already Exists")
        texts[text] = None
        self._matched.clear()
        if topic is text:
            self._enter(topic, subscriber)
            return
        share = self._shares.get(text)
        if share is None:
            share = self._shares[text] = Share(_share_name(text), self._name_of)
            self._enter(topic, share)
        share.join(subscriber)

    def remove(self, subscriber: S, text: str) -> None:
        """Undo `add`; 400 `Subscription Not Found`."""
        texts = self._texts.get(subscriber, {})
        if text not in texts:
            raise BrokerRefusal(400, "Subscription Not Found")
        del texts[text]
        if not texts:
            del self._texts[subscriber]
        self._matched.clear()
        topic = topic_of(text)
        if topic is text:
            self._take_out(self._root, topic.split("/"), 0, subscriber)
            return
        share = self._shares[text]
        share.leave(subscriber)
        if not share:
            del self._shares[text]
            self._take_out(self._root, topic.split("/"), 0, share)

    def remove_all(self, subscriber: S) -> None:
        for text in tuple(self._texts.get(subscriber, ())):
            self.remove(subscriber, text)

    def of(self, subscriber: S) -> tuple[str, ...]:
        """A subscriber's subscriptions as they were written, oldest first."""
        return tuple(self._texts.get(subscriber, ()))

    def match(self, topic: str) -> tuple[S, ...]:
        """Every subscriber that gets a message on this topic, each once; of a share only the chosen one."""
        if not self._texts:
            return ()
        found = self._matched.get(topic)
        if found is None:
            found = self._find(topic)
            if len(self._matched) >= REMEMBERED_TOPICS:
                self._matched.clear()
            self._matched[topic] = found
        subscribers, shares = found
        if not shares:
            return subscribers
        return tuple(dict.fromkeys((*subscribers, *(share.next(topic) for share in shares))))

    def _find(self, topic: str) -> tuple[tuple[S, ...], tuple[Share[S], ...]]:
        found: dict[S | Share[S], None] = {}
        places = [self._root]
        for level in topic.split("/"):
            following: list[_Level[S]] = []
            for place in places:
                found.update(place.subscribers_of_rest)
                if (exact := place.literal.get(level)) is not None:
                    following.append(exact)
                if place.prefixed:
                    following += _levels_by_prefix(place.prefixed, level)
            places = following
        for place in places:
            found.update(place.subscribers)
        shares = tuple(each for each in found if isinstance(each, Share))
        return tuple(each for each in found if not isinstance(each, Share)), shares

    def _enter(self, topic: str, subscriber: S | Share[S]) -> None:
        levels = topic.split("/")
        place = self._root
        for position, level in enumerate(levels):
            if level == ">" and position == len(levels) - 1:
                place.subscribers_of_rest[subscriber] = None
                return
            if level.endswith("*"):
                place = place.prefixed.setdefault(level[:-1], _Level())
            else:
                place = place.literal.setdefault(level, _Level())
        place.subscribers[subscriber] = None

    def _take_out(self, place: _Level[S], levels: list[str], position: int, subscriber: S | Share[S]) -> None:
        """Undo `_enter`, and cut branches that have become empty."""
        if position == len(levels):
            del place.subscribers[subscriber]
            return
        level = levels[position]
        if level == ">" and position == len(levels) - 1:
            del place.subscribers_of_rest[subscriber]
            return
        branches, name = (place.prefixed, level[:-1]) if level.endswith("*") else (place.literal, level)
        branch = branches[name]
        self._take_out(branch, levels, position + 1, subscriber)
        if branch.is_empty:
            del branches[name]


def _levels_by_prefix(prefixed: dict[str, _Level[S]], level: str) -> list[_Level[S]]:
    """Nodes whose prefix begins this level; the cost depends on the level's length, not on how many prefixes exist."""
    return [found for end in range(len(level) + 1) if (found := prefixed.get(level[:end])) is not None]


def topic_of(text: str) -> str:
    """The topic of a subscription's text, the same object if it is not shared; 400 `Subscription Parse Error`."""
    topic = text
    if text.startswith(SHARE_PREFIX):
        name, _, topic = text.removeprefix(SHARE_PREFIX).partition("/")
        if not name or "*" in name or ">" in name:
            raise BrokerRefusal(400, "Subscription Parse Error")
        slice_of(name)
    if not topic or len(text.encode()) > LARGEST_SUBSCRIPTION_BYTES or "\0" in text:
        raise BrokerRefusal(400, "Subscription Parse Error")
    return topic


def _share_name(text: str) -> str:
    return text.removeprefix(SHARE_PREFIX).partition("/")[0]
