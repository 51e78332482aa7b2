"""A member's part in its group's conversation: drives the membership and the rebalance machine, and places flows.

Control messages are direct messages on one topic of the group. All decisions are in the machines; here is one task that
feeds them what happens, in the order it happened, and carries out what they order. Nothing here touches a delivery.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import assert_never

import structlog

from lbg_runtime.config.settings import Settings
from lbg_runtime.core.chance import RandomSource
from lbg_runtime.core.commands import Note
from lbg_runtime.core.control_codec import ControlMessageRefused, decode, encode
from lbg_runtime.core.control_messages import ControlMessage, FlowReport, Life, ReportedFlow, StateRequest
from lbg_runtime.core.events import HandBackRequested, PlaceChanged, StepAsideCancelled, StepAsideRequested
from lbg_runtime.core.flow import FlowState
from lbg_runtime.core.identity import Identity
from lbg_runtime.core.membership import MembershipMachine
from lbg_runtime.core.membership_events import (
    ControlConnected,
    ControlLost,
    ControlMessageDropped,
    ControlMessageReceived,
    DrainStarted,
    DuplicateMemberFound,
    FlowsReported,
    JoinDone,
    LeaveRequested,
    MembershipCommand,
    MembershipEvent,
    MoveMessageHeard,
    OwnFlowsChanged,
    SendHeartbeat,
    SendLeave,
    SendStateRequest,
    SettingsDisagree,
    StandAside,
    ViewChanged,
)
from lbg_runtime.core.membership_settings import MembershipSettings as Timing
from lbg_runtime.core.rebalance import AWAY, RebalanceMachine
from lbg_runtime.core.rebalance_events import (
    CancelStepAside,
    GroupSeen,
    HandBack,
    RebalanceCommand,
    RebalanceEvent,
    Say,
    SetPlace,
    StepAside,
)
from lbg_runtime.core.rebalance_settings import RebalanceSettings
from lbg_runtime.model.errors import ConfigError, TransportError
from lbg_runtime.model.ids import GroupName, MemberId, QueueName
from lbg_runtime.model.message import Message
from lbg_runtime.runtime.clock import call_at_ms, now_ms
from lbg_runtime.runtime.flow_runner import FlowRunner
from lbg_runtime.runtime.membership import Membership, counted_member
from lbg_runtime.runtime.session import Session

_log = structlog.get_logger(__name__)

REPORTED: Mapping[FlowState, ReportedFlow] = {
    FlowState.STANDBY: ReportedFlow.STANDBY,
    FlowState.ACTIVE: ReportedFlow.ACTIVE,
    FlowState.DRAINING: ReportedFlow.DRAINING,
}
"""What the group is told of a flow. Others are not bound, or about not to be."""

HOLDING = frozenset({FlowState.ACTIVE, FlowState.DRAINING, FlowState.UNBINDING})
"""States of a flow whose queue nobody else can have yet."""

STEP_ASIDE_MARGIN_MS = 5_000
"""An offer is remembered for the longest drain, and this much more for its words to get there."""

Input = MembershipEvent | None
"""None: some flow of ours has changed."""


class ControlPlane:
    """One per member in cooperative mode. Made and used on one event loop; `run` once, the rest while it runs."""

    def __init__(
        self,
        session: Session,
        topic: str,
        membership: MembershipMachine,
        rebalance: RebalanceMachine,
        runners: Sequence[FlowRunner],
        silence_ms: int,
        on_refused: Callable[[ConfigError], None],
    ) -> None:
        """`silence_ms`: who hears nobody for so long, and yet does not get a queue, takes the topic for dead.

        `on_refused` is called when the group has other settings than this member, which has no queue yet.
        """
        self.membership = membership
        self.rebalance = rebalance
        self._session = session
        self._topic = topic
        self._runners = {runner.machine.queue: runner for runner in runners}
        self._silence_ms = silence_ms
        self._on_refused = on_refused
        self._inputs: deque[Input] = deque()
        self._wake_up = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms: int | None = None
        self._reports: Mapping[QueueName, FlowReport] = {}
        self._standby_since_ms: int | None = None
        self._connected_at_ms: int | None = None
        self._heard_at_ms = 0
        self._see_group = False
        self._is_aside = False
        """Another process is this member; what it is at home on is not ours."""
        self._on_handed_over: Callable[[], None] | None = None

    async def run(self) -> None:
        """Take part until cancelled; then says good-bye."""
        try:
            await self._session.subscribe(self._topic, self._arrived)
        except TransportError as error:
            # Not worth stopping for: the rebind cycle does without.
            _log.error("control_topic_refused", topic=self._topic, reason=str(error))
        self._session.watch_connection(self._connection_changed)
        self._post(JoinDone())
        try:
            while True:
                self._set_timer()
                # No bound: the timer above ends it where a machine knows one.
                await self._wake_up.wait()
                self._wake_up.clear()
                self._take_inputs()
        finally:
            self._cancel_timer()
            self._carry_out_membership(self.membership.handle(LeaveRequested(), now_ms()))

    def flow_changed(self) -> None:
        """A flow of this member has another state or epoch."""
        self._post(None)

    def leave(self, on_handed_over: Callable[[], None]) -> None:
        """Give every queue away; calls back once, when there is nothing left to give or nobody to take it."""
        self._on_handed_over = on_handed_over
        self._post(DrainStarted())

    # -- what comes in

    def _post(self, event: Input) -> None:
        self._inputs.append(event)
        self._wake_up.set()

    def _connection_changed(self, is_up: bool) -> None:
        self._connected_at_ms = now_ms() if is_up else None
        self._post(ControlConnected() if is_up else ControlLost())

    def _arrived(self, message: Message) -> None:
        try:
            self._post(ControlMessageReceived(decode(message.payload, self.membership.identity.group)))
            self._heard_at_ms = now_ms()
        except ControlMessageRefused as refusal:
            self._post(ControlMessageDropped(refusal.reason))

    def _take_inputs(self) -> None:
        now = now_ms()
        while self._inputs:
            event = self._inputs.popleft()
            if event is None:
                self._report_flows(now)
                continue
            self._carry_out_membership(self.membership.handle(event, now))
            if isinstance(event, DrainStarted):
                # After the heartbeat that says so: members take offers of one that leaves more readily.
                self._tell_rebalance(event, now)
                self._see_group = True
        self._carry_out_membership(self.membership.on_deadline(now))
        if self._see_group:
            self._see_group = False
            self._tell_rebalance(self._group_seen(now), now)
        if not self._is_aside:
            self._carry_out_rebalance(self.rebalance.on_deadline(now))
        self._look_whether_handed_over()

    def _report_flows(self, now: int) -> None:
        reports = self._flow_reports()
        if _without_counts(reports) == _without_counts(self._reports):
            return
        self._reports = reports
        if not any(report.state is ReportedFlow.STANDBY for report in reports.values()):
            self._standby_since_ms = None
        elif self._standby_since_ms is None:
            self._standby_since_ms = now
        changed = OwnFlowsChanged(reports)
        self._carry_out_membership(self.membership.handle(changed, now))
        self._tell_rebalance(changed, now)
        self._see_group = True
        if self._is_aside:
            # Again where a drain took too long.
            self._give_everything()

    def _flow_reports(self) -> dict[QueueName, FlowReport]:
        return {
            queue: FlowReport(REPORTED[machine.state], machine.epoch, machine.in_flight)
            for queue, runner in self._runners.items()
            if (machine := runner.machine).state in REPORTED
        }

    def _group_seen(self, now: int) -> GroupSeen:
        return GroupSeen(self.membership.view, self.membership.is_stable(now), self._is_silent(now))

    def _is_silent(self, now: int) -> bool:
        if self._connected_at_ms is None:
            return False
        # Our own words come back, so that not even they tell of a topic that is dead for everybody.
        if now - max(self._heard_at_ms, self._connected_at_ms) >= self._silence_ms:
            return True
        # Somebody holds a queue that we stand by for, and we have heard of nobody: the topic is dead for them or us.
        if self._standby_since_ms is None:
            return False
        return now - max(self.membership.peers_heard_ms or 0, self._standby_since_ms) >= self._silence_ms

    # -- what goes out

    def _tell_rebalance(self, event: RebalanceEvent, now: int) -> None:
        if not self._is_aside:
            self._carry_out_rebalance(self.rebalance.handle(event, now))

    def _carry_out_membership(self, commands: Sequence[MembershipCommand]) -> None:
        for command in commands:
            match command:
                case SendHeartbeat():
                    self._say(self.membership.heartbeat(self._flow_reports()))
                    self._see_group = True
                case SendStateRequest():
                    self._say(StateRequest(self.membership.stamp()))
                case SendLeave(message):
                    self._say(message)
                case ViewChanged(view):
                    _log.info("view_changed", members=[one.member for one in view.members])
                    self._see_group = True
                case FlowsReported():
                    self._see_group = True
                case MoveMessageHeard(message):
                    self._tell_rebalance(ControlMessageReceived(message), now_ms())
                case DuplicateMemberFound(other):
                    _log.error(
                        "member_id_taken_twice", member=self.membership.identity.member, incarnation=other.incarnation
                    )
                case StandAside():
                    self._stand_aside()
                case SettingsDisagree(member, name, ours, theirs):
                    _log.error("settings_disagree", member=member, setting=name, ours=ours, theirs=theirs)
                    if self.rebalance.placement is None:
                        # The group was here first.
                        self._on_refused(ConfigError(name, f"{ours!r}", f"{theirs!r}, as member {member} has it"))
                case Note(name, facts):
                    _log.warning(name, **facts)
                case _:
                    assert_never(command)

    def _carry_out_rebalance(self, commands: Sequence[RebalanceCommand]) -> None:
        for command in commands:
            match command:
                case SetPlace(queue, place):
                    self._runners[queue].post(PlaceChanged(place))
                case HandBack(queue, move_id, to):
                    _log.info("hand_back_started", queue=queue, move_id=move_id, to=to)
                    self._runners[queue].post(HandBackRequested(move_id))
                case StepAside(queue, until_ms):
                    self._runners[queue].post(StepAsideRequested(until_ms))
                case CancelStepAside(queue):
                    self._runners[queue].post(StepAsideCancelled())
                case Say(message):
                    self._say(message)
                case Note(name, facts):
                    _log.info(name, **facts)
                case _:
                    assert_never(command)

    def _say(self, message: ControlMessage) -> None:
        try:
            self._session.send_direct(Message(self._topic, encode(message)))
        except ControlMessageRefused as refusal:
            _log.error("control_message_not_sent", reason=str(refusal))

    def _stand_aside(self) -> None:
        self._is_aside = True
        for runner in self._runners.values():
            runner.post(PlaceChanged(AWAY))
        self._give_everything()

    def _give_everything(self) -> None:
        for queue, report in self._reports.items():
            if report.state is ReportedFlow.ACTIVE:
                self._runners[queue].post(HandBackRequested("stand-aside"))

    def _look_whether_handed_over(self) -> None:
        if self._on_handed_over is None:
            return
        mine = self.membership.identity.member
        nobody_else = all(candidate.member == mine for candidate in self.membership.view.candidates())
        if nobody_else or not any(runner.machine.state in HOLDING for runner in self._runners.values()):
            done, self._on_handed_over = self._on_handed_over, None
            done()

    # -- the deadline

    def _set_timer(self) -> None:
        deadlines = [at for at in (self.membership.deadline_ms, self.rebalance.deadline_ms) if at is not None]
        deadline_ms = min(deadlines, default=None)
        if deadline_ms == self._timer_ms:
            return
        self._cancel_timer()
        self._timer_ms = deadline_ms
        if deadline_ms is not None:
            self._timer = call_at_ms(deadline_ms, self._on_timer)

    def _on_timer(self) -> None:
        self._timer_ms = None
        self._wake_up.set()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def make_control_plane(
    settings: Settings,
    membership: Membership,
    incarnation: int,
    session: Session,
    runners: Sequence[FlowRunner],
    chance: RandomSource,
    on_refused: Callable[[ConfigError], None],
) -> ControlPlane:
    """The control plane of one life of a member. On the loop that it will run on."""
    group, own, rebind = settings.group, settings.membership, settings.rebind
    queues = [runner.machine.queue for runner in runners]
    pins: dict[QueueName, MemberId] = {}
    if membership.place is not None:
        # Members that are counted have their queues by number, as long as they are there.
        pins = {queue: counted_member(index % membership.place.count) for index, queue in enumerate(queues)}
    alike = {
        "group.hash_prefix": group.hash_prefix,
        "group.hash_count": str(group.hash_count),
        "group.queue_count": str(group.queue_count),
        "group.hash_function": group.hash_function.value,
        "group.key": str(group.key),
        "membership.count": str(membership.place.count if membership.place else ""),
    }
    life = Life(incarnation, int(chance.uniform(0, 1 << 53)))
    identity = Identity(GroupName(group.name), membership.member, life, own.weight, alike)
    timing = Timing(heartbeat_ms=own.heartbeat_ms, settle_ms=own.settle_ms)
    machine = MembershipMachine(identity, timing, chance, now_ms())
    rebalance = RebalanceMachine(
        membership.member,
        queues,
        pins,
        RebalanceSettings(
            standbys=rebind.standbys,
            min_tenure_ms=rebind.min_tenure_ms,
            max_moves=rebind.max_moves,
            step_aside_ms=rebind.drain_timeout_ms + STEP_ASIDE_MARGIN_MS,
        ),
        machine.stamp,
    )
    topic = group.control_topic or f"lbg-control/{group.name}"
    return ControlPlane(session, topic, machine, rebalance, runners, timing.dead_ms, on_refused)


def _without_counts(reports: Mapping[QueueName, FlowReport]) -> dict[QueueName, tuple[object, int]]:
    return {queue: (report.state, report.epoch) for queue, report in reports.items()}
