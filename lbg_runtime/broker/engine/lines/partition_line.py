"""The bind line of a partitioned queue."""

from collections.abc import Callable
from zlib import crc32

from lbg_runtime.broker.engine.answers import PartitionStatus, RebalanceState
from lbg_runtime.broker.engine.effects import FlowId, Published
from lbg_runtime.broker.engine.flow import ConsumerFlow
from lbg_runtime.broker.engine.lines.parted_line import PartedLine
from lbg_runtime.broker.engine.lines.partitions import Partition, Partitions, PartitionState
from lbg_runtime.broker.engine.lines.parts import Part, PartLost, Parts
from lbg_runtime.broker.engine.settings import QueueSettings
from lbg_runtime.broker.engine.spool import Spool
from lbg_runtime.broker.engine.surroundings import Surroundings
from lbg_runtime.model.errors import InvariantViolated

LARGEST_GROUP = (1 << 16) - 1


class PartitionLine(PartedLine):
    """Connects the table of partitions with the flows and the messages."""

    def __init__(self, spool: Spool, parts: Parts, settings: QueueSettings, surroundings: Surroundings) -> None:
        super().__init__(spool, parts)
        self.partitions = Partitions(
            settings.partition_count,
            settings.partition_rebalance_delay_ms,
            settings.partition_max_handoff_ms,
            parts.in_flight,
        )
        self._surroundings = surroundings
        self._losses: list[PartLost] = []
        self._gone: dict[FlowId, ConsumerFlow] = {}
        """Gone flows whose partitions wait for them."""
        self._last_group = 0

    @property
    def deadline_ms(self) -> int | None:
        return self.partitions.deadline_ms

    def join(self, flow: ConsumerFlow) -> None:
        self.flows[flow.id] = flow
        before = self._flow_before(flow)
        if before is None:
            # Group numbers wrap around after a while, so a client is identified by its name too.
            self._last_group = self._last_group % LARGEST_GROUP + 1
            flow.partition_group = self._last_group
            self.partitions.join(flow.id, self._now_ms)
        else:
            flow.partition_group = self._gone.pop(before).partition_group
            self.partitions.rejoin(flow.id, before, self._now_ms)
        self._wake_all()

    def keep_held(self, flow: ConsumerFlow) -> None:
        # A restarted broker knows which flow holds which messages, but not which had which partition.
        for number in sorted({_number(message.part) for _, message in flow.unsettled}):
            if not self.partitions.claim(number, flow.id):
                self._losses.append(PartLost(number, flow.id))

    def leave(self, flow: ConsumerFlow) -> None:
        del self.flows[flow.id]
        self._losses += self.partitions.leave(flow.id, self._now_ms)
        self._gone[flow.id] = flow
        self._forget_gone()
        self._wake_all()

    def settle_losses(self) -> list[PartLost]:
        moved = self.partitions.hand_over_settled()
        if not moved and not self._losses:
            return []
        losses, self._losses = self._losses + moved, []
        self._wake_all()
        return losses

    def on_deadline(self) -> None:
        self._losses += self.partitions.on_deadline(self._now_ms)
        self._forget_gone()
        self._wake_all()

    def change(self, settings: QueueSettings) -> None:
        """Use these times, from the next change on."""
        self.partitions.rebalance_delay_ms = settings.partition_rebalance_delay_ms
        self.partitions.max_handoff_ms = settings.partition_max_handoff_ms

    @property
    def rebalance_state(self) -> RebalanceState:
        """What the table is doing."""
        if self.partitions.is_moving:
            return RebalanceState.REBALANCING
        return RebalanceState.HOLDDOWN if self.partitions.is_waiting else RebalanceState.READY

    def statuses(self) -> tuple[PartitionStatus, ...]:
        """What an administrator sees of the partitions now."""
        return tuple(self._status_of(partition) for partition in self.partitions.all)

    def _status_of(self, partition: Partition) -> PartitionStatus:
        flow = None if partition.flow is None else self.flows.get(partition.flow)
        depth = self._parts.depth(partition.number)
        if flow is None:
            return PartitionStatus(partition.number, partition.state, None, None, depth)
        return PartitionStatus(partition.number, partition.state, flow.id, flow.client_name, depth)

    @property
    def _now_ms(self) -> int:
        return self._surroundings.timetable.now()

    def _taker_of(self, part: Part) -> ConsumerFlow | None:
        partition = self.partitions.all[_number(part)]
        if partition.state is not PartitionState.READY or partition.flow is None:
            return None  # Every part wakes when a partition changes hands.
        flow = self.flows[partition.flow]
        if flow.room > 0:
            return flow
        self._sleep(part, flow.id)
        return None

    def _flow_before(self, flow: ConsumerFlow) -> FlowId | None:
        """The gone flow whose handle this flow continues: by the group its client names, or the last id it received."""
        received = flow.window.received_up_to
        for before, gone in self._gone.items():
            if gone.client_name != flow.client_name:
                continue
            if flow.partition_group is not None:
                if gone.partition_group == flow.partition_group:
                    return before
            elif received and gone.window.has_been_received(received):
                return before
        return None

    def _forget_gone(self) -> None:
        waited_for = {p.flow for p in self.partitions.all if p.state is PartitionState.UNBOUND}
        self._gone = {flow: gone for flow, gone in self._gone.items() if flow in waited_for}


def by_partition(count: int, surroundings: Surroundings) -> Callable[[Published], int]:
    """Tells the partition of a message: by the hash of its key, or a random one if it has no key."""

    def partition_for(message: Published) -> int:
        key = surroundings.key_of(message)
        return surroundings.choose(count) if key is None else partition_of(key, count)

    return partition_for


def partition_of(key: str, count: int) -> int:
    """The partition of a key. PubSub+ does not document its hash; all that differs is which keys share a partition."""
    return crc32(key.encode()) % count


def _number(part: Part | None) -> int:
    if part is None or not isinstance(part.key, int):
        raise InvariantViolated("a message of a partitioned queue belongs to no partition")
    return part.key
