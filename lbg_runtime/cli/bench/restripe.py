"""`lbg bench restripe`: what a re-striping costs a running group, and the messages of the shards that move.

Real processes on loopback, the official client, the development broker. The wait of a message is the time from its
arrival at the member to the start of its handler, from the members' journals: a message that arrives while its shard
moves waits for the old queue's owner. For comparison there are the waits of shards that do not move, and of the time
before.
"""

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import typer

from lbg_runtime.cli.bench.moves import tail
from lbg_runtime.cli.bench.report import Report, Row, finish, tell
from lbg_runtime.cli.live.group import PUBLISHER, LiveGroup, member_name
from lbg_runtime.cli.live.run_folder import run_folder
from lbg_runtime.cli.live.tail import accepted_dispatches
from lbg_runtime.cli.options import Json, Keys, Rate
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.ids import GroupName

if TYPE_CHECKING:
    from lbg_runtime.validator.findings import Verdict

MEMBERS = 3

_QUIET_S = 3.0
"""How long nothing happens before and after a change."""

_RESTRIPER = "restriper"


@dataclass(frozen=True, slots=True)
class Change:
    """One re-striping; times on the monotonic clock."""

    from_count: int
    to_count: int
    start_ns: int
    end_ns: int
    interrupted: bool
    """Whether its conductor was killed in the middle, and a member too."""


@dataclass(frozen=True, slots=True)
class Handling:
    """One accepted handling; times on the monotonic clock of the host."""

    shard: int
    start_ns: int
    waited_ms: float


def restripe(
    rate: Rate = 800,
    keys: Keys = 1000,
    queues: Annotated[int, typer.Option(min=1, max=96, help="Number of queues at the beginning.")] = 8,
    to: Annotated[
        list[int] | None, typer.Option(min=1, max=96, help="Next number of queues; repeatable. Default: 12, then 6.")
    ] = None,
    kill: Annotated[bool, typer.Option(help="In the middle of each change, kill the conductor and a member.")] = False,
    json: Json = False,
) -> None:
    """Change the number of queues under load.

    Exit code 1 if a message is lost, out of order, or, unless somebody was killed, handled twice.
    """
    from lbg_runtime.journal.reader import read_run
    from lbg_runtime.validator.judge import validate

    targets = to or [12, 6]
    with run_folder("lbg-bench-") as folder:
        shape = GroupShape(GroupName("bench"), hash_prefix="bench", hash_count=100, queue_count=queues)
        group = LiveGroup(folder.path, shape, {"membership": {}, "rebind": {}}, is_administered=True)
        changes: list[Change] = []
        anyio.run(_story, group, changes, targets, rate, keys, kill)
        verdict = validate(read_run(group.journals))
        result = summary(changes, verdict, handlings_of(group.journals))
        wrong = wrong_of(verdict, was_killed=kill)
        folder.is_wanted = bool(wrong)
    settings = {"rate": rate, "keys": keys, "queues": queues, "to": targets, "kill": kill}
    finish(Report("restripe", 1, rows_of(result), settings=settings, details=result, wrong=wrong), json=json)


async def _story(
    group: LiveGroup, changes: list[Change], targets: Sequence[int], rate: int, keys: int, kill: bool
) -> None:
    async with group:
        await group.start_broker()
        for index in range(MEMBERS):
            await group.start_member(index)
        await group.until("every queue is fed", group.everything_is_fed)
        await group.start_publisher(rate, keys)
        await group.until("the queues are shared", lambda: group.is_balanced(MEMBERS))
        await group.play_on(_QUIET_S)
        count = group.shape.queue_count
        for target in targets:
            tell("restripe", f"{count} to {target} queues")
            start_ns = time.monotonic_ns()
            if kill:
                await _be_interrupted(group, target)
            await group.carry_out("group", "restripe", "--queues", str(target))
            changes.append(Change(count, target, start_ns, time.monotonic_ns(), kill))
            count = target
            await group.play_on(_QUIET_S)
        await group.stop(PUBLISHER)
        published = group.published()
        await group.until("all is handled", lambda: len(group.board.distinct) >= published)
        await group.stop_all()


async def _be_interrupted(group: LiveGroup, target: int) -> None:
    await group.begin(_RESTRIPER, "group", "restripe", "--queues", str(target))
    log = group.folder / f"{_RESTRIPER}.log"
    before = log.read_text().count("shards moved") if log.exists() else 0
    await group.until("some shards have moved", lambda: log.read_text().count("shards moved") > before + 10)
    await group.kill(_RESTRIPER)
    await group.kill(member_name(0))
    await group.start_member(0)


def handlings_of(journals: Path) -> list[Handling]:
    """All accepted handlings of messages that have a shard."""
    return [
        Handling(record["shard"], record["start_mono_ns"], (record["start_mono_ns"] - record["receive_mono_ns"]) / 1e6)
        for record in accepted_dispatches(journals)
        if record["shard"] is not None
    ]


def summary(changes: Sequence[Change], verdict: "Verdict", handlings: Sequence[Handling]) -> dict[str, object]:
    first_ns = changes[0].start_ns
    return {
        "verdict": verdict.kind.value,
        "published": verdict.accounts.published,
        "violations": sum(verdict.counts.values()),
        "duplicates": verdict.accounts.duplicates,
        "wait_before_ms": tail([one.waited_ms for one in handlings if one.start_ns < first_ns]),
        "changes": [change_summary(change, handlings) for change in changes],
    }


def wrong_of(verdict: "Verdict", *, was_killed: bool) -> list[str]:
    """What was wrong, in words: a kill excuses messages that are handled twice, and nothing else."""
    wrong = [] if verdict.kind.value == "valid" else [f"the verdict is {verdict.kind.value}"]
    if verdict.accounts.duplicates and not was_killed:
        wrong.append(f"{verdict.accounts.duplicates} messages were handled twice")
    return wrong


def change_summary(change: Change, handlings: Sequence[Handling]) -> dict[str, object]:
    """The figures of one change, from all handlings of the run."""
    longest: dict[int, float] = defaultdict(float)
    for one in handlings:
        if change.start_ns <= one.start_ns < change.end_ns:
            longest[one.shard] = max(longest[one.shard], one.waited_ms)
    moving = {shard for shard in longest if shard % change.from_count != shard % change.to_count}
    return {
        "from": change.from_count,
        "to": change.to_count,
        "interrupted": change.interrupted,
        "seconds": round((change.end_ns - change.start_ns) / 1e9, 1),
        "moving_shards": len(moving),
        "longest_wait_of_moving_shards_ms": tail([longest[shard] for shard in moving]),
        "longest_wait_of_staying_shards_ms": tail([longest[shard] for shard in longest.keys() - moving]),
    }


def rows_of(result: Mapping[str, Any]) -> list[Row]:
    """The figures in the common form; the p99 and the counts are in the details."""
    rows = []
    waits = [("before", "wait of a message", result["wait_before_ms"])]
    for change in result["changes"]:
        case = f"{change['from']} to {change['to']} queues"
        rows.append(Row("whole change", "s", [change["seconds"]], case))
        waits += [
            (case, "longest wait of a moving shard", change["longest_wait_of_moving_shards_ms"]),
            (case, "longest wait of a staying shard", change["longest_wait_of_staying_shards_ms"]),
        ]
    for case, arm, found in waits:
        rows += [Row(f"{arm}, {name}", "ms", [value], case) for name, value in (found or {}).items()]
    return rows
