"""`lbg land`: a member that puts the messages of its group into a landing log."""

import gc
import os
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from lbg_runtime.cli.sizes import SIZE_FORM, parse_bytes
from lbg_runtime.config.duration import DURATION_FORM, parse_duration_ms
from lbg_runtime.model.errors import UserError


class Sync(Enum):
    """Until where a flush goes before its messages are acknowledged."""

    BATCH = "batch"
    NONE = "none"


def land(
    directory: Annotated[Path, typer.Option("--dir", help="Folder of the landing log; all members share it.")],
    config: Annotated[Path, typer.Option(help="File with the settings; its handlers have no part.")] = Path(
        "config.yaml"
    ),
    fsync: Annotated[
        Sync, typer.Option(help="batch: on the disk with each flush. none: with the operating system.")
    ] = Sync.BATCH,
    flush_rows: Annotated[int, typer.Option(min=1, max=100_000, help="Messages that are flushed at once.")] = 1_000,
    flush_ms: Annotated[
        int,
        typer.Option(min=0, max=10_000, help="How long the first of them waits for others; a key's next waits too."),
    ] = 20,
    quota: Annotated[
        str | None, typer.Option(help="Size of the log, such as 20G, at which nothing more is taken.")
    ] = None,
    retention: Annotated[
        str | None, typer.Option(help="How long rows are kept, such as 24h; for ever without it.")
    ] = None,
    member_index: Annotated[int | None, typer.Option(help="This member's number from 0, if counted.")] = None,
    member_count: Annotated[int | None, typer.Option(help="Planned members.")] = None,
    member_id: Annotated[str | None, typer.Option(help="This member's name, if not counted.")] = None,
    journal: Annotated[Path | None, typer.Option(help="Directory for the journal, instead of the settings'.")] = None,
    status_port: Annotated[
        int | None, typer.Option(min=0, max=65_535, help="Port of ops.status, instead of the settings'.")
    ] = None,
    exit_with_parent: Annotated[
        bool, typer.Option("--exit-with-parent", help="Leave when the process that started this one is gone.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="At the end, print how it left as one JSON object.")] = False,
) -> None:
    """Land the group's messages until SIGTERM or SIGINT, then drain. Exit code 1 if something was cancelled or left.

    A message is acknowledged when it is durable. Several members may land into one log, and leave and die.
    """
    # Before the imports, which take their time.
    parent_pid = os.getppid() if exit_with_parent else None
    quota_bytes = None if quota is None else _parsed("--quota", quota)
    retention_ms = None if retention is None else _parsed_duration("--retention", retention)
    _need_pyarrow()
    import orjson

    from lbg_runtime.admin.stored import load_group_settings
    from lbg_runtime.cli.broker import GC_THRESHOLDS
    from lbg_runtime.cli.check import with_status_port
    from lbg_runtime.cli.log import configure_log
    from lbg_runtime.pipeline.landing.lander import LandingOptions, lander_app
    from lbg_runtime.pipeline.landing.open_lane import FlushLimits

    configure_log()
    settings = with_status_port(load_group_settings(config), status_port)
    if journal is not None:
        settings = settings.with_journal(journal)
    options = LandingOptions(
        directory,
        FlushLimits(flush_rows, flush_ms),
        is_synced=fsync is Sync.BATCH,
        quota_bytes=quota_bytes,
        retention_ms=retention_ms,
    )
    app, lander = lander_app(
        settings, options, member_index=member_index, member_count=member_count, member_id=member_id
    )
    # Thousands of messages wait for the disk at a time, and none of them is garbage.
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    report = app.run_sync(parent_pid=parent_pid)
    if json:
        left = {
            "member": app.membership.member,
            "landed": lander.landed_count,
            "clean": report.is_clean,
            "left_behind": report.left_behind,
            "still_bound": report.still_bound,
        }
        print(orjson.dumps(left).decode())
    raise typer.Exit(report.exit_code)


def _parsed(option: str, text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError:
        raise UserError(option, repr(text), SIZE_FORM) from None


def _parsed_duration(option: str, text: str) -> int:
    try:
        return parse_duration_ms(text)
    except ValueError:
        raise UserError(option, repr(text), DURATION_FORM) from None


def _need_pyarrow() -> None:
    try:
        import pyarrow as _  # noqa: F401
    except ImportError:
        raise UserError("lbg land", "pyarrow is not installed", "pip install 'lbg-runtime[validate]'") from None
