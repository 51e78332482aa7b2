"""What members of a group say, for a board to hear."""

from lbg_runtime.core.group.control_messages import (
    Accept,
    FlowReport,
    Header,
    Heartbeat,
    Leave,
    Life,
    MemberState,
    MoveId,
    Offer,
    ReportedFlow,
)
from lbg_runtime.core.restripe.striping import Striping, StripingReport
from lbg_runtime.model.ids import Epoch, GroupName, MemberId, QueueName

GROUP = GroupName("orders")

ACTIVE = ReportedFlow.ACTIVE
DRAINING = ReportedFlow.DRAINING
STANDBY = ReportedFlow.STANDBY


def queue(index: int) -> QueueName:
    return QueueName(f"orders/{index}")


class Speaker:
    """One member; every message has the next number of its life."""

    def __init__(self, name: str, incarnation: int = 1) -> None:
        self.name = MemberId(name)
        self._incarnation = incarnation
        self._sequence = 0

    def _header(self) -> Header:
        self._sequence += 1
        return Header(GROUP, self.name, Life(self._incarnation, 1), self._sequence)

    def beat(
        self,
        flows: dict[int, ReportedFlow],
        *,
        state: MemberState = MemberState.ACTIVE,
        in_flight: int = 0,
        epoch: int = 1,
        weight: int = 1,
        striping: Striping | None = None,
    ) -> Heartbeat:
        reports = {queue(index): FlowReport(flow, Epoch(epoch), in_flight) for index, flow in flows.items()}
        report = StripingReport(striping or Striping(0, 4), "")
        return Heartbeat(self._header(), state, weight, {}, reports, "digest", report)

    def offer(self, index: int, to: str, move: str = "m1") -> Offer:
        return Offer(self._header(), queue(index), Epoch(1), MoveId(move), MemberId(to))

    def accept(self, index: int, move: str = "m1") -> Accept:
        return Accept(self._header(), queue(index), MoveId(move))

    def leave(self) -> Leave:
        return Leave(self._header())
