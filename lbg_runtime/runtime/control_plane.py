"""A member's part in its group's conversation: the shell around the machine in core/group/control_plane.py.

Control messages are direct messages on one topic of the group. The machine makes all decisions; here, one task feeds it
everything that happens, in that order, and carries out what it answers. Nothing here touches a delivery.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import assert_never

import structlog

from lbg_runtime.core.flow.commands import Note
from lbg_runtime.core.group.control_codec import ControlMessageRefused, decode, encode
from lbg_runtime.core.group.control_messages import ControlMessage, Inquiry
from lbg_runtime.core.group.control_plane import (
    ControlInput,
    ControlOutput,
    ControlPlaneMachine,
    FlowChanged,
    FlowsAdded,
    HandedOver,
    ProbeAsked,
    QueuesAdded,
    Superseded,
    Warn,
)
from lbg_runtime.core.group.membership_events import (
    ControlConnected,
    ControlLost,
    ControlMessageDropped,
    ControlMessageReceived,
    DrainStarted,
    DuplicateMemberFound,
    JoinDone,
    LeaveRequested,
    SettingsDisagree,
    StripesTold,
    ViewChanged,
    WeightChanged,
)
from lbg_runtime.core.group.rebalance_events import AskFlow, Say
from lbg_runtime.core.group.view import GroupView
from lbg_runtime.core.restripe.news import StripesNews
from lbg_runtime.model.errors import ConfigError, LbgError, MemberSuperseded
from lbg_runtime.model.ids import MemberId, QueueName
from lbg_runtime.model.message import Message
from lbg_runtime.runtime.answering import Answerer
from lbg_runtime.runtime.clock import DeadlineTimer, now_ms
from lbg_runtime.runtime.control_machine import PARKS
from lbg_runtime.runtime.dispatch.dispatcher import Dispatcher
from lbg_runtime.runtime.dispatch.key_book import KeyBook
from lbg_runtime.runtime.flight_recorder import FlightRecorder
from lbg_runtime.runtime.flow.runner import FlowRunner
from lbg_runtime.runtime.kept_subscription import KeptSubscription
from lbg_runtime.runtime.session import Session

_log = structlog.get_logger(__name__)

AddFlows = Callable[[int], Sequence[FlowRunner]]


class ControlPlane:
    """One per member in cooperative mode. Made and used on one event loop; `run` once, the rest while it runs."""

    def __init__(
        self,
        session: Session,
        topic: str,
        machine: ControlPlaneMachine,
        runners: Sequence[FlowRunner],
        keys: KeyBook,
        dispatcher: Dispatcher,
        recorder: FlightRecorder,
        on_refused: Callable[[LbgError], None],
        add_flows: AddFlows,
        pins: Callable[[int], Mapping[QueueName, MemberId]],
    ) -> None:
        """`on_refused` is called with an error if this member, before it has placed any queue, finds that the group's
        settings differ from its own; or if the process that it stood aside for has gone.

        `add_flows` makes the flows of the queues that a re-striping adds, given how many queues there are then. `pins`
        says, for a number of queues, which of them have a home by the settings.
        """
        self.machine = machine
        self._session = session
        self._topic = topic
        self._subscription = KeptSubscription(session, topic, self._arrived)
        self._runners = {runner.machine.queue: runner for runner in runners}
        self._answerer = Answerer(machine.membership, machine.flow_reports, keys, dispatcher, self._handled, self._say)
        self._recorder = recorder
        recorder.listen_to(machine.membership.owner_of, machine.rebalance.accepted)
        self._on_refused = on_refused
        self._add_flows = add_flows
        self._pins = pins
        self._inputs: deque[ControlInput] = deque()
        self._wake_up = asyncio.Event()
        self._timer = DeadlineTimer(self._wake_up.set)
        self._on_handed_over: Callable[[], None] | None = None
        self._members_told: dict[MemberId, str] = {}
        """Members and their states, as logged last."""

    async def run(self) -> None:
        """Take part until cancelled; then tell the group that this member has left.

        If the control topic cannot be subscribed to, the member works without it while this tries again and again.
        """
        failure = await self._subscription.subscribe()
        self._session.watch_connection(self._connection_changed)
        self._post(JoinDone())
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._subscription.keep(failure, self._topic_confirmed))
            try:
                while True:
                    self._timer.set(self.machine.deadline_ms)
                    # No bound: if the machine has a deadline, the timer above ends this.
                    await self._wake_up.wait()
                    self._wake_up.clear()
                    self._take_inputs()
            finally:
                self._timer.cancel()
                self._inputs = deque([LeaveRequested()])
                self._take_inputs()

    def flow_changed(self) -> None:
        """Note that a flow of this member has changed its state or epoch."""
        if self.machine.must_hear_of_flows(self._inputs):
            self._post(FlowChanged())

    def stripes_told(self, queue_index: int, news: StripesNews) -> None:
        """Note that a flow of this member has news of a re-striping."""
        self._post(StripesTold(queue_index, news))

    def probe_asked(self, probe: ProbeAsked) -> None:
        """See `FlowRunner`: answered when our own next message, sent after the settlements, comes back."""
        self._post(probe)

    def set_weight(self, weight: int) -> None:
        """Change this member's share of the queues from now on."""
        self._post(WeightChanged(weight))

    def leave(self, on_handed_over: Callable[[], None]) -> None:
        """Give every queue away; calls back once, when nothing is left to give or there is nobody to take it."""
        self._on_handed_over = on_handed_over
        self._post(DrainStarted())

    # -- what comes in

    def _post(self, event: ControlInput) -> None:
        self._inputs.append(event)
        self._wake_up.set()

    def _connection_changed(self, is_up: bool) -> None:
        self._subscription.connection_changed(is_up)
        self._post(ControlConnected() if is_up else ControlLost())

    def _topic_confirmed(self, had_failed: bool) -> None:
        if had_failed:
            # What others have said until now was not heard here: the machine begins anew, and asks everybody.
            self._post(ControlConnected())

    def _arrived(self, message: Message) -> None:
        try:
            decoded = decode(message.payload, self.machine.membership.identity.group)
        except ControlMessageRefused as refusal:
            self._post(ControlMessageDropped(refusal.reason))
            return
        if isinstance(decoded, Inquiry):
            self._answerer.hear(decoded)
        else:
            self._post(ControlMessageReceived(decoded))

    def _take_inputs(self) -> None:
        inputs, self._inputs = self._inputs, deque()
        # Looked up first: one call may bring both the first place and the news of other settings, and those count.
        had_place = self.machine.rebalance.placement is not None
        for output in self.machine.take(inputs, now_ms()):
            self._carry_out(output, had_place=had_place)

    def _handled(self) -> dict[int, int]:
        return {runner.queue_index: runner.handled for runner in self._runners.values() if runner.handled}

    # -- what goes out

    def _carry_out(self, output: ControlOutput, *, had_place: bool) -> None:
        match output:
            case Say(message):
                self._say(message)
            case AskFlow(queue, request):
                self._runners[queue].post(request)
            case QueuesAdded(queue_total):
                self._make_flows(queue_total)
            case HandedOver():
                if self._on_handed_over is not None:
                    self._on_handed_over()
            case Superseded():
                # A member that was asked to leave goes on doing so.
                if self._on_handed_over is None:
                    self._on_refused(MemberSuperseded(self.machine.membership.identity.member))
            case ViewChanged(view):
                self._tell_of(view)
            case DuplicateMemberFound(other):
                member = self.machine.membership.identity.member
                _log.error("member_id_taken_twice", member=member, incarnation=other.incarnation)
            case SettingsDisagree(member, name, ours, theirs, is_alone):
                _log.error("settings_disagree", other=member, setting=name, ours=ours, theirs=theirs)
                if not had_place and not is_alone:
                    # The group was here first.
                    self._on_refused(_refusal(name, ours, theirs, member))
            case Warn(note):
                _log.warning(note.name, **note.facts)
            case Note(name, facts):
                _log.info(name, **facts)
            case _:
                assert_never(output)

    def _tell_of(self, view: GroupView) -> None:
        # Changes of weights and lives change the view as well, but would only repeat the line.
        members = {one.member: "suspect" if one.is_suspect else one.state.value for one in view.members}
        if members != self._members_told:
            self._members_told = members
            _log.info("view_changed", members=members)

    def _make_flows(self, queue_total: int) -> None:
        # The machine asks again until it is told, so there may be nothing left to add.
        added = self._add_flows(queue_total)
        self._runners |= {runner.machine.queue: runner for runner in added}
        if added:
            _log.info("queues_added", queues=[runner.machine.queue for runner in added])
            self._post(FlowsAdded([runner.machine for runner in added], self._pins(queue_total)))

    def _say(self, message: ControlMessage | Inquiry) -> None:
        try:
            self._session.send_direct(Message(self._topic, encode(message)))
            self._recorder.said(message)
        except ControlMessageRefused as refusal:
            _log.error("control_message_not_sent", reason=str(refusal))


def _refusal(name: str, ours: str | None, theirs: str | None, member: MemberId) -> ConfigError:
    """The error of a member that comes with another value than a member of the group has."""
    if name == PARKS:
        # If only a handler says it, the user would look for the setting in vain.
        where, parks, does_not = f"{name}, or `then` of a handler", "park", "nothing that parks"
        found, wanted = (parks, does_not) if theirs is None else (does_not, parks)
        return ConfigError(where, found, f"{wanted}, as member {member} has it: all of a group park, or none")
    # A member that does not say its value has another one; nobody knows which.
    found = "another value" if ours is None else repr(ours)
    if theirs is None:
        return ConfigError(name, found, f"another value: that of member {member}, which does not say which it is")
    return ConfigError(name, found, f"{theirs!r}, as member {member} has it")
