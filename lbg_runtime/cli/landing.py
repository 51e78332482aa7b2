"""`lbg landing`: shows what is in a landing log, checks whether it is whole, and removes what is old."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lbg_runtime.cli.options import DURATION, Json, complain, duration_ms, path_argument, print_json
from lbg_runtime.cli.sizes import bytes_text
from lbg_runtime.model.counted import counted
from lbg_runtime.model.errors import LandingError, LandingRowsPruned, UserError
from lbg_runtime.model.printable import printable

if TYPE_CHECKING:
    from lbg_runtime.pipeline.landing.lane_view import LaneView
    from lbg_runtime.pipeline.landing.log import LandingLog

landing = typer.Typer(no_args_is_help=True, help="The landing log that `lbg land` writes.")

Directory = Annotated[Path, path_argument(help="Folder of the landing log.")]


@landing.command("ls")
def ls(directory: Directory, json: Json = False) -> None:
    """List what has landed: the lanes of each queue, oldest first, with rows, size and times.

    Exit code 1 if a lane is damaged; the damage is reported. `lbg landing verify` looks closer.
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
        print_json({**of_whom, "lanes": lanes, "failures": _failure_objects(failures)})
    else:
        for each in lanes:
            pruned = f", {each['first_row']} pruned" if each["first_row"] else ""
            times = f", {each['from']} to {each['to']}" if each["from"] else ""
            state = " (being written)" if each["is_being_written"] else ""
            rows, size = counted(int(str(each["rows"])), "row"), bytes_text(int(str(each["bytes"])))
            print(printable(f"{each['lane']}: {rows}{pruned}, {size}{times}{state}"))
        for path, what in failures:
            complain(f"{path}: {what}")
        if not lanes and not failures:
            print("nothing has landed", file=sys.stderr)
    raise typer.Exit(1 if failures else 0)


@landing.command()
def verify(directory: Directory, json: Json = False) -> None:
    """Check every byte: CRCs, ids, and rows against their lanes. Exit code 1 if something is damaged.

    Notes, such as those about remains of a process that died, are listed as well, and are not damage.
    """
    from lbg_runtime.pipeline.landing.verify import Grade, Walked, folder_bytes
    from lbg_runtime.pipeline.landing.verify import verify as walk

    with readable(directory):
        log = _open(directory)
    with readable(directory), _progress(folder_bytes(directory)) as on_bytes:
        walked = Walked(on_bytes=on_bytes)
        findings = list(walk(log, walked))
    is_damaged = any(each.grade is Grade.DAMAGE for each in findings)
    if json:
        print_json(
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
        verdict, rows = "damaged" if is_damaged else "whole", counted(walked.rows, "row")
        print(f"{verdict}: {rows} in {counted(walked.segments, 'segment')} of {counted(walked.lanes, 'lane')}")
    raise typer.Exit(1 if is_damaged else 0)


@landing.command()
def prune(
    directory: Directory,
    retention: Annotated[
        str, typer.Option(metavar=DURATION, help="How long rows are kept after they landed, such as 24h.")
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List what would be removed, and remove nothing.")] = False,
    json: Json = False,
) -> None:
    """Remove segments whose rows all landed longer ago than --retention.

    Their ids stay for a week, to detect late copies. This may be done while members land and readers read. Exit code 1
    if a lane is damaged; the rest of that lane stays.
    """
    from lbg_runtime.pipeline.landing.prune import Unpruned
    from lbg_runtime.pipeline.landing.prune import prune as prune_log
    from lbg_runtime.runtime.clock import wall_us

    retention_ms = duration_ms("--retention", retention)
    failures: list[Unpruned] = []
    with readable(directory):
        log = _open(directory)
        pruned = list(prune_log(log.path, wall_us() - retention_ms * 1_000, is_dry=dry_run, failures=failures))
    unpruned = [_told(each.error, directory / each.lane) for each in failures]
    size = sum(each.bytes for each in pruned)
    if json:
        print_json(
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
        print(f"{counted(len(pruned), 'segment')}, {bytes_text(size)}, {'would go' if dry_run else 'removed'}")
        for failure, (path, what) in zip(failures, unpruned, strict=True):
            stays = "the rest of its lane" if "/" in failure.lane else "what it has"
            complain(f"{path}: {what}; {stays} stays")
    raise typer.Exit(1 if unpruned else 0)


@contextmanager
def readable(directory: Path) -> Iterator[None]:
    """Turn file system errors into `UserError`."""
    try:
        yield
    except OSError as error:
        raise UserError(
            str(error.filename or directory), str(error.strerror), "a landing log that can be read"
        ) from None


def time_text(moment_us: int | None) -> str | None:
    """A moment for people and programs, in UTC to the millisecond; None for None."""
    if moment_us is None:
        return None
    return datetime.fromtimestamp(moment_us / 1e6, UTC).isoformat(timespec="milliseconds")


def _open(directory: Path) -> "LandingLog":
    from lbg_runtime.pipeline.landing.log import LandingLog

    return LandingLog(directory)


def _told(error: LandingError | OSError, lane: Path) -> tuple[str, str]:
    """The file, and what is wrong with it."""
    if isinstance(error, LandingError):
        return error.path, error.what
    return str(error.filename or lane), str(error.strerror or error)


def _failure_objects(failures: list[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"path": path, "what": what} for path, what in failures]


def _list_lanes(log: "LandingLog", queue: int, lanes: list[dict[str, object]], failures: list[tuple[str, str]]) -> None:
    """Append the lanes of a queue, oldest first, and the failures to read any of them."""
    from lbg_runtime.pipeline.landing.layout import lane_names, queue_folder

    found = []
    try:
        names = lane_names(log.path, queue)
    except OSError as error:
        failures.append(_told(error, log.path / queue_folder(queue)))
        return
    for name in names:
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
    try:
        moments = [each.t_land for each in view.all_flushes(extent.first_row, extent.rows)]
    except LandingRowsPruned:
        # Between the two looks: what is left of it is listed.
        return _lane_object(view)
    return {
        "lane": view.name,
        "queue": view.note.queue,
        "member": view.note.member,
        "epoch": view.note.epoch,
        "host": view.note.host,
        "first_row": extent.first_row,
        "rows": extent.rows,
        "bytes": lane_bytes(view.folder),
        "from": time_text(min(moments, default=None)),
        "to": time_text(max(moments, default=None)),
        "is_being_written": is_being_written(view.folder),
    }


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("verify", total=total)
        yield lambda size: bar.advance(task, size)
