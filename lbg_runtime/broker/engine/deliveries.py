"""Delivered messages by delivery id, settled by ranges that may be far wider than what was delivered."""

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterator

from lbg_runtime.broker.engine.spool import SpooledMessage
from lbg_runtime.model.ids import DeliveryId


class DeliveryIds:
    """The one source of delivery ids of a broker: increasing, never reused. Shared by all queues of an engine."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last = 0

    @property
    def last(self) -> DeliveryId:
        """The greatest id that was taken or skipped."""
        return DeliveryId(self._last)

    def take(self) -> DeliveryId:
        """An id above all that were taken or skipped before."""
        self._last += 1
        return DeliveryId(self._last)

    def skip_to(self, delivery_id: DeliveryId) -> None:
        """Make all later ids greater than this one, which a client knows from an earlier life of the broker."""
        self._last = max(self._last, delivery_id)


class Deliveries:
    """Unsettled deliveries of one flow by increasing id. Called by the flow's queue only.

    Every call costs in proportion to what it returns, plus a search: the width of a range does not matter.
    """

    __slots__ = ("_by_id", "_ids")

    def __init__(self) -> None:
        self._by_id: dict[DeliveryId, SpooledMessage] = {}
        # Sorted because ids only grow; `discard` leaves its id behind here, `_compact` sweeps.
        self._ids: list[DeliveryId] = []

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[tuple[DeliveryId, SpooledMessage]]:
        """Pairs of id and message, by increasing id."""
        return iter(self._by_id.items())

    def add(self, delivery_id: DeliveryId, message: SpooledMessage) -> None:
        """Note a delivery; its id is above all ids added before."""
        self._by_id[delivery_id] = message
        self._ids.append(delivery_id)

    def take(self, first: DeliveryId, last: DeliveryId) -> list[SpooledMessage]:
        """Remove and return what was delivered with ids `first` to `last`, both included, by increasing id."""
        start = bisect_left(self._ids, first)
        end = bisect_right(self._ids, last)
        if start >= end:
            return []
        taken = [message for id_ in self._ids[start:end] if (message := self._by_id.pop(id_, None)) is not None]
        del self._ids[start:end]
        return taken

    def count(self, first: DeliveryId, last: DeliveryId) -> int:
        """How many there are with ids `first` to `last`, both included."""
        ids = self._ids[bisect_left(self._ids, first) : bisect_right(self._ids, last)]
        return sum(id_ in self._by_id for id_ in ids)

    def discard(self, delivery_id: DeliveryId) -> None:
        """Remove one delivery if it is there."""
        if self._by_id.pop(delivery_id, None) is not None:
            self._compact()

    def of_part(self, key: Hashable) -> list[SpooledMessage]:
        """Messages of one part of the queue, by increasing id; looks at all of them."""
        return [message for message in self._by_id.values() if message.part is not None and message.part.key == key]

    def drop_gone(self) -> None:
        """Remove deliveries of messages that were removed from the spool by someone else."""
        for delivery_id in [id_ for id_, message in self._by_id.items() if message.is_gone]:
            del self._by_id[delivery_id]
        self._compact()

    def _compact(self) -> None:
        # Each sweep pays for as many discards as it keeps ids, so a discard stays cheap on average.
        if len(self._ids) > 2 * len(self._by_id) + 16:
            self._ids = list(self._by_id)
