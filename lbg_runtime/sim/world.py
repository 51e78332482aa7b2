"""Members, publishers, broker and control topic of one run, and its course from start to end."""

from collections import Counter
from collections.abc import Callable, Sequence

from lbg_runtime.config.rebind_mode import RebindMode
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.ids import GroupName, QueueName
from lbg_runtime.sim.broker import SimBroker
from lbg_runtime.sim.chance import SeededChance
from lbg_runtime.sim.control_noise import ControlNoise, RequestKind
from lbg_runtime.sim.control_topic import ControlTopic
from lbg_runtime.sim.history import CalmBegan, CalmEnded, Happening, Life, Stalled, TwinStarted
from lbg_runtime.sim.member import SimMember
from lbg_runtime.sim.parts import Parts
from lbg_runtime.sim.publisher import SimPublisher
from lbg_runtime.sim.restriper import SimRestriper
from lbg_runtime.sim.schedule import Call, Schedule
from lbg_runtime.sim.settings import SimSettings
from lbg_runtime.sim.start import Start, member_name

QUIET_MS = 300_000
"""Time that a run has after its last fault to handle everything; if it takes longer, it is stuck."""

RESTART_MS = 1_000
"""Delay after which a process that ended itself is started again, as in runtime/siblings.py."""

STOP_MS = 60_000
"""Time that the members have to stop at the end."""


class World:
    """One run. The public methods are for the faults, which come from `sim.faults`."""

    def __init__(self, settings: SimSettings, chance: SeededChance, parts: Parts) -> None:
        self.settings = settings
        self.history: list[Happening] = []
        self.requests: Counter[RequestKind] = Counter()
        self.owners: tuple[Life | None, ...] = ()
        self.schedule = Schedule()
        shape = GroupShape(GroupName("orders"), "lbg", settings.hash_count, settings.queue_count)
        self.broker = SimBroker(self.schedule, self.history, shape)
        self.topic = ControlTopic(self.schedule, chance.fork("topic"), settings.control, settings.horizon_ms)
        self.publishers = [
            SimPublisher(name, self.broker, self.schedule, chance.fork(name), settings, self.history)
            for name in (f"p{number}" for number in range(1, settings.publishers + 1))
        ]
        self.restriper: SimRestriper | None = None
        if settings.restripe_to:
            self.restriper = SimRestriper(
                self.broker,
                self.topic,
                self.schedule,
                chance.fork("restriper"),
                settings.restripe_to,
                settings.restriper_kill_share,
                settings.longest_delay_ms,
            )
        self._chance = chance
        self._parts = parts
        self._lives: list[SimMember | None] = [None] * settings.planned_members
        self._twins: list[SimMember] = []
        """Processes of members whose other process is, or was, in `_lives`."""
        self._start_count = 0
        self._is_closing = False
        self._restarts_pending = 0
        self._faulty_until_ms = settings.horizon_ms

    def run(self) -> None:
        """Start, suffer, recover, finish, stop."""
        for index in range(self.settings.first_members):
            self.start(index)
        if self.settings.request_gap_ms is not None:
            queues, chance = self.broker.shape.queue_names(), self._chance.fork("requests")
            gap_ms, until_ms = self.settings.request_gap_ms, self.settings.horizon_ms
            noise = ControlNoise(self.schedule, chance, queues, self.alive, gap_ms, until_ms)
            self.requests = noise.requests
            noise.start()
        if self.restriper is not None:
            self.schedule.after(
                self._chance.fork("restripe").between(1, self.settings.horizon_ms), self.restriper.begin
            )
        self._let_pass(self.settings.horizon_ms)
        self._wait(QUIET_MS, self._is_over, "a fault does not end")
        if not self.alive():
            self.start(0)
        self._undo_mistakes()
        if self.restriper is not None:
            self._wait(QUIET_MS, self._is_restriped, "a re-striping does not end")
            self._restart_the_ignorant()
            self._undo_mistakes()
        self._wait(QUIET_MS, self._is_quiet, "messages are left, or not confirmed")
        if self.settings.mode is RebindMode.COOPERATIVE:
            self._be_calm()
        self.owners = tuple(self.broker.owner_of(queue) for queue in self._queues())
        self._is_closing = True
        for member in self.alive():
            member.stop()
        self._wait(STOP_MS, lambda: not self.alive(), "a member does not stop")

    def _wait(self, longest_ms: int, is_done: Callable[[], bool], what: str) -> None:
        if not self.schedule.run(self.schedule.now_ms + longest_ms, is_done):
            self.history.append(Stalled(self.schedule.now_ms, what))

    def _let_pass(self, length_ms: int) -> None:
        self.schedule.run(self.schedule.now_ms + length_ms, lambda: False)

    def _is_restriped(self) -> bool:
        return self.restriper is None or self.restriper.is_done

    def _is_quiet(self) -> bool:
        are_done = all(publisher.is_done for publisher in self.publishers)
        return self._is_restriped() and are_done and self.broker.is_empty()

    def _be_calm(self) -> None:
        self._let_pass(self._time_to_agree_ms())
        # An owner whose drains took too long waits longer and longer before it tries again, which no bound here
        # includes.
        if longest_wait_ms := max(
            (member.control.offer_wait_ms for member in self._taking_part() if member.control), default=0
        ):
            self._let_pass(longest_wait_ms + self._time_to_agree_ms())
        queues = self._queues()
        homes = []
        for member in self._taking_part():
            placement = member.control.machine.rebalance.placement if member.control is not None else None
            ranks = placement.ranks if placement is not None else {}
            by_queue = tuple(placement.home(queue) if placement and queue in ranks else None for queue in queues)
            homes.append((member.life, by_queue))
        self.history.append(CalmBegan(self.schedule.now_ms, tuple(queues), tuple(homes)))
        self._let_pass(calm_ms(self.settings))
        self.history.append(CalmEnded(self.schedule.now_ms))

    def _queues(self) -> list[QueueName]:
        return [self.broker.shape.queue_name(index) for index in self.broker.queue_indexes()]

    def _restart_the_ignorant(self) -> None:
        """Act as an operator who reads the logs: a group whose members all died just after it had been re-striped, and
        which came back with the old settings, cannot know."""
        self._let_pass(self._time_to_agree_ms())
        for member in self.alive():
            known = member.control.machine.membership.striping.now if member.control is not None else None
            if known is not None and known.queue_total != self.broker.configured_count:
                member.stop()
                self.start_later(member, 0)
        self._wait(QUIET_MS, self._is_over, "a member does not stop")

    def _undo_mistakes(self) -> None:
        """Act as an operator who reads the logs: of processes that throw each other out, leave only one."""
        if not self._twins:
            return
        kept: set[str] = set()
        for member in sorted(self.alive(), key=lambda member: member.stands_aside):
            if member.start.client_name not in kept:
                kept.add(member.start.client_name)
                continue
            member.stop()
            self.when_ended(member, lambda: None)
        self._wait(QUIET_MS, self._is_over, "a member does not stop")
        # Processes that stand aside for one that has gone find out, end themselves, and are started again.
        self._let_pass(self._time_to_agree_ms())
        self._wait(QUIET_MS, self._is_over, "a member does not stop")

    def _time_to_agree_ms(self) -> int:
        # For others, a life below another of its id counts only when they have forgotten that one.
        forget_ms = self.settings.control.membership.forget_ms if self._twins else 0
        return time_to_agree_ms(self.settings, forget_ms)

    def _is_over(self) -> bool:
        return not self._restarts_pending and self.schedule.now_ms >= self._faulty_until_ms

    # -- members

    def alive(self) -> list[SimMember]:
        """The running processes, paused or not."""
        return [member for member in (*self._lives, *self._twins) if member is not None and member.is_alive]

    def _taking_part(self) -> list[SimMember]:
        return [member for member in self.alive() if not member.stands_aside]

    def life_of(self, index: int) -> SimMember | None:
        """The newest life of a planned member, not counting twins."""
        return self._lives[index]

    def start(self, index: int, client_name: str | None = None) -> None:
        """Start a planned member that is not running; its client has its name unless another is given."""
        member = self._lives[index]
        if self._is_closing or (member is not None and member.is_alive):
            return
        self._start_count += 1
        start = Start(index, self._start_count, self._start_count, client_name or member_name(index))
        self._lives[index] = self._make(start)

    def _make(self, start: Start) -> SimMember:
        return SimMember(
            start,
            self.broker,
            self.topic,
            self.schedule,
            self._chance.fork(start.life),
            self.settings,
            self.history,
            self._parts,
            self._start_superseded,
        )

    def _start_superseded(self, member: SimMember) -> None:
        """Start it again, unless it is a twin whose member runs."""

        def start() -> None:
            # With the client name that it had: another process may have the one that the member was planned with.
            self.start(member.start.index, member.start.client_name)

        self.when_ended(member, lambda: self._later(RESTART_MS, start))

    # -- for faults

    def start_twin(self, member: SimMember, incarnation: int | None, *, shares_client_name: bool) -> SimMember | None:
        """Start another process with this one's id; with None as incarnation, as its correct clock says. Return None if
        the run is ending."""
        if self._is_closing:
            return None
        self._start_count += 1
        index, number = member.start.index, self._start_count
        client_name = member.start.client_name if shares_client_name else f"{member_name(index)}/{number}"
        twin = self._make(Start(index, number, number if incarnation is None else incarnation, client_name))
        self.history.append(TwinStarted(self.schedule.now_ms, twin.life, member.life))
        self._twins.append(twin)
        return twin

    def lasts_until(self, at_ms: int) -> None:
        """Note that a fault goes on until then."""
        self._faulty_until_ms = max(self._faulty_until_ms, at_ms)
        # A run in which nothing else happens at that moment has to notice it, too.
        self.schedule.at(at_ms, lambda: None)

    def start_later(self, member: SimMember, delay_ms: int) -> None:
        """Start a member again, this long after its end."""
        self.when_ended(member, lambda: self._later(delay_ms, lambda: self.start(member.start.index)))

    def when_ended(self, member: SimMember, call: Call) -> None:
        """Call it when the life is over; a run is not calm before that."""
        self._restarts_pending += 1

        def look() -> None:
            if member.is_alive:
                self.schedule.after(10, look)
            else:
                self._restarts_pending -= 1
                call()

        look()

    def restart_in_turn(self, indexes: Sequence[int], gap_ms: int) -> None:
        """Stop and start the first of these members, then go on with the next."""
        if not indexes:
            return
        member, rest = self._lives[indexes[0]], indexes[1:]
        if member is None or not member.is_alive:
            self.restart_in_turn(rest, gap_ms)
            return

        def go_on() -> None:
            self.start(indexes[0])
            self._later(gap_ms, lambda: self.restart_in_turn(rest, gap_ms))

        member.stop()
        self.when_ended(member, go_on)

    def _later(self, delay_ms: int, call: Call) -> None:
        self._restarts_pending += 1

        def due() -> None:
            self._restarts_pending -= 1
            call()

        self.schedule.after(delay_ms, due)


def time_to_agree_ms(settings: SimSettings, forget_ms: int) -> int:
    """How long after the last fault cooperative members may take until every queue is at home permanently.

    The sum of everything that may happen in sequence: a client that has yet to notice and come back, binds with the
    longest waits, silence until the dead are considered dead, and forgotten if that matters, settling, tenure, and two
    rounds of offers, the first of which fails.
    """
    membership, rebalance = settings.control.membership, settings.control.rebalance
    connected_ms = settings.keep_alive_ms + 1_000 + settings.rebind.bind_backoff_max_ms
    seen_ms = 2 * membership.dead_ms + forget_ms + membership.settle_ms + 2 * membership.heartbeat_ms
    move_ms = 10 * settings.longest_delay_ms + 4 * settings.control.longest_delay_ms + settings.rebind.quiet_gap_ms
    queue_count = max(settings.queue_count, *settings.restripe_to, 0)
    moves_ms = queue_count * (move_ms + settings.planned_members * settings.rebind.rank_delay_ms)
    offers_ms = rebalance.min_tenure_ms + 2 * (rebalance.answer_timeout_ms + rebalance.backoff_max_ms)
    slowest_clock_share = 1 + settings.longest_drift_permille / 500
    return round((connected_ms + seen_ms + moves_ms + offers_ms + rebalance.step_aside_ms) * slowest_clock_share)


def calm_ms(settings: SimSettings) -> int:
    """How long nothing may move after that: longer than any delay of a control plane."""
    membership, rebalance = settings.control.membership, settings.control.rebalance
    return membership.forget_ms + membership.settle_ms + rebalance.min_tenure_ms + rebalance.backoff_max_ms
