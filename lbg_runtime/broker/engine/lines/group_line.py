"""The bind line of a queue with message groups."""

from collections.abc import Hashable

from lbg_runtime.broker.engine.answers import GroupStatus
from lbg_runtime.broker.engine.effects import FlowId
from lbg_runtime.broker.engine.flow import ConsumerFlow
from lbg_runtime.broker.engine.lines.bind_line import RoundRobinLine
from lbg_runtime.broker.engine.lines.message_groups import MessageGroups
from lbg_runtime.broker.engine.lines.parted_line import PartedLine
from lbg_runtime.broker.engine.lines.parts import Part, PartLost, Parts
from lbg_runtime.broker.engine.settings import Grouping
from lbg_runtime.broker.engine.spool import Spool
from lbg_runtime.broker.engine.surroundings import Surroundings
from lbg_runtime.broker.engine.waiting import SpooledMessage


class GroupLine(PartedLine):
    """Connects the table of groups with the flows and the messages."""

    def __init__(self, spool: Spool, parts: Parts, grouping: Grouping, surroundings: Surroundings) -> None:
        super().__init__(spool, parts)
        self._groups = MessageGroups(grouping.timeout_ms)
        self._grouping = grouping
        self._surroundings = surroundings
        self._turns = RoundRobinLine()
        self._losses: list[PartLost] = []
        self._is_paused = False
        """Whether nothing is sent until nothing is in flight."""

    @property
    def deadline_ms(self) -> int | None:
        return self._groups.deadline_ms

    def join(self, flow: ConsumerFlow) -> None:
        self.flows[flow.id] = flow
        self._turns.join(flow)
        if self._grouping.rebalances:
            self.unpin(None)
            self._is_paused = self._grouping.pauses

    def keep_held(self, flow: ConsumerFlow) -> None:
        for key in dict.fromkeys(message.part.key for _, message in flow.unsettled if message.part is not None):
            if key is None:
                continue
            owner = self._groups.owner_of(key)
            if owner is None:
                self._groups.use(key, flow.id, self._surroundings.timetable.now())
            elif owner != flow.id:
                self._losses.append(PartLost(key, flow.id))

    def leave(self, flow: ConsumerFlow) -> None:
        del self.flows[flow.id]
        self._turns.leave(flow)
        self._groups.leave(flow.id)
        self._wake(flow.id)

    def room_made(self, flow: ConsumerFlow) -> None:
        self._turns.room_made(flow)
        super().room_made(flow)

    def settle_losses(self) -> list[PartLost]:
        losses, self._losses = self._losses, []
        return losses

    def on_deadline(self) -> None:
        now_ms = self._surroundings.timetable.now()
        for group in self._groups.out_of_use(now_ms):
            owner = self._groups.owner_of(group)
            if self._parts.in_flight(group) and owner is not None:
                self._groups.use(group, owner, now_ms)
            else:
                self._groups.unpin(group)
        self._wake_all()

    def unpin(self, group: str | None) -> None:
        """Pin one group, by its name in `statuses`, or all of them, again at the next message."""
        for each, _ in self._groups.pinned():
            if group is None or str(each) == group:
                self._groups.unpin(each)
        self._wake_all()

    def statuses(self) -> tuple[GroupStatus, ...]:
        """Every group pinned now."""
        return tuple(
            GroupStatus(str(group), flow, self.flows[flow].client_name, self._parts.depth(group))
            for group, flow in self._groups.pinned()
        )

    def next_delivery(self) -> tuple[ConsumerFlow, SpooledMessage] | None:
        if self._is_paused:
            if self._spool.unacked_count:
                return None
            self._is_paused = False
        # If all are full, which is usual, the parts stay awake: there may be very many.
        return super().next_delivery() if self._turns.has_room else None

    def note_sent(self, flow: ConsumerFlow, message: SpooledMessage) -> None:
        message.first_property = None
        group: Hashable = None if message.part is None else message.part.key
        if group is None:
            return
        if self._groups.use(group, flow.id, self._surroundings.timetable.now()):
            message.first_property = self._grouping.first_property
        if self._surroundings.closes_group(message.message):
            self._groups.unpin(group)

    def _taker_of(self, part: Part) -> ConsumerFlow | None:
        owner: FlowId | None = None if part.key is None else self._groups.owner_of(part.key)
        if owner is not None:
            flow = self.flows[owner]
            if flow.room > 0:
                return flow
            self._sleep(part, owner)
            return None
        return self._turns.next_with_room()
