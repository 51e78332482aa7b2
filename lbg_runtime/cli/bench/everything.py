"""`lbg bench all`: every bench with short settings, and each ratio beside the one that the repository keeps.

Each bench is a command of its own and runs as one, so that none has another's memory and threads. Ratios are kept and
not rates, because machines differ and drift; how far a ratio may fall is stated for each bench, by how much its ratios
go up and down on a machine that does other things meanwhile.
"""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from lbg_runtime.cli.bench.report import Better, Json, tell
from lbg_runtime.model.errors import LbgError, UserError

KEPT = Path("docs/benchmarks.json")
_PATIENCE_S = 1_200


@dataclass(frozen=True, slots=True)
class Short:
    """How a bench runs here."""

    name: str
    arguments: str
    share: float = 0.3
    """How much of a kept ratio may be lost."""


BENCHES = (
    Short("dispatch", "--messages 50000 --rounds 3"),
    Short("receive", "--messages 30000 --rounds 3 --keys 100"),
    Short("publish", "--messages 30000 --rounds 3"),
    Short("latency", "--rounds 3", 0.5),
    Short("broker", "--messages 20000 --spooled 50000 --queues 200 --rounds 2"),
    Short("acks", "--messages 20000 --rounds 1"),
    Short("processes", "--messages 50000 --rounds 2"),
    Short("scale", "--messages 20000 --queues 200 --keys 100000 --rounds 2"),
    # Pauses of a few queues by the gaps of a few others: there is more chance in them than in rates.
    Short("takeover", "--steady 2 --rounds 2", 0.6),
    Short("handback", "--steady 2 --rounds 1", 0.6),
    Short("sidecar", "--messages 3000 --seconds 2 --rounds 2", 0.5),
    # Without the parts that start Spark, which take minutes.
    Short("pipeline", "--part landing --rounds 2", 0.5),
)


class Standing(Enum):
    """How a ratio stands to the kept one."""

    AS_KEPT = "as kept"
    NEW = "not kept yet"
    FELL = "fell"
    MISSING = "not measured"


@dataclass(frozen=True, slots=True)
class Comparison:
    """A ratio beside the kept one; None where there is none."""

    bench: str
    ratio: str
    found: float | None
    kept: float | None
    share: float
    standing: Standing


def all_(
    keep: Annotated[bool, typer.Option("--keep", help="Write the ratios to the file instead of comparing.")] = False,
    file: Annotated[Path, typer.Option(help="Where the ratios are kept.")] = KEPT,
    only: Annotated[list[str] | None, typer.Option(help="Only this bench; repeatable.")] = None,
    json: Json = False,
) -> None:
    """Run every bench for a short time and compare the ratios. Takes ten minutes. Exit 1 where one fell or failed."""
    chosen = chosen_benches(only)
    kept = {} if keep else read_kept(file)
    reports: dict[str, Mapping[str, Any]] = {}
    failed = []
    for bench in chosen:
        report = _run(bench)
        if report is None:
            failed.append(bench.name)
        else:
            reports[bench.name] = report
    compared = compare(reports, kept, chosen)
    if keep and not failed:
        before = read_spreads(file) if file.exists() else {}
        file.write_bytes(orjson.dumps(kept_object(reports, before), option=orjson.OPT_INDENT_2) + b"\n")
        tell("all", f"written to {file}")
    if json:
        rows = [{**_as_object(each), "standing": each.standing.value} for each in compared]
        told = {"name": "all", "failed": failed, "compared": rows, "reports": list(reports.values())}
        print(orjson.dumps(told).decode())
    else:
        _print_table(compared, is_new=keep)
    for name in failed:
        tell("all", f"{name} failed")
    fell = not keep and any(each.standing in (Standing.FELL, Standing.MISSING) for each in compared)
    raise typer.Exit(1 if failed or fell else 0)


def chosen_benches(only: Sequence[str] | None) -> list[Short]:
    """The benches of these names, all without any; raises `UserError`."""
    known = {bench.name: bench for bench in BENCHES}
    for name in only or ():
        if name not in known:
            raise UserError("--only", name, f"one of {', '.join(known)}")
    return [bench for bench in BENCHES if not only or bench.name in only]


def read_kept(file: Path) -> dict[str, dict[str, float]]:
    """By bench and ratio, the kept medians; raises `UserError`."""
    return {bench: {name: each["median"] for name, each in part.items()} for bench, part in read_spreads(file).items()}


def read_spreads(file: Path) -> dict[str, dict[str, dict[str, float]]]:
    """By bench and ratio, all that is kept of it, the median at least; raises `UserError`."""
    try:
        told = orjson.loads(file.read_bytes())
        return {
            bench: {
                name: {"median": float(each["median"]), **{what: float(value) for what, value in each.items()}}
                for name, each in part.items()
            }
            for bench, part in told["ratios"].items()
        }
    except OSError as error:
        raise UserError(str(file), str(error.strerror), "a file that `lbg bench all --keep` wrote") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(str(file), "something else", "a file that `lbg bench all --keep` wrote") from None


def kept_object(
    reports: Mapping[str, Mapping[str, Any]], before: Mapping[str, Mapping[str, Mapping[str, float]]]
) -> dict[str, Any]:
    """What the file holds: ratios that were measured now, and those of before of benches that were not."""
    ratios: dict[str, Any] = {bench: part for bench, part in before.items() if bench not in reports}
    for bench, report in reports.items():
        ratios[bench] = {
            label(ratio): {name: ratio[name] for name in ("median", "lowest", "highest")} for ratio in report["ratios"]
        }
    any_report = next(iter(reports.values()))
    return {"date": any_report["date"], "machine": any_report["machine"], "ratios": dict(sorted(ratios.items()))}


def label(ratio: Mapping[str, Any]) -> str:
    """The name of a ratio in the file."""
    return f"{ratio['case']}: {ratio['name']}" if ratio["case"] else str(ratio["name"])


def compare(
    reports: Mapping[str, Mapping[str, Any]], kept: Mapping[str, Mapping[str, float]], benches: Sequence[Short]
) -> list[Comparison]:
    """Every ratio that was measured or is kept, in the order of the benches; of those that failed nothing is said."""
    found = []
    for bench in benches:
        report = reports.get(bench.name)
        if report is None:
            continue
        known = kept.get(bench.name, {})
        measured = {label(ratio): ratio for ratio in report["ratios"]}
        for name, ratio in measured.items():
            standing = Standing.NEW
            if name in known:
                standing = Standing.FELL if has_fallen(ratio, known[name], bench.share) else Standing.AS_KEPT
            found.append(Comparison(bench.name, name, ratio["median"], known.get(name), bench.share, standing))
        found += [
            Comparison(bench.name, name, None, value, bench.share, Standing.MISSING)
            for name, value in known.items()
            if name not in measured
        ]
    return found


def has_fallen(ratio: Mapping[str, Any], kept: float, share: float) -> bool:
    """Whether it is worse than the kept one by more than this share of it.

    One of which less is better, and which still meets its goal, has not: such are counts and sizes near 0.
    """
    found: float = ratio["median"]
    if ratio["better"] == Better.MORE.value:
        return found < kept * (1 - share)
    return not ratio.get("met", False) and found > kept / (1 - share)


def _run(bench: Short) -> Mapping[str, Any] | None:
    tell("all", f"{bench.name} {bench.arguments}")
    command = [sys.executable, "-m", "lbg_runtime.cli", "bench", bench.name, "--json", *bench.arguments.split()]
    try:
        ended = subprocess.run(  # noqa: S603 - our own commands
            command, stdout=subprocess.PIPE, timeout=_PATIENCE_S, check=False
        )
    except subprocess.TimeoutExpired:
        return None
    if ended.returncode != 0:
        return None
    report: Mapping[str, Any] = orjson.loads(ended.stdout)
    if report.get("name") != bench.name:
        raise LbgError(f"lbg bench {bench.name} said something else")
    return report


def _as_object(each: Comparison) -> dict[str, object]:
    return {"bench": each.bench, "ratio": each.ratio, "found": each.found, "kept": each.kept, "share": each.share}


def _print_table(compared: Sequence[Comparison], *, is_new: bool) -> None:
    from rich.table import Table

    from lbg_runtime.cli.bench.report import console, figure

    table = Table(title="lbg bench all", title_justify="left")
    for name in ("bench", "ratio", "found", "kept", "may fall by", ""):
        table.add_column(name, justify="right" if name in ("found", "kept", "may fall by") else "left")
    before = None
    for each in compared:
        found, kept = ("-" if value is None else figure(value) for value in (each.found, each.kept))
        standing = "" if is_new else each.standing.value
        table.add_row(
            each.bench if each.bench != before else "", each.ratio, found, kept, f"{each.share:.0%}", standing
        )
        before = each.bench
    console().print(table)
