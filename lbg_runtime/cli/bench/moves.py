"""`lbg bench moves`: what it costs a running group when members come, leave or crash, or when nothing happens at all.

`lbg bench handback` is the part in which members come and leave, `lbg bench takeover` the part with the crash.
Real processes on loopback, the official client, the development broker; the same story with cooperative members and,
for comparison, with the plain rebind cycle. All times are read from the members' journals, on one monotonic clock.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated

import anyio
import typer

from lbg_runtime.cli.bench.options import Rounds
from lbg_runtime.cli.bench.profile import Profile, profiled
from lbg_runtime.cli.bench.report import Better, Ratio, Report, Row, finish, tell
from lbg_runtime.cli.live.group import PUBLISHER, LiveGroup, member_name
from lbg_runtime.cli.live.run_folder import run_folder
from lbg_runtime.cli.live.tail import accepted_dispatches
from lbg_runtime.cli.options import DURATION, Json, Keys, Rate, duration_ms
from lbg_runtime.cli.quantile import quantile
from lbg_runtime.config.rebind_mode import RebindMode
from lbg_runtime.model.errors import LbgError
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.ids import GroupName

if TYPE_CHECKING:
    from lbg_runtime.validator.findings import Verdict

SHAPE = GroupShape(GroupName("bench"), hash_prefix="bench", hash_count=96, queue_count=16)
MEMBERS = 4
"""Planned members; the last one joins, so that 3 become 4."""

_QUIET_S = 5.0
"""Longest time between two steps in which nothing happens; never longer than the steady phase."""


@dataclass(frozen=True, slots=True)
class Phase:
    """One step of the story, with the quiet after it."""

    name: str
    start_ns: int
    end_ns: int


@dataclass(slots=True)
class Course:
    """What happened when, on the monotonic clock."""

    phases: list[Phase] = field(default_factory=list)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """A step, which lasts as long as the context."""
        start_ns = time.monotonic_ns()
        yield
        self.phases.append(Phase(name, start_ns, time.monotonic_ns()))


Steady = Annotated[
    str, typer.Option(metavar=DURATION, help="Time without an event, during which owner changes are counted.")
]
Cycle = Annotated[bool, typer.Option(help="Measure the plain rebind cycle of 30 s as well; takes minutes.")]


@dataclass(frozen=True, slots=True)
class Plan:
    steps: Sequence[str]
    rate: int
    keys: int
    steady: str

    @property
    def steady_s(self) -> float:
        """Raises `UserError`."""
        return duration_ms("--steady", self.steady) / 1_000


STEADY = "steady"
COMING_AND_LEAVING = ("join", "sigterm", "rejoin")
CRASH = ("sigkill",)


def moves(
    rate: Rate = 800,
    keys: Keys = 1000,
    steady: Steady = "20s",
    rounds: Rounds = 1,
    cycle: Cycle = False,
    profile: Profile = None,
    json: Json = False,
) -> None:
    """Measure pauses, takeovers, duplicates and owner changes of a group of 16 queues.

    Exit code 1 unless everything is valid.
    """
    _bench("moves", Plan(COMING_AND_LEAVING + CRASH, rate, keys, steady), rounds, cycle, profile, json)


def handback(
    rate: Rate = 800,
    keys: Keys = 1000,
    steady: Steady = "5s",
    rounds: Rounds = 1,
    cycle: Cycle = False,
    profile: Profile = None,
    json: Json = False,
) -> None:
    """Measure how long queues pause when members join and leave in good order.

    Exit code 1 unless everything is valid.
    """
    _bench("handback", Plan(COMING_AND_LEAVING, rate, keys, steady), rounds, cycle, profile, json)


def takeover(
    rate: Rate = 800,
    keys: Keys = 1000,
    steady: Steady = "5s",
    rounds: Rounds = 3,
    cycle: Cycle = False,
    profile: Profile = None,
    json: Json = False,
) -> None:
    """Measure how soon the queues of a killed member go on at other members.

    Exit code 1 unless everything is valid.
    """
    _bench("takeover", Plan(CRASH, rate, keys, steady), rounds, cycle, profile, json)


def _bench(name: str, plan: Plan, rounds: int, cycle: bool, profile: Path | None, json: bool) -> None:
    settings = {"rate": plan.rate, "keys": plan.keys, "queues": SHAPE.queue_count, "steady": plan.steady_s}
    results = {}
    rows: list[Row] = []
    ratios: list[Ratio] = []
    wrong = []
    for mode in (RebindMode.COOPERATIVE, RebindMode.CYCLE) if cycle else (RebindMode.COOPERATIVE,):
        played: list[Played] = []
        for number in range(rounds):
            tell(name, f"{mode.value}, round {number + 1} of {rounds}")
            picture = profile if not played and mode is RebindMode.COOPERATIVE else None
            played.append(_play(mode, plan, picture))
        felt = felt_by_phase(played)
        results[mode.value] = result = summary(played, felt)
        rows += rows_of(felt, mode.value)
        ratios += ratios_of(felt, mode.value)
        if result["invalid_rounds"]:
            wrong.append(f"{mode.value}: {result['invalid_rounds']} rounds are not valid")
    finish(Report(name, rounds, rows, ratios, settings, results, wrong), json=json)


@dataclass(frozen=True, slots=True)
class Handling:
    """One accepted handling; times on the monotonic clock."""

    start_ns: int
    queue: int
    message: tuple[str, str, int]
    """Publisher, key, number within the key."""


@dataclass(frozen=True, slots=True)
class Played:
    """One round: what was done, and what the journals prove about it."""

    phases: Sequence[Phase]
    verdict: "Verdict"
    handlings: Sequence[Handling]
    """In order of starts."""


def _play(mode: RebindMode, plan: Plan, profile: Path | None) -> Played:
    from lbg_runtime.journal.reader import read_run
    from lbg_runtime.validator.judge import validate

    with run_folder("lbg-bench-") as folder:
        group = LiveGroup(folder.path, SHAPE, _sections(mode))
        course = Course()
        anyio.run(_story, group, course, plan, profile)
        verdict = validate(read_run(group.journals))
        folder.is_wanted = verdict.kind.value != "valid"
        return Played(course.phases, verdict, handlings_of(group.journals))


async def _story(group: LiveGroup, course: Course, plan: Plan, profile: Path | None) -> None:
    patience_s = 60.0 if not group.is_counted else 240.0
    first = MEMBERS - 1 if "join" in plan.steps else MEMBERS
    async with group:
        await group.start_broker()
        for index in range(first):
            await group.start_member(index)
        await group.until("every queue is fed", group.everything_is_fed, patience_s)
        await group.start_publisher(plan.rate, plan.keys)
        if not group.is_counted:
            await group.until("the queues are shared", lambda: group.is_balanced(first), patience_s)
        elif first == MEMBERS:
            await group.until("everyone has its share", lambda: group.is_at_home(MEMBERS), patience_s)
        quiet_s = min(_QUIET_S, plan.steady_s)
        await group.play_on(quiet_s)
        # The member that stays from the beginning to the end.
        with profiled(profile, group.pid(member_name(2))):
            with course.phase(STEADY):
                await group.play_on(plan.steady_s)
            for step in plan.steps:
                with course.phase(step):
                    await _take_step(group, step, patience_s)
                    await group.play_on(quiet_s)
        await group.stop(PUBLISHER)
        published = group.published()
        await group.until("all is handled", lambda: len(group.board.distinct) >= published, patience_s)
        await group.stop_all()


async def _take_step(group: LiveGroup, step: str, patience_s: float) -> None:
    match step:
        case "join":
            await group.start_member(MEMBERS - 1)
            await group.until("the joiner has its share", lambda: group.is_at_home(MEMBERS), patience_s)
        case "sigterm":
            await group.stop(member_name(0))
            await group.until("every queue is fed", group.everything_is_fed, patience_s)
        case "rejoin":
            await group.start_member(0)
            await group.until("it has its share again", lambda: group.is_at_home(MEMBERS), patience_s)
        case "sigkill":
            orphans = group.board.active_queues(member_name(1))
            await group.kill(member_name(1))
            await group.until("its queues are fed to others", lambda: orphans <= group.board.owned_queues(), patience_s)
        case _:
            raise LbgError(f"there is no step {step!r}")


def _sections(mode: RebindMode) -> dict[str, dict[str, object]]:
    if mode is RebindMode.CYCLE:
        return {"membership": {"mode": "static", "count": MEMBERS}, "rebind": {"mode": "cycle"}}
    return {"membership": {}, "rebind": {"mode": "cooperative"}}


def handlings_of(journals: Path) -> list[Handling]:
    """See `Played.handlings`."""
    found = (
        Handling(record["start_mono_ns"], record["queue"], (record["publisher"], record["key"], record["seq"]))
        for record in accepted_dispatches(journals)
    )
    return sorted(found, key=lambda handling: handling.start_ns)


@dataclass(frozen=True, slots=True)
class Felt:
    """What a phase of one round did to queues; times in milliseconds unless the name says otherwise."""

    seconds: float
    duplicates: int
    pauses: Sequence[float]
    """For each owner change, the time between the last handling by the old owner and the first by the new one."""
    takeovers: Sequence[float]
    """From the crash to the first handling of an orphaned queue elsewhere."""
    still: Sequence[float]
    """For each queue that did not move, the longest time without a new handling."""


def felt_by_phase(played: Sequence[Played]) -> dict[str, list[Felt]]:
    """What each phase did, in every round, by its name."""
    found: dict[str, list[Felt]] = {}
    for one in played:
        for phase in one.phases:
            found.setdefault(phase.name, []).append(_felt_in(one, phase))
    return found


def _felt_in(one: Played, phase: Phase) -> Felt:
    inside = [move for move in one.verdict.moves if phase.start_ns <= move.start_mono_ns < phase.end_ns]
    moved = {move.queue for move in inside}
    return Felt(
        (phase.end_ns - phase.start_ns) / 1e9,
        repeats(one.handlings, phase),
        [move.pause_ms for move in inside],
        [(move.start_mono_ns - phase.start_ns) / 1e6 for move in inside if move.cause == "crash"],
        [gap for queue, gap in longest_gaps_ms(one.handlings, phase).items() if queue not in moved],
    )


def summary(played: Sequence[Played], felt: Mapping[str, Sequence[Felt]]) -> dict[str, object]:
    """The figures of all rounds together."""
    verdicts = [one.verdict for one in played]
    return {
        "rounds": len(played),
        "invalid_rounds": sum(verdict.kind.value != "valid" for verdict in verdicts),
        "published": sum(verdict.accounts.published for verdict in verdicts),
        "violations": sum(sum(verdict.counts.values()) for verdict in verdicts),
        "duplicates": sum(verdict.accounts.duplicates for verdict in verdicts),
        "phases": {name: _phase_summary(rounds) for name, rounds in felt.items()},
    }


def _phase_summary(rounds: Sequence[Felt]) -> dict[str, object]:
    return {
        "seconds": round(sum(one.seconds for one in rounds), 1),
        "owner_changes": sum(len(one.pauses) for one in rounds),
        "duplicates": sum(one.duplicates for one in rounds),
        "pause_ms": tail([value for one in rounds for value in one.pauses]),
        "takeover_ms": tail([value for one in rounds for value in one.takeovers]),
        "longest_gap_of_unmoved_queues_ms": tail([value for one in rounds for value in one.still]),
    }


def rows_of(felt: Mapping[str, Sequence[Felt]], mode: str) -> list[Row]:
    """The events of all rounds, by phase; the p99 is in the details."""
    return [
        Row(arm, "ms", values, f"{mode}, {name}")
        for name, rounds in felt.items()
        for arm, values in (
            ("pause of a queue that moved", [value for one in rounds for value in one.pauses]),
            ("takeover after the kill", [value for one in rounds for value in one.takeovers]),
            ("longest gap of a queue that stayed", [value for one in rounds for value in one.still]),
        )
        if values
    ]


def ratios_of(felt: Mapping[str, Sequence[Felt]], mode: str) -> list[Ratio]:
    """How long moved queues paused, divided by the longest gaps of those that stayed, in the same phase and round."""
    ratios = []
    for name, rounds in felt.items():
        values = [median(one.pauses) / median(one.still) for one in rounds if one.pauses and any(one.still)]
        if values and name != STEADY:
            label = "pause of moved queues / gap of the others"
            ratios.append(Ratio(label, values, f"{mode}, {name}", Better.LESS))
    return ratios


def repeats(handlings: Sequence[Handling], phase: Phase) -> int:
    """How many handlings in the phase were of messages that had been handled before."""
    seen: set[tuple[str, str, int]] = set()
    count = 0
    for handling in handlings:
        count += handling.message in seen and phase.start_ns <= handling.start_ns < phase.end_ns
        seen.add(handling.message)
    return count


def longest_gaps_ms(handlings: Sequence[Handling], phase: Phase) -> dict[int, float]:
    """The longest time within the phase in which no handling began, by queue."""
    starts: dict[int, list[int]] = {}
    for handling in handlings:
        if phase.start_ns <= handling.start_ns < phase.end_ns:
            starts.setdefault(handling.queue, []).append(handling.start_ns)
    return {
        queue: max((after - before for before, after in pairwise(times)), default=0) / 1e6
        for queue, times in starts.items()
    }


def tail(values: Sequence[float]) -> dict[str, float] | None:
    """Median, 99th percentile (nearest ranks) and maximum; None for no values."""
    if not values:
        return None
    return {name: round(quantile(values, part), 1) for name, part in (("median", 0.5), ("p99", 0.99), ("max", 1.0))}
