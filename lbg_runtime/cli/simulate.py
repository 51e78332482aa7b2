"""`lbg simulate`: members, broker and network from a seed, with faults; both ways of moving queues side by side."""

import sys
from collections.abc import Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from lbg_runtime.cli.options import Json, print_json
from lbg_runtime.cli.quantile import quantile
from lbg_runtime.cli.table import aligned
from lbg_runtime.model.errors import UserError

if TYPE_CHECKING:
    from lbg_runtime.sim.campaign import Campaign, Failure, Scope


class SimulatedMode(Enum):
    """A way of moving queues, as in `rebind.mode`, or all of them side by side."""

    COOPERATIVE = "cooperative"
    CYCLE = "cycle"
    BOTH = "both"


LARGEST_SEED = 10**15
"""Upper bound of `--first`, so that all seeds are numbers in JSON."""


def simulate(
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds to run.")] = 200,
    first: Annotated[int, typer.Option(min=0, max=LARGEST_SEED, help="The first seed.")] = 0,
    rebind_mode: Annotated[
        SimulatedMode, typer.Option(help="How queues move, as in rebind.mode; both: side by side.")
    ] = SimulatedMode.BOTH,
    members: Annotated[
        int | None, typer.Option(min=3, max=50, help="Number of planned members. Default: drawn from the seed.")
    ] = None,
    queues: Annotated[
        int | None, typer.Option(min=1, max=200, help="Number of queues. Default: drawn from the seed.")
    ] = None,
    faults: Annotated[
        str | None, typer.Option(help="For a replay: only these faults of the seed, such as 3,7; '' for none.")
    ] = None,
    history: Annotated[bool, typer.Option("--history", help="For a replay: print everything that happened.")] = False,
    json: Json = False,
) -> None:
    """Run a whole group in virtual time. Exit code 1 if a seed broke a law, with a line that replays it.

    Each seed draws its settings and faults. Every 20th also plays a story with the default delays, for the figures,
    with 4 members and 16 queues unless --members and --queues are given.
    """
    from lbg_runtime.config.rebind_mode import RebindMode
    from lbg_runtime.sim.campaign import Scope, run_campaign

    modes = list(RebindMode) if rebind_mode is SimulatedMode.BOTH else [RebindMode(rebind_mode.value)]
    scopes = [Scope(mode, members, queues) for mode in modes]
    if faults is not None or history:
        if seeds != 1 or len(scopes) != 1:
            raise UserError("lbg simulate", "a replay of several runs", "--seeds 1 and one --rebind-mode")
        raise typer.Exit(_replay(scopes[0], first, faults, with_history=history, json=json))
    campaigns = [run_campaign(scope, range(first, first + seeds), _progress(scope, seeds)) for scope in scopes]
    if json:
        print_json({"modes": [_as_object(campaign) for campaign in campaigns]})
    else:
        _print_table(campaigns)
    for campaign in campaigns:
        for failure in campaign.failures:
            print(_as_line(campaign.scope, failure), file=sys.stderr if json else sys.stdout)
    raise typer.Exit(1 if any(campaign.failures for campaign in campaigns) else 0)


def _replay(scope: "Scope", seed: int, faults: str | None, *, with_history: bool, json: bool) -> int:
    from lbg_runtime.sim.campaign import run_seed

    result = run_seed(scope, seed, None if faults is None else _fault_numbers(scope, seed, faults))
    if json:
        replay = {
            "mode": scope.mode,
            "seed": seed,
            "settings": result.settings,
            "faults": result.plan,
            "violations": result.violations,
        }
        if with_history:
            replay["history"] = [str(happening) for happening in result.history]
        print_json(replay)
        return 1 if result.violations else 0
    if with_history:
        for position, happening in enumerate(result.history):
            print(f"{position:6} {happening}")
    print(result.settings)
    for fault in result.plan:
        print(f"fault {fault.number} at {fault.at_ms} ms: {fault.kind.value}")
    for violation in result.violations:
        print(f"{violation.at_ms} ms, {violation.law}: {violation.story}")
    print("every law holds" if not result.violations else f"{len(result.violations)} violations")
    return 1 if result.violations else 0


def _fault_numbers(scope: "Scope", seed: int, faults: str) -> list[int]:
    from lbg_runtime.sim.campaign import draw_seed

    known = {str(fault.number): fault.number for fault in draw_seed(scope, seed)[1]}
    texts = [text.strip() for text in faults.split(",")] if faults else []
    for text in texts:
        if text not in known:
            expected = f"numbers of the seed's {len(known)} faults, from 0, with commas between"
            raise UserError("--faults", repr(text), expected)
    return [known[text] for text in texts]


def _as_line(scope: "Scope", failure: "Failure") -> str:
    laws = ", ".join(failure.laws)
    sizes = "".join(f" --{name} {count}" for name, count in _sizes(scope).items() if count is not None)
    replay = f"lbg simulate --rebind-mode {scope.mode.value} --first {failure.seed} --seeds 1{sizes}"
    if failure.is_story:
        return f"story {failure.seed} breaks {laws}: {replay}"
    kinds = ", ".join(f"{fault.number} {fault.kind.value}" for fault in failure.faults) or "none"
    numbers = ",".join(str(fault.number) for fault in failure.faults)
    return f"seed {failure.seed} breaks {laws}, faults needed: {kinds}: {replay} --faults '{numbers}'"


def _sizes(scope: "Scope") -> dict[str, int | None]:
    return {"members": scope.members, "queues": scope.queues}


def _progress(scope: "Scope", seeds: int) -> Callable[[int], None]:
    def show(done: int) -> None:
        if sys.stderr.isatty():
            end = "\n" if done == seeds else ""
            print(f"\rlbg simulate: {scope.mode.value} {done}/{seeds}", end=end, file=sys.stderr, flush=True)

    return show


def _quantile(values: Sequence[int], part: float) -> float | None:
    return quantile(values, part) if values else None


def _as_object(campaign: "Campaign") -> dict[str, object]:
    """The figures of a mode, by name; times in ms, None if there was nothing to measure."""
    stories, scope = campaign.stories, campaign.scope
    owning = [story.time_to_own_ms for story in stories if story.time_to_own_ms is not None]
    moves = [pause for story in stories for pause in story.move_pauses_ms]
    losses = [pause for story in stories for pause in story.loss_pauses_ms]
    told = sum((story.duplicates for story in stories), type(campaign.duplicates)())
    return {
        "mode": scope.mode.value,
        **_sizes(scope),
        "stories": len(stories),
        "time_to_own_median_ms": _quantile(owning, 0.5),
        "time_to_own_p95_ms": _quantile(owning, 0.95),
        "owner_changes_per_hour": round(60 * sum(story.steady_changes for story in stories) / len(stories)),
        "owner_changes_per_join": round(sum(story.join_changes for story in stories) / len(stories), 1),
        "move_pause_median_ms": _quantile(moves, 0.5),
        "move_pause_p99_ms": _quantile(moves, 0.99),
        "loss_pause_median_ms": _quantile(losses, 0.5),
        "loss_pause_p99_ms": _quantile(losses, 0.99),
        "hops_per_move": round(sum(story.hops for story in stories) / max(1, len(moves)), 1),
        "duplicates_after_moves": told.after_hand_over + told.unfinished,
        "duplicates_per_crash": round(told.after_loss / len(stories), 1),
        "seeds": campaign.seeds,
        "faults": campaign.faults,
        "published": campaign.published,
        "handled": campaign.handled,
        "mixed_duplicates_after_loss": campaign.duplicates.after_loss,
        "mixed_duplicates_after_cut_short_stops": campaign.duplicates.unfinished,
        "mixed_duplicates_after_hand_over": campaign.duplicates.after_hand_over,
        "broken_laws": list(campaign.broken_laws),
        "seeds_failed": len({failure.seed for failure in campaign.failures}),
        "failures": [_as_line(scope, failure) for failure in campaign.failures],
    }


_ROWS: tuple[tuple[str, str], ...] = (
    ("stories with the delays as shipped", "{stories}"),
    ("time until a joiner owns its share, median / p95", "{time_to_own_median_ms} / {time_to_own_p95_ms} ms"),
    ("owner changes of one join", "{owner_changes_per_join}"),
    ("owner changes per hour, one member of the plan away", "{owner_changes_per_hour}"),
    ("pause of a queue that is moved, median / p99", "{move_pause_median_ms} / {move_pause_p99_ms} ms"),
    ("pause of a queue whose owner is killed, median / p99", "{loss_pause_median_ms} / {loss_pause_p99_ms} ms"),
    ("standbys passed per move, without touching a message", "{hops_per_move}"),
    ("duplicates after moves", "{duplicates_after_moves}"),
    ("duplicates per crash", "{duplicates_per_crash}"),
    ("seeds of mixed faults", "{seeds}"),
    ("their faults", "{faults}"),
    ("their messages", "{published}"),
    ("duplicates after moves in order", "{mixed_duplicates_after_hand_over}"),
    ("duplicates after stops that were cut short", "{mixed_duplicates_after_cut_short_stops}"),
    ("duplicates after crashes and outages", "{mixed_duplicates_after_loss}"),
    ("seeds failed", "{seeds_failed}"),
)


def _print_table(campaigns: "list[Campaign]") -> None:
    objects = [_as_object(campaign) for campaign in campaigns]
    rows = [["", *(str(figures["mode"]) for figures in objects)]]
    rows += [[title, *(cell.format(**figures) for figures in objects)] for title, cell in _ROWS]
    rows.append(["laws broken", *(", ".join(campaign.broken_laws) or "none" for campaign in campaigns)])
    print("\n".join(aligned(rows)))
