"""Which flow gets the messages of which partition of a partitioned queue, and how a partition changes hands.

A change of the bound flows starts the rebalance delay. When it is over, partitions are spread so that no flow has two
more than another, moving as few as possible. A partition that moves away from a bound flow is paused first: its old
flow gets nothing new from it and may still settle what it holds, until nothing is left or the longest handoff time is
over. Flows beyond the number of partitions stand by, and one of them takes over at once when a flow leaves.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from lbg_runtime.broker.engine.effects import FlowId
from lbg_runtime.broker.engine.lines.parts import PartLost
from lbg_runtime.model.errors import InvariantViolated


class PartitionState(Enum):
    UNASSIGNED = "unassigned"
    """No flow has it."""
    READY = "ready"
    """Its flow gets its messages."""
    PAUSED = "paused"
    """It is moving: its flow gets nothing new from it, and settles what it holds."""
    UNBOUND = "unbound"
    """Its flow is gone and may come back."""


@dataclass(slots=True, eq=False)
class Partition:
    """One partition. Changed only by its `Partitions`."""

    number: int
    state: PartitionState = PartitionState.UNASSIGNED
    flow: FlowId | None = None
    """The flow that has it; bound unless the state is `UNBOUND`."""
    heir: FlowId | None = None
    """The flow that gets it when it is no longer paused."""
    handoff_by_ms: int | None = None
    """The latest time for that."""


class Partitions:
    """The table of one queue. Called only by its queue, which carries out the results in order, at once."""

    def __init__(
        self, count: int, rebalance_delay_ms: int, max_handoff_ms: int, in_flight: Callable[[int], int]
    ) -> None:
        """`in_flight` returns how many messages of a partition are in flight on its flow, or wait for redelivery."""
        if count < 1:
            raise InvariantViolated(f"a queue with {count} partitions")
        self.all = tuple(Partition(number) for number in range(count))
        self.flows: dict[FlowId, None] = {}
        """Bound flows in the order of their binds."""
        self.rebalance_delay_ms = rebalance_delay_ms
        self.max_handoff_ms = max_handoff_ms
        self._rebalance_at_ms: int | None = None
        self._in_flight = in_flight
        self._paused: dict[int, Partition] = {}

    # -- state

    @property
    def deadline_ms(self) -> int | None:
        """When `on_deadline` has something to do."""
        times = [partition.handoff_by_ms for partition in self._paused.values()]
        return min((time for time in (*times, self._rebalance_at_ms) if time is not None), default=None)

    @property
    def is_waiting(self) -> bool:
        """Whether the rebalance delay is running."""
        return self._rebalance_at_ms is not None

    @property
    def is_moving(self) -> bool:
        """Whether partitions are paused while they move to another flow."""
        return bool(self._paused)

    # -- flows

    def join(self, flow: FlowId, now_ms: int) -> None:
        """An unknown flow is bound."""
        self.flows[flow] = None
        # A flow beyond the number of partitions stands by: there is nothing to give it.
        if len(self.flows) <= len(self.all):
            self._trigger(now_ms)

    def rejoin(self, flow: FlowId, lost: FlowId, now_ms: int) -> None:
        """The handle that had `lost` is bound again: it gets its partitions back at once, unless given away since."""
        self.flows[flow] = None
        for partition in self.all:
            if partition.flow == lost:
                self._give(partition, flow)
        if self._wants_rebalance():
            self._trigger(now_ms)

    def claim(self, number: int, flow: FlowId) -> bool:
        """Give a bound flow a partition that is unassigned or already its own; False if it is another flow's."""
        partition = self.all[number]
        if partition.state is PartitionState.UNASSIGNED:
            self._give(partition, flow)
        return partition.flow == flow

    def leave(self, flow: FlowId, now_ms: int) -> list[PartLost]:
        """A flow has left, for any reason; the messages it held wait in the queue again."""
        del self.flows[flow]
        lost: list[PartLost] = []
        for partition in self.all:
            if partition.heir == flow and partition.flow is not None:
                # The heir left before taking over: the partition stays, until the next rebalance decides otherwise.
                self._give(partition, partition.flow)
        standby = self._standby()
        for partition in self.all:
            if partition.flow != flow:
                continue
            taker = partition.heir if partition.heir is not None else standby
            if taker is None:
                partition.state = PartitionState.UNBOUND
            else:
                lost.append(self._hand_over(partition, taker))
        if self._wants_rebalance():
            self._trigger(now_ms)
        return lost

    def hand_over_settled(self) -> list[PartLost]:
        """Hand over paused partitions with nothing in flight."""
        if not self._paused:
            return []
        settled = [partition for partition in self._paused.values() if not self._in_flight(partition.number)]
        return [self._hand_over(partition, _heir(partition)) for partition in settled]

    # -- time

    def on_deadline(self, now_ms: int) -> list[PartLost]:
        """Rebalance if the delay is over; hand over partitions that have been paused long enough."""
        late = [p for p in self._paused.values() if p.handoff_by_ms is not None and p.handoff_by_ms <= now_ms]
        lost = [self._hand_over(partition, _heir(partition)) for partition in late]
        if self._rebalance_at_ms is not None and self._rebalance_at_ms <= now_ms:
            self._rebalance_at_ms = None
            lost += self._rebalance(now_ms)
        return lost

    def _trigger(self, now_ms: int) -> None:
        # Not extended by a second change: the delay runs from the first of the changes that it gathers.
        if self._rebalance_at_ms is None:
            self._rebalance_at_ms = now_ms + self.rebalance_delay_ms

    # -- distribution

    def _wants_rebalance(self) -> bool:
        return any(p.state in (PartitionState.UNBOUND, PartitionState.UNASSIGNED) for p in self.all) or (
            self._is_uneven()
        )

    def _is_uneven(self) -> bool:
        loads = self._loads()
        if not loads:
            return False
        most = max(loads.values())
        # Flows beyond the number of partitions have none.
        least = sorted(loads.values(), reverse=True)[: len(self.all)][-1]
        return most - least > 1

    def _loads(self) -> dict[FlowId, int]:
        """How many partitions each bound flow has, or will have."""
        loads = dict.fromkeys(self.flows, 0)
        for partition in self.all:
            owner = partition.heir if partition.heir is not None else partition.flow
            if owner in loads and owner is not None:
                loads[owner] += 1
        return loads

    def _standby(self) -> FlowId | None:
        """A flow for which no partition was left; None while every flow should have one."""
        if len(self.flows) < len(self.all):
            return None
        return next((flow for flow, load in self._loads().items() if load == 0), None)

    def _rebalance(self, now_ms: int) -> list[PartLost]:
        lost: list[PartLost] = []
        if not self.flows:
            for partition in self.all:
                if partition.flow is not None:
                    lost.append(PartLost(partition.number, partition.flow))
                partition.state, partition.flow = PartitionState.UNASSIGNED, None
            return lost
        for partition, taker in self._wanted_moves():
            before = partition.flow
            if before is None or before == taker:
                self._give(partition, taker)
            elif before in self.flows and self._in_flight(partition.number) and self.max_handoff_ms:
                # A flow that is gone settles nothing: what counts as in flight then waits out its redelivery delay.
                self._pause(partition, taker, now_ms)
            else:
                lost.append(self._hand_over(partition, taker))
        return lost

    def _wanted_moves(self) -> list[tuple[Partition, FlowId]]:
        """The fewest moves that balance the flows: partitions without a flow, and the excess of those with too many."""
        kept: dict[FlowId, list[Partition]] = {flow: [] for flow in self.flows}
        free: list[Partition] = []
        for partition in self.all:
            owner = partition.heir if partition.heir is not None else partition.flow
            (free if owner is None else kept.get(owner, free)).append(partition)
        # Flows with the most keep the most; sorting keeps the bind order among equals.
        active = sorted(kept, key=lambda flow: -len(kept[flow]))[: len(self.all)]
        share, rest = divmod(len(self.all), len(active))
        for position, flow in enumerate(active):
            most = share + (position < rest)
            free += kept[flow][most:]
            del kept[flow][most:]
        free.sort(key=lambda partition: partition.number)
        moves = []
        for partition in free:
            taker = min(active, key=lambda flow: len(kept[flow]))
            kept[taker].append(partition)
            moves.append((partition, taker))
        return moves

    # -- one partition

    def _pause(self, partition: Partition, heir: FlowId, now_ms: int) -> None:
        partition.state, partition.heir = PartitionState.PAUSED, heir
        if partition.handoff_by_ms is None:  # A pause under way is not extended.
            partition.handoff_by_ms = now_ms + self.max_handoff_ms
        self._paused[partition.number] = partition

    def _hand_over(self, partition: Partition, taker: FlowId) -> PartLost:
        before = partition.flow
        if before is None:
            raise InvariantViolated(f"partition {partition.number} is handed over by nobody")
        self._give(partition, taker)
        return PartLost(partition.number, before)

    def _give(self, partition: Partition, flow: FlowId) -> None:
        self._paused.pop(partition.number, None)
        partition.state, partition.flow = PartitionState.READY, flow
        partition.heir = partition.handoff_by_ms = None


def _heir(partition: Partition) -> FlowId:
    if partition.heir is None:
        raise InvariantViolated(f"partition {partition.number} is paused for nobody")
    return partition.heir
