"""`lbg bench soak`: a group of real processes under load for an hour, while members are continually killed, leave,
join, are cut off, and have a network that goes silent; at the end its journals are judged, and the memory of the member
that stayed is examined.

Four members on the official client (fast path), the development broker, a hashed publisher. Member 0 is never ended:
its resident memory and the native messages that it has out reveal leaks. What happens next is drawn at random; the seed
is reported. Handlers wait, and fail now and then.

Nothing may be lost, out of order, or handled twice without a reason. One thing no client can prevent: a member that is
cut off does not know it at once. Until it does, one of its handlers may still run, and a message that was on its way to
it may be handled, after the broker has given the queue, and the same message, to another member. Such findings are
counted, and accepted only if that member had just been cut off.
"""

import os
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated

import anyio
import orjson
import typer

from lbg_runtime.cli.bench.report import Better, Ratio, Report, Row, finish, tell
from lbg_runtime.cli.live.board import Board
from lbg_runtime.cli.live.group import PUBLISHER, LiveGroup, member_name
from lbg_runtime.cli.live.run_folder import run_folder
from lbg_runtime.cli.options import DURATION, Json, Keys, Rate, duration_ms
from lbg_runtime.cli.quantile import quantile
from lbg_runtime.config.broker_names import client_name
from lbg_runtime.model.errors import LbgError
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.ids import GroupName

if TYPE_CHECKING:
    from lbg_runtime.validator.findings import Finding, Verdict

FOLDER_VARIABLE = "LBG_BENCH_FIGURES"
"""Environment variable: the folder where every member writes what it uses, into `<process id>.figures.jsonl`."""

SHAPE = GroupShape(GroupName("soak"), hash_prefix="soak", hash_count=96, queue_count=16)
MEMBERS = 4
STEPS = ("kill", "leave", "cut", "silence")
MEMORY_GOAL_MB = 20.0
"""Most by which the member that stays may grow, after the part of the time in which everything happens for the first
time."""
SETTLED_PART = 0.25
PARTS = 4
"""Number of parts into which the rest of the time is divided."""

CUT_EXPLAINS_MS = 5_000
"""How long after a cut a member may be unaware of it, or still run a handler that began before."""
NATIVE_GOAL = 100
"""Most by which the median of a member's native messages may grow. Some are always out: those of the group's control
topic are freed when Python collects what the client's own layer makes of them."""

_STAYS = member_name(0)
_PATIENCE_S = 90.0
_SILENCE_S = (0.2, 14.0)
"""Shortest and longest silence: from one that nobody notices to one that exceeds every timeout."""
_QUIET_S = (1.0, 8.0)
"""Shortest and longest time between two steps."""


@dataclass(slots=True)
class CountingBoard(Board):
    """Keeps only how far each key has come, as a soak has too many messages to keep."""

    reached: dict[tuple[object, object], int] = field(default_factory=dict)

    def apply(self, member: str, incarnation: int, record: Mapping[str, object]) -> None:
        if record["kind"] == "dispatch":
            sequence = record["seq"]
            if record["outcome"] == "accepted" and isinstance(sequence, int):
                key = (record["publisher"], record["key"])
                self.reached[key] = max(sequence, self.reached.get(key, 0))
            return
        Board.apply(self, member, incarnation, record)

    @property
    def handled(self) -> int:
        """How many messages were handled, if none is missing before the last of its key; the verdict says whether."""
        return sum(self.reached.values())


@dataclass(slots=True)
class Course:
    """What was done to the group, how much was published, and which process stayed."""

    steps: Counter[str] = field(default_factory=Counter)
    cuts: list[tuple[str, int, int]] = field(default_factory=list)
    """Who was cut off, and the earliest and latest time of it, on the monotonic clock, in nanoseconds."""
    published: int = 0
    stayed_pid: int = 0


def soak(
    duration: Annotated[str, typer.Option(metavar=DURATION, help="How long the group is disturbed.")] = "1h",
    rate: Rate = 800,
    keys: Keys = 5_000,
    seed: Annotated[int | None, typer.Option(help="Seed for the disturbances. Default: random.")] = None,
    json: Json = False,
) -> None:
    """Disturb a group for a long time and judge it.

    Exit code 1 if no cut explains a finding, the member that stays leaks, or a member does not leave in good order.
    """
    from lbg_runtime.journal.reader import read_run
    from lbg_runtime.validator.judge import validate

    disturbed_s = duration_ms("--duration", duration, least_ms=6_000, most_ms=86_400_000) / 1_000
    seed = random.randrange(1_000_000) if seed is None else seed
    with run_folder("lbg-soak-") as folder:
        figures = folder.path / "figures"
        figures.mkdir()
        # The members inherit it.
        os.environ[FOLDER_VARIABLE] = str(figures)
        board = CountingBoard()
        group = LiveGroup(
            folder.path,
            SHAPE,
            {"membership": {"settle": "500ms"}, "rebind": {"min_tenure": "1s"}},
            is_administered=True,
            has_faults=True,
            board=board,
            handlers="lbg_runtime.cli.bench.arms.soak_handlers",
        )
        course = Course()
        began_s = time.monotonic()
        anyio.run(_story, group, board, course, disturbed_s, rate, keys, random.Random(seed))
        tell("soak", "judging")
        verdict = validate(read_run(group.journals))
        report = report_of(course, verdict, looks_of(figures / f"{course.stayed_pid}.figures.jsonl"), board)
        folder.is_wanted = bool(report.wrong)
    settings = {"disturbed_s": disturbed_s, "rate": rate, "keys": keys, "seed": seed}
    details = {**report.details, "seconds": round(time.monotonic() - began_s)}
    finish(replace(report, settings=settings, details=details), json=json)


# -- the story


async def _story(
    group: LiveGroup,
    board: CountingBoard,
    course: Course,
    seconds: float,
    rate: int,
    keys: int,
    chance: random.Random,
) -> None:
    async with group:
        await group.start_broker()
        for index in range(MEMBERS):
            await group.start_member(index)
        course.stayed_pid = group.pid(_STAYS)
        await group.until("every queue is fed", group.everything_is_fed, _PATIENCE_S)
        await group.start_publisher(rate, keys)
        await group.until("the queues are shared", lambda: group.is_balanced(MEMBERS), _PATIENCE_S)
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            step = chance.choice(STEPS)
            tell("soak", f"{step}, {max(0, end_s - time.monotonic()):.0f} s to go, {board.handled} handled")
            course.steps[step] += 1
            await _take_step(group, course, step, chance)
            await group.play_on(min(chance.uniform(*_QUIET_S), max(0.0, end_s - time.monotonic())))
        await group.stop(PUBLISHER)
        course.published = group.published()
        await group.until("all is handled", lambda: board.handled >= course.published, _PATIENCE_S)
        # Long enough for one more look by the member that stayed, with nothing in flight.
        await group.play_on(3)
        await group.stop_all()


async def _take_step(group: LiveGroup, course: Course, step: str, chance: random.Random) -> None:
    index = chance.randrange(1, MEMBERS)
    name = member_name(index)
    match step:
        case "kill":
            await group.kill(name)
            await group.play_on(chance.uniform(0, 3))
            await group.start_member(index)
        case "leave":
            # A member that leaves without a connection cannot know that its settlements arrived; its exit code says so.
            cut_ns = max((latest_ns for member, _, latest_ns in course.cuts if member == name), default=0)
            await group.play_on(max(0.0, CUT_EXPLAINS_MS / 1_000 - (time.monotonic_ns() - cut_ns) / 1e9))
            await group.stop(name)
            await group.play_on(chance.uniform(0, 3))
            await group.start_member(index)
        case "cut":
            name = member_name(chance.randrange(MEMBERS))
            now_ns = time.monotonic_ns()
            course.cuts.append((name, now_ns, now_ns))
            await _cut(group, name)
        case "silence":
            name, began_ns = member_name(chance.randrange(MEMBERS)), time.monotonic_ns()
            await _stall(group, name, on=True)
            await group.play_on(chance.uniform(*_SILENCE_S))
            await _stall(group, name, on=False)
            course.cuts.append((name, began_ns, time.monotonic_ns()))
        case _:
            raise LbgError(f"there is no step {step!r}")
    await group.until(f"the queues are shared after: {step}", lambda: group.is_balanced(MEMBERS), _PATIENCE_S)


async def _cut(group: LiveGroup, name: str) -> None:
    """Have the broker close a member's connection, as an administrator does; the client comes back by itself."""
    from lbg_runtime.admin.account import open_semp
    from lbg_runtime.admin.sight import disconnect
    from lbg_runtime.config.load import load_settings

    settings = load_settings(group.folder / "config.yaml")
    async with open_semp(settings) as client:
        if not await disconnect(client, settings.connection.vpn, SHAPE.name, name):
            raise LbgError(f"{name} was not connected, and could not be cut off")


async def _stall(group: LiveGroup, name: str, *, on: bool) -> None:
    """Have the broker stop reading and writing a member's connection, or go on. Either side may give up meanwhile."""
    import httpx

    async with httpx.AsyncClient(trust_env=False) as http:
        order = {"client": client_name(SHAPE.name, name, group.pid(name)), "on": on}
        answer = await http.post(f"http://{group.fault_address}/stall", json=order)
        answer.raise_for_status()


# -- figures


def looks_of(file: Path) -> list[dict[str, int]]:
    """What a member wrote down about itself, second by second."""
    lines = file.read_bytes().splitlines() if file.exists() else []
    return [orjson.loads(line) for line in lines]


def grown(values: Sequence[float]) -> float:
    """The highest of the last part minus the highest of the first: single looks go up and down with the load."""
    part = max(1, len(values) // PARTS)
    return max(values[-part:]) - max(values[:part])


def problems_of(verdict: "Verdict", course: Course) -> list[str]:
    """The findings of the verdict that no cut explains, and whatever else is wrong with it."""
    from lbg_runtime.validator.findings import WITNESSED_FINDINGS, Law, VerdictKind

    after_a_cut = (Law.OVERLAP_ACROSS_PROCESSES, Law.TWO_ACTIVE, Law.DUPLICATE_WITHOUT_FAULT, Law.DUPLICATE_UNFLAGGED)
    problems = []
    for law, count in verdict.counts.items():
        if law not in after_a_cut:
            problems += [f"{law.value}: {count}"] if count else []
        elif count > WITNESSED_FINDINGS:
            problems.append(f"{law.value}: {count}, more than can be looked at")
    for finding in verdict.findings:
        if finding.law in after_a_cut and not is_explained(finding, course):
            problems.append(f"{finding.law.value}, and nobody was cut off: {finding.text}")
    if verdict.kind is VerdictKind.UNKNOWN:
        problems.append("the verdict is unknown")
    return problems


def is_explained(finding: "Finding", course: Course) -> bool:
    """Whether one of the two members had been cut off without knowing it, and the other had its queue since then."""
    return any(
        one.member == member
        and other.member != member
        and (one.start_mono_ns or 0) <= latest_ns + CUT_EXPLAINS_MS * 1_000_000
        and (one.done_mono_ns or 0) >= earliest_ns
        and earliest_ns <= (other.start_mono_ns or 0) <= latest_ns + CUT_EXPLAINS_MS * 1_000_000
        for one, other in permutations(finding.witnesses, 2)
        for member, earliest_ns, latest_ns in course.cuts
    )


def report_of(course: Course, verdict: "Verdict", looks: list[dict[str, int]], board: CountingBoard) -> Report:
    """The figures, and what was wrong."""
    wrong = problems_of(verdict, course)
    if len(looks) < 2:
        return Report("soak", 1, (), wrong=[*wrong, "the member that stayed wrote nothing down"])
    settled = looks[int(len(looks) * SETTLED_PART) :]
    memory_mb = [look["memory_bytes"] / 1e6 for look in settled]
    grown_mb = grown(memory_mb)
    native = [look["native_messages"] for look in settled]
    part = max(1, len(native) // PARTS)
    native_grown = median(native[-part:]) - median(native[:part])
    if grown_mb > MEMORY_GOAL_MB:
        wrong.append(f"the member that stayed grew by {grown_mb:.1f} MB")
    if native_grown > NATIVE_GOAL:
        wrong.append(f"the member that stayed has {native_grown:.0f} more native messages out")
    rows = [
        Row("member that stayed", "MB resident", memory_mb),
        Row("member that stayed", "native messages out", native),
        Row("queues that moved", "ms pause", [move.pause_ms for move in verdict.moves] or [0.0]),
    ]
    ratios = [
        Ratio("native messages more out, member that stayed", [native_grown], better=Better.LESS, goal=NATIVE_GOAL),
        Ratio("MB more memory, member that stayed", [grown_mb], better=Better.LESS, goal=MEMORY_GOAL_MB),
    ]
    details = {
        "verdict": verdict.kind.value,
        "steps": dict(course.steps),
        "published": course.published,
        "handled": board.handled,
        "duplicates": verdict.accounts.duplicates,
        "owner_changes": len(verdict.moves),
        "pause_p99_ms": round(quantile([move.pause_ms for move in verdict.moves] or [0.0], 0.99), 1),
        "findings_after_a_cut": {law.value: count for law, count in verdict.counts.items() if count},
    }
    return Report("soak", 1, rows, ratios, details=details, wrong=wrong)
