"""`lbg group`: the state of a group, the owner changes of its queues, and its administration (`admin.py`)."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lbg_runtime.cli.group.admin import apply, create, delete, evict, list_groups, plan, print_table, show, verify
from lbg_runtime.cli.group.restripe import restripe
from lbg_runtime.cli.options import Config, Json, ListenFor
from lbg_runtime.model.errors import ConfigError, SempError
from lbg_runtime.model.printable import printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lbg_runtime.admin.sight import QueueSight
    from lbg_runtime.cli.group.text import FedMember
    from lbg_runtime.config.settings import Settings
    from lbg_runtime.core.group.picture import GroupPicture
    from lbg_runtime.model.ids import QueueName
    from lbg_runtime.runtime.control_reader import OtherVersion

    Sights = Mapping[QueueName, QueueSight]

group = typer.Typer(no_args_is_help=True, help="Look at a group from outside, and administer it.")
group.command()(create)
group.command("list")(list_groups)
group.command()(show)
group.command()(plan)
group.command()(apply)
group.command()(verify)
group.command()(delete)
group.command()(evict)
group.command()(restripe)


@group.command()
def status(
    config: Config = Path("config.yaml"),
    listen: ListenFor = None,
    json: Json = False,
) -> None:
    """Ask the members of a running group for its state. Exit code 3 if nobody was heard.

    The command is not a member, binds to no queue, and moves nothing. If the settings have `semp`, it also asks the
    broker how deep the queues are and which client each of them feeds.
    """
    import uvloop

    from lbg_runtime.admin.stored import load_group_settings
    from lbg_runtime.cli.group.homes import group_queues
    from lbg_runtime.cli.group.plan_text import sights_as_object, sights_as_table
    from lbg_runtime.cli.group.text import otherwise_at_members, picture_as_object, surplus_queues
    from lbg_runtime.cli.log import configure_log
    from lbg_runtime.cli.options import print_json

    configure_log()
    settings = load_group_settings(config)
    listen_ms = listening_ms(settings, listen)
    picture, other, sights = uvloop.run(_look(settings, listen_ms))
    queues, ours = settings.group.shape().queue_names(), settings.group.shared()
    otherwise = otherwise_at_members(picture, ours)
    if json:
        told = {"group": settings.group.name, "listened_ms": listen_ms, **picture_as_object(picture, queues)}
        told["otherwise_at_members"] = otherwise
        told["not_understood"] = None if other is None else {"found": other.found, "expected": other.expected}
        if sights is not None:
            told["broker"] = sights_as_object(sights)
            told["surplus"] = surplus_queues(picture, queues, sights)
        print_json(told)
    else:
        if picture.members:
            # Members of another version are not heard either, and they are well.
            fed = {} if other is not None or sights is None else _fed_members(settings.group.name, sights)
            _print(picture, queues, fed)
        for name, values in otherwise.items():
            theirs = ", ".join(f"{value} ({', '.join(members)})" for value, members in values.items())
            print(printable(f"not as in {config}: {name}: {ours[name]} there, and {theirs}"))
        if sights is not None:
            surplus = surplus_queues(picture, queues, sights)
            print_table(sights_as_table([*group_queues(picture, queues), *surplus], sights))
            if surplus:
                print(f"surplus: {', '.join(surplus)}, on the broker and named by no member")
    raise typer.Exit(0 if picture.members else tell_nobody_heard(settings, listen_ms))


@group.command()
def moves(
    directory: Annotated[
        Path, typer.Argument(help="Directory with the journals of one run, which may still be going on.")
    ],
    json: Json = False,
) -> None:
    """List every owner change that members recorded: its cause, who decided it, and what it cost.

    Exit code 3 if no member's journal can be read.
    """
    from lbg_runtime.cli.group.moves_text import as_object, as_text
    from lbg_runtime.cli.options import print_json
    from lbg_runtime.journal.reader import read_run
    from lbg_runtime.validator.kernel import examine
    from lbg_runtime.validator.moves import find_owner_changes

    tables = read_run(directory)
    found = find_owner_changes(tables, examine(tables).moves)
    if json:
        print_json(as_object(found))
    else:
        print(as_text(found))
    journals = tables.journals.to_pylist()
    for journal in journals:
        lacks = journal["defect"] or ("records were dropped" if journal["dropped"] else None)
        if lacks:
            told = f"lbg: {journal['file']}: {lacks}; changes may be missing, and those next to them be wrong"
            print(printable(told), file=sys.stderr)
    if not any(journal["member"] for journal in journals):
        print(f"lbg: no member's journal can be read in {directory}", file=sys.stderr)
        raise typer.Exit(3)


def tell_nobody_heard(settings: "Settings", listen_ms: int) -> int:
    """Say on standard error that no member was heard, and whether the broker refuses their login; return the exit
    code."""
    import uvloop

    topic = settings.group.control_topic_name
    print(f"lbg: nobody on {topic} answered within {listen_ms} ms", file=sys.stderr)
    if settings.outside_connection != settings.beside_connection:
        uvloop.run(_try_login(settings))
    return 3


async def _try_login(settings: "Settings") -> None:
    """Log in once with the members' account: the question was asked with that of the conductor."""
    from lbg_runtime.runtime.session import open_session

    try:
        async with open_session(settings.beside_connection, f"lbg-login-{os.getpid()}", reconnects=False):
            pass
    except ConfigError as error:
        print(printable(f"lbg: the members' account cannot log in: {error}"), file=sys.stderr)


async def _look(settings: "Settings", listen_ms: int) -> "tuple[GroupPicture, OtherVersion | None, Sights | None]":
    from lbg_runtime.runtime.observer import observing

    async with observing(settings) as observer:
        picture = await observer.look_at_group(listen_ms / 1_000)
        other = observer.other_version
    return picture, other, await _look_at_queues(settings)


async def _look_at_queues(settings: "Settings") -> "Sights | None":
    """What the broker sees of all queues that by their names belong to shards, even if no member names them.

    None without `semp` in the settings, or if the broker does not answer, which is reported.
    """
    from lbg_runtime.admin.account import open_semp
    from lbg_runtime.admin.backlog import find_shard_queues
    from lbg_runtime.admin.sight import read_sights
    from lbg_runtime.cli.group.text import natural

    if settings.semp is None:
        return None
    try:
        async with open_semp(settings) as client:
            vpn = settings.connection.vpn
            found = await find_shard_queues(client, vpn, settings.group.name)
            return await read_sights(client, vpn, {queue: found[queue] for queue in sorted(found, key=natural)})
    except SempError as error:
        print(f"lbg: {error}", file=sys.stderr)
        return None


def _fed_members(group: str, sights: "Sights") -> "dict[QueueName, FedMember]":
    from lbg_runtime.admin.sight import member_of
    from lbg_runtime.cli.group.text import FedMember

    fed = {queue: sight.fed for queue, sight in sights.items() if sight.fed is not None}
    return {
        queue: FedMember(member, client)
        for queue, client in fed.items()
        if (member := member_of(client, group)) is not None
    }


def _print(picture: "GroupPicture", queues: "Sequence[QueueName]", fed: "Mapping[QueueName, FedMember]") -> None:
    from lbg_runtime.cli.group.text import LEGEND, picture_as_table, remarks

    print_table(picture_as_table(picture, queues))
    for line in (LEGEND, *remarks(picture, queues, fed)):
        # A client chooses its own name.
        print(printable(line))


def listening_ms(settings: "Settings", given: str | None) -> int:
    """How long to listen: as given, or long enough to hear every member once, even if answers are lost."""
    from lbg_runtime.cli.options import duration_ms

    return settings.membership.heartbeat_ms * 5 // 2 if given is None else duration_ms("--for", given)
