"""`lbg group`: the state of a group, the owner changes of its queues, and its administration (`admin.py`)."""

import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from lbg_runtime.cli.group.admin import apply, create, delete, evict, list_groups, plan, show, verify
from lbg_runtime.cli.group.restripe import restripe
from lbg_runtime.cli.options import Config, Json, ListenFor, complain, group_settings, path_argument
from lbg_runtime.cli.table import print_table
from lbg_runtime.model.errors import ConfigError, SempError, TransportError
from lbg_runtime.model.printable import printable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from lbg_runtime.admin.sight import QueueSight
    from lbg_runtime.cli.group.text import FedMember
    from lbg_runtime.config.settings import Settings
    from lbg_runtime.core.group.picture import GroupPicture
    from lbg_runtime.model.ids import QueueName
    from lbg_runtime.runtime.control_reader import OtherVersion
    from lbg_runtime.semp.answer import SempObject
    from lbg_runtime.semp.client import SempClient

    Sights = Mapping[QueueName, QueueSight]
    Looked = tuple[GroupPicture, OtherVersion | None, Sights | None]
    Counted = tuple[Mapping[QueueName, SempObject], float]

_Answer = TypeVar("_Answer")

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
    watch: Annotated[
        bool,
        typer.Option(
            "--watch", help="Ask again and again, until SIGTERM or SIGINT; with --json, one object each time."
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Ask the members of a running group for its state. Exit code 3 if nobody was heard.

    The command is not a member, binds to no queue, and moves nothing. If the settings have `semp`, it also asks the
    broker how deep the queues are, how old the oldest message of each is, how many leave it a second, and which client
    it feeds.
    """
    import uvloop

    settings = group_settings(config)
    listen_ms = listening_ms(settings, listen)

    def show(looked: "Looked") -> None:
        if json:
            _show_as_object(settings, listen_ms, looked)
        else:
            _show(settings, config, looked)

    if watch:
        uvloop.run(_watch(settings, listen_ms, show))
        return
    looked = uvloop.run(_look(settings, listen_ms))
    show(looked)
    raise typer.Exit(0 if looked[0].members else tell_nobody_heard(settings, listen_ms))


async def _watch(settings: "Settings", listen_ms: int, show: "Callable[[Looked], None]") -> None:
    """Look and show until asked to stop. Each look has a session of its own, so that none is of before an outage."""
    import asyncio

    from lbg_runtime.runtime.shutdown import Interruption
    from lbg_runtime.runtime.stop import stop_requests

    unwanted = Interruption()
    with stop_requests(lambda _: unwanted.cut()), unwanted:
        # An error of the first look is the user's mistake, of a later one the broker's absence.
        looked: Looked | None = await _look(settings, listen_ms)
        while True:
            if looked is not None:
                if sys.stdout.isatty():
                    print("\x1b[H\x1b[2J", end="")
                show(looked)
                if not looked[0].members:
                    _complain_of_silence(settings, listen_ms)
                sys.stdout.flush()
            try:
                looked = await _look(settings, listen_ms)
            except (ConfigError, TransportError) as error:
                looked = None
                complain(error)
                await asyncio.sleep(listen_ms / 1_000)


def _show_as_object(settings: "Settings", listen_ms: int, looked: "Looked") -> None:
    from lbg_runtime.cli.group.plan_text import sights_as_object
    from lbg_runtime.cli.group.text import otherwise_at_members, picture_as_object, surplus_queues
    from lbg_runtime.cli.options import print_json

    picture, other, sights = looked
    shape = settings.group.shape()
    queues = shape.queue_names()
    told = {
        "group": settings.group.name,
        "listened_ms": listen_ms,
        **picture_as_object(picture, queues, shape.hash_count),
    }
    told["otherwise_at_members"] = otherwise_at_members(picture, settings.group.shared())
    told["not_understood"] = None if other is None else {"found": other.found, "expected": other.expected}
    if sights is not None:
        told["broker"] = sights_as_object(sights, int(time.time()))
        told["surplus"] = surplus_queues(picture, queues, sights)
    print_json(told)


def _show(settings: "Settings", config: Path, looked: "Looked") -> None:
    from lbg_runtime.cli.group.homes import group_queues
    from lbg_runtime.cli.group.plan_text import sights_as_table
    from lbg_runtime.cli.group.text import otherwise_at_members, surplus_queues

    picture, other, sights = looked
    queues, ours = settings.group.shape().queue_names(), settings.group.shared()
    # Members of another version are not heard either, nor are those that do not talk, and they are well.
    are_heard = other is None and settings.is_cooperative
    fed = _fed_members(settings.group.name, sights) if are_heard and sights is not None else {}
    if picture.members or fed:
        _print(picture, queues, fed, sights)
    for name, values in otherwise_at_members(picture, ours).items():
        theirs = ", ".join(f"{value} ({', '.join(members)})" for value, members in values.items())
        print(printable(f"not as in {config}: {name}: {ours[name]} there, and {theirs}"))
    if sights is not None:
        surplus = surplus_queues(picture, queues, sights)
        print_table(sights_as_table([*group_queues(picture, queues), *surplus], sights, int(time.time())))
        if surplus:
            print(f"surplus: {', '.join(surplus)}, on the broker and named by no member")


@group.command()
def moves(
    directory: Annotated[
        Path,
        path_argument(help="Directory with the journals of one run, which may still be going on."),
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
            complain(f"{journal['file']}: {lacks}; changes may be missing, and those next to them be wrong")
    if not any(journal["member"] for journal in journals):
        complain(f"no member's journal can be read in {directory}")
        raise typer.Exit(3)


def tell_nobody_heard(settings: "Settings", listen_ms: int) -> int:
    """Say on standard error that no member was heard, and whether the broker refuses their login; return the exit
    code."""
    import uvloop

    _complain_of_silence(settings, listen_ms)
    if settings.outside_connection != settings.beside_connection:
        uvloop.run(_try_login(settings))
    return 3


def _complain_of_silence(settings: "Settings", listen_ms: int) -> None:
    complain(f"nobody on {settings.group.control_topic_name} answered within {listen_ms} ms")


async def _try_login(settings: "Settings") -> None:
    """Log in once with the members' account: the question was asked with that of the conductor."""
    from lbg_runtime.config.broker_names import program_name
    from lbg_runtime.runtime.session import open_session

    name, path = program_name("login"), settings.transport.client_path
    try:
        async with open_session(settings.beside_connection, name, path, reconnects=False):
            pass
    except ConfigError as error:
        complain(f"the members' account cannot log in: {error}")


async def _look(settings: "Settings", listen_ms: int) -> "Looked":
    from lbg_runtime.runtime.observer import observing

    async with observing(settings) as observer:
        before = await _ask_broker(settings, partial(_count_first, client_name=observer.client_name))
        picture = await observer.look_at_group(listen_ms / 1_000)
        other = observer.other_version
    sights = None if before is None else await _ask_broker(settings, partial(_see_queues, before=before))
    return picture, other, sights


async def _ask_broker(
    settings: "Settings", question: "Callable[[SempClient, Settings], Awaitable[_Answer]]"
) -> "_Answer | None":
    """The answer, or None without `semp` in the settings, or if the broker does not answer, which is reported."""
    from lbg_runtime.admin.account import open_semp

    if settings.semp is None:
        return None
    try:
        async with open_semp(settings) as client:
            return await question(client, settings)
    except SempError as error:
        complain(error)
        return None


async def _count_first(client: "SempClient", settings: "Settings", client_name: str) -> "Counted":
    """The same as `_count_queues`, if it is the broker that this client is connected to: raises `SempElsewhere`."""
    from lbg_runtime.admin.sight import insist_on_broker_of

    await insist_on_broker_of(client, settings.connection.vpn, client_name)
    return await _count_queues(client, settings)


async def _count_queues(client: "SempClient", settings: "Settings") -> "Counted":
    """All queues that by their names belong to shards, even if no member names them, and when they were counted."""
    from lbg_runtime.admin.backlog import find_shard_queues

    return await find_shard_queues(client, settings.connection.vpn, settings.group.name), time.monotonic()


async def _see_queues(client: "SempClient", settings: "Settings", before: "Counted") -> "Sights":
    """The queues as the broker sees them now, with the rates since `before`."""
    from lbg_runtime.admin.sight import read_sights, with_rates
    from lbg_runtime.cli.group.text import natural

    found, at_s = await _count_queues(client, settings)
    in_order = {queue: found[queue] for queue in sorted(found, key=natural)}
    sights = await read_sights(client, settings.connection.vpn, in_order)
    return with_rates(sights, before[0], found, at_s - before[1])


def _fed_members(group: str, sights: "Sights") -> "dict[QueueName, FedMember]":
    from lbg_runtime.admin.sight import member_of
    from lbg_runtime.cli.group.text import FedMember

    fed = {queue: sight.fed for queue, sight in sights.items() if sight.fed is not None}
    return {
        queue: FedMember(member, client)
        for queue, client in fed.items()
        if (member := member_of(client, group)) is not None
    }


def _print(
    picture: "GroupPicture",
    queues: "Sequence[QueueName]",
    fed: "Mapping[QueueName, FedMember]",
    sights: "Sights | None",
) -> None:
    from lbg_runtime.cli.group.text import LEGEND, picture_as_table, remarks

    lines = list(remarks(picture, queues, fed, sights))
    if picture.members:
        print_table(picture_as_table(picture, queues))
        lines.insert(0, LEGEND)
    for line in lines:
        # A client chooses its own name.
        print(printable(line))


def listening_ms(settings: "Settings", given: str | None) -> int:
    """How long to listen: as given, or long enough to hear every member once, even if answers are lost."""
    from lbg_runtime.cli.options import duration_ms

    return settings.membership.heartbeat_ms * 5 // 2 if given is None else duration_ms("--for", given)
