"""Remembers of which keys a member has handled a message since it got their queue, so as to tell a key's first one."""

import hashlib

from lbg_runtime.core.lanes import LaneKey
from lbg_runtime.model.ids import Epoch, QueueName

MAX_KEYS_REMEMBERED = 20_000
"""The limit for all queues of the member together; takes about 2 MB."""

LONGEST_REMEMBERED = 200
"""The longest key, in characters, that is remembered as it is; a rule for keys may take any text of a message."""


def remembered(key: LaneKey) -> LaneKey | bytes:
    """A key in bounded size, for where only the number of keys is bounded: itself or, if it is long, its digest."""
    if len(key) <= LONGEST_REMEMBERED:
        return key
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


class _Tenure:
    """A time in which no other member had keys of the queue that this member was shown. Told apart by identity."""

    __slots__ = ("epoch",)

    def __init__(self, epoch: Epoch) -> None:
        self.epoch = epoch


class SeenKeys:
    """One per member, asked by the dispatcher once for each delivery that is started. Constant time.

    A key counts as met when a message of it is started. If that delivery ends unhandled, `take_back` undoes it: what a
    handler loads for the first message of a key may not be loaded. To count a key only when its message is handled
    would cost a second call for every message.

    A flow is active once in the life of its handle, so a member has a queue's keys for one epoch. Within that, a
    re-striping may lead a shard away and back: `forget` begins a new tenure, and all keys met before it are new again.

    Keys are kept in two generations, each of half the capacity: when the young one is full it becomes the old one, and
    keys of the former old one that were not met since are forgotten. So to meet a key again costs a lookup; a list in
    the order of use would have to be changed each time.
    """

    def __init__(self, capacity: int = MAX_KEYS_REMEMBERED) -> None:
        self._half = max(1, capacity // 2)
        self._tenures: dict[QueueName, _Tenure] = {}
        # Values: the tenure in which the key was met last.
        self._young: dict[LaneKey | bytes, _Tenure] = {}
        self._old: dict[LaneKey | bytes, _Tenure] = {}

    def meet(self, queue: QueueName, epoch: Epoch, key: LaneKey) -> bool:
        """Whether the key is met for the first time in the epoch and since the last `forget`; also True for a key that
        was met before but is no longer remembered."""
        tenure = self._tenures.get(queue)
        if tenure is None or tenure.epoch != epoch:
            tenure = self._tenures[queue] = _Tenure(epoch)
        # Most keys are short: save them the call.
        name = key if len(key) <= LONGEST_REMEMBERED else remembered(key)
        if (before := self._young.get(name)) is tenure:
            return False
        if before is None:
            before = self._old.get(name)
            if len(self._young) >= self._half:
                self._old, self._young = self._young, {}
        self._young[name] = tenure
        return before is not tenure

    def forget(self, queue: QueueName) -> None:
        """Count all keys of a queue as new again: some of them are now with another member. Constant time."""
        self._tenures.pop(queue, None)

    def take_back(self, key: LaneKey) -> None:
        """Forget a key whose first message was not handled after all: the next one is the first. Constant time."""
        # It may be in either: since it was met, the young generation may have become the old one.
        name = remembered(key)
        self._young.pop(name, None)
        self._old.pop(name, None)
