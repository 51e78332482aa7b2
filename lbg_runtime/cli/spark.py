"""`lbg spark doctor`, `lbg spark stream`: whether Spark can run here, and streams from a group's landing log to a lake.

Exit code 3 where there is no Java or no Spark.
"""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lbg_runtime.model.errors import SparkUnavailable

if TYPE_CHECKING:
    from lbg_runtime.pipeline.spark.stream_job import StreamProgress

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

spark = typer.Typer(no_args_is_help=True, help="Spark on the landing log of a group.")


@contextmanager
def leaving_without_spark() -> Iterator[None]:
    """One line and exit code 3 where Spark cannot run."""
    try:
        yield
    except SparkUnavailable as error:
        print(f"lbg: {error}", file=sys.stderr)
        raise typer.Exit(3) from None


def require_spark() -> None:
    """Leave with exit code 3 where Spark cannot run, so that it is known before what takes long."""
    from lbg_runtime.pipeline.spark.doctor import examine

    with leaving_without_spark():
        for finding in examine():
            if finding.needed and not finding.fine:
                raise SparkUnavailable(f"{finding.what}: {finding.found}", finding.remedy or "lbg spark doctor")


@spark.command()
def doctor(*, json: Json = False) -> None:
    """Say what of Spark is here, what is missing, and the line that mends it. Exit code 3 where Spark cannot run."""
    import orjson

    from lbg_runtime.pipeline.spark.doctor import examine

    findings = examine()
    remedies = tuple(dict.fromkeys(finding.remedy for finding in findings if finding.remedy))
    runs = all(finding.fine for finding in findings if finding.needed)
    if json:
        report = {"runs": runs, "findings": [asdict(finding) for finding in findings], "remedies": remedies}
        print(orjson.dumps(report).decode())
    else:
        for finding in findings:
            print(f"{'ok  ' if finding.fine else 'MISS' if finding.needed else 'lack'} {finding.what}: {finding.found}")
        for remedy in remedies:
            print(f"to mend it: {remedy}")
    raise typer.Exit(0 if runs else 3)


@spark.command()
def stream(
    group: Annotated[str, typer.Argument(help="Name of the group whose landing log is read.")],
    *,
    directory: Annotated[Path, typer.Option("--dir", help="Folder of its landing log, as `lbg land` makes it.")],
    to: Annotated[str, typer.Option(metavar="KIND:DIR", help="parquet:DIR or delta:DIR.")],
    checkpoint: Annotated[Path, typer.Option(help="Folder in which Spark notes how far it is; one for each stream.")],
    available_now: Annotated[
        bool, typer.Option("--available-now", help="Leave when all that is landed by now is written.")
    ] = False,
    trigger: Annotated[str, typer.Option(help="Least time from batch to batch.")] = "1s",
    max_rows: Annotated[int, typer.Option(min=1, help="Most rows of a batch.")] = 100_000,
    driver_memory: Annotated[str, typer.Option(help="Most memory of the JVM, as Spark writes it.")] = "2g",
    json: Json = False,
) -> None:
    """Write the messages of a group to a lake, each once, in order per queue; goes on where the checkpoint stands.

    SIGTERM and SIGINT end it, exit code 0. Exit code 1 where the stream fails, 3 where Spark cannot run.
    """
    import orjson

    from lbg_runtime.config.duration import DURATION_FORM, parse_duration_ms
    from lbg_runtime.model.errors import UserError
    from lbg_runtime.pipeline.spark.session import spark_session
    from lbg_runtime.pipeline.spark.source_options import read_source_options
    from lbg_runtime.pipeline.spark.stream_job import StreamJob, check_folder, parse_target

    try:
        trigger_ms = parse_duration_ms(trigger)
    except ValueError:
        raise UserError("--trigger", repr(trigger), DURATION_FORM) from None
    # What can be wrong is said before the seconds that Spark takes to start.
    read_source_options({"path": str(directory), "group": group})
    lake, target = parse_target(to)
    check_folder("--to", target)
    check_folder("--checkpoint", checkpoint)
    job = StreamJob(directory, group, lake, target, checkpoint, available_now, trigger_ms, max_rows)
    with (
        _stop_signals() as stopped,
        leaving_without_spark(),
        spark_session("lbg spark stream", driver_memory=driver_memory) as session,
    ):
        from lbg_runtime.pipeline.spark.stream import run_stream

        with _shown() as show:
            progress = run_stream(session, job, stopped=stopped, on_progress=show)
    report = {"batch": progress.batch, "rows": progress.rows, "behind": progress.behind}
    print(orjson.dumps(report).decode() if json else f"{progress.rows} rows written, {progress.behind} are left")


@contextmanager
def _stop_signals() -> "Iterator[Callable[[], bool]]":
    """Whether the process was asked to leave, which also counts while Spark starts; `open_spark` leaves it so."""
    asked = threading.Event()
    old = {number: signal.signal(number, lambda *_: asked.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield asked.is_set
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


@contextmanager
def _shown() -> "Iterator[Callable[[StreamProgress], None]]":
    """Shows where a stream stands, where standard error is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True).status("reading") as status:
        yield lambda at: status.update(f"batch {at.batch}: {at.rows} rows written, {at.behind} behind")
