"""`lbg run`: one member of the group, or several on one host."""

import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lbg_runtime.cli.importing import importing
from lbg_runtime.model.errors import UserError

if TYPE_CHECKING:
    from lbg_runtime.config.settings import Settings

LAST_PORT = 65_535


def run(
    config: Annotated[Path, typer.Option(help="File with the settings.")] = Path("config.yaml"),
    member_index: Annotated[int | None, typer.Option(help="This member's number from 0, if counted.")] = None,
    member_count: Annotated[int | None, typer.Option(help="Planned members.")] = None,
    member_id: Annotated[str | None, typer.Option(help="This member's name, if not counted.")] = None,
    processes: Annotated[
        int, typer.Option(min=1, max=256, help="Members to run, each in a process of its own, as each uses one core.")
    ] = 1,
    journal: Annotated[Path | None, typer.Option(help="Directory for the journal, instead of the settings'.")] = None,
    status_port: Annotated[
        int | None, typer.Option(min=0, max=LAST_PORT, help="Port of ops.status, instead of the settings'.")
    ] = None,
    exit_with_parent: Annotated[
        bool, typer.Option("--exit-with-parent", help="Leave when the process that started this one is gone.")
    ] = False,
    reload: Annotated[
        bool, typer.Option("--reload", help="Start anew when a Python file here, or the settings, changes.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="At the end, print how it left as one JSON object.")] = False,
) -> None:
    """Handle the group's messages until SIGTERM or SIGINT, then drain. Exit code 1 if something was cancelled or left.

    A second signal cancels what is being handled. With several processes, each is a member of its own, named ID-0,
    ID-1 and so on; one that ends by itself is started again, and a status port goes up by one for each.
    """
    # Before the imports, which take their time.
    parent_pid = os.getppid() if exit_with_parent else None
    with importing():
        import orjson

        from lbg_runtime.admin.stored import load_group_settings
        from lbg_runtime.cli.check import check_client_name, with_status_port
        from lbg_runtime.cli.log import configure_log
        from lbg_runtime.runtime.app import App
        from lbg_runtime.runtime.handlers.registry import load_handlers
        from lbg_runtime.runtime.shutdown import EXIT_GRACE_S, ExitGuard

    configure_log()
    # Handler modules lie where the command is given, as they do for `python -m`.
    sys.path.insert(0, str(Path.cwd()))
    if reload:
        raise typer.Exit(_run_reloaded(config, processes, parent_pid))
    settings = with_status_port(load_group_settings(config), status_port)
    if processes > 1:
        if json or member_index is not None or member_count is not None:
            raise UserError("--processes", str(processes), "one process with --json, --member-index or --member-count")
        raise typer.Exit(_run_siblings(processes, settings, config, member_id, journal, parent_pid))
    if journal is not None:
        settings = settings.with_journal(journal)
    if settings.sidecar is None:
        make = partial(App, load_handlers(settings.handlers), settings)
    else:
        from lbg_runtime.sidecar.sidecar import sidecar_app

        make = partial(sidecar_app, settings)
    app = make(member_index=member_index, member_count=member_count, member_id=member_id)
    check_client_name(settings, app.membership.member)
    report = app.run_sync(parent_pid=parent_pid, ends_process=True)
    if json:
        left = {
            "member": app.membership.member,
            "clean": report.is_clean,
            "left_behind": report.left_behind,
            "still_bound": report.still_bound,
        }
        # Signals are ignored by now: whoever does not read this would keep the process.
        guard = ExitGuard(report.exit_code)
        guard.arm(EXIT_GRACE_S)
        print(orjson.dumps(left).decode(), flush=True)
        guard.disarm()
    raise typer.Exit(report.exit_code)


def _run_reloaded(config: Path, processes: int, parent_pid: int | None) -> int:
    import asyncio

    if processes > 1:
        raise UserError("--reload", f"with {processes} processes", "one")
    try:
        from lbg_runtime.cli.reload import Reloader, UserFiles, member_command
    except ImportError:
        raise UserError("--reload", "no watchfiles", "pip install 'lbg-runtime[dev]'") from None
    files = UserFiles(Path.cwd(), config)

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
    import socket

    from lbg_runtime.config.connection_settings import TransportKind
    from lbg_runtime.config.settings import MembershipMode
    from lbg_runtime.runtime.membership import find_membership
    from lbg_runtime.runtime.siblings import Siblings

    if settings.sidecar is not None:
        raise UserError("--processes", f"{count} with a sidecar", "one, as it has one application and one port")
    if settings.connection.transport is TransportKind.EMBEDDED:
        raise UserError(
            "--processes", f"{count} with connection.transport: embedded", "one, as each would be a broker of its own"
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
            f"a status port up to {LAST_PORT + 1 - count}, as it goes up by one for each",
        )
    queue_count = settings.group.queue_count
    name = find_membership(
        settings.membership, queue_count, os.environ, socket.gethostname(), os.getpid(), None, None, member_id
    ).member
    commands = []
    for number in range(count):
        command = [sys.executable, "-m", "lbg_runtime.cli", "run", "--config", str(config), "--exit-with-parent"]
        command += ["--member-id", f"{name}-{number}"]
        command += ["--journal", str(journal)] if journal is not None else []
        if address is not None:
            # 0 is any that is free, for each of them.
            command += ["--status-port", str(address.port + number if address.port else 0)]
        commands.append(command)

    siblings = Siblings(commands, settings.rebind.drain_timeout_ms)
    return asyncio.run(siblings.run(parent_pid=parent_pid, ends_process=True))
