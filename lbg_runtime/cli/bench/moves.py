"""`lbg bench moves`: what it costs a running group when members come, leave, crash, or nothing happens at all.

Real processes on loopback, the official client, the development broker; the same story with cooperative members and
with the plain rebind cycle beside it. All times are read from the members' journals, on one monotonic clock.
"""

import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
import orjson
import typer

from lbg_runtime.cli.live.group import PUBLISHER, LiveGroup, member_name
from lbg_runtime.config.settings import RebindMode
from lbg_runtime.model.errors import LbgError
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.ids import GroupName

if TYPE_CHECKING:
    from lbg_runtime.validator.findings import Verdict

SHAPE = GroupShape(GroupName("bench"), hash_prefix="bench", hash_count=96, queue_count=16)
MEMBERS = 4
"""Planned; the last one joins, so that 3 become 4."""

_QUIET_S = 5.0
"""How long nothing happens between two steps."""


@dataclass(frozen=True, slots=True)
class Phase:
    """One step of the story, from its cause to the next one's."""

    name: str
    start_ns: int
    end_ns: int


@dataclass(slots=True)
class Course:
    """What happened when, on the monotonic clock."""

    phases: list[Phase] = field(default_factory=list)

    def begin(self, name: str) -> None:
        """The step before is over, and this one begins."""
        now_ns = time.monotonic_ns()
        if self.phases:
            last = self.phases.pop()
            self.phases.append(Phase(last.name, last.start_ns, now_ns))
        self.phases.append(Phase(name, now_ns, now_ns))


def moves(
    rate: Annotated[int, typer.Option(min=1, max=5000, help="Messages published a second.")] = 800,
    keys: Annotated[int, typer.Option(min=1, max=100_000, help="Different keys.")] = 1000,
    steady: Annotated[float, typer.Option(min=0, help="Seconds without an event, to count owner changes.")] = 20,
    rounds: Annotated[int, typer.Option(min=1, max=100, help="How often the story is played.")] = 1,
    cycle: Annotated[bool, typer.Option(help="Also with the plain rebind cycle of 30 s; takes minutes.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure pauses, takeovers, duplicates and owner changes of a group of 16 queues. Exit 1 unless all is valid."""
    results = {}
    for mode in (RebindMode.COOPERATIVE, RebindMode.CYCLE) if cycle else (RebindMode.COOPERATIVE,):
        played = []
        for number in range(rounds):
            print(f"lbg bench moves: {mode.value}, round {number + 1} of {rounds}", file=sys.stderr, flush=True)
            played.append(_play(mode, rate, keys, steady))
        results[mode.value] = summary(played)
    print(orjson.dumps(results).decode() if json else "\n".join(lines(results)))
    raise typer.Exit(0 if all(result["invalid_rounds"] == 0 for result in results.values()) else 1)


@dataclass(frozen=True, slots=True)
class Handling:
    """One accepted handling; times on the monotonic clock."""

    start_ns: int
    queue: int
    message: tuple[str, str, int]
    """Publisher, key, number within the key."""


@dataclass(frozen=True, slots=True)
class Played:
    """One round: what was done, and what the journals prove of it."""

    phases: Sequence[Phase]
    verdict: "Verdict"
    handlings: Sequence[Handling]
    """In order of starts."""


def _play(mode: RebindMode, rate: int, keys: int, steady_s: float) -> Played:
    from lbg_runtime.journal.reader import read_run
    from lbg_runtime.validator.judge import validate

    folder = Path(tempfile.mkdtemp(prefix="lbg-bench-"))
    keep = True
    try:
        group = LiveGroup(folder, SHAPE, _sections(mode), on_look=lambda: None)
        course = Course()
        anyio.run(_story, group, course, rate, keys, steady_s)
        run = read_run(group.journals)
        verdict = validate(run)
        keep = verdict.kind.value != "valid"
        return Played(course.phases, verdict, handlings_of(group.journals))
    finally:
        if keep:
            print(f"journals and logs: {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder)


async def _story(group: LiveGroup, course: Course, rate: int, keys: int, steady_s: float) -> None:
    patience_s = 60.0 if not group.is_counted else 240.0
    async with group:
        await group.start_broker()
        for index in range(MEMBERS - 1):
            await group.start_member(index)
        await group.until("every queue is fed", group.everything_is_fed, patience_s)
        await group.start_publisher(rate, keys)
        if not group.is_counted:
            await group.until("the queues are shared", lambda: group.is_balanced(MEMBERS - 1), patience_s)
        await group.play_on(_QUIET_S)
        course.begin("steady")
        await group.play_on(steady_s)
        course.begin("join")
        await group.start_member(MEMBERS - 1)
        await group.until("the joiner has its share", lambda: _is_home(group), patience_s)
        await group.play_on(_QUIET_S)
        course.begin("sigterm")
        await group.stop(member_name(0))
        await group.until("every queue is fed", group.everything_is_fed, patience_s)
        await group.play_on(_QUIET_S)
        course.begin("rejoin")
        await group.start_member(0)
        await group.until("it has its share again", lambda: _is_home(group), patience_s)
        await group.play_on(_QUIET_S)
        course.begin("sigkill")
        orphans = group.board.active_queues(member_name(1))
        await group.kill(member_name(1))
        await group.until("its queues are fed to others", lambda: orphans <= group.board.owned_queues(), patience_s)
        await group.play_on(_QUIET_S)
        course.begin("end")
        await group.stop(PUBLISHER)
        published = group.published()
        await group.until("all is handled", lambda: len(group.board.distinct) >= published, patience_s)
        for name in sorted(group.running - {"broker"}):
            await group.stop(name)
        await group.stop("broker")


def _is_home(group: LiveGroup) -> bool:
    if not group.is_counted:
        return group.is_balanced(MEMBERS)
    return all(group.board.primaries_at_home(member_name(index)) for index in range(MEMBERS))


def _sections(mode: RebindMode) -> dict[str, dict[str, object]]:
    if mode is RebindMode.CYCLE:
        return {"membership": {"mode": "static", "count": MEMBERS}, "rebind": {"mode": "cycle"}}
    return {"membership": {}, "rebind": {"mode": "cooperative"}}


def handlings_of(journals: Path) -> list[Handling]:
    """See `Played.handlings`."""
    found = []
    for path in journals.glob("*.member.jsonl"):
        for line in path.read_bytes().splitlines():
            try:
                record = orjson.loads(line)
            except orjson.JSONDecodeError:
                continue  # the last line of a process that was killed
            if record["kind"] == "dispatch" and record["outcome"] == "accepted":
                message = (record["publisher"], record["key"], record["seq"])
                found.append(Handling(record["start_mono_ns"], record["queue"], message))
    return sorted(found, key=lambda handling: handling.start_ns)


def summary(played: Sequence[Played]) -> dict[str, object]:
    """The figures of all rounds together."""
    verdicts = [one.verdict for one in played]
    return {
        "rounds": len(played),
        "invalid_rounds": sum(verdict.kind.value != "valid" for verdict in verdicts),
        "published": sum(verdict.accounts.published for verdict in verdicts),
        "out_of_order_or_lost": sum(sum(verdict.counts.values()) for verdict in verdicts),
        "duplicates": sum(verdict.accounts.duplicates for verdict in verdicts),
        "phases": {
            phase.name: _phase_summary(
                [(one, each) for one in played for each in one.phases if each.name == phase.name]
            )
            for phase in played[0].phases
            if phase.name != "end"
        },
    }


def _phase_summary(parts: Sequence[tuple[Played, Phase]]) -> dict[str, object]:
    pauses: list[float] = []
    takeovers: list[float] = []
    still: list[float] = []
    duplicates, seconds = 0, 0.0
    for one, phase in parts:
        seconds += (phase.end_ns - phase.start_ns) / 1e9
        duplicates += repeats(one.handlings, phase)
        inside = [move for move in one.verdict.moves if phase.start_ns <= move.start_mono_ns < phase.end_ns]
        pauses += [move.pause_ms for move in inside]
        takeovers += [(move.start_mono_ns - phase.start_ns) / 1e6 for move in inside if move.cause == "crash"]
        gaps = longest_gaps_ms(one.handlings, phase)
        still += [gap for queue, gap in gaps.items() if queue not in {move.queue for move in inside}]
    return {
        "seconds": round(seconds, 1),
        "owner_changes": len(pauses),
        "duplicates": duplicates,
        "pause_ms": spread(pauses),
        "takeover_ms": spread(takeovers),
        "longest_gap_of_unmoved_queues_ms": spread(still),
    }


def repeats(handlings: Sequence[Handling], phase: Phase) -> int:
    """Handlings in the phase of messages that had been handled before."""
    seen: set[tuple[str, str, int]] = set()
    count = 0
    for handling in handlings:
        count += handling.message in seen and phase.start_ns <= handling.start_ns < phase.end_ns
        seen.add(handling.message)
    return count


def longest_gaps_ms(handlings: Sequence[Handling], phase: Phase) -> dict[int, float]:
    """By queue, the longest time within the phase in which no handling of it began."""
    starts: dict[int, list[int]] = {}
    for handling in handlings:
        if phase.start_ns <= handling.start_ns < phase.end_ns:
            starts.setdefault(handling.queue, []).append(handling.start_ns)
    return {
        queue: max((after - before for before, after in pairwise(times)), default=0) / 1e6
        for queue, times in starts.items()
    }


def spread(values: Sequence[float]) -> dict[str, float] | None:
    """Median, 99th percentile (nearest rank) and maximum; None for no values."""
    if not values:
        return None
    ordered = sorted(values)
    return {
        "median": round(ordered[(len(ordered) - 1) // 2], 1),
        "p99": round(ordered[-(-99 * len(ordered) // 100) - 1], 1),
        "max": round(ordered[-1], 1),
    }


def lines(results: Mapping[str, Mapping[str, object]]) -> list[str]:
    """The figures for people."""
    told = []
    for mode, result in results.items():
        told.append(
            f"{mode}: {result['rounds']} rounds, {result['invalid_rounds']} invalid, {result['published']} published, "
            f"{result['duplicates']} handled twice"
        )
        phases = result["phases"]
        if not isinstance(phases, dict):
            raise LbgError("no phases")
        for name, facts in phases.items():
            changes, twice = facts["owner_changes"], facts["duplicates"]
            told.append(f"  {name:8} {facts['seconds']:6.1f} s  {changes:3} owner changes, {twice} handled twice")
            told += [
                f"           {what}: median {figures['median']}, p99 {figures['p99']}, max {figures['max']}"
                for what, figures in facts.items()
                if isinstance(figures, dict)
            ]
    return told
