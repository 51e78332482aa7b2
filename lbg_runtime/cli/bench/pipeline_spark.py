"""The parts of `lbg bench pipeline` that need Spark.

`source`: rows per second read from landing logs of 4 and of 32 queues, of 1 KB, 100,000 in a batch, and discarded. The
peers are Spark's own Parquet files with the same rows, and the same log fetched in the driver. A batch takes some
tenths of a second, and the other load of the machine changes from one to the next: so in a round each log is read
twice, once before and once after the other one, and the next round begins with the other one. `age`: how old the newest
row is when its batch is done, at 2,000 rows a second. `validator`: the verdict on a laid-out run of ten million
handlings, from the start of the process to its end; the peers are DuckDB and Spark's SQL with plain windows, asked only
for losses, order, duplicates, overlaps and keys in two shards. `validator-40m`: forty million, without the latter.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import harmonic_mean

import orjson

from lbg_runtime.cli.bench.pipeline import Found
from lbg_runtime.cli.bench.processes import BenchFailed, end
from lbg_runtime.cli.bench.report import Better, Ratio, Row, tell, within_rounds

SOURCE_ROWS = 1_000_000
AGE_PER_S, AGE_S = 2_000, 30.0
HANDLINGS, MANY_HANDLINGS = 10_000_000, 40_000_000
SQL = "spark's sql"
DRIVER_MEMORY = "3g"


def source(folder: Path, rounds: int) -> Found:
    """See the module. Raises `SparkUnavailable`."""
    from lbg_runtime.pipeline.spark.session import spark_session

    rates: dict[str, list[float]] = {"4 queues": [], "32 queues": [], "parquet": [], "prefetch": []}
    found = Found(settings={"rows": SOURCE_ROWS, "batch_rows": 100_000, "payload_bytes": 1_000})
    with spark_session("lbg bench pipeline", driver_memory=DRIVER_MEMORY) as session:
        from lbg_runtime.pipeline.spark.source_bench import Sources

        sources = Sources(session, folder, SOURCE_ROWS)
        arms: Mapping[str, Callable[[], float]] = {
            "4 queues": lambda: sources.landing_log(4),
            "32 queues": lambda: sources.landing_log(32),
            "parquet": sources.parquet,
            "prefetch": sources.prefetch,
        }
        for number in range(rounds):
            of_round: dict[str, list[float]] = {}
            for name in turns(number):
                tell("pipeline", f"source, round {number + 1} of {rounds}, {name}")
                of_round.setdefault(name, []).append(arms[name]())
            for name, values in of_round.items():
                # The same number of rows each time, so this is the sum of all rows divided by all the time they took.
                rates[name].append(harmonic_mean(values))
    found.rows += [Row(arm, "rows/s", values, case="source") for arm, values in rates.items()]
    for name, other, goal in (
        ("4 queues", "prefetch", 3.0),
        ("4 queues", "parquet", 0.7),
        ("32 queues", "4 queues", 1.0),
    ):
        values = within_rounds(rates[name], rates[other])
        found.ratios.append(Ratio(f"{name} / {other}", values, case="source", goal=goal))
    return found


def turns(number: int) -> Sequence[str]:
    """The arms of `source` in a round, in the order in which they are measured."""
    first, second = ("4 queues", "32 queues") if number % 2 == 0 else ("32 queues", "4 queues")
    return first, second, "parquet", second, first, "prefetch"


def age(folder: Path, rounds: int) -> Found:
    """See the module. Raises `SparkUnavailable`."""
    from lbg_runtime.pipeline.spark.session import spark_session

    ages: list[float] = []
    with spark_session("lbg bench pipeline", driver_memory=DRIVER_MEMORY) as session:
        from lbg_runtime.pipeline.spark.source_bench import measure_age

        for number in range(rounds):
            tell("pipeline", f"age, round {number + 1} of {rounds}")
            made = folder / str(number)
            made.mkdir()
            ages += measure_age(session, made, AGE_PER_S, AGE_S)
    found = Found(settings={"rows_per_s": AGE_PER_S, "seconds": AGE_S, "flush_rows": 25})
    found.rows.append(Row("newest row", "ms", ages, case="age"))
    found.ratios.append(Ratio("newest row, ms", ages, case="age", better=Better.LESS, goal=500))
    return found


def validator(folder: Path, rounds: int) -> Found:
    """See the module."""
    found, seconds = _validator(folder, rounds, HANDLINGS, ("local", "spark", "duckdb", SQL), goal=2.2)
    for arm in ("local", "spark"):
        values = within_rounds(seconds[SQL], seconds[arm])
        found.ratios.append(Ratio(f"{SQL} / {arm}", values, case=found.rows[0].case, goal=4.0))
    return found


def validator_of_many(folder: Path, rounds: int) -> Found:
    """See the module."""
    return _validator(folder, rounds, MANY_HANDLINGS, ("local", "spark", "duckdb"), goal=1.0)[0]


def _validator(
    folder: Path, rounds: int, handlings: int, arms: Sequence[str], goal: float
) -> tuple[Found, Mapping[str, list[float]]]:
    """What was measured, and the seconds of each arm."""
    from lbg_runtime.pipeline.spark.validator_bench import make_run

    run, case = folder / "run=bench", f"validator, {handlings // 1_000_000} million"
    tell("pipeline", f"{case}, making the run")
    seeded = make_run(run, handlings)
    judge = [sys.executable, "-m", "lbg_runtime.cli", "validate", str(run), "--json", "--engine"]
    ask = [sys.executable, "-m", "lbg_runtime.pipeline.spark.validator_bench", str(run)]
    commands = {
        "local": [*judge, "local"],
        "spark": [*judge, "spark"],
        "duckdb": [*ask, "duckdb"],
        SQL: [*ask, DRIVER_MEMORY],
    }
    seconds: dict[str, list[float]] = {arm: [] for arm in arms}
    memory: dict[str, list[float]] = {"local": [], "duckdb": []}
    found = Found(settings={"handlings": seeded.handlings})
    for number in range(rounds):
        for arm in arms:
            tell("pipeline", f"{case}, round {number + 1} of {rounds}, {arm}")
            spent_s, peak_mb, said = timed(arm, commands[arm])
            seconds[arm].append(spent_s)
            if arm in memory:
                memory[arm].append(peak_mb)
            if (said["lost"], said["duplicates"]) != (seeded.lost, seeded.copies):
                found.wrong.append(f"{arm} found {said['lost']} lost and {said['duplicates']} copies, not {seeded}")
    shutil.rmtree(run)
    found.rows += [Row(arm, "s", values, case=case) for arm, values in seconds.items()]
    found.rows += [Row(arm, "MB at most", values, case=case) for arm, values in memory.items()]
    for arm in ("local", "spark"):
        values = within_rounds(seconds[arm], seconds["duckdb"])
        found.ratios.append(Ratio(f"{arm} / duckdb", values, case=case, better=Better.LESS, goal=goal))
    values = within_rounds(memory["local"], memory["duckdb"])
    found.ratios.append(Ratio("local / duckdb, memory", values, case=case, better=Better.LESS, goal=1.0))
    return found, seconds


def timed(arm: str, command: list[str]) -> tuple[float, float, Mapping[str, int]]:
    """Seconds of a process, its peak memory in megabytes, and the object that it printed; `BenchFailed` without one."""
    began_s = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE)  # noqa: S603  # a command of ours
    with process:
        try:
            printed = process.stdout.read() if process.stdout else b""
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        finally:
            end(process)
    if not printed:
        raise BenchFailed(arm, f"it left with exit code {process.returncode} and printed nothing")
    return time.perf_counter() - began_s, usage.ru_maxrss / 1024, orjson.loads(printed)
