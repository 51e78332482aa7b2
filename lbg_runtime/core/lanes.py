"""One serial lane per key of a group, for all queues of a member (law L2).

A lane outlives binds: a redelivered message of a key waits behind a handler that is still running for an older handle.
The lanes decide what may start; runners do the handling. Used by the dispatcher (runtime/dispatch/dispatcher.py), only
on the thread of the member's event loop.
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, Protocol, TypeAlias, TypeVar

from lbg_runtime.model.errors import InvariantViolated
from lbg_runtime.model.ids import Epoch, QueueName

LaneKey: TypeAlias = str
"""Names a lane. An alias rather than a type of its own, which would cost each message a call."""


class Queued(Protocol):
    """Anything that can wait in a lane: it belongs to one flow handle."""

    @property
    def queue(self) -> QueueName:
        """The queue it came from."""
        ...

    @property
    def epoch(self) -> Epoch:
        """The flow handle it came from."""
        ...


Q = TypeVar("Q", bound=Queued)


class LaneStage(Enum):
    """How far the head of a lane has got."""

    READY = "ready"
    """It is waiting for a runner."""
    RUNNING = "running"
    """Its handler is running."""
    DELAYED = "delayed"
    """Its last attempt failed; it is waiting for the next one, or is held."""


# Looked up once: before Python 3.12, accessing an enum member costs as much as a function call.
_READY, _RUNNING, _DELAYED = LaneStage.READY, LaneStage.RUNNING, LaneStage.DELAYED


@dataclass(frozen=True, slots=True)
class LaneSight(Generic[Q]):
    """A snapshot of one lane, for status and questions."""

    head: Q
    stage: LaneStage
    waiting: int
    """Deliveries behind the head."""
    retry_at_ms: int | None
    """When a delayed head becomes ready again."""


class Lane(Generic[Q]):
    """The deliveries of one key; exists only while there are any. Only `KeyLanes` changes it.

    The head is the delivery that is running, waiting for its retry, or next to start. A lane returned by `next_ready`
    is permission to handle its head, until `finish` or `delay`.
    """

    __slots__ = ("attempt", "head", "is_recalled", "key", "rest", "stage")

    def __init__(self, key: LaneKey, delivery: Q) -> None:
        self.key = key
        self.head = delivery
        """The first delivery."""
        self.rest: deque[Q] | None = None
        """Those behind it. Created on first use: most lanes never need it, and a deque is large."""
        self.stage = _READY
        self.attempt = 0
        """The number of the latest attempt at the head, from 1; 0 before the first."""
        self.is_recalled = False
        """The head was running when its flow took back everything unstarted, or was about to; it is not tried again."""

    @property
    def waiting(self) -> int:
        """Deliveries behind the head."""
        return len(self.rest) if self.rest else 0


@dataclass(slots=True)
class KeyLanes(Generic[Q]):
    """Serial per key, fair between keys: lanes take turns in the order in which they became ready.

    Constant time per call, except `delay` and `release_due` (logarithmic in the delayed lanes), `hold_up` and
    `bring_forward` (linear in the lane), `return_unstarted`, `is_stalled`, `held`, `take_all` and `look` (linear in
    everything held), and `recall`, `running` and `waiting` (linear in the lanes: keeping counts would slow down every
    message for the sake of a rare question).
    """

    _lanes: dict[LaneKey, Lane[Q]] = field(default_factory=dict)
    ready: deque[Lane[Q]] = field(default_factory=deque)
    """The lanes that `next_ready` will return, in this order. Others may only check whether there are any."""
    _delayed: list[tuple[int, int, LaneKey]] = field(default_factory=list)
    """Heap of (until, serial number, lane); the serial number keeps equal times in order of arrival."""
    _delay_count: int = 0
    _held_up: set[LaneKey] = field(default_factory=set)
    """Lanes whose head has failed or has been running for too long, so that nobody knows when it will be done. Kept
    here because another field would make every lane larger, which is measurable."""
    max_waiting: int | None = None
    """How many may wait behind one head before `offer` reports an excess, which it still takes. None: no bound."""

    @property
    def running(self) -> int:
        """Lanes whose head is being handled."""
        return sum(lane.stage is _RUNNING for lane in self._lanes.values())

    @property
    def waiting(self) -> int:
        """Deliveries in the lanes that are not being handled, including those between two attempts."""
        return sum(lane.waiting + (lane.stage is not _RUNNING) for lane in self._lanes.values())

    @property
    def count(self) -> int:
        """Number of lanes, which is the number of keys that have deliveries here."""
        return len(self._lanes)

    def look(self, lane_key: LaneKey) -> LaneSight[Q] | None:
        """A snapshot of a lane, or None if nothing of its key is here."""
        lane = self._lanes.get(lane_key)
        if lane is None:
            return None
        retry_at_ms = next((until_ms for until_ms, _, delayed in self._delayed if delayed == lane_key), None)
        return LaneSight(lane.head, lane.stage, lane.waiting, retry_at_ms)

    def find(self, lane_key: LaneKey) -> Lane[Q] | None:
        """The lane of a key, or None if nothing of it is here."""
        return self._lanes.get(lane_key)

    def offer(self, lane_key: LaneKey, delivery: Q) -> bool:
        """Put a delivery at the end of its key's lane; return True if other keys need not wait for it: more than
        `max_waiting` now wait there, or the lane is held up.
        """
        lane = self._lanes.get(lane_key)
        if lane is None:
            self._lanes[lane_key] = lane = Lane(lane_key, delivery)
            self.ready.append(lane)
            return False
        if lane.rest is None:
            lane.rest = deque((delivery,))
        else:
            lane.rest.append(delivery)
        if self._held_up and lane_key in self._held_up:
            return True
        return self.max_waiting is not None and len(lane.rest) > self.max_waiting

    def next_ready(self) -> Lane[Q] | None:
        """Take the lane that has been ready longest, and mark it running; None if no lane is ready."""
        if not self.ready:
            return None
        lane = self.ready.popleft()
        lane.stage = _RUNNING
        lane.attempt += 1
        return lane

    def finish(self, lane: Lane[Q]) -> None:
        """The running head is done, whatever its outcome; the next of its key may start.

        If the head ended without an outcome, none of its successors may start (L3): before calling this, the caller
        must have had them returned, or have made sure that nothing of their flow starts.
        """
        # Inlined instead of calling `_check_running`: this runs for every message.
        if lane.stage is not _RUNNING:
            raise InvariantViolated(f"lane {lane.key} is not running")
        lane.stage = _READY
        if self._held_up:
            self._held_up.discard(lane.key)
        if lane.rest:
            # Start over with the next head.
            lane.head = lane.rest.popleft()
            lane.attempt = 0
            lane.is_recalled = False
            self.ready.append(lane)
        else:
            del self._lanes[lane.key]

    def delay(self, lane: Lane[Q], until_ms: int) -> bool:
        """The running head is to be tried again at `until_ms`; its key waits, other keys do not.

        Returns False, and changes nothing, if its flow has meanwhile taken back everything unstarted: the delivery then
        ends without an outcome, and `finish` must be called.
        """
        _check_running(lane)
        if lane.is_recalled:
            return False
        lane.stage = _DELAYED
        self._delay_count += 1
        heapq.heappush(self._delayed, (until_ms, self._delay_count, lane.key))
        return True

    def hold(self, lane: Lane[Q]) -> bool:
        """Like `delay`, but without an end: only `return_unstarted` removes the head, and with it the hold."""
        _check_running(lane)
        if lane.is_recalled:
            return False
        lane.stage = _DELAYED
        return True

    def recall(self, queue: QueueName, epoch: Epoch) -> None:
        """Retry nothing that is being handled of this flow: it is about to take back everything unstarted."""
        for lane in self._lanes.values():
            if lane.stage is _RUNNING and _is_of(lane.head, queue, epoch):
                lane.is_recalled = True

    def hold_up(self, lane: Lane[Q]) -> list[Q]:
        """Mark the lane as held up until it has another head; the first call for a head returns what waits behind it.

        `offer` reports the deliveries that arrive later. Another call for the same head takes constant time.
        """
        if lane.key in self._held_up:
            return []
        self._held_up.add(lane.key)
        return list(lane.rest or ())

    def bring_forward(self, lane: Lane[Q], is_meant: Callable[[Q], bool]) -> bool:
        """In a running lane, put the first waiting delivery for which `is_meant` is true before the head: it takes the
        turn, as a first attempt. The old head starts over when it is first again.

        Returns False, and changes nothing, if there is no such delivery, or the head was recalled.
        """
        _check_running(lane)
        rest = lane.rest
        if rest is None or lane.is_recalled:
            return False
        position = next((at for at, each in enumerate(rest) if is_meant(each)), None)
        if position is None:
            return False
        delivery = rest[position]
        del rest[position]
        rest.appendleft(lane.head)
        lane.head = delivery
        lane.attempt = 1
        self._held_up.discard(lane.key)
        return True

    def next_delayed_ms(self) -> int | None:
        """When `release_due` next has something to do; None if nothing is delayed."""
        return self._delayed[0][0] if self._delayed else None

    def release_due(self, now_ms: int) -> None:
        """Make ready the delayed lanes whose time has come."""
        while self._delayed and self._delayed[0][0] <= now_ms:
            _, _, lane_key = heapq.heappop(self._delayed)
            self._make_ready(self._lanes[lane_key])

    def lanes(self) -> Iterable[Lane[Q]]:
        """All lanes, in the order in which they were created; read-only for the caller."""
        return self._lanes.values()

    def held(self) -> list[Q]:
        """All deliveries in the lanes; those of one key are in order."""
        return [delivery for lane in self._lanes.values() for delivery in (lane.head, *(lane.rest or ()))]

    def take_all(self) -> list[Q]:
        """Take out everything, even what is being handled, and return it in the order of `held`. No lane goes on."""
        taken = self.held()
        self._lanes.clear()
        self.ready.clear()
        self._delayed.clear()
        self._held_up.clear()
        return taken

    def return_unstarted(
        self, queue: QueueName, epoch: Epoch, is_kept: Callable[[Q], bool] = lambda _: False
    ) -> list[Q]:
        """Take out the deliveries of this flow that no handler holds, including heads between two attempts.

        Those of one key are returned in order. A delivery that is being handled stays, and is not tried again. Nothing
        is taken from a lane for whose head `is_kept` is true.
        """
        returned: list[Q] = []
        for lane in list(self._lanes.values()):
            if not is_kept(lane.head):
                returned += self._return_from(lane, queue, epoch)
        if returned:
            self.ready = deque(lane for lane in self.ready if self._lanes.get(lane.key) is lane)
            self._delayed = [entry for entry in self._delayed if self._is_delayed(entry[2])]
            heapq.heapify(self._delayed)
        return returned

    def is_stalled(self, queue: QueueName, epoch: Epoch) -> bool:
        """Whether every delivery of this flow waits for its next attempt, is held, or waits behind a delivery of this
        flow that does either. A delivery that waits behind a running handler, even another flow's, is not stalled."""
        for lane in self._lanes.values():
            if lane.stage is _DELAYED and _is_of(lane.head, queue, epoch):
                continue
            if any(_is_of(each, queue, epoch) for each in (lane.head, *(lane.rest or ()))):
                return False
        return True

    def _return_from(self, lane: Lane[Q], queue: QueueName, epoch: Epoch) -> list[Q]:
        rest = lane.rest or ()
        returned = [each for each in rest if _is_of(each, queue, epoch)]
        lane.rest = deque(each for each in rest if not _is_of(each, queue, epoch)) or None
        if not _is_of(lane.head, queue, epoch):
            return returned
        if lane.stage is _RUNNING:
            lane.is_recalled = True
            return returned
        returned.insert(0, lane.head)
        self._held_up.discard(lane.key)
        if lane.rest is None:
            del self._lanes[lane.key]
            return returned
        # A lane that was ready keeps its place among the ready ones.
        lane.head, lane.attempt = lane.rest.popleft(), 0
        if lane.stage is _DELAYED:
            self._make_ready(lane)
        return returned

    def _is_delayed(self, lane_key: LaneKey) -> bool:
        lane = self._lanes.get(lane_key)
        return lane is not None and lane.stage is _DELAYED

    def _make_ready(self, lane: Lane[Q]) -> None:
        lane.stage = _READY
        self.ready.append(lane)


def _is_of(each: Queued, queue: QueueName, epoch: Epoch) -> bool:
    return each.queue == queue and each.epoch == epoch


def _check_running(lane: Lane[Q]) -> None:
    if lane.stage is not _RUNNING:
        raise InvariantViolated(f"lane {lane.key} is not running")
