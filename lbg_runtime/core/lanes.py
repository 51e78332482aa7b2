"""One serial lane per key of a group, for all queues of a member (law L2).

A lane outlives binds: a redelivered message of a key waits behind a handler that still runs for an older handle. The
lanes decide what may start; runners do the handling. Called from the member's one loop thread only.
"""

import heapq
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from enum import Enum
from typing import NewType

from lbg_runtime.model.errors import InvariantViolated
from lbg_runtime.model.ids import Epoch, QueueName
from lbg_runtime.model.message import Delivery

LaneKey = NewType("LaneKey", str)
"""Names a lane: group and key, in one text that the caller composes."""


@dataclass(frozen=True, slots=True)
class LaneTurn:
    """Leave to handle one delivery. Its lane is running until `finish` or `delay`."""

    lane: LaneKey
    delivery: Delivery
    attempt: int
    """Which try of this delivery it is, from 1."""


class LaneStage(Enum):
    """How far the first delivery of a lane has come."""

    READY = "ready"
    """It waits for a runner."""
    RUNNING = "running"
    """Its handler runs."""
    DELAYED = "delayed"
    """Its last attempt failed; it waits for its next one."""


@dataclass(frozen=True, slots=True)
class LaneSight:
    """How a lane stands, for those who ask."""

    head: Delivery
    stage: LaneStage
    waiting: int
    """Deliveries behind the head."""
    retry_at_ms: int | None
    """When a delayed head is ready again."""


@dataclass(slots=True)
class _Lane:
    """Exists only while it holds a delivery. The head is the one that runs, waits for its retry, or starts next."""

    deliveries: deque[Delivery]
    state: LaneStage = LaneStage.READY
    attempts: int = 0
    """Tries of the head that were started."""
    is_recalled: bool = False
    """The head runs while its flow took back all that had not started; it is not tried again."""


@dataclass(slots=True)
class KeyLanes:
    """Serial per key, fair between keys: lanes take turns in the order they became ready.

    Constant time per call, but for `delay` and `release_due` (logarithmic in the delayed lanes) and `return_unstarted`
    (linear in what waits in the lanes of that flow, and in the delayed lanes).
    """

    _lanes: dict[LaneKey, _Lane] = field(default_factory=dict)
    # An ordered dict, because its oldest entry and any other can be taken out in constant time.
    _ready: OrderedDict[LaneKey, None] = field(default_factory=OrderedDict)
    _delayed: list[tuple[int, int, LaneKey]] = field(default_factory=list)
    """Heap of (until, serial number, lane); the serial number keeps equal times in order of arrival."""
    _delay_count: int = 0
    _lanes_of_flow: dict[tuple[QueueName, Epoch], dict[LaneKey, int]] = field(default_factory=dict)
    """How many deliveries of each flow lie in each lane, in order of arrival."""
    _running: int = 0
    _held: int = 0

    @property
    def running(self) -> int:
        """Lanes whose head is being handled."""
        return self._running

    @property
    def waiting(self) -> int:
        """Deliveries in the lanes that are not being handled; those between two tries are among them."""
        return self._held - self._running

    @property
    def has_ready(self) -> bool:
        """Whether `next_ready` would return a turn."""
        return bool(self._ready)

    def look(self, lane_key: LaneKey) -> LaneSight | None:
        """How a lane stands, or None where nothing of its key is here. Linear in the delayed lanes."""
        lane = self._lanes.get(lane_key)
        if lane is None:
            return None
        retry_at_ms = next((until_ms for until_ms, _, delayed in self._delayed if delayed == lane_key), None)
        return LaneSight(lane.deliveries[0], lane.state, len(lane.deliveries) - 1, retry_at_ms)

    def offer(self, lane_key: LaneKey, delivery: Delivery) -> None:
        """Put a delivery at the end of its key's lane."""
        lane = self._lanes.get(lane_key)
        if lane is None:
            self._lanes[lane_key] = _Lane(deque((delivery,)))
            self._ready[lane_key] = None
        else:
            lane.deliveries.append(delivery)
        lanes = self._lanes_of_flow.setdefault((delivery.queue, delivery.epoch), {})
        lanes[lane_key] = lanes.get(lane_key, 0) + 1
        self._held += 1

    def next_ready(self) -> LaneTurn | None:
        """Take the turn of the lane that has been ready longest, and mark it running; None where none is ready."""
        if not self._ready:
            return None
        lane_key, _ = self._ready.popitem(last=False)
        lane = self._lanes[lane_key]
        lane.state = LaneStage.RUNNING
        lane.attempts += 1
        self._running += 1
        return LaneTurn(lane_key, lane.deliveries[0], lane.attempts)

    def finish(self, lane_key: LaneKey) -> None:
        """The running head is done, whatever its outcome; the next of its key may start.

        Tell the flow machine first and carry out what it orders: a head that ended without an outcome sends its
        successors back (L3), and none of them may start in between.
        """
        lane = self._running_lane(lane_key)
        self._running -= 1
        self._forget(lane_key, lane.deliveries.popleft())
        self._end_turn(lane_key, lane)

    def delay(self, lane_key: LaneKey, until_ms: int) -> bool:
        """The running head is to be tried again at `until_ms`; its key waits, other keys do not.

        Returns False, and changes nothing, where its flow has meanwhile taken back all that had not started: the
        delivery then ends without an outcome, and `finish` must be called.
        """
        lane = self._running_lane(lane_key)
        if lane.is_recalled:
            return False
        lane.state = LaneStage.DELAYED
        self._running -= 1
        self._delay_count += 1
        heapq.heappush(self._delayed, (until_ms, self._delay_count, lane_key))
        return True

    def next_delayed_ms(self) -> int | None:
        """When `release_due` has something to do next; None where nothing is delayed."""
        return self._delayed[0][0] if self._delayed else None

    def release_due(self, now_ms: int) -> None:
        """Make the delayed lanes ready whose time has come."""
        while self._delayed and self._delayed[0][0] <= now_ms:
            _, _, lane_key = heapq.heappop(self._delayed)
            self._make_ready(lane_key, self._lanes[lane_key])

    def return_unstarted(self, queue: QueueName, epoch: Epoch) -> list[Delivery]:
        """Take out the deliveries of this flow that no handler holds, heads between two tries included.

        In each key they come back in their order. A delivery that is being handled stays, and is not tried again.
        """
        returned: list[Delivery] = []
        gone_delayed: set[LaneKey] = set()
        for lane_key in list(self._lanes_of_flow.get((queue, epoch), ())):
            lane = self._lanes[lane_key]
            head = lane.deliveries[0]
            head_is_taken = head.queue == queue and head.epoch == epoch
            kept: deque[Delivery] = deque()
            if lane.state is LaneStage.RUNNING:
                kept.append(lane.deliveries.popleft())
                lane.is_recalled = lane.is_recalled or head_is_taken
            for delivery in lane.deliveries:
                if delivery.queue == queue and delivery.epoch == epoch:
                    returned.append(delivery)
                    self._forget(lane_key, delivery)
                else:
                    kept.append(delivery)
            lane.deliveries = kept
            if head_is_taken and lane.state is not LaneStage.RUNNING:
                if lane.state is LaneStage.DELAYED:
                    gone_delayed.add(lane_key)
                self._end_turn(lane_key, lane)
        if gone_delayed:
            self._delayed = [entry for entry in self._delayed if entry[2] not in gone_delayed]
            heapq.heapify(self._delayed)
        return returned

    def _running_lane(self, lane_key: LaneKey) -> _Lane:
        lane = self._lanes.get(lane_key)
        if lane is None or lane.state is not LaneStage.RUNNING:
            raise InvariantViolated(f"lane {lane_key} is not running")
        return lane

    def _end_turn(self, lane_key: LaneKey, lane: _Lane) -> None:
        """Start afresh with a new head, or end the lane where there is none."""
        lane.attempts = 0
        lane.is_recalled = False
        if lane.deliveries:
            self._make_ready(lane_key, lane)
        else:
            del self._lanes[lane_key]
            self._ready.pop(lane_key, None)

    def _make_ready(self, lane_key: LaneKey, lane: _Lane) -> None:
        lane.state = LaneStage.READY
        self._ready[lane_key] = None

    def _forget(self, lane_key: LaneKey, delivery: Delivery) -> None:
        """Count a delivery out that has left its lane."""
        flow = (delivery.queue, delivery.epoch)
        lanes = self._lanes_of_flow[flow]
        lanes[lane_key] -= 1
        if not lanes[lane_key]:
            del lanes[lane_key]
        if not lanes:
            del self._lanes_of_flow[flow]
        self._held -= 1
