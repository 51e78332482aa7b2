"""What a path identifies: the way down from the VPN to a collection, or to an object in one."""

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote, unquote

from lbg_runtime.broker.semp.fault import SempFault
from lbg_runtime.broker.semp.schema import ObjectType, Row
from lbg_runtime.model.semp_code import SempCode

Key = tuple[str, ...]
"""Identifies an object in its collection: the values of its type's key, in order."""

Keys = tuple[Key, ...]
"""Identifies an object everywhere: its own key and those of the objects it is in, from the VPN down."""


@dataclass(frozen=True, slots=True)
class Target:
    """Types from the VPN down, and their keys; a collection has one key less, as no member is named."""

    types: tuple[ObjectType, ...]
    keys: Keys

    @property
    def type(self) -> ObjectType:
        """The type of the object, or of the collection's members."""
        return self.types[-1]

    @property
    def is_collection(self) -> bool:
        """Whether it is a collection rather than an object."""
        return len(self.keys) < len(self.types)

    @property
    def above(self) -> Keys:
        """The keys of the object that it is in."""
        return self.keys[: len(self.types) - 1]

    def member(self, key: Key) -> "Target":
        """The target for an object of this collection."""
        return Target(self.types, (*self.above, key))

    def key_row(self) -> Row:
        """The attributes that identify an object, its own and those of the objects above."""
        row: Row = {}
        for kind, key in zip(self.types, self.keys, strict=False):
            row |= dict(zip(kind.key_names, key, strict=True))
        return row

    def path(self) -> tuple[str, ...]:
        """The encoded segments."""
        segments: list[str] = []
        for position, kind in enumerate(self.types):
            segments.append(kind.collection)
            if position < len(self.keys):
                segments.append(encode_key(self.keys[position]))
        return tuple(segments)


def encode_key(key: Key) -> str:
    """The segment that identifies an object: nothing in it can be mistaken for path syntax."""
    return ",".join(quote(part, safe="") for part in key)


def decode(segment: str) -> str:
    """The text of a segment; raises `SempFault` for bytes that are not text."""
    try:
        return unquote(segment, errors="strict")
    except UnicodeDecodeError:
        raise SempFault(SempCode.PARSE_ERROR, f"the path segment {segment!r} is not UTF-8") from None


def find_target(root: ObjectType, segments: Sequence[str]) -> Target | None:
    """Find what encoded segments identify below the root's collection; None if no such kind of object exists."""
    kind = root if segments and segments[0] == root.collection else None
    types: list[ObjectType] = []
    keys: list[Key] = []
    for position in range(0, len(segments), 2):
        if position:
            kind = types[-1].child(segments[position])
        if kind is None:
            return None
        types.append(kind)
        if position + 1 < len(segments):
            keys.append(_read_key(kind, segments[position + 1]))
    return Target(tuple(types), tuple(keys)) if types else None


def _read_key(kind: ObjectType, segment: str) -> Key:
    parts = segment.split(",") if len(kind.key) > 1 else [segment]
    if len(parts) == len(kind.key):
        return tuple(decode(part) for part in parts)
    # Some clients encode the comma between the parts as well.
    parts = decode(segment).split(",", len(kind.key) - 1)
    if len(parts) != len(kind.key):
        raise SempFault(SempCode.PARSE_ERROR, f"{kind.noun}: {', '.join(kind.key_names)} wanted in the path")
    return tuple(parts)
