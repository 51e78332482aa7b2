"""The kinds of SEMP objects: their keys, their attributes with defaults, and the allowed values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from lbg_runtime.broker.semp.fault import SempFault
from lbg_runtime.model.failure import DEAD_MESSAGE_QUEUE
from lbg_runtime.model.semp_code import SempCode

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
Row = dict[str, Json]
"""One object's attributes by name."""


@dataclass(frozen=True, slots=True)
class Flag:
    """True or false."""

    name: str
    default: bool = False

    def check(self, value: Json) -> None:
        """Raise `SempFault` for a value that is not allowed."""
        if not isinstance(value, bool):
            raise _invalid(self.name, value, "true or false")


@dataclass(frozen=True, slots=True)
class Number:
    """A whole number, `least` and `most` included."""

    name: str
    default: int
    least: int
    most: int

    def check(self, value: Json) -> None:
        """Raise `SempFault` for a value that is not allowed."""
        if isinstance(value, bool) or not isinstance(value, int) or not self.least <= value <= self.most:
            raise _invalid(self.name, value, f"a whole number from {self.least} to {self.most}")


@dataclass(frozen=True, slots=True)
class Text:
    """A text of limited length; a secret one can be set but never read."""

    name: str
    default: str
    most: int
    least: int = 0
    forbidden: str = ""
    allowed: str | None = None
    """If given, every character must be one of these."""
    has_levels: bool = False
    """Whether `/` separates levels, none of which may be empty, and names that begin with `#` are reserved."""
    is_secret: bool = False

    def check(self, value: Json) -> None:
        """Raise `SempFault` for a value that is not allowed."""
        shown = None if self.is_secret else value
        if not isinstance(value, str) or not self.least <= len(value) <= self.most:
            raise _invalid(self.name, shown, f"{self.least} to {self.most} characters")
        bad = {c for c in value if c in self.forbidden or (self.allowed is not None and c not in self.allowed)}
        if bad:
            raise _invalid(self.name, shown, f"none of {''.join(sorted(bad))}")
        if not value.isprintable():
            raise _invalid(self.name, shown, "printable characters only")
        is_reserved = value.startswith("#") and value != DEAD_MESSAGE_QUEUE
        if self.has_levels and (is_reserved or "" in value.split("/")):
            raise _invalid(self.name, shown, "levels that are not empty, not beginning with #")


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a set of words."""

    name: str
    default: str
    words: tuple[str, ...]

    def check(self, value: Json) -> None:
        """Raise `SempFault` for a value that is not allowed."""
        if value not in self.words:
            raise _invalid(self.name, value, f"one of {', '.join(self.words)}")


@dataclass(frozen=True, slots=True)
class Threshold:
    """When an event is raised and cleared: a pair of numbers, as percentages or values. No event is raised here."""

    name: str
    default_clear: int
    default_set: int

    @property
    def default(self) -> Row:
        """The pair that holds unless another one is set."""
        return {"clearPercent": self.default_clear, "setPercent": self.default_set}

    def check(self, value: Json) -> None:
        """Raise `SempFault` for a value that is not allowed."""
        pairs = ({"clearPercent", "setPercent"}, {"clearValue", "setValue"})
        if not isinstance(value, dict) or set(value) not in pairs:
            raise _invalid(self.name, value, "clearPercent and setPercent, or clearValue and setValue")
        for part in value:
            Number(f"{self.name}.{part}", 0, 0, 100 if part.endswith("Percent") else 2**32 - 1).check(value[part])


Attribute = Flag | Number | Text | Choice | Threshold


class Level(Enum):
    """The rights that a change of an object needs."""

    VPN = "vpn/read-write"
    GLOBAL = "global/mesh-manager"


@dataclass(frozen=True, slots=True)
class ObjectType:
    """One kind of object, in the collection of one parent."""

    noun: str
    """Its name in messages."""
    collection: str
    """The segment of the path that names the collection."""
    key: tuple[Text | Choice, ...]
    """What identifies an object in its collection; several parts are joined by commas in a path."""
    attributes: tuple[Attribute, ...] = ()
    children: tuple["ObjectType", ...] = ()
    write_level: Level = Level.VPN
    is_fixed: bool = False
    """Whether objects can only be changed, never created or deleted."""
    by_name: Mapping[str, Attribute] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_name", {each.name: each for each in self.attributes})

    @property
    def key_names(self) -> tuple[str, ...]:
        """The attributes that make up the key."""
        return tuple(part.name for part in self.key)

    def defaults(self) -> Row:
        return {each.name: each.default for each in self.attributes}

    def child(self, collection: str) -> "ObjectType | None":
        """The kind of objects in a collection below."""
        return next((child for child in self.children if child.collection == collection), None)

    def check(self, attributes: Mapping[str, Json]) -> None:
        """Raise `SempFault` for an attribute that this kind does not have, or a value that is not allowed for it."""
        for name, value in attributes.items():
            attribute = self.by_name.get(name)
            if attribute is None:
                raise SempFault(SempCode.INVALID_PARAMETER, f"{self.noun} has no attribute {name!r}")
            attribute.check(value)

    def readable(self, row: Row) -> Row:
        """A row without its secrets."""
        return {name: value for name, value in row.items() if not self._is_secret(name)}

    def _is_secret(self, name: str) -> bool:
        attribute = self.by_name.get(name)
        return isinstance(attribute, Text) and attribute.is_secret


def _invalid(name: str, value: Json, expected: str) -> SempFault:
    shown = "" if value is None else f" {value!r:.80}"
    return SempFault(SempCode.INVALID_PARAMETER, f"{name}{shown} is not valid; expected {expected}")
