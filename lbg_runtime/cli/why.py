"""`lbg why KEY`: where a key is, who has it, and what keeps it."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lbg_runtime.cli.group.commands import listening_ms, tell_nobody_heard
from lbg_runtime.model.errors import ConfigError
from lbg_runtime.model.printable import printable

if TYPE_CHECKING:
    from lbg_runtime.config.settings import Settings
    from lbg_runtime.core.group.control_messages import KeyAnswer
    from lbg_runtime.core.group.picture import GroupPicture


def why(
    key: Annotated[str, typer.Argument(help="The key, as its publisher stamps it.")],
    config: Annotated[Path, typer.Option(help="Settings file of the group.")] = Path("config.yaml"),
    listen: Annotated[
        str | None, typer.Option("--for", help="How long to wait for answers; two heartbeats and a half without it.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Ask the group about a key: shard, queue, owner, what is in flight since when, attempts, what waits or is parked.

    Exit code 0 where its owner knows the key; 1 where the queue has no owner, or the owner has nothing of the key and
    has handled none lately; 3 where nobody answered.
    """
    import orjson
    import uvloop

    from lbg_runtime.admin.stored import load_group_settings
    from lbg_runtime.cli.log import configure_log
    from lbg_runtime.cli.why_text import answer_as_object, answer_lines
    from lbg_runtime.model.hashing import shard_of

    configure_log()
    settings = load_group_settings(config)
    listen_ms = listening_ms(settings, listen)
    shape = settings.group.shape()
    shard = shard_of(settings.group.hash_function, key, shape.hash_count)
    answers, picture = uvloop.run(_look(settings, key, listen_ms))
    _insist_on_shard(answers, shard)
    holders = [answer for answer in answers if answer.flow is not None and answer.flow.is_owner]
    # Members know of a re-striping, and these settings may not.
    placed = [answer.queue for answer in (*holders, *answers)]
    queue = placed[0] if placed else shape.queue_name(shape.queue_index_of_shard(shard))
    # A handler may outlive its flow; then another member than the owner still has the key's message.
    others = [answer for answer in answers if answer not in holders and answer.sight.head is not None]
    is_known = any(answer.sight.head or answer.sight.last or answer.sight.parked for answer in holders)
    if json:
        told = {
            "key": key,
            "shard": shard,
            "queue": queue,
            "known": is_known,
            "answers": [answer_as_object(answer) for answer in answers],
        }
        print(orjson.dumps(told).decode())
    else:
        print(printable(f"key {key}: shard {shard}, queue {queue}"))
        for line in (line for answer in (*holders, *others) for line in answer_lines(answer)):
            print(printable(line))
    if not answers:
        raise typer.Exit(tell_nobody_heard(settings, listen_ms))
    if not holders:
        print(printable(f"lbg: queue {queue} has no owner among {_members(answers, picture)}"), file=sys.stderr)
    elif not is_known:
        print(printable(f"lbg: its owner has nothing of key {key}, and has handled none lately"), file=sys.stderr)
    raise typer.Exit(0 if is_known else 1)


async def _look(settings: "Settings", key: str, listen_ms: int) -> "tuple[list[KeyAnswer], GroupPicture]":
    from lbg_runtime.runtime.observer import observing

    async with observing(settings) as observer:
        return await observer.look_for_key(key, listen_ms / 1_000)


def _insist_on_shard(answers: "Sequence[KeyAnswer]", shard: int) -> None:
    """Raises `ConfigError` where a member has the key in another shard: then this file is not the group's."""
    for answer in answers:
        if answer.shard != shard:
            theirs = f"shard {answer.shard}, as member {answer.header.member} has it"
            raise ConfigError("group", f"these settings place the key in shard {shard}", theirs)


def _members(answers: "Sequence[KeyAnswer]", picture: "GroupPicture") -> str:
    return ", ".join(sorted({answer.header.member for answer in answers} | set(picture.members)))
