"""`lbg run`: one member of the group, or several on one host."""

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lbg_runtime.cli.importing import current_folder, importing
from lbg_runtime.cli.options import (
    LAST_PORT,
    Config,
    ExitWithParent,
    Journal,
    Json,
    MemberCount,
    MemberId,
    MemberIndex,
    StatusPort,
)
from lbg_runtime.model.errors import UserError
from lbg_runtime.runtime.stop import starting_parent

if TYPE_CHECKING:
    from lbg_runtime.config.settings import Settings


def run(
    config: Config = Path("config.yaml"),
    member_index: MemberIndex = None,
    member_count: MemberCount = None,
    member_id: MemberId = None,
    processes: Annotated[
        int, typer.Option(min=1, max=256, help="Members to run, each in a process of its own. A member uses one core.")
    ] = 1,
    journal: Journal = None,
    status_port: StatusPort = None,
    exit_with_parent: ExitWithParent = False,
    reload: Annotated[
        bool, typer.Option("--reload", help="Restart when the settings or a Python file below this directory change.")
    ] = False,
    json: Json = False,
) -> None:
    """Handle the group's messages until SIGTERM or SIGINT, then drain. Exit code 1 if something was cancelled or left.

    A second signal cancels running handlers. With several processes, each is a member of its own, named ID-0, ID-1 and
    so on. A process that ends by itself is started again. A status port is increased by one for each process. With
    --json, one object at the end says how the member left.
    """
    # Before the imports, which take their time.
    parent_pid = starting_parent() if exit_with_parent else None
    with importing():
        from lbg_runtime.cli.log import configure_log
        from lbg_runtime.cli.member import member_settings, run_member
        from lbg_runtime.cli.users_log import users_log
        from lbg_runtime.runtime.app import App
        from lbg_runtime.runtime.handlers.loading import load_handlers

    configure_log()
    # Handler modules are also looked up in the current folder, as with `python -m`.
    sys.path.insert(0, str(current_folder()))
    if (processes > 1 or reload) and config.exists() and not config.is_file():
        # Several processes read it, and what the first one has read of a pipe is gone for the others.
        raise UserError("--config", str(config), "a file, with --processes or --reload")
    if reload:
        raise typer.Exit(_run_reloaded(config, processes, parent_pid))
    settings = member_settings(config, status_port, journal)
    if processes > 1:
        if json or member_index is not None or member_count is not None:
            other = "--json" if json else "--member-index" if member_index is not None else "--member-count"
            raise UserError("--processes", f"{processes}, with {other}", "1")
        raise typer.Exit(_run_siblings(processes, settings, config, member_id, journal, parent_pid))
    if settings.sidecar is None:
        with users_log():
            make = partial(App, load_handlers(settings.handlers), settings)
    else:
        from lbg_runtime.sidecar.sidecar import sidecar_app

        make = partial(sidecar_app, settings)
    app = make(member_index=member_index, member_count=member_count, member_id=member_id)
    run_member(app, parent_pid, as_json=json)


def _run_reloaded(config: Path, processes: int, parent_pid: int | None) -> int:
    import asyncio

    if processes > 1:
        raise UserError("--reload", f"with {processes} processes", "one")
    from lbg_runtime.cli.reload import Reloader, UserFiles, member_command

    files = UserFiles(current_folder(), config)

    async def run() -> int:
        reloader = Reloader(member_command(sys.argv[1:]), files)
        return await reloader.run(parent_pid=parent_pid, ends_process=True)

    return asyncio.run(run())


def _run_siblings(
    count: int,
    settings: "Settings",
    config: Path,
    member_id: str | None,
    journal: Path | None,
    parent_pid: int | None,
) -> int:
    import asyncio

    from lbg_runtime.config.connection_settings import TransportKind
    from lbg_runtime.config.settings import MembershipMode
    from lbg_runtime.runtime.membership import membership_of_process
    from lbg_runtime.runtime.siblings import Siblings

    if settings.sidecar is not None:
        raise UserError("--processes", f"{count} with a sidecar", "one, as it has one application and one port")
    if settings.connection.transport is TransportKind.EMBEDDED:
        raise UserError(
            "--processes", f"{count} with connection.transport: embedded", "one, as each would be a broker of its own"
        )
    if (client_name := settings.connection.client_name) is not None:
        raise UserError(
            "--processes",
            f"{count} with connection.client_name: {client_name}",
            "one, or each would end the other's session",
        )
    if settings.membership.mode is not MembershipMode.DISCOVERED:
        raise UserError(
            "--processes", f"{count} of mode {settings.membership.mode.value}", "membership.mode: discovered"
        )
    address = settings.ops.status
    if address is not None and address.port + count - 1 > LAST_PORT:
        raise UserError(
            "--processes",
            f"{count} with status port {address.port}",
            f"a status port up to {LAST_PORT + 1 - count}, as it is increased by one for each process",
        )
    name = membership_of_process(settings, member_id=member_id).member
    commands = []
    for number in range(count):
        command = [sys.executable, "-m", "lbg_runtime.cli", "run", "--config", str(config), "--exit-with-parent"]
        command += ["--member-id", f"{name}-{number}"]
        command += ["--journal", str(journal)] if journal is not None else []
        if address is not None:
            # 0 means any free port, for each of them.
            command += ["--status-port", str(address.port + number if address.port else 0)]
        commands.append(command)

    siblings = Siblings(commands, settings.rebind.drain_timeout_ms)
    return asyncio.run(siblings.run(parent_pid=parent_pid, ends_process=True))
