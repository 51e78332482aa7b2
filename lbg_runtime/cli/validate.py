"""`lbg validate`: the verdict on a run's journals, or order errors and moves as they happen."""

import asyncio
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lbg_runtime.cli.interrupt import interrupted_when_asked
from lbg_runtime.cli.options import (
    DURATION,
    Config,
    Json,
    complain,
    duration_ms,
    group_settings,
    path_argument,
    path_option,
    print_json,
)
from lbg_runtime.cli.status_line import status_line
from lbg_runtime.model.errors import SparkUnavailable, UserError
from lbg_runtime.model.printable import printable

if TYPE_CHECKING:
    from lbg_runtime.config.settings import Settings
    from lbg_runtime.validator.findings import Verdict
    from lbg_runtime.validator.live import LiveValidator

SPARK_RECORDS = 30_000_000
SPARK_CORES = 2
"""With at least this many records and cores, Spark is worth its start and its second copy of everything. With two cores
and laid-out records it took 16 s for 10 million records, and this process 8 s; for 40 million, 48 and 62 s."""

LARGE_RECORDS = 1_000_000
"""From this many on, the records are laid out first, and judged queue by queue and in slices: memory stays bounded."""

_LINE_BYTES = 400
"""Approximate size of a record in a journal."""

_LONGEST_ACK_WINDOW_MS = 7 * 24 * 3_600_000
"""More than any acknowledgement timer; moments are counted in nanoseconds, which have an end."""


class Engine(Enum):
    """What runs the kernel; the values are those of `--engine`."""

    AUTO = "auto"
    LOCAL = "local"
    SPARK = "spark"


def validate(
    directory: Annotated[
        Path | None,
        path_argument(help="Directory with the journals and ledgers of a run that is over, or one made by --layout."),
    ] = None,
    ack_window: Annotated[
        str,
        typer.Option(metavar=DURATION, help="How long before a fault a settlement may have been sent without effect."),
    ] = "1.5s",
    engine: Annotated[
        Engine,
        typer.Option(help="local: this process; spark: Spark; auto: Spark from 30 million records and 2 cores on."),
    ] = Engine.AUTO,
    layout: Annotated[
        Path | None,
        path_option(help="Keep the run in this folder as Parquet by queue, to judge it again or query it."),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        path_option(help="With --live on Spark: folder that keeps what was judged; a later start continues from it."),
    ] = None,
    live: Annotated[
        bool,
        typer.Option(
            "--live",
            help="Judge a run that goes on: by its journals in the directory, or else by notes that members republish.",
        ),
    ] = False,
    config: Config = Path("config.yaml"),
    topic: Annotated[
        str | None,
        typer.Option(help="Topic to which members republish, instead of ops.journal.republish_topic of the settings."),
    ] = None,
    duration: Annotated[
        str | None,
        typer.Option(
            "--for", metavar=DURATION, help="How long to listen, such as 30s. Default: until SIGINT or SIGTERM."
        ),
    ] = None,
    lost: Annotated[
        Path | None,
        path_option(help="Write every lost message to this file, one JSON object (publisher, key, seq) a line."),
    ] = None,
    json: Json = False,
) -> None:
    """Judge a run. Exit code 0 if it is valid, 1 if it is invalid, 3 if the records do not suffice to tell.

    With --live and a directory: 1 if a law is broken; 3 if nothing was handled yet, something came too late to be
    judged, or the files say that records are missing. With --live alone, which is the one case that needs --config: 1
    if a number came after a higher one or was missing, 3 if no member was heard, or members could not be heard all the
    time, as the connection was lost, or at all, as the broker refuses the topic.
    """
    if directory is None and not live:
        raise UserError("lbg validate", "nothing to judge", "a directory, or --live, or both")
    is_following_on_spark = live and directory is not None and engine is Engine.SPARK
    for option, is_given, is_of_use, expected in (
        ("--engine spark", engine is Engine.SPARK, directory is not None, "a directory"),
        ("--layout", layout is not None, not live, "a run that is over, without --live"),
        ("--lost", lost is not None, not live, "a run that is over, without --live"),
        ("--topic", topic is not None, live and directory is None, "--live without a directory"),
        ("--for", duration is not None, live, "--live"),
        ("--checkpoint", checkpoint is not None, is_following_on_spark, "--live with a directory and --engine spark"),
    ):
        if is_given and not is_of_use:
            raise UserError(option, "of no use here", expected)
    ack_window_ms = duration_ms("--ack-window", ack_window, most_ms=_LONGEST_ACK_WINDOW_MS)
    limit_s = None if duration is None else duration_ms("--for", duration) / 1000
    if directory is None:
        code = _listen(config, topic, limit_s, as_json=json)
    elif is_following_on_spark:
        code = _follow_on_spark(directory, ack_window_ms, limit_s, checkpoint, as_json=json)
    elif live:
        from lbg_runtime.cli.running_verdict import follow, looking_at_files

        code = follow(looking_at_files(directory, ack_window_ms), limit_s, as_json=json)
    else:
        code = _judge(directory, ack_window_ms, engine, layout, lost, as_json=json)
    raise typer.Exit(code)


def _judge(
    directory: Path, ack_window_ms: int, engine: Engine, layout: Path | None, lost: Path | None, *, as_json: bool
) -> int:
    from lbg_runtime.validator.report import as_object, as_text

    with interrupted_when_asked():
        verdict = verdict_on(directory, engine, ack_window_ms, layout)
    if as_json:
        print_json(as_object(verdict))
    else:
        print(as_text(verdict))
    if lost is not None:
        _write_lost(verdict, lost)
    return verdict.kind.exit_code


def _write_lost(verdict: "Verdict", file: Path) -> None:
    """Write every lost message, replacing what the file held; raises `UserError`."""
    import orjson

    from lbg_runtime.validator.report import lost_messages

    try:
        stream = file.open("wb")
        try:
            with stream:
                for message in lost_messages(verdict):
                    stream.write(orjson.dumps(message, option=orjson.OPT_APPEND_NEWLINE))
        except BaseException:
            # Also if only the end is refused, as a network file system does that finds no room, or if this is
            # interrupted. A part would look like all that is to be published again.
            if file.is_file():
                file.resolve().unlink()
            raise
    except OSError as error:
        raise UserError("--lost", f"{file}: {error.strerror}", "a file that can be written") from error


def verdict_on(directory: Path, engine: Engine, ack_window_ms: int, layout: Path | None = None) -> "Verdict":
    """The verdict of an engine on a run that is over.

    Raises `UserError`; leaves with exit code 3 if Spark is insisted on and cannot run.
    """
    from lbg_runtime.journal.layout import find_run, undisturbed

    run = find_run(directory)
    if run is not None and layout is not None:
        raise UserError("--layout", f"given with {run}, which is laid out", "a directory with journals")
    folder = layout if run is None else run.parent
    with nullcontext() if folder is None else undisturbed(folder, is_written=run is None):
        is_worth_it = (os.cpu_count() or 1) >= SPARK_CORES and _record_count(directory, run) >= SPARK_RECORDS
        if engine is Engine.SPARK or (engine is Engine.AUTO and is_worth_it):
            return _judge_on_spark(directory, run, ack_window_ms, layout, is_wish=engine is Engine.SPARK)
        return _judge_here(directory, run, ack_window_ms, layout)


def _follow_on_spark(
    directory: Path, ack_window_ms: int, limit_s: float | None, checkpoint: Path | None, *, as_json: bool
) -> int:
    from lbg_runtime.cli.running_verdict import follow, leaving_without_verdict
    from lbg_runtime.cli.spark import leaving_without_spark
    from lbg_runtime.pipeline.spark.session import spark_session

    with (
        interrupted_when_asked(),
        leaving_without_spark(),
        leaving_without_verdict(),
        _temporary_folder() as folder,
        spark_session("lbg validate --live") as session,
    ):
        from lbg_runtime.pipeline.spark.running_verdict import looking_on_spark

        with looking_on_spark(session, directory, checkpoint or folder / "checkpoint", ack_window_ms) as look:
            return follow(look, limit_s, as_json=as_json)


def _record_count(directory: Path, run: Path | None) -> int:
    from lbg_runtime.journal.layout import count_records
    from lbg_runtime.journal.reader import files_of

    if run is not None:
        return count_records(run)
    # A file that cannot be read is reported by the reader.
    return sum(path.stat().st_size for path in files_of(directory, "journal") if path.is_file()) // _LINE_BYTES


def _judge_here(directory: Path, run: Path | None, ack_window_ms: int, layout: Path | None) -> "Verdict":
    from lbg_runtime.journal.layout import lay_out
    from lbg_runtime.journal.reader import read_run
    from lbg_runtime.pipeline.parts import validate_locally
    from lbg_runtime.validator.judge import validate as validate_run

    if run is None and layout is None and _record_count(directory, run) < LARGE_RECORDS:
        return validate_run(read_run(directory), ack_window_ms)
    with _temporary_folder() as folder:
        with status_line("reading the records"):
            run = run or lay_out(directory, layout or folder)
        with status_line("judging"):
            return validate_locally(run, ack_window_ms)


def _judge_on_spark(
    directory: Path, run: Path | None, ack_window_ms: int, layout: Path | None, *, is_wish: bool
) -> "Verdict":
    """Judge on Spark; or in this process, if Spark is not insisted on, and is missing or fails."""
    from lbg_runtime.cli.spark import leaving_without_spark
    from lbg_runtime.pipeline.spark.session import spark_session

    try:
        with spark_session("lbg validate") as session, _temporary_folder() as folder:
            from lbg_runtime.pipeline.spark.validation import lay_out_on_spark, validate_on_spark

            with status_line("reading the records"):
                laid = run or lay_out_on_spark(session, directory.absolute(), (layout or folder).absolute())
            with status_line("judging"):
                return validate_on_spark(session, laid.absolute(), ack_window_ms)
    except (SparkUnavailable, UserError) as error:
        # A mistake that only executors see, such as a folder that they do not share, is none here.
        if is_wish:
            with leaving_without_spark():
                raise
        print(f"lbg validate: without Spark, as {error}", file=sys.stderr)
        return _judge_here(directory, run, ack_window_ms, layout)


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    """For records that are laid out, and for what Spark keeps; raises `UserError` if none can be made.

    What cannot be removed of it stays: a verdict is not lost with that.
    """
    try:
        made = tempfile.TemporaryDirectory(prefix="lbg-validate-", ignore_cleanup_errors=True)
    except OSError as error:
        raise UserError("temporary folder", str(error.strerror), "room for the records, such as in TMPDIR") from None
    with made as folder:
        yield Path(folder)


def _listen(config: Path, topic: str | None, limit_s: float | None, *, as_json: bool) -> int:
    import uvloop

    from lbg_runtime.validator.live import LiveValidator, SequenceErrorKind

    settings = group_settings(config)
    topic = topic or settings.ops.journal.republish_topic
    if topic is None:
        raise UserError("--topic", "missing", "a topic here, or ops.journal.republish_topic in the settings")
    validator = LiveValidator()
    # With --json, standard output is for the one object only.
    hears = uvloop.run(_follow(validator, settings, topic, limit_s, findings_to_stderr=as_json))
    summary = validator.summary()
    if as_json:
        print_json(summary)
    else:
        print(", ".join(f"{name.replace('_', ' ')} {count}" for name, count in summary.items()))
    errors = validator.sequence_errors
    if errors[SequenceErrorKind.GAP] or errors[SequenceErrorKind.REPEAT_UNFLAGGED]:
        return 1
    return 3 if validator.notes == 0 or validator.interruptions or not hears else 0


async def _follow(
    validator: "LiveValidator",
    settings: "Settings",
    topic: str,
    limit_s: float | None,
    *,
    findings_to_stderr: bool,
) -> bool:
    """Feed the validator until the limit or a signal, and print what it finds at once.

    Returns whether the broker has confirmed, on the last connection, that the notes are heard: False if the signal
    comes before there is one, or the topic is refused at the start, which is said; later it is asked for again and
    again. Raises `ConfigError` if nobody answers at the broker's address.
    """
    from lbg_runtime.cli.connecting import connected_unless_stopped
    from lbg_runtime.config.broker_names import program_name
    from lbg_runtime.model.message import Message
    from lbg_runtime.runtime.kept_subscription import KeptSubscription
    from lbg_runtime.runtime.session import open_session

    stopped = asyncio.Event()
    hears = False

    def take(message: Message) -> None:
        for finding in validator.feed(message.payload):
            print(printable(str(finding)), file=sys.stderr if findings_to_stderr else sys.stdout, flush=True)

    def confirmed(_: bool) -> None:
        nonlocal hears
        hears = True
        print(f"lbg validate: listening to {topic}", file=sys.stderr, flush=True)

    def connection_changed(is_up: bool) -> None:
        nonlocal hears
        listening.connection_changed(is_up)
        if hears and not is_up:
            hears = False
            validator.interrupt()
            print("lbg validate: hears nothing, the connection is lost", file=sys.stderr, flush=True)

    connection = open_session(settings.outside_connection, program_name("validate"), settings.transport.client_path)
    async with connected_unless_stopped(connection, lambda _: stopped.set()) as session:
        if session is None:
            return False
        listening = KeptSubscription(session, topic, take)
        if (failure := await listening.subscribe()) is not None:
            # As an error it would leave with 1, which says that a number is missing.
            complain(failure)
            return False
        session.watch_connection(connection_changed)
        async with asyncio.TaskGroup() as tasks:
            keeping = tasks.create_task(listening.keep(None, confirmed))
            try:
                async with asyncio.timeout(limit_s):
                    # No bound without --for: the user ends it with a signal.
                    await stopped.wait()
            except TimeoutError:
                pass
            keeping.cancel()
        # Before the session is closed, which is no loss of the connection.
        return hears
