"""Which keys a member has met since its flow on a queue became active."""

from collections import OrderedDict

from lbg_runtime.core.lanes import LaneKey
from lbg_runtime.model.ids import Epoch, QueueName

MAX_KEYS_REMEMBERED = 40_000
"""Of all queues of the member: about 8 MB. The one not met for longest is forgotten first, and is then new again."""


class SeenKeys:
    """One per member, asked by the dispatcher once for each delivery that is started. Constant time.

    A flow is active once in the life of its handle, so the epoch is what "since it became active" goes by.
    """

    def __init__(self, capacity: int = MAX_KEYS_REMEMBERED) -> None:
        self._capacity = capacity
        # In the order in which they were met last, with the handle on which that was.
        self._handles: OrderedDict[LaneKey, tuple[QueueName, Epoch]] = OrderedDict()

    def meet(self, queue: QueueName, epoch: Epoch, key: LaneKey) -> bool:
        """Whether this is the first time in the epoch, as far as it is remembered: never False for a new key."""
        handles, handle = self._handles, (queue, epoch)
        before = handles.get(key)
        if before == handle:
            handles.move_to_end(key)
            return False
        handles[key] = handle
        if before is not None:
            handles.move_to_end(key)
        elif len(handles) > self._capacity:
            handles.popitem(last=False)
        return True
