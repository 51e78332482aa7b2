"""Which keys a member has met since its flow on a queue became active."""

from collections import OrderedDict

from lbg_runtime.core.lanes import LaneKey
from lbg_runtime.model.ids import Epoch, QueueName

MAX_KEYS_REMEMBERED = 100_000
"""Of one queue: about 20 MB. The one not met for longest is forgotten first, and is then new again."""


class SeenKeys:
    """One per member, asked by the dispatcher once for each delivery that is started. Constant time.

    A flow is active once in the life of its handle, so the epoch is what "since it became active" goes by.
    """

    def __init__(self, capacity: int = MAX_KEYS_REMEMBERED) -> None:
        self._capacity = capacity
        self._epochs: dict[QueueName, Epoch] = {}
        # In the order in which they were met last.
        self._keys: dict[QueueName, OrderedDict[LaneKey, None]] = {}

    def meet(self, queue: QueueName, epoch: Epoch, key: LaneKey) -> bool:
        """Whether this is the first time in the epoch, as far as it is remembered: never False for a new key."""
        if self._epochs.get(queue) != epoch:
            self._epochs[queue] = epoch
            self._keys[queue] = OrderedDict()
        keys = self._keys[queue]
        is_first = key not in keys
        keys[key] = None
        if not is_first:
            keys.move_to_end(key)
        elif len(keys) > self._capacity:
            keys.popitem(last=False)
        return is_first
