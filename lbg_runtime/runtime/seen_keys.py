"""Which keys a member has met since its flow on a queue became active."""

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
        # Dicts keep the order in which keys were met last.
        self._keys: dict[QueueName, dict[LaneKey, None]] = {}

    def meet(self, queue: QueueName, epoch: Epoch, key: LaneKey) -> bool:
        """Whether this is the first time in the epoch, as far as it is remembered: never False for a new key."""
        if self._epochs.get(queue) != epoch:
            self._epochs[queue] = epoch
            self._keys[queue] = {key: None}
            return True
        keys = self._keys[queue]
        is_first = key not in keys
        if not is_first:
            del keys[key]
        elif len(keys) == self._capacity:
            del keys[next(iter(keys))]
        keys[key] = None
        return is_first
