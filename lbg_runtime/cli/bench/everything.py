"""`lbg bench all`: the benches that take a minute or two, with short settings, each ratio compared with the kept one.

Each bench is a command of its own and runs as one, so that none has another's memory and threads. Ratios are kept, not
rates, because machines differ and drift; how much worse a ratio may be is stated for each bench, according to how much
its ratios vary on a machine that does nothing else. Not included are `moves`, `restripe`, `poison`, `faults`,
`landing`, `soak`, and the parts of `pipeline` that start Spark.
"""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from lbg_runtime.cli.bench.processes import end
from lbg_runtime.cli.bench.report import Better, figure, tell
from lbg_runtime.cli.options import Json, path_option, print_json
from lbg_runtime.cli.table import print_table
from lbg_runtime.model.errors import LbgError, UserError

KEPT = Path("docs/benchmarks.json")
_PATIENCE_S = 1_200


Kept = dict[str, Any]
"""What is kept of one bench: `date`, `machine`, and `ratios`, each with at least its median."""


@dataclass(frozen=True, slots=True)
class Short:
    """How a bench is run here."""

    name: str
    arguments: str
    share: float = 0.3
    """How much worse than the kept ratio a ratio may be, as a fraction of that. It may be 1 or more only if less is
    better in every ratio of the bench."""


BENCHES = (
    Short("dispatch", "--messages 50000 --rounds 3"),
    Short("receive", "--messages 30000 --rounds 3 --keys 100"),
    Short("publish", "--messages 30000 --rounds 3"),
    # A p99 is determined by the slowest hundredth, which includes whatever else the machine does.
    Short("latency", "--rounds 3", 1.0),
    Short("broker", "--messages 20000 --spooled 50000 --queues 200 --rounds 2"),
    Short("acks", "--messages 20000 --rounds 1"),
    # With fewer messages, two processes are slower than one.
    Short("processes", "--messages 50000 --rounds 2"),
    Short("scale", "--messages 20000 --queues 200 --keys 100000 --rounds 2"),
    # Pauses of a few queues divided by the gaps of a few others: more is left to chance than in rates.
    Short("takeover", "--steady 2s --rounds 2", 1.5),
    Short("handback", "--steady 2s --rounds 1", 1.5),
    Short("sidecar", "--messages 3000 --duration 2s --rounds 2", 0.5),
    # Without the parts that start Spark, which take minutes.
    Short("pipeline", "--only landing --rounds 2", 0.5),
)


class Standing(Enum):
    """How a ratio stands to the kept one."""

    AS_KEPT = "as kept"
    NEW = "not kept yet"
    FELL = "fell"
    MISSING = "not measured"


@dataclass(frozen=True, slots=True)
class Comparison:
    """A ratio and the kept one; None for one that does not exist."""

    bench: str
    ratio: str
    found: float | None
    kept: float | None
    share: float
    standing: Standing


def all_(
    keep: Annotated[
        bool, typer.Option("--keep", help="Write the ratios to the file instead of comparing them.")
    ] = False,
    file: Annotated[Path, path_option(help="File with the kept ratios.")] = KEPT,
    only: Annotated[list[str] | None, typer.Option(help="Run only this bench; repeatable.")] = None,
    json: Json = False,
) -> None:
    """Run the short benches and compare their ratios with the kept ones. Takes ten minutes.

    Exit code 1 if one fell or failed. Not run: moves, restripe, poison, faults, landing, soak, and pipeline with Spark.
    """
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
    if json:
        print_json({"name": "all", "failed": failed, "compared": compared, "reports": list(reports.values())})
    else:
        _print_table(compared, is_new=keep)
    for name in failed:
        tell("all", f"{name} failed")
    if keep and failed:
        tell("all", f"{file} is left as it was")
    elif keep:
        # After the figures are printed, which it took minutes to measure.
        _keep(reports, file)
        tell("all", f"written to {file}")
    fell = not keep and any(each.standing in (Standing.FELL, Standing.MISSING) for each in compared)
    raise typer.Exit(1 if failed or fell else 0)


def chosen_benches(only: Sequence[str] | None) -> list[Short]:
    """The benches of these names, or all if there are none; raises `UserError`."""
    known = {bench.name: bench for bench in BENCHES}
    for name in only or ():
        if name not in known:
            raise UserError("--only", name, f"one of {', '.join(known)}")
    return [bench for bench in BENCHES if not only or bench.name in only]


def _keep(reports: Mapping[str, Mapping[str, Any]], file: Path) -> None:
    """Write what is kept, as a whole or not at all; raises `UserError`."""
    from lbg_runtime.pipeline.files import write_whole

    before = read_kept(file) if file.exists() else {}
    content = orjson.dumps(kept_object(reports, before), option=orjson.OPT_INDENT_2) + b"\n"
    try:
        # The file behind a link, which stays.
        write_whole(Path(os.path.realpath(file)), content)
    except OSError as error:
        raise UserError("--file", f"{file}: {error.strerror}", "a file that can be written") from None


def read_kept(file: Path) -> dict[str, Kept]:
    """What `kept_object` has written, by bench; raises `UserError`."""
    try:
        benches: dict[str, Kept] = orjson.loads(file.read_bytes())["benches"]
        for part in benches.values():
            for each in part["ratios"].values():
                each["median"] = float(each["median"])
        return benches
    except OSError as error:
        raise UserError(str(file), str(error.strerror), "a file that `lbg bench all --keep` wrote") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(str(file), "something else", "a file that `lbg bench all --keep` wrote") from None


def kept_object(reports: Mapping[str, Mapping[str, Any]], before: Mapping[str, Kept]) -> dict[str, Any]:
    """What the file holds: the benches that ran now, with date, machine and ratios, and the others as they were."""
    ran = {
        bench: {
            "date": report["date"],
            "machine": report["machine"],
            "ratios": {
                ratio["label"]: {name: ratio[name] for name in ("median", "lowest", "highest")}
                for ratio in report["ratios"]
            },
        }
        for bench, report in reports.items()
    }
    return {"benches": dict(sorted({**before, **ran}.items()))}


def compare(
    reports: Mapping[str, Mapping[str, Any]], kept: Mapping[str, Kept], benches: Sequence[Short]
) -> list[Comparison]:
    """Every ratio that was measured or is kept, in the order of the benches, without those of benches that failed."""
    found = []
    for bench in benches:
        report = reports.get(bench.name)
        if report is None:
            continue
        ratios = kept[bench.name]["ratios"] if bench.name in kept else {}
        known = {name: each["median"] for name, each in ratios.items()}
        measured = {ratio["label"]: ratio for ratio in report["ratios"]}
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
    """Whether the ratio is worse than the kept one by more than this share of it.

    A ratio of which less is better has not fallen while it meets its goal: such are counts and sizes near 0.
    """
    found: float = ratio["median"]
    if ratio["better"] == Better.MORE.value:
        return found < kept * (1 - share)
    return not ratio.get("met", False) and found > kept * (1 + share)


def _run(bench: Short) -> Mapping[str, Any] | None:
    tell("all", f"{bench.name} {bench.arguments}")
    command = [sys.executable, "-m", "lbg_runtime.cli", "bench", bench.name, "--json", *bench.arguments.split()]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:  # noqa: S603 - our own commands
        try:
            said, _ = process.communicate(timeout=_PATIENCE_S)
        except subprocess.TimeoutExpired:
            return None
        finally:
            end(process)
    if process.returncode != 0:
        return None
    report: Mapping[str, Any] = orjson.loads(said)
    if report.get("name") != bench.name:
        raise LbgError(f"lbg bench {bench.name} said something else")
    return report


def _print_table(compared: Sequence[Comparison], *, is_new: bool) -> None:
    from rich.table import Table

    table = Table(title="lbg bench all", title_justify="left")
    for name in ("bench", "ratio", "found", "kept", "may be worse by", ""):
        table.add_column(name, justify="right" if name in ("found", "kept", "may be worse by") else "left")
    before = None
    for each in compared:
        found, kept = ("-" if value is None else figure(value) for value in (each.found, each.kept))
        standing = "" if is_new else each.standing.value
        table.add_row(
            each.bench if each.bench != before else "", each.ratio, found, kept, f"{each.share:.0%}", standing
        )
        before = each.bench
    print_table(table)
