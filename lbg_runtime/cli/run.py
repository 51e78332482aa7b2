"""`lbg run`: one member of the group."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer


def run(
    config: Annotated[Path, typer.Option(help="File with the settings.")] = Path("config.yaml"),
    member_index: Annotated[int | None, typer.Option(help="This member's number from 0, if counted.")] = None,
    member_count: Annotated[int | None, typer.Option(help="Planned members.")] = None,
    member_id: Annotated[str | None, typer.Option(help="This member's name, if not counted.")] = None,
    journal: Annotated[Path | None, typer.Option(help="Directory for the journal, instead of the settings'.")] = None,
    exit_with_parent: Annotated[
        bool, typer.Option("--exit-with-parent", help="Leave when the process that started this one is gone.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="At the end, print how it left as one JSON object.")] = False,
) -> None:
    """Handle the group's messages until SIGTERM or SIGINT, then drain. Exit code 1 if something was cancelled or left.

    A second signal cancels what is being handled.
    """
    # Before the imports, which take their time.
    parent_pid = os.getppid() if exit_with_parent else None
    import orjson

    from lbg_runtime.cli.log import configure_log
    from lbg_runtime.config.load import load_settings
    from lbg_runtime.runtime.app import App
    from lbg_runtime.runtime.registry import load_handlers

    configure_log()
    # Handler modules lie where the command is given, as they do for `python -m`.
    sys.path.insert(0, str(Path.cwd()))
    settings = load_settings(config)
    if journal is not None:
        settings = settings.with_journal(journal)
    app = App(
        load_handlers(settings.handlers),
        settings,
        member_index=member_index,
        member_count=member_count,
        member_id=member_id,
    )
    report = app.run_sync(parent_pid=parent_pid)
    if json:
        left = {
            "member": app.membership.member,
            "clean": report.is_clean,
            "left_behind": report.left_behind,
            "still_bound": report.still_bound,
        }
        print(orjson.dumps(left).decode())
    raise typer.Exit(report.exit_code)
