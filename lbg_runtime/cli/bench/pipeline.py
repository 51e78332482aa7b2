"""`lbg bench pipeline`: from the handlers of a group to data at rest, and onwards from there.

Each part has its arms, which take turns, and reports in the form that all benches share. If an arm has a peer, it is
measured in the same run, as ratios survive a change of machine.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from lbg_runtime.cli.bench.options import Rounds
from lbg_runtime.cli.bench.report import Ratio, Report, Row, finish, tell
from lbg_runtime.cli.options import Json
from lbg_runtime.cli.spark import require_spark
from lbg_runtime.model.errors import UserError


@dataclass(slots=True)
class Found:
    """What a part has measured."""

    rows: list[Row] = field(default_factory=list)
    ratios: list[Ratio] = field(default_factory=list)
    settings: dict[str, object] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


ONLY_BY_NAME = "validator-40m"
"""A part that runs only if it is named, as it takes half an hour."""

Part = Callable[[Path, int], Found]
"""Measures in an empty folder, in the given number of rounds."""


def pipeline(
    only: Annotated[list[str] | None, typer.Option(help="Measure only this part; repeatable.")] = None,
    rounds: Rounds = 3,
    folder: Annotated[Path | None, typer.Option("--dir", help="Folder to write to. Default: a temporary one.")] = None,
    json: Json = False,
) -> None:
    """Measure landing, and the programs that read the log.

    Exit code 1 if a row is missing, comes twice or out of order, 3 if Spark cannot run.
    """
    from lbg_runtime.cli.log import quiet_log

    parts = _parts()
    chosen: Sequence[str] = only or [name for name in parts if name != ONLY_BY_NAME]
    unknown = [name for name in chosen if name not in parts]
    if unknown:
        raise UserError("--only", unknown[0], f"one of {', '.join(parts)}")
    _require_peers(chosen)
    quiet_log()
    found: dict[str, Found] = {}
    for name in chosen:
        tell("pipeline", name)
        with TemporaryDirectory(prefix="lbg-bench-", dir=folder) as made:
            found[name] = parts[name](Path(made), rounds)
    report = Report(
        "pipeline",
        rounds,
        [row for each in found.values() for row in each.rows],
        [ratio for each in found.values() for ratio in each.ratios],
        {name: each.settings for name, each in found.items()},
        wrong=[f"{name}: {what}" for name, each in found.items() for what in each.wrong],
    )
    finish(report, json=json)


def _require_peers(chosen: Sequence[str]) -> None:
    """Leave before anything is measured if what a chosen part needs is not here: exit code 3 without Spark."""
    if set(chosen) <= {"landing"}:
        return
    require_spark()
    if not set(chosen).isdisjoint({"validator", ONLY_BY_NAME}) and find_spec("duckdb") is None:
        raise UserError("duckdb", "not installed", "pip install 'lbg-runtime[bench]'")


def _parts() -> Mapping[str, Part]:
    """The parts by name, in the order in which they are measured."""
    from lbg_runtime.cli.bench.pipeline_landing import landing
    from lbg_runtime.cli.bench.pipeline_spark import age, source, validator, validator_of_many

    return {
        "landing": landing,
        "source": source,
        "age": age,
        "validator": validator,
        ONLY_BY_NAME: validator_of_many,
    }
