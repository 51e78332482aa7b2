"""One life's control plane: the real machine, driven as `runtime.control_plane` drives it, on the simulated topic."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, assert_never

from lbg_runtime.core.flow.commands import Note
from lbg_runtime.core.flow.events import FlowRequest, HandBackRequested, SettlementsReached
from lbg_runtime.core.flow.machine import FlowMachine
from lbg_runtime.core.group.control_messages import ControlMessage, Life, MoveMessage
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
from lbg_runtime.core.group.identity import Identity
from lbg_runtime.core.group.membership import MembershipMachine, OwnState
from lbg_runtime.core.group.membership_events import (
    ControlConnected,
    ControlLost,
    ControlMessageReceived,
    DrainStarted,
    DuplicateMemberFound,
    JoinDone,
    LeaveRequested,
    SettingsDisagree,
    StripesTold,
    ViewChanged,
)
from lbg_runtime.core.group.rebalance import RebalanceMachine
from lbg_runtime.core.group.rebalance_events import AskFlow, Say
from lbg_runtime.core.restripe.news import StripesNews
from lbg_runtime.core.restripe.striping import StripingBook
from lbg_runtime.model.ids import GroupName, MemberId, QueueName
from lbg_runtime.sim.chance import SeededChance
from lbg_runtime.sim.client import SimClient
from lbg_runtime.sim.clock import DriftingClock
from lbg_runtime.sim.control_topic import ControlTopic
from lbg_runtime.sim.history import HandBackAsked, Happening, Said, StoodAside
from lbg_runtime.sim.history import Life as HistoryLife
from lbg_runtime.sim.process import Process
from lbg_runtime.sim.settings import ControlSettings

MakeRebalance = Callable[..., RebalanceMachine]


class ControlOwner(Protocol):
    """The member that a control plane is part of."""

    def ask(self, queue: QueueName, request: FlowRequest | SettlementsReached) -> None:
        """Pass a request to a flow machine."""
        ...

    def add_flows(self, queue_total: int) -> Sequence[FlowMachine]:
        """Make the flows that a re-striping adds, and return their machines."""
        ...

    def end_superseded(self) -> None:
        """The process that this one stood aside for has gone, and nobody has asked this one to leave."""
        ...


def make_control_machine(
    name: str,
    incarnation: int,
    flows: Sequence[FlowMachine],
    hash_count: int,
    settings: ControlSettings,
    chance: SeededChance,
    now_ms: int,
    make_rebalance: MakeRebalance,
) -> ControlPlaneMachine:
    """The machine of a member's life."""
    nonce = chance.between(0, 1 << 53)
    identity = Identity(GroupName("orders"), MemberId(name), Life(incarnation, nonce), weight=1, settings={})
    striping = StripingBook(len(flows), hash_count)
    membership = MembershipMachine(identity, settings.membership, chance, now_ms, striping)
    queues = [flow.queue for flow in flows]
    rebalance = make_rebalance(identity.member, queues, {}, settings.rebalance, membership.stamp)
    silence_ms, looks = settings.membership.dead_ms, settings.looks_ms_per_thousand
    return ControlPlaneMachine(membership, rebalance, flows, silence_ms, looks_ms_per_thousand=looks)


class SimControl:
    """Created by a member for its life. Every call except `hear` runs inside the member's process."""

    def __init__(
        self,
        life: HistoryLife,
        machine: ControlPlaneMachine,
        topic: ControlTopic,
        client: SimClient,
        process: Process,
        clock: DriftingClock,
        history: list[Happening],
        owner: ControlOwner,
        *,
        last_words_arrive: bool,
    ) -> None:
        """`last_words_arrive`: see `ControlSettings`."""
        self.name = machine.membership.identity.member
        self.machine = machine
        self._last_words_arrive = last_words_arrive
        self._life = life
        self._history = history
        self._topic = topic
        self._client = client
        self._process = process
        self._clock = clock
        self._owner = owner
        self._inputs: deque[ControlInput] = deque()
        self._armed_ms: int | None = None
        self._on_handed_over: Callable[[], None] | None = None
        self._post(JoinDone())

    # -- for the topic

    @property
    def is_reachable(self) -> bool:
        """Whether the member's connection currently works."""
        link = self._client.link
        return link is not None and link.cut_ms is None and self._client.client_id is not None

    @property
    def is_over(self) -> bool:
        """See `Listener.is_over`."""
        return not self._process.is_alive

    def hear(self, message: ControlMessage) -> None:
        """A message arrived at the broker for this client; it queues behind the frames of the flows."""
        link = self._client.link
        if link is not None:
            link.down.send_with_last(lambda: self._process.run(lambda: self._post(ControlMessageReceived(message))))

    # -- for the member

    def connection_changed(self, *, is_up: bool) -> None:
        """The client is connected, or has noticed that it is not."""
        if is_up:
            self._topic.join(self)
        else:
            self._topic.part(self)
        self._post(ControlConnected() if is_up else ControlLost())

    @property
    def stands_aside(self) -> bool:
        """Whether another process is this member, so that this one takes no part."""
        return self.machine.membership.state is OwnState.ASIDE

    @property
    def offer_wait_ms(self) -> int:
        """How long until this member offers a queue that another should have; 0 if it has none."""
        deadline_ms = self.machine.rebalance.deadline_ms
        return self._clock.wait_ms(deadline_ms) if deadline_ms is not None else 0

    def flow_changed(self) -> None:
        """The state or epoch of one of this member's flows changed."""
        if self.machine.must_hear_of_flows(self._inputs):
            self._post(FlowChanged())

    def stripes_told(self, queue_index: int, news: StripesNews) -> None:
        """A flow of this member has news of a re-striping."""
        self._post(StripesTold(queue_index, news))

    def probe_asked(self, probe: ProbeAsked) -> None:
        """A flow of this member that has sent all of its settlements asks when they have arrived."""
        self._post(probe)

    def leave(self, on_handed_over: Callable[[], None]) -> None:
        """Give every queue away; call back once, when there is nothing left to give or nobody to take it."""
        self._on_handed_over = on_handed_over
        self._post(DrainStarted())

    def end(self) -> None:
        """The member exits: say goodbye."""
        for output in self.machine.take([LeaveRequested()], self._clock.now_ms):
            self._carry_out(output)

    # -- parts

    def _post(self, happened: ControlInput) -> None:
        self._inputs.append(happened)
        if len(self._inputs) == 1:
            self._process.after(0, self._take)

    def _take(self) -> None:
        inputs, self._inputs = self._inputs, deque()
        for output in self.machine.take(inputs, self._clock.now_ms):
            self._carry_out(output)
        self._arm()

    def _carry_out(self, output: ControlOutput) -> None:
        match output:
            case Say(message):
                if isinstance(message, MoveMessage):
                    self._history.append(Said(self._process.now_ms, self._life, message))
                # On the connection that carries the settlements, after them.
                if self._client.link is not None:
                    is_safe = self._last_words_arrive and self.is_reachable
                    self._client.link.up.send_with_last(lambda: self._topic.publish(self, message, has_arrived=is_safe))
            case QueuesAdded(queue_total):
                if flows := self._owner.add_flows(queue_total):
                    self._post(FlowsAdded(flows, {}))
            case AskFlow(queue, request):
                if isinstance(request, HandBackRequested):
                    self._history.append(HandBackAsked(self._process.now_ms, self._life, queue, request.move_id))
                # The flow's own task handles it, not this one.
                self._process.after(0, lambda: self._owner.ask(queue, request))
            case HandedOver():
                if self._on_handed_over is not None:
                    self._on_handed_over()
            case Superseded():
                if self._on_handed_over is None:
                    self._owner.end_superseded()
            case DuplicateMemberFound(other):
                if other > self.machine.membership.identity.life:
                    self._history.append(StoodAside(self._process.now_ms, self._life))
            case ViewChanged() | SettingsDisagree() | Warn() | Note():
                pass
            case _:
                assert_never(output)

    def _arm(self) -> None:
        deadline_ms = self.machine.deadline_ms
        if deadline_ms is not None and deadline_ms != self._armed_ms:
            self._armed_ms = deadline_ms
            self._process.after(self._clock.wait_ms(deadline_ms), lambda: self._on_deadline(deadline_ms))

    def _on_deadline(self, armed_ms: int) -> None:
        if self._armed_ms == armed_ms:
            self._armed_ms = None
            self._take()
