"""Kinds of values that settings have, and the base class of sections.

The functions are validators: they return the value, or raise `ValueError` with what was expected, as pydantic wants.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, SecretStr

from lbg_runtime.config.duration import DURATION_FORM, parse_duration_ms
from lbg_runtime.config.listen_address import ADDRESS_FORM, ListenAddress, is_port
from lbg_runtime.config.secret import read_secret
from lbg_runtime.model.errors import UserError

MAX_INTERVAL_MS = 7 * 24 * 3_600_000

_Word = TypeVar("_Word", bound=str | SecretStr)


class SettingProblem(ValueError):
    """A rule between settings is broken; `path` is relative to the section that checks it."""

    def __init__(self, path: tuple[str, ...], found: str, expected: str) -> None:
        super().__init__(expected)
        self.path = path
        self.found = found
        self.expected = expected


def whole_number(value: object) -> object:
    """An integer that is no boolean."""
    # YAML reads `yes` and `on` as booleans, which pydantic would take for 1.
    if isinstance(value, bool):
        raise ValueError("a whole number")  # noqa: TRY004 - pydantic collects ValueError only
    return value


def off_is_a_word(value: object) -> object:
    """`off` for the boolean that YAML makes of it; anything else unchanged."""
    return "off" if value is False else value


def sendable_token(value: SecretStr) -> SecretStr:
    """A token that can stand in a header."""
    # A token that cannot be sent in a header would refuse everybody, and an empty one nobody.
    if not re.fullmatch("[!-~]+", value.get_secret_value()):
        raise ValueError("visible ASCII characters, and no spaces")
    return value


def split_hosts(value: object) -> object:
    """Hosts from a list, or from a text with commas."""
    if not isinstance(value, str):
        return value
    # With a user and a password it is refused, and shown without them: as a whole, as a password may hold a comma.
    return [value] if "@" in value else [part.strip() for part in value.split(",")]


def without_controls(value: str) -> str:
    """A text without control characters."""
    # The client ignores all that follows a zero, and no path can hold one; the others are never intended.
    if re.search(r"[\x00-\x1f\x7f-\x9f]", value):
        raise ValueError("a text without control characters")
    return value


def printable_text(value: str) -> str:
    """A text that an administrator can read, as the broker asks of what is stored there."""
    if not value.isprintable():
        raise ValueError("printable characters")
    return value


def unbroken_secret(value: SecretStr) -> SecretStr:
    """A secret without zero characters."""
    # As in texts: the client would log in with the part before the zero.
    if "\0" in value.get_secret_value():
        raise ValueError("a secret without zero characters")
    return value


def member_name(value: str) -> str:
    """A text of letters, digits and a few signs, as it becomes part of other names."""
    if re.fullmatch(r"[\w.:-]+", value) is None:
        raise ValueError("letters, digits and _ . : -")
    return value


def no_longer_than(largest_bytes: int) -> Callable[[_Word], _Word]:
    """A validator of texts and secrets that accepts at most this many bytes of UTF-8."""

    def checked(value: _Word) -> _Word:
        text = value.get_secret_value() if isinstance(value, SecretStr) else value
        if (size := len(text.encode(errors="surrogatepass"))) > largest_bytes:
            raise SettingProblem((), f"{size} bytes", f"at most {largest_bytes}")
        return value

    return checked


def broker_address(value: str) -> str:
    """A broker's address, with or without its scheme."""
    if re.fullmatch(r"((tcp|tcps|ws|wss|http|https)://)?[^\s/@]+", value) is None:
        raise ValueError("an address such as tcp://broker:55555")
    # Several colons without brackets are an address of IPv6. The client looks at a port only when it needs it: for a
    # standby broker, when the first one has failed.
    host_port = re.fullmatch(r"(\w+://)?([^:/\[\]]+|\[[^/\[\]]+\]):([^:/]+)", value)
    if host_port is not None and not is_port(host_port[3]):
        raise ValueError("a port up to 65535")
    return value


def management_url(value: object) -> object:
    """An HTTP address without path and user."""
    pattern = r"https?://([^\s/@?#:\[\]\x00-\x1f\x7f]+|\[[0-9A-Fa-f:.]+\])(:([0-9]+))?/?"
    address = re.fullmatch(pattern, value) if isinstance(value, str) else None
    if address is None or not is_port(address[3] or "0"):
        raise ValueError("an address such as https://broker:943")
    return value


def parsed_by(parse: Callable[[str], object]) -> Callable[[object], object]:
    """A validator that parses texts, and reports a `UserError` as the problem."""

    def parsed(value: object) -> object:
        if not isinstance(value, str):
            return value
        try:
            return parse(value)
        except UserError as error:
            raise SettingProblem((), error.found, error.expected) from None

    return parsed


@dataclass(frozen=True, slots=True)
class NoneFor:
    """A validator: None for a word of its own, else what `read` makes of the value."""

    word: str
    expected: str
    """What is expected of a value that is nothing."""
    read: Callable[[object], object]

    def __call__(self, value: object) -> object:
        """The value, or None for the word."""
        if value is None:
            raise ValueError(self.expected)
        return None if off_is_a_word(value) == self.word else self.read(value)


def _address(value: object) -> object:
    if not isinstance(value, str):
        raise ValueError(f"{ADDRESS_FORM}, or off")  # noqa: TRY004 - pydantic collects ValueError only
    return parsed_by(ListenAddress.parse)(value)


all_is_none = NoneFor("all", "a whole number, or all", whole_number)
unlimited_is_none = NoneFor("unlimited", "a whole number, or unlimited", whole_number)
off_is_none = NoneFor("off", DURATION_FORM, lambda written: written)
"""For a duration, which `DurationMs` reads."""
off_or_address = NoneFor("off", f"{ADDRESS_FORM}, or off", _address)

Count = Annotated[int, BeforeValidator(whole_number)]
DurationMs = Annotated[int, BeforeValidator(parse_duration_ms)]
PositiveDurationMs = Annotated[DurationMs, Field(gt=0, le=MAX_INTERVAL_MS)]
Secret = Annotated[SecretStr, BeforeValidator(read_secret), AfterValidator(unbroken_secret)]
Text = Annotated[str, Field(min_length=1), AfterValidator(without_controls)]
Host = Annotated[str, AfterValidator(broker_address), AfterValidator(without_controls)]


class Section(
    BaseModel,
    # Said at each class, and not in `model_config`, where few type checkers look for it.
    frozen=True,
    extra="forbid",
    arbitrary_types_allowed=True,
    hide_input_in_errors=True,
    allow_inf_nan=False,
):
    """A section of the file: frozen, and without unknown keys."""
