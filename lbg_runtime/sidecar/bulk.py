"""Decides which waiting events go together in one request; no clock, no I/O.

A lane gives its next event only when the one before is answered, so a bulk never has two events of one key, and order
needs no care here. Any number of full bulks may be under way. One that is not full waits, while more events join it,
until none is under way or the application's limit is reached; it does not wait if one of its events is in a hurry.
"""

from collections.abc import Sequence

import orjson

from lbg_runtime.sidecar.event import Event, bulk_entry
from lbg_runtime.sidecar.subscriptions import Bulk, Subscription

BULK_TYPE = "com.dapr.event.sent.bulk"


class BulkGathering:
    """One per subscription. Events are numbers here, assigned by the caller."""

    def __init__(self, bulk: Bulk) -> None:
        self._bulk = bulk
        self._since_ms: dict[int, int] = {}
        """The waiting events in order, each with the time since when it waits."""
        self._hurried: set[int] = set()
        """The waiting events that do not wait for others."""
        self._under_way = 0

    def offer(self, number: int, now_ms: int) -> None:
        """An event waits from now on."""
        self._since_ms[number] = now_ms

    def hurry(self, number: int) -> None:
        """If the event waits, let it wait for no others any more: the bulk that it is in is due."""
        if number in self._since_ms:
            self._hurried.add(number)

    def withdraw(self, number: int) -> None:
        """Nobody waits for the event any more. Idempotent."""
        self._since_ms.pop(number, None)
        self._hurried.discard(number)

    def answered(self) -> None:
        """One bulk is no longer under way."""
        self._under_way -= 1

    def take(self, now_ms: int) -> tuple[int, ...]:
        """The events to send now in one request, which then counts as under way; none if no bulk is due."""
        waiting = self._since_ms
        deadline_ms = self.deadline_ms
        is_full = len(waiting) >= self._bulk.max_count
        is_due = bool(self._hurried) or (deadline_ms is not None and deadline_ms <= now_ms)
        if not waiting or not (is_full or is_due or self._under_way == 0):
            return ()
        taken = tuple(waiting)[: self._bulk.max_count]
        for number in taken:
            del waiting[number]
        self._hurried.difference_update(taken)
        self._under_way += 1
        return taken

    @property
    def deadline_ms(self) -> int | None:
        """When the first waiting event has waited long enough; None if none waits."""
        first = next(iter(self._since_ms.values()), None)
        return None if first is None else first + self._bulk.max_wait_ms


def bulk_body(subscription: Subscription, bulk_id: str, events: Sequence[tuple[str, Event]]) -> bytes:
    """The request's body in Dapr's form; each event comes with its entry id."""
    name = subscription.pubsub_name
    return orjson.dumps(
        {
            "id": bulk_id,
            "type": BULK_TYPE,
            "topic": subscription.topic,
            "pubsubname": name,
            "metadata": {"pubsubName": name},
            "entries": [bulk_entry(event, name, entry_id, is_raw=subscription.is_raw) for entry_id, event in events],
        }
    )
