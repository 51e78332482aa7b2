"""What commands share for reading options and for printing; a refusal names the option."""

from math import inf, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lbg_runtime.cli.sizes import SIZE_FORM, parse_bytes
from lbg_runtime.model.errors import UserError

if TYPE_CHECKING:
    from lbg_runtime.config.listen_address import ListenAddress

Config = Annotated[Path, typer.Option(help="Settings file of the group.")]
"""For every command whose `--config` needs no further explanation."""


def duration_ms(option: str, text: str) -> int:
    """Milliseconds of a written duration; raises `UserError`."""
    from lbg_runtime.config.duration import DURATION_FORM, parse_duration_ms

    try:
        return parse_duration_ms(text)
    except ValueError:
        raise UserError(option, repr(text), DURATION_FORM) from None


def duration_s(option: str, text: str) -> float:
    """Seconds of a written duration, or of a bare number; at least one millisecond. Raises `UserError`."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = duration_ms(option, text) / 1000
    if not 0.001 <= seconds < inf:
        raise UserError(option, repr(text), "a duration of 1ms or more")
    return seconds


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


def print_json(told: object) -> None:
    """Print one object to standard output, on one line."""
    import orjson

    print(orjson.dumps(told).decode())
