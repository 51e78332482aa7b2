"""A membership machine on a clock of its own, and what its peer says."""

import random
from collections.abc import Mapping
from typing import TypeVar

from lbg_runtime.core.group.control_messages import (
    ControlMessage,
    FlowReport,
    Header,
    Heartbeat,
    Life,
    MemberState,
    ReportedFlow,
)
from lbg_runtime.core.group.identity import Identity
from lbg_runtime.core.group.membership import MembershipMachine
from lbg_runtime.core.group.membership_events import (
    ControlConnected,
    ControlMessageReceived,
    JoinDone,
    MembershipCommand,
    MembershipEvent,
)
from lbg_runtime.core.group.membership_timing import MembershipTiming
from lbg_runtime.core.restripe.striping import Striping, StripingBook, StripingReport
from lbg_runtime.model.ids import Epoch, GroupName, MemberId, QueueName

STRIPING = StripingReport(Striping(0, 4), "")

GROUP = GroupName("orders")
SELF, PEER = MemberId("member-5"), MemberId("member-1")
QUEUE = QueueName("orders/0")
AGREED = {"hash_count": "64", "queue_count": "8"}
IDENTITY = Identity(GROUP, SELF, Life(100, 7), 1, AGREED)
SETTINGS = MembershipTiming()
ACTIVE = FlowReport(ReportedFlow.ACTIVE, Epoch(3), 2)
STANDBY = FlowReport(ReportedFlow.STANDBY, Epoch(3), 0)
OrderedCommand = TypeVar("OrderedCommand", bound=MembershipCommand)


def header(sequence: int, life: Life = Life(1, 1), member: MemberId = PEER) -> Header:  # noqa: B008 - Life is frozen
    return Header(GROUP, member, life, sequence)


def beat(
    of: Header,
    state: MemberState = MemberState.ACTIVE,
    flows: Mapping[QueueName, FlowReport] | None = None,
    settings: Mapping[str, str] = AGREED,
) -> Heartbeat:
    return Heartbeat(of, state, 1, settings, flows or {}, "0" * 16, STRIPING)


def pick(commands: list[MembershipCommand], kind: type[OrderedCommand]) -> list[OrderedCommand]:
    return [command for command in commands if isinstance(command, kind)]


class Shell:
    """One machine on a clock of its own; what it orders is collected."""

    def __init__(self, *, joined: bool = True, settings: MembershipTiming = SETTINGS) -> None:
        self.now_ms = 50_000
        self.machine = MembershipMachine(IDENTITY, settings, random.Random(1), self.now_ms, StripingBook(4, 64))
        if joined:
            self.tell(ControlConnected())
            self.tell(JoinDone())

    def tell(self, event: MembershipEvent) -> list[MembershipCommand]:
        return self.machine.handle(event, self.now_ms)

    def hear(self, message: ControlMessage) -> list[MembershipCommand]:
        return self.tell(ControlMessageReceived(message))

    def wait(self, wait_ms: int) -> list[MembershipCommand]:
        """Let time pass, with every deadline kept."""
        until_ms = self.now_ms + wait_ms
        commands: list[MembershipCommand] = []
        while (deadline_ms := self.machine.deadline_ms) is not None and deadline_ms <= until_ms:
            self.now_ms = max(self.now_ms, deadline_ms)
            commands += self.machine.on_deadline(self.now_ms)
        self.now_ms = until_ms
        return commands

    def members(self) -> dict[MemberId, tuple[MemberState, bool]]:
        return {one.member: (one.state, one.is_suspect) for one in self.machine.view.members}


ALIVE = (MemberState.ACTIVE, False)
SUSPECT = (MemberState.ACTIVE, True)
