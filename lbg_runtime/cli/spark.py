"""`lbg spark doctor`, `lbg spark stream`: whether Spark can run here, and streams from a group's landing log to a lake.

Exit code 3 if there is no Java or no Spark.
"""

import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lbg_runtime.cli.options import DURATION, Json, complain, duration_ms, path_option, print_json
from lbg_runtime.cli.status_line import status_line
from lbg_runtime.model.counted import counted
from lbg_runtime.model.errors import SparkUnavailable, UserError

if TYPE_CHECKING:
    from lbg_runtime.pipeline.spark.stream_job import StreamProgress

_MEMORY = re.compile(r"[1-9][0-9]*[kmgt]", re.IGNORECASE)
"""What Spark hands on to the JVM as it is, which then only says that it does not start."""

spark = typer.Typer(no_args_is_help=True, help="Spark on the landing log of a group.")


@contextmanager
def leaving_without_spark() -> Iterator[None]:
    """Leave with one line and exit code 3 if Spark cannot run."""
    try:
        yield
    except SparkUnavailable as error:
        complain(error)
        raise typer.Exit(3) from None


def require_spark() -> None:
    """Leave with exit code 3 if Spark cannot run, before anything that takes long."""
    from lbg_runtime.pipeline.spark.doctor import examine

    with leaving_without_spark():
        for finding in examine():
            if finding.needed and not finding.fine:
                raise SparkUnavailable(f"{finding.what}: {finding.found}", finding.remedy or "lbg spark doctor")


@spark.command()
def doctor(*, json: Json = False) -> None:
    """Report which parts of Spark are here or missing, and the line that fixes it. Exit code 3 if Spark cannot run."""
    from lbg_runtime.pipeline.spark.doctor import examine

    findings = examine()
    remedies = tuple(dict.fromkeys(finding.remedy for finding in findings if finding.remedy))
    runs = all(finding.fine for finding in findings if finding.needed)
    if json:
        report = {"runs": runs, "findings": [asdict(finding) for finding in findings], "remedies": remedies}
        print_json(report)
    else:
        for finding in findings:
            state = "ok" if finding.fine else "missing" if finding.needed else "optional"
            print(f"{state:8} {finding.what}: {finding.found}")
        for remedy in remedies:
            print(f"fix: {remedy}")
    raise typer.Exit(0 if runs else 3)


@spark.command()
def stream(
    group: Annotated[str, typer.Argument(help="Name of the group whose landing log is read.")],
    *,
    directory: Annotated[Path, path_option("--dir", help="Folder of its landing log, as written by `lbg land`.")],
    to: Annotated[str, typer.Option(metavar="KIND:DIR", help="Where to write: parquet:DIR or delta:DIR.")],
    checkpoint: Annotated[
        Path,
        path_option(help="Folder in which Spark records its progress; each stream needs its own."),
    ],
    available_now: Annotated[
        bool, typer.Option("--available-now", help="Exit when everything that has landed by now is written.")
    ] = False,
    trigger: Annotated[
        str, typer.Option(metavar=DURATION, help="Shortest time between the starts of two batches.")
    ] = "1s",
    max_rows: Annotated[int, typer.Option(min=1, help="Largest number of rows in a batch.")] = 100_000,
    skip_pruned: Annotated[
        bool,
        typer.Option("--skip-pruned", help="Go on with the rows that are left, if some were pruned unread."),
    ] = False,
    driver_memory: Annotated[str, typer.Option(help="Memory limit of the JVM: a number and k, m, g or t.")] = "2g",
    json: Json = False,
) -> None:
    """Write the messages of a group to a lake, each once, in order per queue. Continues from the checkpoint.

    SIGTERM and SIGINT end it with exit code 0. Exit code 1 if the stream fails, 3 if Spark cannot run.
    """
    from lbg_runtime.pipeline.spark.checkpoint import sole_stream
    from lbg_runtime.pipeline.spark.session import spark_session
    from lbg_runtime.pipeline.spark.source_options import read_source_options
    from lbg_runtime.pipeline.spark.stream_job import StreamJob, check_apart, check_folder, parse_target

    trigger_ms = duration_ms("--trigger", trigger)
    if not _MEMORY.fullmatch(driver_memory):
        raise UserError("--driver-memory", repr(driver_memory), "a number and k, m, g or t, such as 2g")
    # Mistakes are reported before the seconds that Spark takes to start.
    read_source_options({"path": str(directory), "group": group})
    lake, target = parse_target(to)
    check_folder("--to", target)
    check_folder("--checkpoint", checkpoint)
    job = StreamJob(directory, group, lake, target, checkpoint, available_now, trigger_ms, max_rows, skip_pruned)
    check_apart(job)
    with (
        _stop_signals() as stopped,
        sole_stream(checkpoint),
        leaving_without_spark(),
        spark_session("lbg spark stream", driver_memory=driver_memory) as session,
    ):
        from lbg_runtime.pipeline.spark.stream import run_stream

        with status_line("reading") as tell:
            progress = run_stream(session, job, stopped=stopped, on_progress=lambda at: tell(_how_far(at)))
    report = {"batch": progress.batch, "rows": progress.rows, "behind": progress.behind}
    if json:
        print_json(report)
    else:
        left = "no batch was finished" if progress.behind is None else f"{progress.behind} left after the last batch"
        print(f"{counted(progress.rows, 'row')} written, {left}")


@contextmanager
def _stop_signals() -> "Iterator[Callable[[], bool]]":
    """Yield whether the process was asked to leave, also while Spark starts; `open_spark` keeps these handlers."""
    asked = threading.Event()
    old = {number: signal.signal(number, lambda *_: asked.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield asked.is_set
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _how_far(at: "StreamProgress") -> str:
    return f"batch {at.batch}: {counted(at.rows, 'row')} written, {at.behind} behind"
