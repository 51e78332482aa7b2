"""What `lbg run` and `lbg land` have in common: a process that is a member and ends with it."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import typer

from lbg_runtime.admin.stored import load_group_settings
from lbg_runtime.cli.lines import say
from lbg_runtime.cli.log import name_member
from lbg_runtime.config.settings import Settings
from lbg_runtime.model.errors import UserError
from lbg_runtime.runtime.app import App
from lbg_runtime.runtime.shutdown import EXIT_GRACE_S, ExitGuard


def member_settings(config: Path, status_port: int | None, journal: Path | None) -> Settings:
    """The settings, some replaced by those of the command line; raises `UserError`."""
    settings = load_group_settings(config)
    if status_port is not None:
        address = settings.ops.status
        if address is None:
            expected = "an ops.status, whose port it replaces"
            raise UserError("--status-port", f"{status_port}, and no ops.status", expected)
        settings = settings.with_status(replace(address, port=status_port))
    return settings if journal is None else settings.with_journal(journal)


def run_member(
    app: App, parent_pid: int | None, *, as_json: bool, more: Callable[[], Mapping[str, object]] = dict
) -> NoReturn:
    """Run the member until it is asked to leave, and exit with the code for how it left.

    With `as_json` how it left is printed at the end, together with what `more` returns.
    """
    # A process that was started by another one of ours may share its terminal with more of them.
    name_member(app.membership.member, is_alone=parent_pid is None)
    report = app.run_sync(parent_pid=parent_pid, ends_process=True)
    if as_json:
        left = {
            "member": app.membership.member,
            "clean": report.is_clean,
            "left_behind": report.left_behind,
            "still_bound": report.still_bound,
            **more(),
        }
        # Signals are ignored by now: a reader that does not read this would keep the process alive.
        guard = ExitGuard(report.exit_code)
        guard.arm(EXIT_GRACE_S)
        say(left)
        guard.disarm()
    raise typer.Exit(report.exit_code)
