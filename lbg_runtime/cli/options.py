"""What commands share: options, which are named and explained alike everywhere, reading them, and printing.

Lengths of time and sizes are text with a unit, as in the settings. A refusal names the option.
"""

import codecs
import json
import sys
from functools import partial
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lbg_runtime.cli.sizes import SIZE_FORM, parse_bytes
from lbg_runtime.model.errors import UserError
from lbg_runtime.model.printable import printable

if TYPE_CHECKING:
    from lbg_runtime.config.listen_address import ListenAddress
    from lbg_runtime.config.settings import Settings

LAST_PORT = 65_535

DURATION = "DURATION"
"""Metavar of every option that `duration_ms` reads."""
SIZE = "SIZE"
"""Metavar of every option that `size_bytes` reads."""

path_option, path_argument = partial(typer.Option, readable=False), partial(typer.Argument, readable=False)
"""For a path: what may not be read is told by whoever reads it, in one line, and not by typer with the usage."""

Config = Annotated[Path, path_option(help="Settings file of the group.")]
Key = Annotated[str, typer.Argument(help="The key, as its publisher stamps it.")]
Keys = Annotated[int, typer.Option(min=1, max=100_000, help="Number of different keys.")]
Rate = Annotated[int, typer.Option(min=1, max=5_000, help="Messages published per second.")]
Ledger = Annotated[Path | None, path_option(help="Folder for the ledger of confirmed messages.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
ExitWithParent = Annotated[
    bool, typer.Option("--exit-with-parent", help="Exit when the process that started this one is gone.")
]
ListenFor = Annotated[
    str | None,
    typer.Option("--for", metavar=DURATION, help="How long to listen. Default: two and a half heartbeats."),
]
MemberIndex = Annotated[
    int | None, typer.Option("--member-index", help="This member's number, from 0, if members are counted.")
]
MemberCount = Annotated[int | None, typer.Option("--member-count", help="Number of planned members.")]
MemberId = Annotated[str | None, typer.Option("--member-id", help="This member's name, if members are not counted.")]
Journal = Annotated[
    Path | None,
    path_option("--journal", help="Directory for the journal, instead of that of the settings."),
]
StatusPort = Annotated[
    int | None,
    typer.Option("--status-port", min=0, max=LAST_PORT, help="Port of ops.status, instead of that of the settings."),
]


def group_settings(config: Path) -> "Settings":
    """Set up the log, then read the settings of a group, of which the broker may have a part; raises `UserError`."""
    from lbg_runtime.admin.stored import load_group_settings
    from lbg_runtime.cli.log import configure_log

    configure_log()
    return load_group_settings(config)


def duration_ms(option: str, text: str, least_ms: int = 0, most_ms: int | None = None) -> int:
    """Milliseconds of a written duration within these bounds; raises `UserError`."""
    from lbg_runtime.config.duration import DURATION_FORM, duration_text, parse_duration_ms

    try:
        found_ms = parse_duration_ms(text)
    except ValueError:
        raise UserError(option, repr(text), DURATION_FORM) from None
    if found_ms < least_ms or (most_ms is not None and found_ms > most_ms):
        upwards = "or more" if most_ms is None else f"to {duration_text(most_ms)}"
        raise UserError(option, repr(text), f"{duration_text(least_ms)} {upwards}")
    return found_ms


def size_bytes(option: str, text: str) -> int:
    """Bytes of a written size; raises `UserError`."""
    try:
        return parse_bytes(text)
    except ValueError:
        raise UserError(option, repr(text), SIZE_FORM) from None


def listen_address(option: str, text: str) -> "ListenAddress":
    """The address of `HOST:PORT`; raises `UserError`."""
    from lbg_runtime.config.listen_address import ListenAddress

    try:
        return ListenAddress.parse(text)
    except UserError as error:
        raise UserError(option, error.found, error.expected) from None


def insist_on_finite(option: str, number: float | None) -> None:
    """Raise `UserError` for a rate or a time that is infinite or not a number."""
    if number is not None and not isfinite(number):
        raise UserError(option, str(number), "a finite number")


def prints_all_characters() -> bool:
    """Whether standard output is UTF-8. Elsewhere, what is read by programs is printed in ASCII, with their escapes."""
    return codecs.lookup(sys.stdout.encoding or "utf-8").name == "utf-8"


def print_json(told: object) -> None:
    """Print one object to standard output, on one line."""
    import orjson

    try:
        line = orjson.dumps(told).decode()
    except TypeError:
        # A path whose bytes are no text: it is escaped, as no JSON in UTF-8 can have it.
        line = json.dumps(told)
    if not prints_all_characters():
        line = json.dumps(json.loads(line), separators=(",", ":"))
    print(line)


def complain(what: object) -> None:
    """Say what is wrong, in one line on standard error. Others may have chosen words in it."""
    print(printable(f"lbg: {what}"), file=sys.stderr)
