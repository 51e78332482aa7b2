"""`lbg parked`: the parked keys and their messages, and the commands that replay or remove them."""

import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lbg_runtime.cli.options import Config, Json, Key, complain, group_settings, print_json
from lbg_runtime.model.counted import counted
from lbg_runtime.model.errors import UserError
from lbg_runtime.model.printable import printable

if TYPE_CHECKING:
    from lbg_runtime.config.settings import Settings
    from lbg_runtime.core.parking.records import ParkedMessage, ParkingOwner
    from lbg_runtime.runtime.parking.view import ParkedLane, ParkedView, Unread

    Ask = Callable[[ParkedView], Awaitable[list[ParkedLane]]]

parked = typer.Typer(no_args_is_help=True, help="Keys that were parked with their messages.")

IsLane = Annotated[
    bool, typer.Option("--lane", help="KEY is a lane as `lbg parked list` shows it, for messages without a key.")
]


@parked.command("list")
def list_(config: Config = Path("config.yaml"), json: Json = False) -> None:
    """List the parked keys of the group: how many messages, since when, and the error of the first.

    Exit code 1 if a parking queue cannot be read, or not to its end, or something that lies there cannot; what could be
    read is listed nevertheless.
    """
    found, unread = _run(config, lambda view: view.lanes())
    if json:
        print_json({"parked": [_lane_as_object(each) for each in found], "unread": unread})
        raise typer.Exit(1 if unread else 0)
    for each in found:
        if not each.messages:
            print(printable(f"{each.lane}: {_count(each)}"))
            continue
        first = each.messages[0]
        replaying = ", being replayed" if each.is_replaying else ""
        error = first.error or "no error of its own"
        print(printable(f"{each.lane}: {_count(each)} since {_time(first)}, {error}{replaying}"))
    if not found and not unread:
        print("nothing is parked", file=sys.stderr)
    raise typer.Exit(1 if unread else 0)


@parked.command()
def show(key: Key, lane: IsLane = False, config: Config = Path("config.yaml"), json: Json = False) -> None:
    """Show the parked messages of a key, in order. Exit code 1 if nothing of it is parked."""
    lanes, unread = _run(config, lambda view: view.lanes())
    found = _of_key(lanes, key, is_lane=lane)
    if json:
        shown = [{**_lane_as_object(each), "messages": _messages_as_objects(each)} for each in found]
        print_json({"parked": shown, "unread": unread})
    else:
        for each in found:
            print(printable(f"{each.lane}: {_count(each)} in {each.queue}"))
            for message in each.messages:
                why = f", attempt {message.attempts}: {message.error}" if message.attempts else ""
                print(printable(f"  #{message.number}  {_time(message)}  {message.original.topic}{why}"))
                print(printable(f"      {_text(message.original.payload[:_SHOWN_BYTES])}"))
    _insist(found, key, unread)


@parked.command()
def unpark(
    key: Annotated[str | None, typer.Argument(help="The key, as its publisher stamps it.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All parked keys.")] = False,
    lane: IsLane = False,
    config: Config = Path("config.yaml"),
    json: Json = False,
) -> None:
    """Replay the parked messages of a key, in order, before anything newer of it is handled.

    When the command returns, the broker has the order; the owner of the queue, now or later, carries it out. The order
    may be given again. A key whose first message fails again stays parked. Exit code 1 if nothing of it is parked, or
    with --all if something cannot be read; the others are replayed nevertheless.
    """
    if (key is None) != every:
        raise UserError("lbg parked unpark", "a key and --all" if every else "no key", "a key, or --all")

    async def ask(view: "ParkedView") -> "list[ParkedLane]":
        lanes = await view.lanes()
        found = lanes if key is None else _of_key(lanes, key, is_lane=lane)
        readable = [each for each in found if each.messages]
        await view.unpark(readable)
        return readable

    found, unread = _run(config, ask)
    _tell_done(found, key or "any key", "asked to be replayed", unread, as_json=json)
    if every and unread:
        raise typer.Exit(1)


@parked.command()
def drop(
    key: Key,
    number: Annotated[int | None, typer.Option(help="Only the message with this number, as `show` prints it.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All parked messages of the key.")] = False,
    lane: IsLane = False,
    config: Config = Path("config.yaml"),
    json: Json = False,
) -> None:
    """Remove one parked message of a key, or all of them, for good, including those that cannot be read.

    A message that is being replayed is not removed.

    Exit code 1 if the message is not parked.
    """
    if (number is None) != every:
        found = "--number and --all" if every else "neither --number nor --all"
        raise UserError("lbg parked drop", found, "one of the two")

    async def ask(view: "ParkedView") -> "list[ParkedLane]":
        lanes = _of_key(await view.lanes(), key, is_lane=lane)
        if number is None:
            await view.drop(lanes)
        for each in lanes:
            for only in _names(each):
                if only[1] == number:
                    await view.drop([each], only)
        return lanes

    of_key, unread = _run(config, ask)
    meant = [each for each in of_key if number is None or any(only[1] == number for only in _names(each))]
    which = "all" if number is None else f"#{number}"
    _tell_done(meant, key, f"{which} asked to be dropped", unread, as_json=json, others=of_key)


_SHOWN_BYTES = 200


def _run(config: Path, ask: "Ask") -> "tuple[list[ParkedLane], list[str]]":
    """What was asked for, and what could not be read, which is told on standard error."""
    import uvloop

    found, unread = uvloop.run(_asked(group_settings(config), ask))
    for each in unread:
        complain(f"{each.what}; {each.advice}")
    return found, [each.what for each in unread]


async def _asked(settings: "Settings", ask: "Ask") -> "tuple[list[ParkedLane], list[Unread]]":
    from lbg_runtime.runtime.parking.view import viewing_parked

    async with viewing_parked(settings) as view:
        return await ask(view), view.unread


def _of_key(lanes: "list[ParkedLane]", key: str, *, is_lane: bool) -> "list[ParkedLane]":
    from lbg_runtime.runtime.parking.parked_queue import name_of_key

    name = key if is_lane else name_of_key(key)
    return [each for each in lanes if each.lane == name]


def _insist(found: "list[ParkedLane]", key: str, unread: Sequence[str], others: "Sequence[ParkedLane]" = ()) -> None:
    if found:
        return
    absent = f"nothing of {key} is parked" + (" in what could be read" if unread else "")
    if others:
        there = counted(sum(map(_total, others)), "other")
        absent = f"no message with that number is parked of {key}, only {there}; `lbg parked show` lists them"
    complain(absent)
    raise typer.Exit(1)


def _tell_done(
    found: "list[ParkedLane]",
    key: str,
    what: str,
    unread: Sequence[str],
    *,
    as_json: bool,
    others: "Sequence[ParkedLane]" = (),
) -> None:
    """Report what was done; `others` is all that is parked of the key, if only a part of it was asked for."""
    if as_json:
        print_json({"asked": [_lane_as_object(each) for each in found], "unread": unread})
    else:
        for each in found:
            print(printable(f"{each.lane}: {_count(each)}, {what}"))
    _insist(found, key, unread, others)


def _names(lane: "ParkedLane") -> "list[tuple[ParkingOwner, int]]":
    """The owners and numbers of all messages of a lane that have them."""
    unread = [each.only for each in lane.unread if each.only is not None]
    return [(each.owner, each.number) for each in lane.messages] + unread


def _total(lane: "ParkedLane") -> int:
    return len(lane.messages) + len(lane.unread)


def _count(lane: "ParkedLane") -> str:
    unread = len(lane.unread)
    return counted(_total(lane), "message") + (f" ({unread} not readable)" if unread else "")


def _lane_as_object(lane: "ParkedLane") -> dict[str, object]:
    first = lane.messages[0] if lane.messages else None
    return {
        "lane": lane.lane,
        "queue": lane.queue,
        "count": _total(lane),
        "since_ms": first and first.parked_at_ms,
        "error": first and first.error,
        "stack": first and first.stack,
        "attempts": first and first.attempts,
        "replaying": lane.is_replaying,
    }


def _messages_as_objects(lane: "ParkedLane") -> list[dict[str, object]]:
    from base64 import b64encode

    return [
        {
            "number": one.number,
            "topic": one.original.topic,
            "message_id": one.original.message_id,
            "parked_at_ms": one.parked_at_ms,
            "member": one.member,
            "attempts": one.attempts,
            "error": one.error,
            "stack": one.stack,
            "payload": _text(one.original.payload),
            "payload_base64": b64encode(one.original.payload).decode(),
        }
        for one in lane.messages
    ]


def _text(payload: bytes) -> str:
    return payload.decode("utf-8", "backslashreplace")


def _time(message: "ParkedMessage") -> str:
    from datetime import UTC, datetime

    try:
        return datetime.fromtimestamp(message.parked_at_ms / 1_000, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError):
        # Whoever put it there may say anything: a time after the year 9999 is no reason to show nothing of the others.
        return f"{message.parked_at_ms} ms"
