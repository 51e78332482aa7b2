"""`lbg landing`: what is in a landing log, whether it is whole, and removing what is old."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lbg_runtime.cli.sizes import bytes_text
from lbg_runtime.config.duration import DURATION_FORM, parse_duration_ms
from lbg_runtime.model.errors import LandingError, LandingRowsPruned, UserError
from lbg_runtime.model.printable import printable

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from lbg_runtime.pipeline.landing.lane_view import LaneView
    from lbg_runtime.pipeline.landing.log import LandingLog

landing = typer.Typer(no_args_is_help=True, help="The landing log that `lbg land` writes.")

Directory = Annotated[Path, typer.Argument(help="Folder of the landing log.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@landing.command("ls")
def ls(directory: Directory, json: Json = False) -> None:
    """What has landed: of each queue its lanes, oldest first, with rows, size and times.

    Exit code 1 where a lane is damaged, which is said; `lbg landing verify` looks closer.
    """
    lanes: list[dict[str, object]] = []
    failures: list[tuple[str, str]] = []
    with readable(directory):
        log = _open(directory)
        for queue in log.queues():
            _list_lanes(log, queue, lanes, failures)
    if json:
        group = log.group
        of_whom = {"group": group.group, "hash_prefix": group.hash_prefix, "hash_count": group.hash_count}
        _print({**of_whom, "lanes": lanes, "failures": _failure_objects(failures)})
    else:
        for each in lanes:
            pruned = f", {each['first_row']} pruned" if each["first_row"] else ""
            times = f", {each['from']} to {each['to']}" if each["from"] else ""
            state = " (being written)" if each["is_being_written"] else ""
            size = bytes_text(int(str(each["bytes"])))
            print(printable(f"{each['lane']}: {each['rows']} rows{pruned}, {size}{times}{state}"))
        for path, what in failures:
            print(printable(f"lbg: {path}: {what}"), file=sys.stderr)
        if not lanes and not failures:
            print("nothing has landed", file=sys.stderr)
    raise typer.Exit(1 if failures else 0)


@landing.command()
def verify(directory: Directory, json: Json = False) -> None:
    """Look at every byte: CRCs, ids, rows against their lanes. Exit code 1 where something is damaged.

    What a process that died has left behind is noted, and no damage.
    """
    from lbg_runtime.pipeline.landing.verify import Grade, Walked, folder_bytes
    from lbg_runtime.pipeline.landing.verify import verify as walk

    walked = Walked()
    with readable(directory):
        log = _open(directory)
    with readable(directory), _progress(folder_bytes(directory)) as (bar, task):
        findings = list(walk(log, walked, lambda size: bar.advance(task, size)))
    is_damaged = any(each.grade is Grade.DAMAGE for each in findings)
    if json:
        _print(
            {
                "whole": not is_damaged,
                "lanes": walked.lanes,
                "segments": walked.segments,
                "rows": walked.rows,
                "bytes": walked.bytes,
                "findings": [{"grade": each.grade.value, "path": each.path, "what": each.what} for each in findings],
            }
        )
    else:
        for each in findings:
            print(printable(f"{each.grade.value}: {each.path}: {each.what}"))
        verdict = "damaged" if is_damaged else "whole"
        print(f"{verdict}: {walked.rows} rows in {walked.segments} segments of {walked.lanes} lanes")
    raise typer.Exit(1 if is_damaged else 0)


@landing.command()
def prune(
    directory: Directory,
    keep: Annotated[str, typer.Option(help="How long rows are kept, such as 24h.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go, and remove nothing.")] = False,
    json: Json = False,
) -> None:
    """Remove segments whose rows have all landed longer ago; their ids stay for a week, to know late copies by.

    May be done while members land and readers read. Exit code 1 where a lane is damaged, of which the rest stays.
    """
    from lbg_runtime.pipeline.landing.prune import Unpruned, wall_us
    from lbg_runtime.pipeline.landing.prune import prune as prune_log

    try:
        keep_ms = parse_duration_ms(keep)
    except ValueError:
        raise UserError("--keep", repr(keep), DURATION_FORM) from None
    failures: list[Unpruned] = []
    with readable(directory):
        log = _open(directory)
        pruned = list(prune_log(log.path, wall_us() - keep_ms * 1_000, is_dry=dry_run, failures=failures))
    unpruned = [_told(each.error, directory / each.lane) for each in failures]
    size = sum(each.bytes for each in pruned)
    if json:
        _print(
            {
                "dry_run": dry_run,
                "bytes": size,
                "segments": [
                    {"lane": each.lane, "first_row": each.first_row, "rows": each.rows, "bytes": each.bytes}
                    for each in pruned
                ],
                "failures": _failure_objects(unpruned),
            }
        )
    else:
        for each in pruned:
            print(printable(f"{each.lane}: rows {each.first_row} to {each.rows - 1}, {bytes_text(each.bytes)}"))
        print(f"{len(pruned)} segments, {bytes_text(size)}, {'would go' if dry_run else 'removed'}")
        for path, what in unpruned:
            print(printable(f"lbg: {path}: {what}; what lies behind it in its lane stays"), file=sys.stderr)
    raise typer.Exit(1 if unpruned else 0)


@contextmanager
def readable(directory: Path) -> Iterator[None]:
    """What the system refuses is the user's to mend."""
    try:
        yield
    except OSError as error:
        raise UserError(
            str(error.filename or directory), str(error.strerror), "a landing log that can be read"
        ) from None


def _open(directory: Path) -> "LandingLog":
    try:
        import pyarrow as _  # noqa: F401
    except ImportError:
        raise UserError("lbg landing", "pyarrow is not installed", "pip install 'lbg-runtime[validate]'") from None
    from lbg_runtime.pipeline.landing.log import LandingLog

    return LandingLog(directory)


def _told(error: LandingError | OSError, lane: Path) -> tuple[str, str]:
    """Of which file, and what is wrong with it."""
    if isinstance(error, LandingError):
        return error.path, error.what
    return str(error.filename or lane), str(error.strerror or error)


def _failure_objects(failures: list[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"path": path, "what": what} for path, what in failures]


def _list_lanes(log: "LandingLog", queue: int, lanes: list[dict[str, object]], failures: list[tuple[str, str]]) -> None:
    """Add what there is of a queue, oldest first, and what cannot be told."""
    from lbg_runtime.pipeline.landing.layout import lane_names

    found = []
    for name in lane_names(log.path, queue):
        try:
            view = log.view(name)
            found.append((view.place, _lane_object(view)))
        except (FileNotFoundError, LandingRowsPruned):
            # Pruned meanwhile.
            pass
        except (LandingError, OSError) as error:
            failures.append(_told(error, log.path / name))
    lanes += [told for _, told in sorted(found, key=lambda each: each[0])]


def _lane_object(view: "LaneView") -> dict[str, object]:
    from lbg_runtime.pipeline.landing.lane import is_being_written
    from lbg_runtime.pipeline.landing.usage import lane_bytes

    extent = view.extent()
    moments = [each.t_land for each in view.all_flushes(extent.first_row, extent.rows)]
    return {
        "lane": view.name,
        "queue": view.note.queue,
        "member": view.note.member,
        "epoch": view.note.epoch,
        "host": view.note.host,
        "first_row": extent.first_row,
        "rows": extent.rows,
        "bytes": lane_bytes(view.folder),
        "from": _time(moments[0]) if moments else None,
        "to": _time(moments[-1]) if moments else None,
        "is_being_written": is_being_written(view.folder),
    }


@contextmanager
def _progress(total: int) -> "Iterator[tuple[Progress, TaskID]]":
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        yield bar, bar.add_task("verify", total=total)


def _time(moment_us: int) -> str:
    return datetime.fromtimestamp(moment_us / 1e6, UTC).isoformat(timespec="milliseconds")


def _print(told: dict[str, object]) -> None:
    import orjson

    print(orjson.dumps(told).decode())
