"""Which keys a member has handled a message of since its flow on a queue became active, or a shard last left it."""

import hashlib

from lbg_runtime.core.lanes import LaneKey
from lbg_runtime.model.ids import Epoch, QueueName

MAX_KEYS_REMEMBERED = 20_000
"""For all queues of the member together: about 2 MB."""

LONGEST_REMEMBERED = 200
"""Characters of a key that is remembered as it is. A rule for keys may find one in any text of a message."""


def remembered(key: LaneKey) -> LaneKey | bytes:
    """A key as it is remembered where only the number of keys is bounded: itself, or the digest of one that is long."""
    if len(key) <= LONGEST_REMEMBERED:
        return key
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


class _Tenure:
    """A time in which keys that a queue has shown to this member are with no other; another time is another object."""

    __slots__ = ("epoch",)

    def __init__(self, epoch: Epoch) -> None:
        self.epoch = epoch


class SeenKeys:
    """One per member, asked by the dispatcher once for each delivery that is started. Constant time.

    A key counts as met when a message of it is started, and a delivery that then ends unhandled takes that back: nobody
    may have loaded what the next message needs. The other way round, each message would cost a second call.

    A flow is active once in the life of its handle, so "since it became active" means "in this epoch". Within it, a
    re-striping may lead a shard away and back: `forget` begins a new tenure, and the keys met before it are new again.

    Keys are kept in two generations, each of half the capacity: when the young one is full it becomes the old one, and
    keys of the former old one that were not met since are forgotten. Meeting a key again then costs a lookup, whereas a
    list in the order of use would cost a change.
    """

    def __init__(self, capacity: int = MAX_KEYS_REMEMBERED) -> None:
        self._half = max(1, capacity // 2)
        self._tenures: dict[QueueName, _Tenure] = {}
        # Values: the tenure in which the key was met last.
        self._young: dict[LaneKey | bytes, _Tenure] = {}
        self._old: dict[LaneKey | bytes, _Tenure] = {}

    def meet(self, queue: QueueName, epoch: Epoch, key: LaneKey) -> bool:
        """Whether the key is met for the first time in the epoch, and since `forget`, as far as remembered: never False
        for a new key."""
        tenure = self._tenures.get(queue)
        if tenure is None or tenure.epoch != epoch:
            tenure = self._tenures[queue] = _Tenure(epoch)
        # Most keys are short, and are not worth a call.
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
        """Take all keys of a queue for new: some of them are now with another member. Constant time."""
        self._tenures.pop(queue, None)

    def take_back(self, key: LaneKey) -> None:
        """Forget a key whose first message was not handled after all: the next one is the first. Constant time."""
        # Since it was met, the young generation may have become the old one.
        name = remembered(key)
        self._young.pop(name, None)
        self._old.pop(name, None)
