"""What every bench reports at the end: one table, or with `--json` one object, always of the same form.

The object: `name`, `date`, `machine` (processor, cores, load at the start, Python, official client), `rounds`,
`settings` (of the measurement), `rows` (case, arm, unit, median, lowest, highest), `ratios` (case, name, label,
median, lowest, highest, whether more or less is better; goal and whether it is met, if there is one), `details`
(what does not fit a row), `right` (whether every count and every order was as it must be; the exit code is 1
otherwise), `wrong` (what was not).
"""

import os
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from statistics import median

import typer

from lbg_runtime.cli.options import print_json
from lbg_runtime.cli.table import print_table
from lbg_runtime.model.counted import counted

CLIENT = "solace-pubsubplus"

# Read when this is imported, which is before anything is measured.
_LOAD = round(os.getloadavg()[0], 2)


class Better(Enum):
    MORE = "more"
    LESS = "less"


Measured = Mapping[str, Sequence[Mapping[str, float]]]
"""The figures of each arm, round by round, by their names."""


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of an arm. `values` are those of the rounds, or of single events if `unit` is one of events; there is
    at least one."""

    arm: str
    unit: str
    values: Sequence[float]
    case: str = ""
    """What it was measured with, if a bench has several cases: `100 keys`."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """How two arms compare within a round, which is what survives a change of machine."""

    name: str
    values: Sequence[float]
    case: str = ""
    better: Better = Better.MORE
    goal: float | None = None

    @property
    def label(self) -> str:
        """Its name with its case, for tables and for the file of kept ratios."""
        return f"{self.case}: {self.name}" if self.case else self.name

    @property
    def is_met(self) -> bool | None:
        """Whether the median is as good as the goal; None without one."""
        if self.goal is None:
            return None
        found = median(self.values)
        return found >= self.goal if self.better is Better.MORE else found <= self.goal


@dataclass(frozen=True, slots=True)
class Report:
    name: str
    rounds: int
    rows: Sequence[Row]
    ratios: Sequence[Ratio] = ()
    settings: Mapping[str, object] = field(default_factory=dict)
    details: Mapping[str, object] = field(default_factory=dict)
    wrong: Sequence[str] = ()
    """What was not as it must be; the figures mean nothing then."""

    def as_object(self) -> dict[str, object]:
        """See the module."""
        return {
            "name": self.name,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": asdict(machine()),
            "rounds": self.rounds,
            "settings": dict(self.settings),
            "rows": [{"case": row.case, "arm": row.arm, "unit": row.unit, **spread(row.values)} for row in self.rows],
            "ratios": [_ratio_object(ratio) for ratio in self.ratios],
            "details": dict(self.details),
            "right": not self.wrong,
            "wrong": list(self.wrong),
        }


@dataclass(frozen=True, slots=True)
class Machine:
    """What figures depend on most."""

    processor: str
    cores: int
    load: float
    """Processes that wanted to run, over the minute before the bench: about 0 on an idle machine."""
    python: str
    client: str
    """Version of the official client, or `none`."""


def finish(report: Report, *, json: bool) -> None:
    """Print the report, and leave with exit code 1 if something was wrong."""
    if json:
        print_json(report.as_object())
    else:
        _print_tables(report)
    for what in report.wrong:
        print(f"lbg bench {report.name}: {what}", file=sys.stderr)
    if report.wrong:
        raise typer.Exit(1)


def tell(name: str, text: str) -> None:
    """Report progress on standard error."""
    print(f"lbg bench {name}: {text}", file=sys.stderr, flush=True)


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, lowest and highest."""
    return {"median": short(median(values)), "lowest": short(min(values)), "highest": short(max(values))}


def short(value: float) -> float:
    """The value with its meaningful digits only."""
    return round(value, 0 if abs(value) >= 10_000 else 2 if abs(value) >= 1 else 4)


def within_rounds(mine: Iterable[float], others: Iterable[float]) -> list[float]:
    """My values divided by the other's, round by round."""
    return [one / other for one, other in zip(mine, others, strict=True)]


def _ratio_object(ratio: Ratio) -> dict[str, object]:
    told: dict[str, object] = {"case": ratio.case, "name": ratio.name, "label": ratio.label, **spread(ratio.values)}
    told["better"] = ratio.better.value
    if ratio.goal is not None:
        told["goal"] = ratio.goal
        told["met"] = ratio.is_met
    return told


def _print_tables(report: Report) -> None:
    from rich.table import Table

    host = machine()
    where = f"{host.cores} cores, {host.processor}, load {host.load}, Python {host.python}, client {host.client}"
    with_settings = ", ".join(f"{name} {value}" for name, value in report.settings.items())
    caption = f"{where}; {counted(report.rounds, 'round')}" + (f"; {with_settings}" if with_settings else "")
    table = Table(title=f"lbg bench {report.name}", caption=caption, title_justify="left", caption_justify="left")
    has_cases = any(row.case for row in report.rows)
    for name in ("case", "arm") if has_cases else ("arm",):
        table.add_column(name)
    for name in ("median", "lowest", "highest"):
        table.add_column(name, justify="right")
    table.add_column("unit")
    before = None
    for row in report.rows:
        case = [row.case if row.case != before else ""] if has_cases else []
        table.add_row(*case, row.arm, *map(figure, spread(row.values).values()), row.unit)
        before = row.case
    print_table(table)
    for name, value in report.details.items():
        if is_plain(value):
            told = ", ".join(f"{part} {each}" for part, each in value.items()) if isinstance(value, dict) else value
            print(f"{name.replace('_', ' ')}: {told}")
    if not report.ratios:
        return
    table = Table(title="ratios, within a round", title_justify="left")
    for name in ("ratio", "median", "lowest", "highest", "goal"):
        table.add_column(name, justify="left" if name in ("ratio", "goal") else "right")
    for ratio in report.ratios:
        table.add_row(ratio.label, *map(figure, spread(ratio.values).values()), _goal(ratio))
    print_table(table)


def is_plain(value: object) -> bool:
    """Whether a detail is shown to people too: a word, a number, or some of them by name."""
    if isinstance(value, dict):
        return bool(value) and all(isinstance(each, str | int | float) for each in value.values())
    return isinstance(value, str | int | float)


def _goal(ratio: Ratio) -> str:
    if ratio.goal is None:
        return ""
    sign = ">=" if ratio.better is Better.MORE else "<="
    return f"{sign} {ratio.goal:g}: {'met' if ratio.is_met else 'not met'}"


def figure(value: float) -> str:
    """A number for people."""
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:g}"


def machine() -> Machine:
    from importlib.metadata import PackageNotFoundError, version

    try:
        client = version(CLIENT)
    except PackageNotFoundError:
        client = "none"
    return Machine(_processor(), os.cpu_count() or 0, _LOAD, platform.python_version(), client)


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
