"""Delivered messages by delivery id, settled by ranges that may be far wider than the deliveries."""

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterable, Iterator
from typing import cast

from lbg_runtime.broker.engine.waiting import SpooledMessage
from lbg_runtime.model.ids import DeliveryId


class DeliveryIds:
    """The one source of delivery ids of a broker: increasing, never reused. Shared by all queues of an engine."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last = 0

    @property
    def last(self) -> DeliveryId:
        """The greatest id taken or skipped."""
        return DeliveryId(self._last)

    def take(self, count: int) -> list[DeliveryId]:
        """Take this many ids, increasing, above all taken or skipped before."""
        first, self._last = self._last + 1, self._last + count
        return cast("list[DeliveryId]", list(range(first, self._last + 1)))

    def skip_to(self, delivery_id: DeliveryId) -> None:
        """Make all later ids greater than this one, which a client knows from an earlier life of the broker."""
        self._last = max(self._last, delivery_id)


class Deliveries:
    """The unsettled deliveries of one flow, by increasing id. Called only by the flow's queue.

    A call costs a search plus its results, and taking moves the entries after those taken (eight bytes each, in one
    copy): the width of a range does not matter.
    """

    __slots__ = ("_ids", "_messages")

    def __init__(self) -> None:
        # Parallel lists, sorted because ids only grow.
        self._ids: list[DeliveryId] = []
        self._messages: list[SpooledMessage] = []

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[tuple[DeliveryId, SpooledMessage]]:
        """Iterate over pairs of id and message, by increasing id."""
        return zip(self._ids, self._messages, strict=True)

    def add(self, ids: Iterable[DeliveryId], messages: Iterable[SpooledMessage]) -> None:
        """Add deliveries, as many ids as messages; the ids increase, and are above all ids added before."""
        self._ids += ids
        self._messages += messages

    def take(self, first: DeliveryId, last: DeliveryId) -> list[SpooledMessage]:
        """Remove and return what was delivered with ids `first` to `last`, both included, by increasing id."""
        start = bisect_left(self._ids, first)
        end = bisect_right(self._ids, last)
        taken = self._messages[start:end]
        del self._ids[start:end]
        del self._messages[start:end]
        return taken

    def count(self, first: DeliveryId, last: DeliveryId) -> int:
        """How many deliveries have ids `first` to `last`, both included."""
        return max(bisect_right(self._ids, last) - bisect_left(self._ids, first), 0)

    def discard(self, delivery_id: DeliveryId) -> None:
        """Remove one delivery if it is there."""
        self.take(delivery_id, delivery_id)

    def of_part(self, key: Hashable) -> list[SpooledMessage]:
        """Messages of one part of the queue, by increasing id; looks at all of them."""
        return [message for message in self._messages if message.part is not None and message.part.key == key]

    def drop_gone(self) -> None:
        """Remove deliveries of messages that were removed from the spool by someone else."""
        self._ids = [id_ for id_, message in self if not message.is_gone]
        self._messages = [message for message in self._messages if not message.is_gone]
