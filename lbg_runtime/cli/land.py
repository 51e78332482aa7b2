"""`lbg land`: a member that puts the messages of its group into a landing log."""

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from lbg_runtime.cli.options import (
    DURATION,
    SIZE,
    Config,
    ExitWithParent,
    Journal,
    Json,
    MemberCount,
    MemberId,
    MemberIndex,
    StatusPort,
    duration_ms,
    path_option,
    size_bytes,
)
from lbg_runtime.runtime.stop import starting_parent


class Sync(Enum):
    """How far a flush has to get before its messages are acknowledged."""

    BATCH = "batch"
    NONE = "none"


def land(
    directory: Annotated[Path, path_option("--dir", help="Folder of the landing log, shared by all members.")],
    config: Config = Path("config.yaml"),
    fsync: Annotated[
        Sync, typer.Option(help="batch: each flush is on the disk. none: the operating system decides when.")
    ] = Sync.BATCH,
    flush_rows: Annotated[
        int, typer.Option(min=1, max=100_000, help="Number of messages at which a flush begins.")
    ] = 1_000,
    flush_ms: Annotated[
        int,
        typer.Option(
            min=0,
            max=10_000,
            help="How long the first message of a flush waits for others. The next of its key waits too.",
        ),
    ] = 20,
    quota: Annotated[
        str | None,
        typer.Option(metavar=SIZE, help="Size of the log, such as 20G, at which no more messages are taken."),
    ] = None,
    retention: Annotated[
        str | None,
        typer.Option(metavar=DURATION, help="How long rows are kept after they landed, such as 24h. Default: forever."),
    ] = None,
    member_index: MemberIndex = None,
    member_count: MemberCount = None,
    member_id: MemberId = None,
    journal: Journal = None,
    status_port: StatusPort = None,
    exit_with_parent: ExitWithParent = False,
    json: Json = False,
) -> None:
    """Land the group's messages until SIGTERM or SIGINT, then drain. Exit code 1 if something was cancelled or left.

    A message is acknowledged when it is durable. Several members may land into one log; they may leave or die at any
    time. The handlers of the settings are ignored. With --json, one object at the
    end says how the member left.
    """
    # Before the imports, which take their time.
    parent_pid = starting_parent() if exit_with_parent else None
    quota_bytes = None if quota is None else size_bytes("--quota", quota)
    # With 0 whoever means "no retention" would lose all that has landed.
    retention_ms = None if retention is None else duration_ms("--retention", retention, least_ms=1_000)
    from lbg_runtime.cli.garbage import collect_seldom
    from lbg_runtime.cli.log import configure_log
    from lbg_runtime.cli.member import member_settings, run_member
    from lbg_runtime.pipeline.landing.lander import LandingOptions, lander_app
    from lbg_runtime.pipeline.landing.open_lane import FlushLimits

    configure_log()
    settings = member_settings(config, status_port, journal)
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
    collect_seldom()
    run_member(app, parent_pid, as_json=json, more=lambda: {"landed": lander.landed_count})
