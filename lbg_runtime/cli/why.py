"""`lbg why KEY`: where a key is, which member has it, and what holds it up."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from lbg_runtime.cli.group.commands import listening_ms, tell_nobody_heard
from lbg_runtime.cli.options import Config, Json, Key, ListenFor, complain, group_settings, print_json
from lbg_runtime.model.errors import ConfigError, TransportError
from lbg_runtime.model.printable import printable

if TYPE_CHECKING:
    from lbg_runtime.config.settings import Settings
    from lbg_runtime.core.group.control_messages import KeyAnswer
    from lbg_runtime.core.group.picture import GroupPicture


def why(
    key: Key,
    config: Config = Path("config.yaml"),
    listen: ListenFor = None,
    json: Json = False,
) -> None:
    """Ask the group about a key: shard, queue, owner, what is in flight since when, attempts, what waits or is parked.

    Exit code 0 if the owner of the key's queue knows the key; 1 if the queue has no owner or waits for its parking
    queue, or the owner has no message of the key and has not handled one lately; 3 if nobody answered or
    can be asked.
    """
    import uvloop

    from lbg_runtime.cli.group.unowned import why_unowned
    from lbg_runtime.cli.why_text import answer_lines
    from lbg_runtime.model.hashing import shard_of
    from lbg_runtime.model.ids import QueueName
    from lbg_runtime.status.objects import found_as_object

    settings = group_settings(config)
    listen_ms = listening_ms(settings, listen)
    shape = settings.group.shape()
    shard = shard_of(settings.group.hash_function, key, shape.hash_count)
    try:
        answers, picture = uvloop.run(_look(settings, key, listen_ms))
    except TransportError as error:
        # 1 would say something of the key.
        complain(error)
        raise typer.Exit(3) from None
    _insist_on_shard(answers, shard)
    found = found_as_object(key, shard, answers, shape)
    queue, is_known = found["queue"], found["known"]
    holders = [answer for answer in answers if answer.is_of_owner]
    if json:
        print_json(found)
    else:
        print(printable(f"key {key}: shard {shard}, queue {queue}"))
        # A handler may outlive its flow; then a member other than the owner still has the key's message.
        others = [answer for answer in answers if answer not in holders and answer.sight.head is not None]
        for line in (line for answer in (*holders, *others) for line in answer_lines(answer)):
            print(printable(line))
    if not answers:
        raise typer.Exit(tell_nobody_heard(settings, listen_ms))
    if not holders:
        reason = why_unowned(picture, QueueName(str(queue)), answers=answers)
        complain(f"queue {queue} has no owner among {_members(answers, picture)}: {reason}")
    elif any(answer.wait is not None for answer in holders):
        complain(f"{queue} waits for its parking queue; if no command is named above, try `lbg group verify`")
    elif not is_known:
        complain(f"its owner has no message of key {key}, and has not handled one lately")
    raise typer.Exit(0 if is_known else 1)


async def _look(settings: "Settings", key: str, listen_ms: int) -> "tuple[list[KeyAnswer], GroupPicture]":
    from lbg_runtime.runtime.observer import observing

    async with observing(settings) as observer:
        return await observer.look_for_key(key, listen_ms / 1_000)


def _insist_on_shard(answers: "Sequence[KeyAnswer]", shard: int) -> None:
    """Raise `ConfigError` if a member has the key in another shard: then this file is not the group's."""
    for answer in answers:
        if answer.shard != shard:
            theirs = f"shard {answer.shard}, as member {answer.header.member} has it"
            raise ConfigError("group", f"these settings place the key in shard {shard}", theirs)


def _members(answers: "Sequence[KeyAnswer]", picture: "GroupPicture") -> str:
    return ", ".join(sorted({answer.header.member for answer in answers} | set(picture.members)))
