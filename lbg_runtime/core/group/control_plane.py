"""A member's part in its group's conversation, without its shell: inputs become messages and requests to flows.

One machine per member. It owns the member's membership and rebalance machines, and connects them with the flow
machines, which it reads and never changes. Its shell calls `take` with everything that has happened since the last
call, in that order, and with nothing when `deadline_ms` is reached; it carries out the outputs in their order.

While the control topic is silent, the rebalance machine is told so, and the member behaves as in cycle mode.

One file of more than 400 lines, because this is where the commands of each machine are carried out on the others.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import assert_never

from lbg_runtime.core.flow.commands import Note
from lbg_runtime.core.flow.events import (
    HandBackRequested,
    PlaceChanged,
    SettlementsReached,
    StripingLearned,
)
from lbg_runtime.core.flow.machine import FlowMachine
from lbg_runtime.core.flow.table import FlowState
from lbg_runtime.core.group.control_messages import ControlMessage, FlowReport, Offer, ReportedFlow, StateRequest
from lbg_runtime.core.group.membership import MembershipMachine, OwnState
from lbg_runtime.core.group.membership_events import (
    ControlConnected,
    ControlLost,
    ControlMessageReceived,
    DrainStarted,
    DuplicateMemberFound,
    FlowsReported,
    HeartbeatWanted,
    MembershipCommand,
    MembershipEvent,
    MoveMessageHeard,
    OwnFlowsChanged,
    SendHeartbeat,
    SendLeave,
    SendStateRequest,
    SettingsDisagree,
    StandAside,
    StripingChanged,
    ViewChanged,
    WinnerGone,
)
from lbg_runtime.core.group.rebalance import AWAY, RebalanceMachine
from lbg_runtime.core.group.rebalance_events import (
    AskFlow,
    GroupSeen,
    RebalanceEvent,
    Say,
)
from lbg_runtime.core.group.view import tell_something_else
from lbg_runtime.model.ids import Epoch, MemberId, QueueName

_REPORTED: Mapping[FlowState, ReportedFlow] = {
    FlowState.STANDBY: ReportedFlow.STANDBY,
    FlowState.ACTIVE: ReportedFlow.ACTIVE,
    FlowState.DRAINING: ReportedFlow.DRAINING,
}
"""How flow states are reported to the group. In all others the flow is not bound, or about to be unbound."""

QUEUE_GONE = "queue-gone"
"""Move id of a hand-back that no member has asked for: the group no longer has the queue."""

STAND_ASIDE = "stand-aside"
"""Move id of a hand-back because another process has our id and the newer life."""

LOOKS_MS_PER_THOUSAND = 20
"""Least time between two looks at all flows, in ms per thousand flows: a look at a thousand takes a member 3 ms."""

TELL_SILENCE_AFTER_MS = 1_000
"""How long the control topic must have been silent before that is made known."""

MAX_ECHOES = 60
"""How many heartbeats that carry probes may be waited for: a minute's worth, if our own messages do not come back."""

HOLDING = frozenset({FlowState.ACTIVE, FlowState.DRAINING, FlowState.UNBINDING})
"""States of a flow in which no other member can have its queue yet."""


@dataclass(frozen=True, slots=True)
class FlowChanged:
    """Some flow of this member has a new state or epoch."""


@dataclass(frozen=True, slots=True)
class FlowsAdded:
    """The flows that `QueuesAdded` asked for now exist."""

    flows: Sequence[FlowMachine]
    pins: Mapping[QueueName, MemberId]
    """The pins of all queues whose home is configured."""


@dataclass(frozen=True, slots=True)
class ProbeAsked:
    """A flow wants to know when the broker has processed what was settled on it; all of that has been sent."""

    queue: QueueName
    epoch: Epoch
    number: int


@dataclass(frozen=True, slots=True)
class QueuesAdded:
    """The group has more queues than this member has flows: create the missing ones, and answer with `FlowsAdded`."""

    queue_total: int


@dataclass(frozen=True, slots=True)
class HandedOver:
    """This member is leaving, and has nothing left to give or nobody to give it to. Reported once."""


@dataclass(frozen=True, slots=True)
class Superseded:
    """The process that this one stands aside for has gone: this one should leave, as only a restart helps."""


@dataclass(frozen=True, slots=True)
class Warn:
    """Something is wrong with the group; an operator may want to know."""

    note: Note


ControlInput = MembershipEvent | FlowChanged | FlowsAdded | ProbeAsked
ControlOutput = (
    Say
    | AskFlow
    | QueuesAdded
    | HandedOver
    | Superseded
    | ViewChanged
    | DuplicateMemberFound
    | SettingsDisagree
    | Warn
    | Note
)
"""What the shell publishes or requests, and, from `ViewChanged` on, what it makes known."""


class ControlPlaneMachine:
    """Decides through its two machines; does nothing itself. The module docstring has the callers and the rules."""

    def __init__(
        self,
        membership: MembershipMachine,
        rebalance: RebalanceMachine,
        flows: Sequence[FlowMachine],
        silence_ms: int,
        leap: Callable[[], int] = lambda: 0,
        looks_ms_per_thousand: int = LOOKS_MS_PER_THOUSAND,
    ) -> None:
        """`silence_ms`: the control topic counts as dead if for so long our own messages do not come back, or we hear
        nobody else and yet do not get a queue that we stand by for.

        `leap` gives numbers that nobody can guess, for heartbeats that carry probes. `looks_ms_per_thousand`: see
        `LOOKS_MS_PER_THOUSAND`.
        """
        self.membership = membership
        self.rebalance = rebalance
        self._flows = {flow.queue: flow for flow in flows}
        """In the order of their queues' indexes; those of queues that the group no longer has are at the end."""
        self._silence_ms = silence_ms
        self._leap = leap
        self._looks_ms_per_thousand = looks_ms_per_thousand
        self._rested_at_ms = 0
        """When the flows may be looked at again."""
        self._look_at_ms: int | None = None
        """When the flows are looked at next; None while none is known to have changed."""
        self._probes: list[ProbeAsked] = []
        """Probes to go with the next heartbeat."""
        self._echoes: dict[int, list[ProbeAsked]] = {}
        """Probes by the sequence number of the heartbeat that answers them when it comes back."""
        self._reports: Mapping[QueueName, FlowReport] = {}
        self._standby_since_ms: int | None = None
        self._unheard_since_ms: int | None = None
        """When we sent the first heartbeat since our last message that came back; None before such a heartbeat."""
        self._has_heard_itself = False
        """A message of ours has come back on the present connection."""
        self._is_group_due = False
        """The rebalance machine is to see the group before `take` returns."""
        self._silent_from_ms: int | None = None
        """Since when the topic has been found silent; None while it is not."""
        self._is_silence_told = False
        self._is_aside = False
        """Another process has our id and the newer life, so the queues that are at home on this member are not ours."""
        self._give_at_ms: int | None = None
        """While we are aside and still hold queues: when we try again to give them up, if a drain took too long."""
        self._is_handing_over = False

    @property
    def deadline_ms(self) -> int | None:
        """When `take` must next be called, on the clock of `now_ms`; None to wait for an input."""
        # A member that stands aside no longer moves anything, so what was due then would stay due.
        rebalance_ms = None if self._is_aside else self.rebalance.deadline_ms
        deadlines = (self.membership.deadline_ms, rebalance_ms, self._look_at_ms, self._give_at_ms)
        return min((at for at in deadlines if at is not None), default=None)

    def must_hear_of_flows(self, waiting: Sequence[ControlInput]) -> bool:
        """Whether the shell must report a change of a flow now. It need not if the flows will be looked at anyway: on a
        deadline, or because the last of the inputs that are `waiting` to be taken says so."""
        is_said = bool(waiting) and isinstance(waiting[-1], FlowChanged)
        return not is_said and self._look_at_ms is None

    def can_hear(self, now_ms: int) -> bool:
        """Whether the control topic is in reach: on the present connection, what we say there comes back to us."""
        return self.membership.can_hear and self._has_heard_itself and not self._is_unheard(now_ms)

    def flow_reports(self) -> Mapping[QueueName, FlowReport]:
        """What the group would be told about our flows now."""
        return _reports_of(self._flows_in_use())

    def take(self, inputs: Iterable[ControlInput], now_ms: int) -> list[ControlOutput]:
        """Process what has happened, act on the deadlines that have been reached, and return what to do.

        The flow machines must not change during the call. After `LeaveRequested`, nothing more is published.
        """
        outputs: list[ControlOutput] = []
        for happened in inputs:
            match happened:
                case FlowChanged():
                    outputs += self._flow_changed(now_ms)
                case FlowsAdded(flows, pins):
                    outputs += self._add_flows(flows, pins, now_ms)
                case ProbeAsked():
                    self._probes.append(happened)
                case _:
                    outputs += self._take_event(happened, now_ms)
        if self._probes:
            outputs += self._take_event(HeartbeatWanted(), now_ms)
        if self.membership.state is OwnState.LEFT:
            return outputs
        if self._look_at_ms is not None and self._look_at_ms <= now_ms:
            outputs += self._look(now_ms)
        outputs += self._obey_membership(self.membership.on_deadline(now_ms), now_ms)
        outputs += self._see_group_if_due(now_ms)
        if not self._is_aside:
            outputs += self.rebalance.on_deadline(now_ms)
        elif self._give_at_ms is not None and now_ms >= self._give_at_ms:
            outputs += self._give_everything(now_ms)
        return outputs + self._look_whether_handed_over()

    # -- what comes in

    def _take_event(self, event: MembershipEvent, now_ms: int) -> list[ControlOutput]:
        match event:
            case ControlConnected():
                self._unheard_since_ms, self._has_heard_itself = None, False
            case ControlLost():
                # What was settled on the lost connection may never have reached the broker.
                self._probes.clear()
                self._echoes.clear()
            case _:
                pass
        outputs = self._hear_ourselves(event.message) if isinstance(event, ControlMessageReceived) else []
        outputs += self._obey_membership(self.membership.handle(event, now_ms), now_ms)
        if isinstance(event, DrainStarted):
            # After the heartbeat that says so, as members accept more offers from a member that is leaving.
            self._is_handing_over = True
            self._is_group_due = True
            outputs += self._tell_rebalance(event, now_ms)
        return outputs

    def _flow_changed(self, now_ms: int) -> list[ControlOutput]:
        # A change costs a look at all flows, and after a lost connection each flow changes by itself as it comes back.
        if self._look_at_ms is None:
            self._look_at_ms = max(now_ms, self._rested_at_ms)
        return self._look(now_ms) if self._look_at_ms <= now_ms else []

    def _look(self, now_ms: int) -> list[ControlOutput]:
        self._look_at_ms = None
        self._rested_at_ms = now_ms + len(self._flows) * self._looks_ms_per_thousand // 1_000
        return self._report_flows(now_ms) + self._give_gone_queues()

    def _has_changed(self, queue: QueueName) -> bool:
        """Whether a flow has changed since it was last looked at."""
        flow = self._flows.get(queue)
        known = {queue: self._reports[queue]} if queue in self._reports else {}
        return flow is not None and tell_something_else(_reports_of([flow]), known)

    def _report_flows(self, now_ms: int) -> list[ControlOutput]:
        reports = self.flow_reports()
        if not tell_something_else(reports, self._reports):
            return []
        self._reports = reports
        if not any(report.state is ReportedFlow.STANDBY for report in reports.values()):
            self._standby_since_ms = None
        elif self._standby_since_ms is None:
            self._standby_since_ms = now_ms
        changed = OwnFlowsChanged(reports)
        outputs = self._obey_membership(self.membership.handle(changed, now_ms), now_ms)
        outputs += self._tell_rebalance(changed, now_ms)
        self._is_group_due = True
        if self._is_aside and self._give_at_ms is None:
            outputs += self._give_everything(now_ms)
        return outputs

    def _see_group_if_due(self, now_ms: int) -> list[ControlOutput]:
        if not self._is_group_due:
            return []
        self._is_group_due = False
        seen = GroupSeen(self.membership.view, self.membership.is_stable(now_ms), self._is_silent(now_ms))
        return [*self._tell_of_silence(seen, now_ms), *self._tell_rebalance(seen, now_ms)]

    def _is_silent(self, now_ms: int) -> bool:
        if not self.membership.can_hear:
            return False
        # If our own messages do not come back, nobody hears us, or we hear nobody: either way, nobody can offer us a
        # queue or take one from us, even if we hear what others say.
        if self._is_unheard(now_ms):
            return True
        # Somebody holds a queue that we stand by for, and we have heard nobody: the topic is dead for them or us.
        if self._standby_since_ms is None:
            return False
        return now_ms - max(self.membership.peers_heard_ms or 0, self._standby_since_ms) >= self._silence_ms

    def _is_unheard(self, now_ms: int) -> bool:
        return self._unheard_since_ms is not None and now_ms - self._unheard_since_ms >= self._silence_ms

    def _tell_of_silence(self, seen: GroupSeen, now_ms: int) -> list[ControlOutput]:
        was_told = self._is_silence_told
        if not seen.is_silent:
            self._silent_from_ms, self._is_silence_told = None, False
            return [Note("control_topic_heard")] if was_told else []
        if self._silent_from_ms is None:
            self._silent_from_ms = now_ms
        # Not at once: a process that was stopped for a while has yet to read what came meanwhile.
        self._is_silence_told = was_told or now_ms - self._silent_from_ms >= TELL_SILENCE_AFTER_MS
        return [Warn(Note("control_topic_silent"))] if self._is_silence_told and not was_told else []

    # -- what the machines order

    def _tell_rebalance(self, event: RebalanceEvent, now_ms: int) -> Sequence[ControlOutput]:
        return [] if self._is_aside else self.rebalance.handle(event, now_ms)

    def _obey_membership(self, commands: Sequence[MembershipCommand], now_ms: int) -> list[ControlOutput]:
        outputs: list[ControlOutput] = []
        for command in commands:
            match command:
                case SendHeartbeat():
                    outputs.append(self._beat(now_ms))
                case StripingChanged():
                    outputs += self._spread_striping()
                case SendStateRequest():
                    outputs.append(Say(StateRequest(self.membership.stamp())))
                case SendLeave(message):
                    outputs.append(Say(message))
                case ViewChanged():
                    outputs.append(command)
                    self._is_group_due = True
                case FlowsReported():
                    self._is_group_due = True
                case MoveMessageHeard():
                    outputs += self._hear_of_move(command, now_ms)
                case StandAside():
                    self._is_aside = True
                    outputs += [AskFlow(queue, PlaceChanged(AWAY)) for queue in self._flows]
                    outputs += self._give_everything(now_ms)
                case WinnerGone():
                    outputs.append(Superseded())
                case DuplicateMemberFound() | SettingsDisagree():
                    outputs.append(command)
                case Note():
                    outputs.append(Warn(command))
                case _:
                    assert_never(command)
        return outputs

    def _beat(self, now_ms: int) -> Say:
        # While an echo is waited for, each heartbeat may be the one that comes back.
        is_probing = bool(self._probes or self._echoes)
        heartbeat = self.membership.heartbeat(self.flow_reports(), self._leap() if is_probing else 0)
        if is_probing:
            self._await_echo(heartbeat.header.sequence)
        if self._unheard_since_ms is None:
            self._unheard_since_ms = now_ms
        self._is_group_due = True
        return Say(heartbeat)

    def _hear_of_move(self, heard: MoveMessageHeard, now_ms: int) -> list[ControlOutput]:
        message = heard.message
        outputs: list[ControlOutput] = []
        if self._look_at_ms is not None and self._has_changed(message.queue):
            # The answer must be true now: a member that is no longer a standby must not accept a queue.
            outputs += self._look(now_ms)
        # A member says that it leaves, and then offers its queues, so we often read both in one batch. Our answer must
        # know that it leaves. Nothing else needs the group before the batch has been read.
        is_asked = isinstance(message, Offer) and message.to == self.membership.identity.member
        # But not if the topic seems silent: our own message may come at the end of the batch.
        if is_asked and not self._is_silent(now_ms):
            outputs += self._see_group_if_due(now_ms)
        return [*outputs, *self._tell_rebalance(heard, now_ms)]

    # -- re-striping

    def _await_echo(self, sequence: int) -> None:
        self._echoes[sequence], self._probes = self._probes, []
        if len(self._echoes) > MAX_ECHOES:
            oldest, next_oldest = islice(self._echoes, 2)
            # A later echo proves at least as much.
            self._echoes[next_oldest][:0] = self._echoes.pop(oldest)

    def _hear_ourselves(self, message: ControlMessage) -> list[ControlOutput]:
        """If this is our own message that came back on the connection on which we settled, the broker has read the
        settlements that were sent before it."""
        header, identity = message.header, self.membership.identity
        if header.member != identity.member or header.life != identity.life:
            return []
        self._unheard_since_ms, self._has_heard_itself = None, True
        if header.sequence not in self._echoes:
            # Not sent for a probe, or not ours: a message that is forged in our name proves nothing. With the number of
            # one that counts, even a forged one does: nobody knows that number before the broker has read our message.
            return []
        reached = [number for number in self._echoes if number <= header.sequence]
        probes = [probe for number in reached for probe in self._echoes.pop(number)]
        return [AskFlow(probe.queue, SettlementsReached(probe.epoch, probe.number)) for probe in probes]

    def _spread_striping(self) -> list[ControlOutput]:
        striping = self.membership.striping.now
        outputs: list[ControlOutput] = [AskFlow(queue, StripingLearned(striping)) for queue in self._flows]
        if striping.queue_total > len(self._flows):
            outputs.append(QueuesAdded(striping.queue_total))
        queues = [flow.queue for flow in self._flows_in_use()]
        if queues != list(self.rebalance.queues):
            self.rebalance.set_queues(queues, self.rebalance.pins)
            self._is_group_due = True
            outputs += [AskFlow(flow.queue, PlaceChanged(AWAY)) for flow in self._gone_flows()]
        return outputs + self._give_gone_queues()

    def _flows_in_use(self) -> Sequence[FlowMachine]:
        return list(self._flows.values())[: self.membership.striping.now.queue_total]

    def _gone_flows(self) -> Sequence[FlowMachine]:
        return list(self._flows.values())[self.membership.striping.now.queue_total :]

    def _give_gone_queues(self) -> list[ControlOutput]:
        """Ask for the hand-back of queues that the group no longer has; again, if it was given up. They are empty, but
        an active flow ends only on request."""
        return [
            AskFlow(flow.queue, HandBackRequested(QUEUE_GONE))
            for flow in self._gone_flows()
            if flow.state is FlowState.ACTIVE
        ]

    def _add_flows(
        self, flows: Sequence[FlowMachine], pins: Mapping[QueueName, MemberId], now_ms: int
    ) -> list[ControlOutput]:
        self._flows |= {flow.queue: flow for flow in flows}
        self.rebalance.set_queues([flow.queue for flow in self._flows_in_use()], pins)
        self._is_group_due = True
        # More may have become known about the striping while they were created.
        return [*self._spread_striping(), *self._report_flows(now_ms)]

    def _give_everything(self, now_ms: int) -> list[ControlOutput]:
        # Ask again after a while. The end of a drain that was given up does not show: the drain may have been so short
        # that we never saw it.
        is_holding = any(flow.state in HOLDING for flow in self._flows.values())
        self._give_at_ms = now_ms + self._silence_ms if is_holding else None
        return [
            AskFlow(flow.queue, HandBackRequested(STAND_ASIDE))
            for flow in self._flows.values()
            if flow.state is FlowState.ACTIVE
        ]

    def _look_whether_handed_over(self) -> list[ControlOutput]:
        if not self._is_handing_over:
            return []
        mine = self.membership.identity.member
        nobody_else = all(candidate.member == mine for candidate in self.membership.view.candidates())
        if not nobody_else and any(flow.state in HOLDING for flow in self._flows_in_use()):
            return []
        self._is_handing_over = False
        return [HandedOver()]


def report_of(flow: FlowMachine) -> FlowReport | None:
    """What the group is told about a flow; None if the flow is not reported."""
    state = _REPORTED.get(flow.state)
    return None if state is None else FlowReport(state, flow.epoch, flow.in_flight)


def _reports_of(flows: Iterable[FlowMachine]) -> Mapping[QueueName, FlowReport]:
    return {flow.queue: report for flow in flows if (report := report_of(flow)) is not None}
