"""A small group of real machines that can be copied, compared and disturbed, for following every history of it.

Each member has its control plane and its flow machines; around them are a broker's lines of exclusive queues and a
control topic. Everything takes a tick from one to the other, and stays in order between two of them. Ten ticks are a
heartbeat interval, and the other delays are short, so that little happens between two states. Whoever begins with a
queue is given a message, and handles it for some ticks.

More than 400 lines, as whatever disturbs a group is a method of it.
"""

from collections import deque
from dataclasses import dataclass, replace

from lbg_runtime.core.flow.commands import Bind, Command, Dispatch, StartIntake, Unbind
from lbg_runtime.core.flow.events import (
    BindRefused,
    BindSucceeded,
    FlowActive,
    FlowDown,
    FlowInactive,
    HandBackRequested,
    HandlingFinished,
    MachineEvent,
    MessageReceived,
    StopRequested,
)
from lbg_runtime.core.flow.events import UnbindFinished as Unbound
from lbg_runtime.core.flow.machine import FlowMachine
from lbg_runtime.core.flow.rebind import RebindSettings
from lbg_runtime.core.flow.table import FlowState
from lbg_runtime.core.group import membership_events as events
from lbg_runtime.core.group.control_messages import Accept, ControlMessage, Life
from lbg_runtime.core.group.control_plane import (
    ControlInput,
    ControlOutput,
    ControlPlaneMachine,
    FlowChanged,
    HandedOver,
    Superseded,
)
from lbg_runtime.core.group.identity import Identity
from lbg_runtime.core.group.membership import MembershipMachine, OwnState
from lbg_runtime.core.group.membership_timing import MembershipTiming
from lbg_runtime.core.group.rebalance import AWAY, RebalanceMachine
from lbg_runtime.core.group.rebalance_events import AskFlow, Say
from lbg_runtime.core.group.rebalance_settings import RebalanceSettings
from lbg_runtime.core.restripe.striping import StripingBook
from lbg_runtime.model.ids import DeliveryId, GroupName, MemberId, QueueName
from lbg_runtime.model.message import Delivery, Message
from lbg_runtime.model.outcome import Outcome

TIMING = MembershipTiming(heartbeat_ms=10, jitter=0.5, settle_ms=10)
SILENCE_MS = 62
MOVES = RebalanceSettings(1, 0, max_moves=1, answer_timeout_ms=8, step_aside_ms=20, backoff_min_ms=5, backoff_max_ms=10)
FLOWS = RebindSettings(80, 0, 10, bind_backoff_min_ms=1, bind_backoff_max_ms=5, quiet_gap_ms=1, rank_delay_ms=1)
LOOKS_MS_PER_THOUSAND = 0
COUNTED: tuple[MemberId, ...] = ()
"""Members that have their queues by number."""
HANDLING_MS = 3
SHARDS = 6
ONLY = DeliveryId(1)


@dataclass(slots=True)
class Metronome:
    """Chance that leads histories back to each other: heartbeats on a grid, everything else at its latest."""

    now_ms: int

    def uniform(self, a: float, b: float, /) -> float:
        if b != TIMING.jitter:
            return b
        return 1 - next((ticks for ticks in range(10, 4, -1) if not (self.now_ms + ticks) % 10), 5) / 10


@dataclass(frozen=True, slots=True)
class Letter:
    """Something on its way to a member; what is on its way to one that ends is gone with it."""

    due_ms: int
    sender: MemberId | str | None
    """None: the broker; no member: a handler."""
    to: MemberId
    what: ControlMessage | MachineEvent
    queue: QueueName | None = None
    """Of a flow's event."""

    def __deepcopy__(self, _: object) -> "Letter":
        return self


class Member:
    """One life of one member, and the shell around its machines."""

    def __init__(self, name: MemberId, life: Life, queues: list[QueueName], now_ms: int) -> None:
        self.name = name
        """Of the process: a second one of a member has another."""
        self.member = member = id_of(name)
        self.life = life
        self.chance = Metronome(now_ms)
        self.flows = {queue: self.flow(queue, now_ms) for queue in queues}
        identity = Identity(GroupName("orders"), member, life, 1, {})
        membership = MembershipMachine(identity, TIMING, self.chance, now_ms, StripingBook(len(queues), SHARDS))
        rebalance = RebalanceMachine(member, queues, pins(queues), MOVES, membership.stamp)
        flows = list(self.flows.values())
        self.control = ControlPlaneMachine(
            membership, rebalance, flows, SILENCE_MS, looks_ms_per_thousand=LOOKS_MS_PER_THOUSAND
        )
        self.heard: deque[ControlInput] = deque([events.ControlConnected(), events.JoinDone()])
        self.told: dict[QueueName, list[MachineEvent]] = {queue: [] for queue in queues}
        self.frozen_until_ms = 0
        self.away_until_ms = 0
        """While the connection is broken."""
        self.away: set[QueueName] = set()
        """Where handles wait for the connection: they go on when it is back."""
        self.to_bind: list[QueueName] = []
        """Where handles are to be bound then."""
        self.is_leaving = False

    def flow(self, queue: QueueName, now_ms: int) -> FlowMachine:
        return FlowMachine(queue, AWAY, FLOWS, 4, self.chance, now_ms)


class SmallGroup:
    """The world. `step` goes on to the next moment; everything else disturbs it or looks at it."""

    def __init__(self, queues: list[QueueName]) -> None:
        self.now_ms = 1_000
        self.queues = queues
        self.members: dict[MemberId, Member] = {}
        self.lines: dict[QueueName, list[MemberId]] = {queue: [] for queue in queues}
        """Who is bound; the broker feeds the first."""
        self.letters: list[Letter] = []
        self.cut_until_ms: dict[tuple[MemberId, MemberId], int] = {}
        """Until when one member is not heard by the other."""
        self.incarnations: dict[MemberId, int] = {}
        """By member, of its latest life."""
        self.accepted: tuple[str, ...] = ()
        """The last moves that somebody said it takes."""
        self.begun: tuple[str, ...] = ()
        """The last moves for which an owner was to give its queue up."""

    # -- what can happen

    def start(self, name: MemberId, incarnation: int | None = None) -> None:
        """Start a process, whose life is later than all before if nothing else is said."""
        last = self.incarnations.get(id_of(name), 0)
        number = last + 1 if incarnation is None else incarnation
        self.incarnations[id_of(name)] = max(last, number)
        # In order of names, as it decides whose turn is first.
        self.members = dict(sorted({**self.members, name: self._member(name, Life(number, 1))}.items()))

    def _member(self, name: MemberId, life: Life) -> Member:
        return Member(name, life, self.queues, self.now_ms)

    def kill(self, name: MemberId) -> None:
        del self.members[name]
        self.letters = [letter for letter in self.letters if letter.to != name]
        for queue in self.queues:
            self._unbind(name, queue)

    def leave(self, name: MemberId) -> None:
        self.members[name].is_leaving = True
        self.members[name].heard.append(events.DrainStarted())

    def weigh(self, name: MemberId, weight: int) -> None:
        self.members[name].heard.append(events.WeightChanged(weight))

    def freeze(self, name: MemberId, ticks: int) -> None:
        self.members[name].frozen_until_ms = self.now_ms + ticks

    def repeat(self, letter: Letter, ticks: int) -> None:
        """It comes a second time, later."""
        self.letters.append(replace(letter, due_ms=letter.due_ms + ticks))

    def cut(self, name: MemberId, other: MemberId, ticks: int) -> None:
        self.cut_until_ms[name, other] = self.now_ms + ticks

    def lose(self, letter: Letter) -> None:
        self.letters.remove(letter)

    def delay(self, letter: Letter, ticks: int) -> None:
        """It, and so what its sender has sent after it."""
        self.letters[self.letters.index(letter)] = late = replace(letter, due_ms=letter.due_ms + ticks)
        behind = [each for each in self.letters[self.letters.index(late) :] if _way(each) == _way(late)]
        self.letters = [each for each in self.letters if each not in behind]
        self.letters += [replace(each, due_ms=max(each.due_ms, late.due_ms)) for each in behind]

    def lose_handle(self, name: MemberId, queue: QueueName) -> None:
        """What the broker has sent on it is gone, too."""
        self.letters = [each for each in self.letters if (each.sender, each.to, each.queue) != (None, name, queue)]
        self._send(Letter(0, None, name, FlowDown(self.members[name].flows[queue].epoch, "lost"), queue))
        self._unbind(name, queue)

    def feed_next(self, queue: QueueName) -> None:
        """The broker takes a queue from its owner, which is then the last in line."""
        first, *others = self.lines[queue]
        self._send(Letter(0, None, first, FlowInactive(self.members[first].flows[queue].epoch), queue))
        self.lines[queue] = [*others, first]
        self._feed_first(queue)

    def disconnect(self, name: MemberId, ticks: int) -> None:
        """The connection breaks, which both sides notice; handles that are bound go on when it is back."""
        member = self.members[name]
        member.away_until_ms = self.now_ms + ticks
        member.heard.append(events.ControlLost())
        lost = [each for each in self.letters if each.to == name and each.sender != "handler"]
        self.letters = [each for each in self.letters if each not in lost]
        for queue, flow in member.flows.items():
            self._unbind(name, queue)
            told, epoch = member.told[queue], flow.epoch
            was_told = flow.state in (FlowState.ACTIVE, FlowState.DRAINING) or FlowActive(epoch) in told
            if any(each.queue == queue and isinstance(each.what, BindSucceeded) for each in lost):
                told.append(BindRefused(epoch, "lost", permanent=False))
            elif flow.state is FlowState.UNBINDING:
                told += [Unbound(epoch, is_confirmed=False)] if Unbound(epoch) not in told else []
            elif flow.state is not FlowState.UNBOUND and queue not in member.to_bind:
                member.away.add(queue)
                told += [FlowInactive(epoch)] if was_told and FlowInactive(epoch) not in told else []

    # -- the broker

    def _connect(self, member: Member) -> None:
        member.away_until_ms = 0
        member.heard.append(events.ControlConnected())
        to_bind, member.to_bind = member.to_bind, []
        for queue in [queue for queue in self.queues if queue in member.away]:
            self._bind(member.name, queue)
        member.away.clear()
        for queue in to_bind:
            self._obey(member, member.flows[queue], [Bind(member.flows[queue].epoch)])

    def _bind(self, name: MemberId, queue: QueueName) -> None:
        self.lines[queue].append(name)
        if self.lines[queue] == [name]:
            self._feed_first(queue)

    def _send(self, letter: Letter) -> None:
        before = [each.due_ms for each in self.letters if _way(each) == _way(letter)]
        self.letters.append(replace(letter, due_ms=max([self.now_ms + 1, *before])))

    def _feed_first(self, queue: QueueName) -> None:
        first = self.lines[queue][0]
        self._send(Letter(0, None, first, FlowActive(self.members[first].flows[queue].epoch), queue))

    def _unbind(self, name: MemberId, queue: QueueName) -> None:
        line = self.lines[queue]
        was_fed = line[:1] == [name]
        self.lines[queue] = [each for each in line if each != name]
        if was_fed and self.lines[queue]:
            self._feed_first(queue)

    def _sent(self, name: MemberId, queue: QueueName) -> list[object]:
        """What is on its way to a flow."""
        letters = [each.what for each in self.letters if (each.to, each.queue) == (name, queue)]
        return [*self.members[name].told[queue], *letters]

    # -- time and the shells

    def step(self) -> None:
        """Go on to the next moment, and do all that is due then."""
        self.now_ms = now_ms = max(self.now_ms, min(self._moments()))
        self.cut_until_ms = {cut: until_ms for cut, until_ms in self.cut_until_ms.items() if until_ms > now_ms}
        for member in self.members.values():
            if member.frozen_until_ms <= now_ms:
                member.frozen_until_ms = 0
            if 0 < member.away_until_ms <= now_ms and not member.frozen_until_ms:
                self._connect(member)
        for _ in range(30):
            self._deliver()
            if not sum([self._turn(member) for member in list(self.members.values()) if not member.frozen_until_ms]):
                return
        raise AssertionError("within a tick, there is always more to do")

    def _moments(self) -> list[int]:
        moments = [letter.due_ms for letter in self.letters if not self.members[letter.to].frozen_until_ms]
        for member in self.members.values():
            if member.frozen_until_ms:
                moments.append(member.frozen_until_ms)
            elif member.heard:
                moments.append(self.now_ms)
            else:
                deadlines = [machine.deadline_ms for machine in (member.control, *member.flows.values())]
                moments += [deadline_ms for deadline_ms in deadlines if deadline_ms is not None]
                moments += [member.away_until_ms] if member.away_until_ms else []
        return moments or [self.now_ms + 1]

    def _deliver(self) -> None:
        letters, self.letters = self.letters, []
        for letter in letters:
            member = self.members[letter.to]
            if letter.due_ms > self.now_ms or member.frozen_until_ms:
                self.letters.append(letter)
            elif letter.queue is not None:
                member.told[letter.queue].append(letter.what)
            else:
                member.heard.append(events.ControlMessageReceived(letter.what))

    def _turn(self, member: Member) -> bool:
        """One turn of each of a member's tasks; whether there was anything to do."""
        member.chance.now_ms = self.now_ms
        was_busy = False
        for queue, flow in member.flows.items():
            before, told = (flow.state, flow.epoch), member.told[queue]
            was_busy |= bool(told) or _is_due(flow.deadline_ms, self.now_ms)
            while told:
                self._obey(member, flow, flow.handle(told.pop(0), self.now_ms))
            self._obey(member, flow, flow.on_deadline(self.now_ms))
            if before != (flow.state, flow.epoch):
                member.heard.append(FlowChanged())
        if member.is_leaving and all(flow.is_stopped for flow in member.flows.values()):
            self._carry_out(member, member.control.take([events.LeaveRequested()], self.now_ms))
            self.kill(member.name)
        elif member.heard or _is_due(member.control.deadline_ms, self.now_ms):
            was_busy = True
            heard, member.heard = member.heard, deque()
            self._carry_out(member, member.control.take(heard, self.now_ms))
        return was_busy

    def _obey(self, member: Member, flow: FlowMachine, commands: list[Command]) -> None:
        name, queue = member.name, flow.queue
        for command in commands:
            match command:
                case Bind() if member.away_until_ms:
                    member.to_bind.append(queue)
                case Bind(epoch):
                    self._send(Letter(0, None, name, BindSucceeded(epoch), queue))
                    self._bind(name, queue)
                case Unbind(epoch) if member.away_until_ms:
                    member.away.discard(queue)
                    member.told[queue].append(Unbound(epoch, is_confirmed=False))
                case Unbind(epoch, cause):
                    handled = [each for each in self._sent(name, queue) if isinstance(each, HandlingFinished)]
                    assert not any(each.epoch == epoch for each in handled), f"{name} gives up what it handles: {cause}"
                    self._unbind(name, queue)
                    self._send(Letter(0, None, name, Unbound(epoch), queue))
                case StartIntake(epoch):
                    sent = self._sent(name, queue)
                    is_told = any(isinstance(each, FlowInactive | FlowDown) for each in sent)
                    is_fed = self.lines[queue][:1] == [name]
                    assert is_fed or is_told, f"{name} begins with {queue}, which is not fed to it"
                    if is_fed and not any(isinstance(each, MessageReceived | HandlingFinished) for each in sent):
                        delivery = Delivery(queue, epoch, ONLY, Message("t", b""), False, 0)
                        self._send(Letter(0, None, name, MessageReceived(delivery), queue))
                case Dispatch(delivery):
                    finished = HandlingFinished(delivery.epoch, ONLY, Outcome.ACCEPTED)
                    self.letters.append(Letter(self.now_ms + HANDLING_MS, "handler", name, finished, queue))
                case _:
                    pass

    def _carry_out(self, member: Member, outputs: list[ControlOutput]) -> None:
        for output in outputs:
            match output:
                case Say(message):
                    if isinstance(message, Accept):
                        self.accepted = _once(self.accepted, message.move_id)
                    reached = [other for other in self.members.values() if not other.away_until_ms]
                    for name in [other.name for other in reached if not member.away_until_ms]:
                        if (member.name, name) not in self.cut_until_ms:
                            self._send(Letter(0, member.name, name, message))
                case AskFlow(queue, request):
                    if isinstance(request, HandBackRequested) and "/" in request.move_id:
                        self.begun = _once(self.begun, request.move_id)
                        assert request.move_id in self.accepted, f"nobody has said that it takes {queue}"
                    member.told[queue].append(request)
                case HandedOver():
                    for told in member.told.values():
                        told.append(StopRequested())
                case Superseded() if not member.is_leaving:
                    self.kill(member.name)
                    self.start(member.name)
                case _:
                    pass

    # -- what is to be seen

    def owners(self) -> tuple[MemberId | None, ...]:
        """By queue, whom the broker feeds."""
        return tuple(line[0] if line else None for line in self.lines.values())

    def is_bound(self, name: MemberId, queue: QueueName) -> bool:
        """Whether the member has a handle of the queue that it is not giving up."""
        return self.members[name].flows[queue].state in (FlowState.STANDBY, FlowState.ACTIVE, FlowState.DRAINING)

    def unrest(self) -> list[str]:
        """What is not as it should be in a group that is left in peace."""
        found = []
        present = {member.member for member in self.members.values()}
        owners = tuple(owner and id_of(owner) for owner in self.owners())
        speaking = [member for member in self.members.values() if member.control.membership.may_speak]
        for name, member in self.members.items():
            placement, membership = member.control.rebalance.placement, member.control.membership
            if membership.state is OwnState.ASIDE:
                bound = [queue for queue, flow in member.flows.items() if flow.state is not FlowState.UNBOUND]
                found += [f"{name} stands aside, and is bound to {bound}"] if bound else []
                continue
            ranks = placement.ranks if placement else {}
            homes = tuple(next(iter(ranks.get(queue, ())), None) for queue in self.queues)
            if homes != owners:
                found.append(f"{name} wants the queues at {homes}, they are at {self.owners()}")
            seen = {one.member: one.is_suspect for one in membership.view.members}
            if seen != dict.fromkeys(present, False) or len(membership._peers) >= len(present):
                found.append(f"{name} sees {seen}, and remembers {list(membership._peers)}")
            for queue, flow in member.flows.items():
                is_bound = member.member in ranks.get(queue, ())[: (MOVES.standbys or 0) + 1]
                others = FlowState.STANDBY if is_bound else FlowState.UNBOUND
                if flow.state is not (FlowState.ACTIVE if self.lines.get(queue, [])[:1] == [name] else others):
                    found.append(f"{name} is {flow.state.value} on {queue}")
        if sorted(member.member for member in speaking) != sorted(present):
            found.append(f"of {sorted(self.members)}, {[member.name for member in speaking]} take part")
        weights = {member.member: member.control.membership.identity.weight for member in speaking}
        # Where nobody is to have any, all count alike.
        weights = weights if any(weights.values()) else dict.fromkeys(weights, 1)
        found += [f"{name} has queues" for name, weight in weights.items() if weight == 0 and name in owners]
        shares = [owners.count(name) for name, weight in weights.items() if weight]
        return [*found, f"the shares are {shares}"] if max(shares, default=0) - min(shares, default=0) > 1 else found


def pins(queues: list[QueueName]) -> dict[QueueName, MemberId]:
    """Which of these have a home by the settings."""
    return {queue: COUNTED[index % len(COUNTED)] for index, queue in enumerate(queues) if COUNTED}


def id_of(name: MemberId) -> MemberId:
    """The member whose process it is."""
    return MemberId(name.rstrip("'"))


def _way(letter: Letter) -> tuple[MemberId | None, MemberId]:
    return letter.sender, letter.to


def _once(moves: tuple[str, ...], move: str) -> tuple[str, ...]:
    assert move not in moves, f"{move} a second time"
    return (*moves[-9:], move)


def _is_due(deadline_ms: int | None, now_ms: int) -> bool:
    return deadline_ms is not None and deadline_ms <= now_ms
