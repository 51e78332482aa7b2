"""A small group of real machines that can be copied, compared and disturbed, for following every history of it.

Each member has its control plane and its flow machines; around them are a broker's lines of exclusive queues and a
control topic. Everything takes a tick from one to the other, and stays in order between two of them. Ten ticks are a
heartbeat interval, and the other delays are short, so that little happens between two states.
"""

from collections import deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import ClassVar

from lbg_runtime.core.flow.commands import Bind, Command, StartIntake, Unbind
from lbg_runtime.core.flow.events import BindSucceeded, FlowActive, HandBackRequested, MachineEvent, StopRequested
from lbg_runtime.core.flow.events import UnbindFinished as Unbound
from lbg_runtime.core.flow.machine import FlowMachine, FlowState
from lbg_runtime.core.flow.rebind import RebindSettings
from lbg_runtime.core.group import membership_events as events
from lbg_runtime.core.group.control_messages import Accept, ControlMessage, Life
from lbg_runtime.core.group.control_plane import (
    ControlInput,
    ControlOutput,
    ControlPlaneMachine,
    FlowChanged,
    HandedOver,
)
from lbg_runtime.core.group.identity import Identity
from lbg_runtime.core.group.membership import MembershipMachine
from lbg_runtime.core.group.membership_timing import MembershipTiming
from lbg_runtime.core.group.rebalance import AWAY, RebalanceMachine
from lbg_runtime.core.group.rebalance_events import AskFlow, Say
from lbg_runtime.core.group.rebalance_settings import RebalanceSettings
from lbg_runtime.core.restripe.striping import StripingBook
from lbg_runtime.model.ids import GroupName, MemberId, QueueName

TIMING = MembershipTiming(heartbeat_ms=10, jitter=0.5, settle_ms=10)
SILENCE_MS = 62
MOVES = RebalanceSettings(1, 0, max_moves=1, answer_timeout_ms=8, step_aside_ms=20, backoff_min_ms=5, backoff_max_ms=10)
FLOWS = RebindSettings(80, 0, 10, bind_backoff_min_ms=1, bind_backoff_max_ms=5, quiet_gap_ms=1, rank_delay_ms=1)

UNIMPORTANT = frozenset(
    (
        *("_settings", "_silence_ms", "_looks_ms_per_thousand", "_stamp", "_leap", "_random", "chance", "identity"),
        *(
            "striping",
            "settings",
            "queues",
            "starts",
            "accepted",
            "begun",
            "_sequence",
            "_move_count",
            "__orig_class__",
        ),
        *("placement", "_view", "_flows", "_reports", "view_digest", "in_flight", "contested", "_noted", "disregarded"),
        *("reason", "owners"),
    )
)
"""Fields that stay as they are, that only count or are told, or that follow from others; what is wrong here shows."""
PAST_MS = {
    "gone_at_ms": TIMING.forget_ms,
    "_changed_at_ms": TIMING.settle_ms,
    "_complete_at_ms": TIMING.settle_ms,
    "since_ms": MOVES.min_tenure_ms,
    "_not_before_ms": 0,
    "_bound_at_ms": FLOWS.bind_backoff_max_ms,
    "claims": 2 * TIMING.heartbeat_ms,
    "_claims": 2 * TIMING.heartbeat_ms,
}
"""For how long a moment in the past makes a difference; `SILENCE_MS` for all others."""


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
    sender: MemberId | None
    """None: the broker."""
    to: MemberId
    what: ControlMessage | MachineEvent
    queue: QueueName | None = None
    """Of a flow's event."""


class Member:
    """One life of one member, and the shell around its machines."""

    def __init__(self, member: MemberId, life: Life, queues: list[QueueName], now_ms: int) -> None:
        self.member = member
        self.life = life
        self.chance = Metronome(now_ms)
        self.flows = {queue: FlowMachine(queue, AWAY, FLOWS, 4, self.chance, now_ms) for queue in queues}
        identity = Identity(GroupName("orders"), member, life, 1, {})
        membership = MembershipMachine(identity, TIMING, self.chance, now_ms, StripingBook(len(queues)))
        rebalance = RebalanceMachine(member, queues, {}, MOVES, membership.stamp)
        flows = list(self.flows.values())
        self.control = ControlPlaneMachine(membership, rebalance, flows, SILENCE_MS, looks_ms_per_thousand=0)
        self.heard: deque[ControlInput] = deque([events.ControlConnected(), events.JoinDone()])
        self.told: dict[QueueName, list[MachineEvent]] = {queue: [] for queue in queues}
        self.frozen_until_ms = 0
        self.is_leaving = False


class SmallGroup:
    """The world. `step` goes on to the next moment; everything else disturbs it or looks at it."""

    def __init__(self, queues: list[QueueName]) -> None:
        self.now_ms = 1_000
        self.queues = queues
        self.members: dict[MemberId, Member] = {}
        self.lines: dict[QueueName, list[MemberId]] = {queue: [] for queue in queues}
        """Who is bound; the broker feeds the first."""
        self.letters: list[Letter] = []
        self.cuts: dict[tuple[MemberId, MemberId], int] = {}
        """Until when one member is not heard by the other."""
        self.starts: dict[MemberId, int] = {}
        self.accepted: tuple[str, ...] = ()
        """The last moves that somebody said it takes."""
        self.begun: tuple[str, ...] = ()
        """The last moves for which an owner was to give its queue up."""

    # -- what can happen

    def start(self, name: MemberId) -> None:
        self.starts[name] = self.starts.get(name, 0) + 1
        self.members[name] = Member(name, Life(self.starts[name], 1), self.queues, self.now_ms)

    def kill(self, name: MemberId) -> None:
        del self.members[name]
        self.letters = [letter for letter in self.letters if letter.to != name]
        for queue in self.queues:
            self._unbind(name, queue)

    def leave(self, name: MemberId) -> None:
        self.members[name].is_leaving = True
        self.members[name].heard.append(events.DrainStarted())

    def freeze(self, name: MemberId, ticks: int) -> None:
        self.members[name].frozen_until_ms = self.now_ms + ticks

    def cut(self, name: MemberId, other: MemberId, ticks: int) -> None:
        self.cuts[name, other] = self.now_ms + ticks

    def lose(self, letter: Letter) -> None:
        self.letters.remove(letter)

    def delay(self, letter: Letter, ticks: int) -> None:
        """It, and so what its sender has sent after it."""
        self.letters[self.letters.index(letter)] = late = replace(letter, due_ms=letter.due_ms + ticks)
        behind = [each for each in self.letters[self.letters.index(late) :] if _way(each) == _way(late)]
        self.letters = [each for each in self.letters if each not in behind]
        self.letters += [replace(each, due_ms=max(each.due_ms, late.due_ms)) for each in behind]

    # -- the broker

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

    # -- time and the shells

    def step(self) -> None:
        """Go on to the next moment, and do all that is due then."""
        self.now_ms = now_ms = max(self.now_ms, min(self._moments()))
        self.cuts = {cut: until_ms for cut, until_ms in self.cuts.items() if until_ms > now_ms}
        for member in self.members.values():
            if member.frozen_until_ms <= now_ms:
                member.frozen_until_ms = 0
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
        return moments

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
            before, told, member.told[queue] = (flow.state, flow.epoch), member.told[queue], []
            was_busy |= bool(told) or _is_due(flow.deadline_ms, self.now_ms)
            for event in told:
                self._obey(member, flow, flow.handle(event, self.now_ms))
            self._obey(member, flow, flow.on_deadline(self.now_ms))
            if before != (flow.state, flow.epoch):
                member.heard.append(FlowChanged())
        if member.is_leaving and all(flow.is_stopped for flow in member.flows.values()):
            self._carry_out(member, member.control.take([events.LeaveRequested()], self.now_ms))
            self.kill(member.member)
        elif member.heard or _is_due(member.control.deadline_ms, self.now_ms):
            was_busy = True
            heard, member.heard = member.heard, deque()
            self._carry_out(member, member.control.take(heard, self.now_ms))
        return was_busy

    def _obey(self, member: Member, flow: FlowMachine, commands: list[Command]) -> None:
        name, queue = member.member, flow.queue
        for command in commands:
            match command:
                case Bind(epoch):
                    self._send(Letter(0, None, name, BindSucceeded(epoch), queue))
                    self.lines[queue].append(name)
                    if self.lines[queue] == [name]:
                        self._feed_first(queue)
                case Unbind(epoch):
                    self._unbind(name, queue)
                    self._send(Letter(0, None, name, Unbound(epoch), queue))
                case StartIntake():
                    assert self.lines[queue][0] == name, f"{name} begins with {queue}, which is not fed to it"
                case _:
                    pass

    def _carry_out(self, member: Member, outputs: list[ControlOutput]) -> None:
        for output in outputs:
            match output:
                case Say(message):
                    if isinstance(message, Accept):
                        self.accepted = _once(self.accepted, message.move_id)
                    for name in self.members:
                        if (member.member, name) not in self.cuts:
                            self._send(Letter(0, member.member, name, message))
                case AskFlow(queue, request):
                    if isinstance(request, HandBackRequested):
                        self.begun = _once(self.begun, request.move_id)
                        assert request.move_id in self.accepted, f"nobody has said that it takes {queue}"
                    member.told[queue].append(request)
                case HandedOver():
                    for told in member.told.values():
                        told.append(StopRequested())
                case _:
                    pass

    # -- what is to be seen

    def owners(self) -> tuple[MemberId | None, ...]:
        """By queue, whom the broker feeds."""
        return tuple(line[0] if line else None for line in self.lines.values())

    def unrest(self) -> list[str]:
        """What is not as it should be in a group that is left in peace."""
        found = []
        for name, member in self.members.items():
            placement, membership = member.control.rebalance.placement, member.control.membership
            homes = tuple(placement.home(queue) if placement else None for queue in self.queues)
            if homes != self.owners():
                found.append(f"{name} wants the queues at {homes}, they are at {self.owners()}")
            seen = {one.member: one.is_suspect for one in membership.view.members}
            if seen != dict.fromkeys(self.members, False) or len(membership._peers) >= len(self.members):
                found.append(f"{name} sees {seen}, and remembers {list(membership._peers)}")
            for queue, flow in member.flows.items():
                if flow.state is not (FlowState.ACTIVE if self.lines[queue][:1] == [name] else FlowState.STANDBY):
                    found.append(f"{name} is {flow.state.value} on {queue}")
        shares = [self.owners().count(name) for name in self.members]
        return [*found, f"the shares are {shares}"] if max(shares, default=0) - min(shares, default=0) > 1 else found

    def likeness(self) -> int:
        """Equal for groups that have the same future, if the same happens to them."""
        return hash(_Likeness(self).of(self, "", None, None))


class _Likeness:
    """What matters of a group for its future: moments are relative to now, and numbers to the newest of their life.

    It knows no fields but those named above, so a new one makes a difference.
    """

    _fields: ClassVar[dict[type, tuple[str, ...]]] = {}

    def __init__(self, group: SmallGroup) -> None:
        self._group = group
        self._told: set[int] = set()

    def of(self, thing: object, name: str, who: Member | None, queue: QueueName | None) -> Hashable:
        """Of the value of a field of this name. `who` is the life that it is about, None if that has ended."""
        kind = type(thing)
        if kind is int:
            return self._number(thing, name, who, queue)
        if kind is str:
            return self._move(thing) if name == "move_id" and thing else thing
        if thing is None or isinstance(thing, (bool, Enum, frozenset)):
            return thing
        if isinstance(thing, Mapping):
            return tuple([(key, self.of(thing[key], name, who, key)) for key in sorted(thing)])
        if isinstance(thing, (list, tuple, deque)):
            return tuple([self.of(each, name, who, queue) for each in thing])
        if kind is set:
            return frozenset(thing)
        if kind is Life:
            return who is not None
        if kind in (Member, FlowMachine, MembershipMachine):
            if id(thing) in self._told:
                return None
            self._told.add(id(thing))
        if (fields := self._fields.get(kind)) is None:
            all_fields = vars(thing) if hasattr(thing, "__dict__") else kind.__slots__
            fields = self._fields[kind] = tuple(each for each in all_fields if each not in UNIMPORTANT)
        about = thing.header if "header" in fields else self._group.members[thing.to] if kind is Letter else thing
        if about is not thing or "life" in fields:
            who = self._group.members.get(about.member)
            who = who if who is not None and who.life == about.life else None
        queue = thing.queue if "queue" in fields else queue
        return kind.__name__, tuple([self.of(getattr(thing, each), each, who, queue) for each in fields])

    def _move(self, move_id: str) -> Hashable:
        giver, life, _, number = move_id.split("/")
        member = self._group.members.get(MemberId(giver))
        if member is None or member.life.incarnation != int(life):
            return move_id
        return giver, member.control.rebalance._move_count - int(number)

    def _number(self, number: int, name: str, who: Member | None, queue: QueueName | None) -> int:
        if name.endswith(("_ms", "claims")):
            # Made large, as -1 and -2 have the same hash.
            return 1_000_000 + max(number - self._group.now_ms, -PAST_MS.get(name, SILENCE_MS))
        if name == "epoch" and who is not None and queue is not None:
            return who.flows[queue].epoch - number
        if name == "sequence":
            return who.control.membership._sequence - number if who is not None else number
        return number


def _way(letter: Letter) -> tuple[MemberId | None, MemberId]:
    return letter.sender, letter.to


def _once(moves: tuple[str, ...], move: str) -> tuple[str, ...]:
    assert move not in moves, f"{move} a second time"
    return (*moves[-9:], move)


def _is_due(deadline_ms: int | None, now_ms: int) -> bool:
    return deadline_ms is not None and deadline_ms <= now_ms
