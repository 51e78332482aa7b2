"""`lbg compare`: the same keyed stream, spread over members in every way there is."""

import asyncio
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from lbg_runtime.cli.options import DURATION, Json, duration_ms, print_json
from lbg_runtime.cli.table import aligned

if TYPE_CHECKING:
    from lbg_runtime.cli.comparison.figures import Figures
    from lbg_runtime.cli.comparison.patterns import Pattern
    from lbg_runtime.cli.comparison.play import Stream

_COLUMNS = (
    ("pattern", ""),
    ("order errors", "order_errors"),
    ("overlaps", "overlaps"),
    ("lost", "lost"),
    ("repeated", "duplicates"),
    ("owner changes", "owner_changes"),
    ("steady", "steady_owner_changes"),
    ("spread", "spread"),
    ("keys/member", "keys_per_member"),
    ("join pause ms", "join_pause_ms"),
    ("crash pause ms", "crash_pause_ms"),
)


def compare(
    members: Annotated[int, typer.Option(min=2, max=7, help="Members at the start; later one joins and one dies.")] = 3,
    keys: Annotated[int, typer.Option(min=1, max=10_000, help="Number of different keys.")] = 40,
    rate: Annotated[int, typer.Option(min=4, max=5_000, help="Messages per second.")] = 400,
    duration: Annotated[str, typer.Option(metavar=DURATION, help="How long each of the three parts lasts.")] = "5s",
    work: Annotated[str, typer.Option(metavar=DURATION, help="Average time that handling a message takes.")] = "2ms",
    memory: Annotated[
        bool, typer.Option("--memory", help="Run in virtual time, without sockets and without the official client.")
    ] = False,
    json: Json = False,
) -> None:
    """Show what each way of spreading a keyed stream over members does to it: what is lost, repeated or out of order.

    The ways are round robin, exclusive queues with a group, a partitioned queue, message groups and sticky shares. Each
    runs on a development broker of its own, with the official client over loopback. Exit code 1 if a pattern that keeps
    messages lost some.
    """
    import logging

    from lbg_runtime.cli.comparison.patterns import PATTERNS
    from lbg_runtime.cli.comparison.play import Stream
    from lbg_runtime.cli.log import quiet_log

    # The command counts lost messages and missing confirms itself; a pattern that is stuck would log very many.
    quiet_log(logging.CRITICAL)
    seconds = duration_ms("--duration", duration, least_ms=1_000, most_ms=600_000) / 1_000
    stream = Stream(members, keys, float(rate), seconds, float(duration_ms("--work", work, most_ms=1_000)))
    found: dict[str, Figures] = {}
    for pattern in PATTERNS:
        print(f"compare: {pattern.name}", file=sys.stderr, flush=True)
        found[pattern.name] = _run(pattern, stream, in_memory=memory)
    if json:
        said = {"stream": asdict(stream), "patterns": {name: asdict(figures) for name, figures in found.items()}}
        print_json(said)
    else:
        print("\n".join(table(found)))
    broken = [p.name for p in PATTERNS if p.keeps_messages and found[p.name].lost]
    if broken:
        print(f"compare: messages were lost by {', '.join(broken)}", file=sys.stderr)
        raise typer.Exit(1)


def _run(pattern: "Pattern", stream: "Stream", *, in_memory: bool) -> "Figures":
    from lbg_runtime.cli.comparison.play import play
    from lbg_runtime.cli.comparison.stages import open_stage

    async def run() -> "Figures":
        async with open_stage(in_memory=in_memory) as stage:
            return await play(pattern, stage, stream)

    if in_memory:
        from lbg_runtime.testing.virtual_time import VirtualTimeLoop

        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            return runner.run(run())
    import uvloop

    return uvloop.run(run())


def table(found: "dict[str, Figures]") -> list[str]:
    """The figures as aligned text, one pattern per line."""
    rows = [[heading for heading, _ in _COLUMNS]]
    for name, figures in found.items():
        said = asdict(figures)
        values = (said[field] for _, field in _COLUMNS[1:])
        rows.append([name, *(f"{value:.2f}" if isinstance(value, float) else str(value) for value in values)])
    return aligned(rows)
