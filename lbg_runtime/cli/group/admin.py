"""`lbg group create`, `apply`, `plan`, `verify`, `list`, `show`, `delete`, `evict`: a group on the broker, over SEMP.

The settings say how a group is to be: `group`, the username and password of `connection`, and in `semp` the account
that administers it. Exit code 1 if something is refused, in the way, or not as it should be.
"""

import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from lbg_runtime.cli.importing import users_modules
from lbg_runtime.cli.options import Config, Json, complain, group_settings, print_json
from lbg_runtime.cli.table import print_table
from lbg_runtime.model.errors import ConfigError, GroupMissing, UserError
from lbg_runtime.model.printable import printable

if TYPE_CHECKING:
    from lbg_runtime.admin.executor import OnStep
    from lbg_runtime.admin.group import GroupAdmin, Plan
    from lbg_runtime.admin.plan import Step
    from lbg_runtime.admin.sight import QueueSight
    from lbg_runtime.admin.spec import GroupSpec, StoredGroup
    from lbg_runtime.config.settings import Settings
    from lbg_runtime.model.failure import Then
    from lbg_runtime.model.ids import QueueName
    from lbg_runtime.semp.client import SempClient

    _Shown = tuple[StoredGroup, tuple[QueueName, ...], Mapping[QueueName, QueueSight]]

T = TypeVar("T")

Name = Annotated[str, typer.Argument(help="Name of the group.")]

_DEFAULT_CONFIG = Path("config.yaml")


def create(config: Config = _DEFAULT_CONFIG, json: Json = False) -> None:
    """Create the group's queues, its account and its stored settings. None of them may exist yet.

    A creation that fails is undone, unless somebody else may count on its queues already. What is left then, or after a
    kill, is finished with `lbg group apply`.
    """
    _carry_out(_load(config), json, is_new=True)


def apply(config: Config = _DEFAULT_CONFIG, json: Json = False) -> None:
    """Make the broker match the settings, and change nothing else: print the plan, then carry it out."""
    _carry_out(_load(config), json, is_new=False)


def plan(config: Config = _DEFAULT_CONFIG, json: Json = False) -> None:
    """Print what `apply` would do. Exit code 1 if it would refuse."""
    made = _look(_load(config), json)
    raise typer.Exit(1 if made.problems else 0)


def verify(config: Config = _DEFAULT_CONFIG, json: Json = False) -> None:
    """Compare the broker with the settings. Exit code 1 if they differ."""
    made = _look(_load(config), json)
    raise typer.Exit(0 if made.is_clean else 1)


def list_groups(config: Config = _DEFAULT_CONFIG, json: Json = False) -> None:
    """List the groups whose settings are stored in the VPN."""
    from lbg_runtime.cli.group.plan_text import groups_as_table

    settings = group_settings(config)
    groups = _run(settings, lambda admin, _: admin.stored_groups())
    if json:
        print_json({"vpn": settings.connection.vpn, "groups": [group.as_object() for group in groups]})
    elif groups:
        print_table(groups_as_table(groups))
    else:
        print(f"no groups in VPN {settings.connection.vpn}")


def show(name: Name, config: Config = _DEFAULT_CONFIG, json: Json = False) -> None:
    """Show a group's stored settings, and its queues as the broker sees them."""
    from lbg_runtime.admin.backlog import find_shard_queues
    from lbg_runtime.admin.sight import read_sights
    from lbg_runtime.cli.group.plan_text import groups_as_table, sights_as_object, sights_as_table

    settings = group_settings(config)
    vpn = settings.connection.vpn

    async def look(admin: "GroupAdmin", client: "SempClient") -> "_Shown":
        stored = await _find_stored(admin, name)
        if stored is None:
            raise GroupMissing(name)
        queues = stored.shape.queue_names()
        found = await find_shard_queues(client, vpn, name)
        return stored, queues, await read_sights(client, vpn, {each: found[each] for each in queues if each in found})

    stored, queues, sights = _run(settings, look)
    now_s = int(time.time())
    if json:
        print_json({**stored.as_object(), "queues": sights_as_object(sights, now_s)})
        return
    print_table(groups_as_table([stored]))
    print_table(sights_as_table(queues, sights, now_s))


def delete(
    name: Name,
    config: Config = _DEFAULT_CONFIG,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Delete even if members are bound or may be about to come back, queues hold messages, which are lost, "
            "or the VPN is not up.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Delete a group: its queues, its account and its stored settings. Refused while messages or members are left."""
    settings = group_settings(config)

    async def remove(admin: "GroupAdmin", _: "SempClient") -> list[str]:
        spec = await _spec_to_delete(admin, settings, name)
        with _shown_steps(None, quiet=json) as on_step:
            return [str(ref) for ref in await admin.delete(spec, force=force, on_step=on_step)]

    kept = _run(settings, remove)
    if json:
        print_json({"group": name, "deleted": True, "kept": kept})
    else:
        print(printable(f"group {name} is deleted"))
    for ref in kept:
        complain(f"{ref} is left: {_semp_username(settings)} may not delete it")


def evict(
    member: Annotated[str, typer.Argument(help="Name of the member, as `lbg group status` shows it.")],
    config: Config = _DEFAULT_CONFIG,
    json: Json = False,
) -> None:
    """Have the broker end a member's connection, so that its queues go to the standbys. Exit code 1 if it has none.

    This is for a member that hangs and does not answer. If it can, it comes back, behind the others.
    """
    from lbg_runtime.admin.sight import disconnect
    from lbg_runtime.runtime.membership import checked_id

    checked_id("MEMBER", member)
    settings = group_settings(config)
    if (client_name := settings.connection.client_name) is not None:
        expected = (
            "none: it is not known which member has this name; the broker's administration can disconnect the client"
        )
        raise ConfigError("connection.client_name", client_name, expected)
    group = settings.group.name
    ended = _run(settings, lambda _, client: disconnect(client, settings.connection.vpn, group, member))
    if json:
        print_json({"member": member, "disconnected": ended})
    for name in ended if not json else ():
        print(printable(f"disconnected {name}"))
    if not ended:
        complain(f"no client {group}/{member}/HOST/PROCESS is connected")
        raise typer.Exit(1)


# -- parts


def _load(config: Path) -> "Settings":
    """The settings for commands that make a group, from the file alone: all others may ask the broker for them."""
    from lbg_runtime.cli.log import configure_log
    from lbg_runtime.config.load import load_settings

    configure_log()
    return load_settings(config)


def _run(settings: "Settings", act: "Callable[[GroupAdmin, SempClient], Awaitable[T]]") -> T:
    import uvloop

    from lbg_runtime.admin.account import open_semp
    from lbg_runtime.admin.group import GroupAdmin
    from lbg_runtime.runtime.clock import steady_s

    async def run() -> T:
        async with open_semp(settings) as client:
            return await act(GroupAdmin(client, settings.connection.vpn, steady_s), client)

    return uvloop.run(run())


def _look(settings: "Settings", json: bool) -> "Plan":
    """Print the plan, and what is in its way."""
    from lbg_runtime.admin.settings import spec_of
    from lbg_runtime.cli.group.plan_text import plan_as_object

    spec = spec_of(settings, _ends_of_handlers(settings))
    made = _run(settings, lambda admin, _: admin.plan(spec))
    if json:
        print_json({"group": settings.group.name, **plan_as_object(made)})
    else:
        _print_plan(made)
    return made


def _carry_out(settings: "Settings", json: bool, *, is_new: bool) -> None:
    from lbg_runtime.admin.settings import spec_of
    from lbg_runtime.cli.group.plan_text import plan_as_object

    spec = spec_of(settings, _ends_of_handlers(settings))

    async def work(admin: "GroupAdmin", _: "SempClient") -> "Plan":
        made = await admin.plan(spec, is_new=is_new)
        if not json:
            _print_plan(made)
        if not made.problems:
            with _shown_steps(len(made.steps), quiet=json) as on_step:
                await (admin.create if is_new else admin.apply)(made, on_step)
        return made

    made = _run(settings, work)
    if json:
        print_json({"group": settings.group.name, "done": not made.problems, **plan_as_object(made)})
    if made.problems:
        raise typer.Exit(1)


def _ends_of_handlers(settings: "Settings") -> "frozenset[Then] | None":
    """What handlers ask for by their own `then`; None if that is not known. An administrator need not have the
    application: then this is said, and only the settings count."""
    from lbg_runtime.runtime.handlers.loading import load_handlers
    from lbg_runtime.runtime.handlers.routes import policies_of

    if not settings.handlers:
        # A sidecar's application has no `then` of its own; a program may bring handlers that no setting names.
        return None if settings.sidecar is None else frozenset()
    try:
        with users_modules():
            handlers = load_handlers(settings.handlers)
        policies = policies_of(handlers, settings.failure)
    except UserError as error:
        complain(f"not looked at: which queues handlers need by a `then` of their own; failure.then counts ({error})")
        return None
    return frozenset(policy.then for policy in policies if policy.then is not None)


async def _find_stored(admin: "GroupAdmin", name: str) -> "StoredGroup | None":
    return next((group for group in await admin.stored_groups() if group.shape.name == name), None)


async def _spec_to_delete(admin: "GroupAdmin", settings: "Settings", name: str) -> "GroupSpec":
    """The stored settings of the group; if there are none, as after an interruption, those of the file."""
    from lbg_runtime.admin.settings import spec_of

    stored = await _find_stored(admin, name)
    if stored is not None:
        return stored.to_spec()
    if settings.group.name != name:
        raise GroupMissing(name)
    return spec_of(settings)


def _print_plan(made: "Plan") -> None:
    from lbg_runtime.cli.group.plan_text import plan_lines

    for line in plan_lines(made):
        print(printable(line))
    for problem in made.problems:
        complain(problem)


def _shown_steps(total: int | None, *, quiet: bool) -> "AbstractContextManager[OnStep]":
    """A progress bar, if there is a terminal to show it on."""
    if quiet or not sys.stderr.isatty():
        return nullcontext(lambda _: None)
    return _step_bar(total)


@contextmanager
def _step_bar(total: int | None) -> "Iterator[OnStep]":
    from rich.console import Console
    from rich.progress import Progress, TextColumn

    # Names are plain text, whatever brackets they contain.
    columns = (TextColumn("{task.description}", markup=False), *Progress.get_default_columns()[1:])
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=total)

        def on_step(step: "Step") -> None:
            progress.update(task, advance=1, description=printable(str(step.ref)))

        yield on_step


def _semp_username(settings: "Settings") -> str:
    return settings.semp.username if settings.semp is not None else ""
