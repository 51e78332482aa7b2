"""`lbg dashboard`: the live page of a group, in a process of its own."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lbg_runtime.cli.options import Config, ExitWithParent, group_settings, listen_address
from lbg_runtime.runtime.stop import starting_parent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lbg_runtime.config.listen_address import ListenAddress
    from lbg_runtime.config.settings import Settings

READY = "lbg dashboard: "
"""Begins the line on standard error that gives the page's address."""


def dashboard(
    config: Config = Path("config.yaml"),
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address of the page; with port 0, the system chooses a port.")
    ] = "127.0.0.1:0",
    status: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Address of a member's status API, for rates and queues that stand still; repeatable. "
            "Default: ops.status.",
        ),
    ] = None,
    exit_with_parent: ExitWithParent = False,
) -> None:
    """Show a running group as a live page until SIGTERM or SIGINT: its members and queues, and every move.

    It listens to the messages that members send each other, but is not a member itself, and moves nothing. The page's
    address is printed on standard error.
    """
    # Before the imports, which take their time.
    parent_pid = starting_parent() if exit_with_parent else None
    import uvloop

    from lbg_runtime.dashboard.server import check_address

    settings = group_settings(config)
    address = listen_address("--listen", listen)
    if status is not None:
        members = [listen_address("--status", each) for each in status]
    else:
        # With port 0, only the member knows where it listens.
        members = [settings.ops.status] if settings.ops.status is not None and settings.ops.status.port else []
    token = settings.ops.status_token.get_secret_value() if settings.ops.status_token else None
    check_address(address, token)
    uvloop.run(_show(settings, address, token, members, parent_pid))


async def _show(
    settings: "Settings",
    address: "ListenAddress",
    token: str | None,
    members: "Sequence[ListenAddress]",
    parent_pid: int | None,
) -> None:
    import asyncio
    import sys

    from lbg_runtime.cli.connecting import connected_unless_stopped
    from lbg_runtime.cli.group.homes import derived_placement, group_queues
    from lbg_runtime.core.group.picture import GroupPicture
    from lbg_runtime.core.group.placement import Placement
    from lbg_runtime.dashboard.server import DashboardServer
    from lbg_runtime.dashboard.watch import GroupWatch
    from lbg_runtime.model.ids import QueueName
    from lbg_runtime.runtime.observer import observing

    group = settings.group
    names = group.shape().queue_names()

    def find_homes(picture: GroupPicture) -> "tuple[Sequence[QueueName], Placement | None]":
        queues = group_queues(picture, names)
        return queues, derived_placement(picture, queues)

    unwanted = asyncio.Event()
    async with connected_unless_stopped(
        observing(settings), lambda _: unwanted.set(), parent_pid=parent_pid
    ) as observer:
        if observer is None:
            return
        watch = GroupWatch(settings, observer, find_homes, members)
        server = DashboardServer(watch, group.shape(), group.hash_function, address, token)
        # Outside the task group: an address that cannot be bound is the user's mistake, not an exception group.
        async with watch, server, asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(watch.run())
            print(f"{READY}{server.url}", file=sys.stderr, flush=True)
            # No bound: the page is shown until it is no longer wanted.
            await unwanted.wait()
            watching.cancel()
