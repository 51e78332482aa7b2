"""Several membership machines over a network that loses, repeats, delays and reorders; the laws are checked outside."""

import random
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lbg_runtime.core.group.control_codec import ControlMessageRefused, decode, encode
from lbg_runtime.core.group.control_messages import ControlMessage, Header, Heartbeat, Leave, Life, StateRequest
from lbg_runtime.core.group.identity import Identity
from lbg_runtime.core.group.membership import MembershipMachine, OwnState
from lbg_runtime.core.group.membership_events import (
    ControlConnected,
    ControlLost,
    ControlMessageDropped,
    ControlMessageReceived,
    DrainStarted,
    JoinDone,
    LeaveRequested,
    MembershipCommand,
    MembershipEvent,
    SendHeartbeat,
    SendLeave,
    SendStateRequest,
    ViewChanged,
    WinnerGone,
)
from lbg_runtime.core.group.membership_timing import SUSPECT_AFTER_MISSED, MembershipTiming
from lbg_runtime.core.restripe.striping import StripingBook
from lbg_runtime.model.ids import GroupName, MemberId

GROUP = GroupName("orders")
MEMBERS = [MemberId(f"member-{number}") for number in range(3)]
SETTINGS = MembershipTiming()
AGREED = {"hash_count": "64"}
LONGEST_WAY_MS = SETTINGS.heartbeat_ms // 2 - 50
MAX_PROCESSES = 5
CONVERGED_MS = SETTINGS.dead_ms + SETTINGS.forget_ms + 5_000
"""A life that was higher must be dead and forgotten before a lower one of its member counts."""


@dataclass
class Process:
    """One life of one member and the shell around it."""

    number: int
    machine: MembershipMachine
    is_connected: bool = False
    paused_until_ms: int = 0
    heard: list[tuple[int, bytes]] = field(default_factory=list)
    """What reached it, and when."""
    view_changes: int = 0
    has_winner_gone: bool = False

    @property
    def member(self) -> MemberId:
        return self.machine.identity.member

    @property
    def life(self) -> Life:
        return self.machine.identity.life

    @property
    def speaks(self) -> bool:
        return self.machine.state not in (OwnState.ASIDE, OwnState.LEFT)

    def lives(self) -> dict[MemberId, Life]:
        return {one.member: one.life for one in self.machine.view.members}


@dataclass(order=True)
class Letter:
    """Bytes on their way to one process."""

    arrives_ms: int
    number: int
    to: int
    payload: bytes
    message: ControlMessage = field(compare=False)
    """What the receiver reads in it."""


class MembershipLaws(RuleBasedStateMachine):
    """The network and the processes; Hypothesis decides who comes, goes, hangs and forges."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 1_000
        self.chance = random.Random(0)
        self.processes: dict[int, Process] = {}
        self.started = 0
        self.incarnation = 0
        self.started_lives: set[tuple[MemberId, Life]] = set()
        self.letters: list[Letter] = []
        self.letter_count = 0
        self.is_reliable = True
        """Fewer heartbeats in a row are lost between any two than make a member suspect."""
        self.is_split = False
        self.lost_in_a_row: dict[tuple[int, int], int] = {}

    @initialize(seed=st.integers(0, 1_000_000))
    def choose_the_networks_luck(self, seed: int) -> None:
        self.chance = random.Random(seed)

    # -- the network

    def publish(self, sender: Process, message: ControlMessage) -> None:
        payload = encode(message)
        message = decode(payload, GROUP)
        for receiver in self.processes.values():
            if self.loses(sender, receiver, message):
                continue
            for _ in range(self.chance.choice((1, 1, 1, 2))):
                self.letter_count += 1
                arrives_ms = self.now_ms + self.chance.randint(0, LONGEST_WAY_MS)
                self.letters.append(Letter(arrives_ms, self.letter_count, receiver.number, payload, message))

    def loses(self, sender: Process, receiver: Process, message: ControlMessage) -> bool:
        if self.is_split and sender.number % 2 != receiver.number % 2:
            return True
        link = (sender.number, receiver.number)
        lost = self.lost_in_a_row.get(link, 0)
        may_lose = lost < SUSPECT_AFTER_MISSED - 1 or not self.is_reliable
        loses = may_lose and self.chance.random() < (0.4 if self.is_reliable else 0.8)
        if isinstance(message, Heartbeat):
            self.lost_in_a_row[link] = lost + 1 if loses else 0
        return loses

    def deliver(self, letter: Letter) -> None:
        process = self.processes.get(letter.to)
        if process is None or not process.is_connected or process.machine.state is OwnState.LEFT:
            return
        process.heard.append((self.now_ms, letter.payload))
        message = letter.message
        known = process.lives().get(message.header.member)
        self.tell(process, ControlMessageReceived(message))
        if isinstance(message, Heartbeat) and known is not None and message.header.life > known:
            assert process.lives()[message.header.member] == message.header.life, "a new life replaces the old one"

    # -- the shells

    def tell(self, process: Process, event: MembershipEvent) -> None:
        self.obey(process, process.machine.handle(event, self.now_ms))

    def obey(self, process: Process, commands: list[MembershipCommand]) -> None:
        for command in commands:
            match command:
                case SendHeartbeat():
                    assert process.is_connected
                    self.publish(process, process.machine.heartbeat({}))
                case SendStateRequest():
                    assert process.is_connected
                    self.publish(process, StateRequest(process.machine.stamp()))
                case SendLeave(message):
                    self.publish(process, message)
                case ViewChanged(view):
                    process.view_changes += 1
                    assert view == process.machine.view
                case WinnerGone():
                    assert process.machine.state is OwnState.ASIDE
                    process.has_winner_gone = True
                case _:
                    pass

    def run(self, duration_ms: int) -> None:
        until_ms = self.now_ms + duration_ms
        while True:
            moments = [(self.arrival_ms(letter), 0, letter.number) for letter in self.letters]
            moments += [
                (max(deadline_ms, process.paused_until_ms), 1 - 2 * (process.number % 2), process.number)
                for process in self.processes.values()
                if (deadline_ms := process.machine.deadline_ms) is not None
            ]
            if not moments or min(moments)[0] > until_ms:
                break
            at_ms, what, number = min(moments)
            self.now_ms = max(self.now_ms, at_ms)
            if what:
                process = self.processes[number]
                self.obey(process, process.machine.on_deadline(self.now_ms))
            else:
                [letter] = [letter for letter in self.letters if letter.number == number]
                self.letters.remove(letter)
                self.deliver(letter)
        self.now_ms = until_ms

    def arrival_ms(self, letter: Letter) -> int:
        receiver = self.processes.get(letter.to)
        return max(letter.arrives_ms, receiver.paused_until_ms if receiver else 0)

    # -- what happens

    @precondition(lambda self: len(self.processes) < MAX_PROCESSES)
    @rule(member=st.sampled_from(MEMBERS), same_incarnation=st.booleans(), joins_at_once=st.booleans())
    def start(self, member: MemberId, same_incarnation: bool, joins_at_once: bool) -> None:
        """Also while another process with this id is still there."""
        self.started += 1
        self.incarnation += 0 if same_incarnation else 1
        life = Life(self.incarnation, self.started)
        identity = Identity(GROUP, member, life, 1, AGREED)
        machine = MembershipMachine(identity, SETTINGS, random.Random(self.started), self.now_ms, StripingBook(4, 64))
        process = Process(self.started, machine)
        self.processes[process.number] = process
        self.started_lives.add((member, life))
        self.connect(process)
        if joins_at_once:
            self.tell(process, JoinDone())

    def connect(self, process: Process) -> None:
        if not process.is_connected:
            process.is_connected = True
            self.tell(process, ControlConnected())

    def some_process(self, data: st.DataObject) -> Process:
        return self.processes[data.draw(st.sampled_from(sorted(self.processes)))]

    @precondition(lambda self: self.processes)
    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        del self.processes[self.some_process(data).number]

    @precondition(lambda self: self.processes)
    @rule(data=st.data(), event=st.sampled_from([JoinDone(), DrainStarted(), LeaveRequested()]))
    def go_on_with_life(self, data: st.DataObject, event: MembershipEvent) -> None:
        process = self.some_process(data)
        if process.paused_until_ms <= self.now_ms:
            self.tell(process, event)

    @precondition(lambda self: self.processes)
    @rule(data=st.data())
    def lose_the_control_topic(self, data: st.DataObject) -> None:
        process = self.some_process(data)
        process.is_connected = False
        self.tell(process, ControlLost())

    @precondition(lambda self: any(not process.is_connected for process in self.processes.values()))
    @rule()
    def find_the_control_topic_again(self) -> None:
        for process in self.processes.values():
            lives = process.lives()
            self.connect(process)
            self.obey(process, process.machine.on_deadline(self.now_ms))
            assert process.lives() == lives, "an outage of ours says nothing about the others"

    @precondition(lambda self: self.processes)
    @rule(data=st.data(), duration_ms=st.integers(1, 12_000))
    def hang(self, data: st.DataObject, duration_ms: int) -> None:
        self.some_process(data).paused_until_ms = self.now_ms + duration_ms

    @rule(is_reliable=st.booleans(), is_split=st.booleans())
    def change_the_network(self, is_reliable: bool, is_split: bool) -> None:
        self.is_reliable = is_reliable
        self.is_split = is_split

    @rule(duration_ms=st.integers(1, 7_000))
    def pass_time(self, duration_ms: int) -> None:
        self.run(duration_ms)

    # -- forgery

    @precondition(lambda self: any(self.can_be_lied_to(process) for process in self.processes.values()))
    @rule(data=st.data())
    def forge(self, data: st.DataObject) -> None:
        """Repeat what was heard, or say things below it: with old lives, old sequences, of another group, as noise."""
        targets = [process for process in self.processes.values() if self.can_be_lied_to(process)]
        process = data.draw(st.sampled_from(targets))
        _, payload = data.draw(st.sampled_from(self.recently_heard(process)))
        heard = decode(payload, GROUP).header
        old_life = Life(heard.life.incarnation - 1, heard.life.nonce + 1)
        header = data.draw(st.sampled_from([heard, Header(GROUP, heard.member, old_life, heard.sequence + 10)]))
        forged = [payload, encode(Leave(header)), encode(StateRequest(header))]
        forged += [data.draw(st.binary(max_size=50)), payload.replace(b'"orders"', b'"others"')]
        before = process.lives()
        state = process.machine.state
        try:
            message = decode(data.draw(st.sampled_from(forged)), GROUP)
        except ControlMessageRefused as refused:
            self.tell(process, ControlMessageDropped(refused.reason))
        else:
            self.tell(process, ControlMessageReceived(message))
        assert process.lives() == before
        assert process.machine.state is state

    def can_be_lied_to(self, process: Process) -> bool:
        is_awake = process.is_connected and process.paused_until_ms <= self.now_ms
        return is_awake and process.machine.state is not OwnState.LEFT and bool(self.recently_heard(process))

    def recently_heard(self, process: Process) -> list[tuple[int, bytes]]:
        """What it has heard and remembers; a direct message does not turn up after longer than that."""
        return [(at_ms, payload) for at_ms, payload in process.heard if self.now_ms - at_ms < SETTINGS.forget_ms]

    # -- the laws

    @invariant()
    def nobody_declares_itself_dead(self) -> None:
        for process in self.processes.values():
            own = process.machine.view.find(process.member)
            if process.speaks:
                assert own is not None
                assert own.life == process.life
                assert not own.is_suspect
            elif own is not None:
                assert own.life > process.life, "who stands aside sees the one that won"

    @invariant()
    def nobody_is_seen_who_never_lived(self) -> None:
        for process in self.processes.values():
            assert set(process.lives().items()) <= self.started_lives

    @invariant()
    def who_cannot_hear_waits_and_judges_nobody(self) -> None:
        for process in self.processes.values():
            if not process.is_connected:
                assert process.machine.deadline_ms is None
                assert not process.machine.is_stable(self.now_ms)

    @rule()
    def converge(self) -> None:
        """With fewer heartbeats lost than make a member suspect, all see the same members, and go on doing so."""
        self.is_reliable, self.is_split = True, False
        self.lost_in_a_row.clear()
        for process in self.processes.values():
            process.paused_until_ms = min(process.paused_until_ms, self.now_ms)
            self.connect(process)
        self.run(CONVERGED_MS)
        living = [process for process in self.processes.values() if process.machine.state is not OwnState.LEFT]
        speaking = [process for process in living if process.speaks]
        expected = {process.member: process.life for process in speaking}
        # The others are ended by their shells: whom they stood aside for has gone.
        hearing = [process for process in living if not process.has_winner_gone]
        for process in living:
            if process.machine.state is OwnState.ASIDE and process.member not in expected:
                assert process.has_winner_gone, "nobody stands aside for ever where nobody is the member"
        assert len(expected) == len(speaking), "one process per member id is left, the others stand aside"
        for process in hearing:
            assert process.lives() == expected
            process.view_changes = 0
        self.run(SETTINGS.dead_ms)
        for process in hearing:
            assert process.view_changes == 0, "nobody is suspected for a loss below the limit"
            assert process.machine.is_stable(self.now_ms)
            assert {process.machine.view.digest() for process in hearing} == {process.machine.view.digest()}

    def teardown(self) -> None:
        self.converge()


TestMembershipLaws = MembershipLaws.TestCase
TestMembershipLaws.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
