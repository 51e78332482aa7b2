"""One run from one seed: the world, its faults, and the way to its end."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import assert_never

from lbg_runtime.model.errors import InvariantViolated
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.ids import GroupName
from lbg_runtime.sim.broker import SimBroker
from lbg_runtime.sim.chance import SeededChance
from lbg_runtime.sim.control_noise import ControlNoise, RequestKind
from lbg_runtime.sim.facts import Facts
from lbg_runtime.sim.history import Happening, Life, Stalled
from lbg_runtime.sim.laws import Violation, check_laws, duplicate_count
from lbg_runtime.sim.member import Parts, SimMember
from lbg_runtime.sim.publisher import SimPublisher
from lbg_runtime.sim.schedule import Call, Schedule, SimulationLoops
from lbg_runtime.sim.settings import FaultKind, SimSettings, draw_settings

QUIET_MS = 300_000
"""Time that a run has, after its last fault, to handle everything; what takes longer is stuck."""

STOP_MS = 60_000
"""Time that the members have to stop in the end."""


@dataclass(frozen=True, slots=True)
class SimResult:
    """What came of a run."""

    seed: int
    settings: SimSettings
    violations: tuple[Violation, ...]
    history: Sequence[Happening]
    published: int
    handled: int
    duplicates: int
    owners: tuple[Life | None, ...]
    """Who was fed, by queue, when the run had come to rest and before its members stopped."""
    faults: Counter[FaultKind]
    requests: Counter[RequestKind]


def simulate(seed: int, settings: SimSettings | None = None, parts: Parts | None = None) -> SimResult:
    """Run a seed to its end and check every law; the same seed and settings give the same history, always."""
    chance = SeededChance(seed)
    chosen = settings or draw_settings(chance.fork("settings"))
    world = _World(chosen, chance, parts or Parts())
    violations: list[Violation] = []
    try:
        world.run()
    except (InvariantViolated, SimulationLoops) as error:
        violations.append(Violation("machines_keep_their_invariants", world.now_ms, str(error)))
    facts = Facts(world.history)
    violations += check_laws(facts, chosen)
    return SimResult(
        seed=seed,
        settings=chosen,
        violations=tuple(violations),
        history=world.history,
        published=len(facts.confirmed),
        handled=sum(1 for delivery in facts.deliveries.values() if delivery.handlings),
        duplicates=duplicate_count(facts),
        owners=world.owners,
        faults=world.faults,
        requests=world.requests,
    )


class _World:
    """Members, publishers, broker, and what befalls them."""

    def __init__(self, settings: SimSettings, chance: SeededChance, parts: Parts) -> None:
        self.history: list[Happening] = []
        self.faults: Counter[FaultKind] = Counter()
        self.requests: Counter[RequestKind] = Counter()
        self.owners: tuple[Life | None, ...] = ()
        self._settings = settings
        self._chance = chance
        self._parts = parts
        self._schedule = Schedule()
        shape = GroupShape(GroupName("orders"), "lbg", settings.hash_count, settings.queue_count)
        self._broker = SimBroker(self._schedule, self.history, shape)
        self._lives: list[SimMember | None] = [None] * settings.planned_members
        self._incarnations = 0
        self._is_closing = False
        self._publishers = [
            SimPublisher(name, self._broker, self._schedule, chance.fork(name), settings, self.history)
            for name in (f"p{number}" for number in range(1, settings.publishers + 1))
        ]

    @property
    def now_ms(self) -> int:
        """The virtual time."""
        return self._schedule.now_ms

    def run(self) -> None:
        """Start, suffer, recover, finish, stop."""
        for index in range(self._settings.first_members):
            self._start(index)
        if self._settings.faults:
            self._next_fault(self._chance.fork("faults"))
        if self._settings.request_gap_ms is not None:
            queues, chance = self._broker.shape.queue_names(), self._chance.fork("requests")
            gap_ms, until_ms = self._settings.request_gap_ms, self._settings.horizon_ms
            noise = ControlNoise(self._schedule, chance, queues, self._alive, gap_ms, until_ms)
            self.requests = noise.requests
            noise.start()
        self._schedule.run(self._settings.horizon_ms, lambda: False)
        if not self._alive():
            self._start(0)
        self._wait(QUIET_MS, self._is_quiet, "messages are left, or not confirmed")
        self.owners = tuple(self._broker.owner_of(queue) for queue in self._broker.shape.queue_names())
        self._is_closing = True
        for member in self._alive():
            member.stop()
        self._wait(STOP_MS, lambda: not self._alive(), "a member does not stop")

    def _wait(self, longest_ms: int, is_done: Callable[[], bool], what: str) -> None:
        if not self._schedule.run(self._schedule.now_ms + longest_ms, is_done):
            self.history.append(Stalled(self._schedule.now_ms, what))

    def _is_quiet(self) -> bool:
        return all(publisher.is_done for publisher in self._publishers) and self._broker.is_empty()

    # -- members

    def _alive(self) -> list[SimMember]:
        return [member for member in self._lives if member is not None and member.is_alive]

    def _start(self, index: int) -> None:
        member = self._lives[index]
        if self._is_closing or (member is not None and member.is_alive):
            return
        self._incarnations += 1
        name = f"m{index}"
        self._lives[index] = SimMember(
            name,
            index,
            self._incarnations,
            self._broker,
            self._schedule,
            self._chance.fork(f"{name}#{self._incarnations}"),
            self._settings,
            self.history,
            self._parts,
        )

    # -- faults

    def _next_fault(self, chance: SeededChance) -> None:
        at_ms = self._schedule.now_ms + chance.between(1, self._settings.fault_gap_ms)
        if at_ms < self._settings.horizon_ms:
            self._schedule.at(at_ms, lambda: self._strike(chance))

    def _strike(self, chance: SeededChance) -> None:
        kind = chance.pick(self._settings.faults)
        self.faults[kind] += 1
        alive = self._alive()
        member = chance.pick(alive) if alive else None
        match kind:
            case FaultKind.JOIN:
                self._start(chance.between(0, self._settings.planned_members - 1))
            case FaultKind.CUT_PUBLISHER:
                notices = chance.between(0, self._settings.keep_alive_ms), chance.between(0, 500)
                chance.pick(self._publishers).break_connection(*notices)
            case FaultKind.ROLLING_RESTART:
                self._restart_from(0, chance.between(0, 300))
            case _ if member is None:
                pass
            case FaultKind.KILL:
                member.kill()
                self._start_later(member, chance)
            case FaultKind.STOP:
                member.stop()
                self._start_later(member, chance)
            case FaultKind.PAUSE:
                self._pause(member, chance)
            case FaultKind.DISCONNECT:
                longest_ms = self._settings.keep_alive_ms
                member.client.break_connection(chance.between(0, longest_ms), chance.between(0, longest_ms))
            case FaultKind.END_FLOW:
                handles = member.bound_handles()
                if handles and member.client.client_id is not None:
                    flow = chance.pick(handles).flow
                    if flow is not None:
                        self._broker.end_flow(member.client.client_id, flow)
            case FaultKind.SLOW:
                member.slow_until_ms = self._schedule.now_ms + chance.between(1, 3_000)
            case _:
                assert_never(kind)
        self._next_fault(chance)

    def _start_later(self, member: SimMember, chance: SeededChance) -> None:
        index = self._lives.index(member)
        delay_ms = chance.between(0, 2_000)
        self._when_ended(member, lambda: self._schedule.after(delay_ms, lambda: self._start(index)))

    def _when_ended(self, member: SimMember, call: Call) -> None:
        if member.is_alive:
            self._schedule.after(10, lambda: self._when_ended(member, call))
        else:
            call()

    def _pause(self, member: SimMember, chance: SeededChance) -> None:
        if member.process.is_paused:
            return
        length_ms = chance.between(1, 2 * self._settings.keep_alive_ms)
        member.pause(self._schedule.now_ms + length_ms)
        if length_ms > self._settings.keep_alive_ms:
            cut = member.client
            self._schedule.after(self._settings.keep_alive_ms, lambda: cut.break_connection(0, 0))

    def _restart_from(self, index: int, gap_ms: int) -> None:
        """Stop and start member `index`, then go on with the next."""
        if index >= len(self._lives):
            return
        member = self._lives[index]
        if member is None or not member.is_alive:
            self._restart_from(index + 1, gap_ms)
            return

        def go_on() -> None:
            self._start(index)
            self._schedule.after(gap_ms, lambda: self._restart_from(index + 1, gap_ms))

        member.stop()
        self._when_ended(member, go_on)
