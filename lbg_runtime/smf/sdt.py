"""Structured data: the typed values of user properties, headers, maps and streams, both ways.

| on the wire               | in Python                                                   |
|---------------------------|-------------------------------------------------------------|
| null, bool, string, bytes | `None`, `bool`, `str`, `bytes`                              |
| signed, unsigned integer  | `int`; written signed in 8 bytes, unsigned where it must be |
| float, character          | `float`, written in 8 bytes; `str`, never written           |
| map, stream               | `dict`, `list`                                              |
| destination, message      | `Destination`, `EncodedMessage`                             |
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from lbg_runtime.model.errors import ProtocolError
from lbg_runtime.smf.text import close_text, closed_text, text_of


class SdtKind(IntEnum):
    """The types of items."""

    NULL = 0
    BOOL = 1
    SIGNED = 2
    UNSIGNED = 3
    FLOAT = 4
    CHARACTER = 5
    BYTES = 6
    STRING = 7
    DESTINATION = 8
    MESSAGE = 9
    MAP = 0x0A
    STREAM = 0x0B


class DestinationKind(IntEnum):
    TOPIC = 0
    QUEUE = 1


@dataclass(frozen=True, slots=True)
class Destination:
    """A place to send messages to."""

    kind: DestinationKind
    name: str


@dataclass(frozen=True, slots=True)
class EncodedMessage:
    """A whole message frame carried as a value, not read any further."""

    raw: bytes


SdtValue = (
    None
    | bool
    | int
    | float
    | str
    | bytes
    | Destination
    | EncodedMessage
    | Mapping[str, "SdtValue"]
    | Sequence["SdtValue"]
)

MAX_DEPTH = 32
"""How deep maps and streams may be nested; deeper nesting is a peer's attempt to exhaust the stack."""

_DOUBLE = struct.Struct(">d")
_SINGLE = struct.Struct(">f")
_INTEGER_SIZES = frozenset({1, 2, 4, 8})


def encode_sdt(value: SdtValue) -> bytes:
    """The bytes of one item; raises `ValueError` for an integer of more than 64 bits, `TypeError` for other types."""
    match value:
        case None:
            return _item(SdtKind.NULL, b"")
        case bool():
            return _item(SdtKind.BOOL, bytes((value,)))
        case int():
            return _encode_integer(value)
        case float():
            return _item(SdtKind.FLOAT, _DOUBLE.pack(value))
        case str():
            return _item(SdtKind.STRING, close_text(value))
        case bytes():
            return _item(SdtKind.BYTES, value)
        case Destination():
            return _item(SdtKind.DESTINATION, bytes((value.kind,)) + close_text(value.name))
        case EncodedMessage():
            return _item(SdtKind.MESSAGE, value.raw)
        case Mapping():
            return encode_map(value)
        case Sequence():
            return encode_stream(value)
        case _:
            raise TypeError(f"{type(value).__name__} is not a type of structured data")


def encode_map(values: Mapping[str, SdtValue]) -> bytes:
    """The bytes of a map, its length always in four bytes as clients write it."""
    items = b"".join(encode_sdt(key) + encode_sdt(value) for key, value in values.items())
    return _long_item(SdtKind.MAP, items)


def encode_stream(values: Sequence[SdtValue]) -> bytes:
    """The bytes of a stream, its length always in four bytes as clients write it."""
    return _long_item(SdtKind.STREAM, b"".join(map(encode_sdt, values)))


def decode_sdt(data: bytes) -> SdtValue:
    """Read the one item that `data` consists of; raises `ProtocolError`."""
    value, end = _read_item(data, 0, len(data), 0)
    if end != len(data):
        raise ProtocolError("bytes behind an item of structured data", end)
    return value


def _encode_integer(value: int) -> bytes:
    if -(1 << 63) <= value < 1 << 63:
        return _item(SdtKind.SIGNED, value.to_bytes(8, "big", signed=True))
    if 0 <= value < 1 << 64:
        return _item(SdtKind.UNSIGNED, value.to_bytes(8, "big"))
    raise ValueError(f"{value} has more than 64 bits")


def _item(kind: SdtKind, value: bytes) -> bytes:
    for length_bytes in (1, 2, 3):
        size = 1 + length_bytes + len(value)
        if size < 1 << 8 * length_bytes:
            return bytes((kind << 2 | length_bytes - 1,)) + size.to_bytes(length_bytes, "big") + value
    return _long_item(kind, value)


def _long_item(kind: SdtKind, value: bytes) -> bytes:
    return bytes((kind << 2 | 3,)) + (5 + len(value)).to_bytes(4, "big") + value


def _read_item(data: bytes, position: int, limit: int, depth: int) -> tuple[SdtValue, int]:
    start = position + 2 + (data[position] & 3) if position < limit else limit + 1
    if start > limit:
        raise ProtocolError("an item of structured data without its length", position)
    end = position + int.from_bytes(data[position + 1 : start], "big")
    if not start <= end <= limit:
        raise ProtocolError("an item of structured data with an impossible length", position)
    kind = data[position] >> 2
    if kind == SdtKind.MAP:
        return _read_map(data, start, end, depth + 1), end
    if kind == SdtKind.STREAM:
        return list(_read_items(data, start, end, depth + 1)), end
    try:
        return _read_scalar(kind, data[start:end]), end
    except ProtocolError as error:
        raise ProtocolError(error.what, start + error.offset) from error


def _read_items(data: bytes, position: int, end: int, depth: int) -> Iterator[SdtValue]:
    if depth > MAX_DEPTH:
        raise ProtocolError(f"structured data nested deeper than {MAX_DEPTH}", position)
    while position < end:
        value, position = _read_item(data, position, end, depth)
        yield value


def _read_map(data: bytes, start: int, end: int, depth: int) -> dict[str, SdtValue]:
    values: dict[str, SdtValue] = {}
    items = _read_items(data, start, end, depth)
    for key in items:
        if not isinstance(key, str):
            raise ProtocolError("a key of a map that is not a string", start)
        try:
            values[key] = next(items)
        except StopIteration:
            raise ProtocolError("a key of a map without its value", end) from None
    return values


def _read_scalar(kind: int, value: bytes) -> SdtValue:
    match kind:
        case SdtKind.NULL if not value:
            return None
        case SdtKind.BOOL if len(value) == 1:
            return value != b"\0"
        case SdtKind.SIGNED if len(value) in _INTEGER_SIZES:
            return int.from_bytes(value, "big", signed=True)
        case SdtKind.UNSIGNED if len(value) in _INTEGER_SIZES:
            return int.from_bytes(value, "big")
        case SdtKind.FLOAT if len(value) == _DOUBLE.size:
            return float(_DOUBLE.unpack(value)[0])
        case SdtKind.FLOAT if len(value) == _SINGLE.size:
            return float(_SINGLE.unpack(value)[0])
        case SdtKind.CHARACTER if value == b"\0\0":
            return "\ufffd"  # no text that is sent can have it
        case SdtKind.CHARACTER if len(value) == 2:
            return text_of(value, "utf-16-be")
        case SdtKind.BYTES:
            return value
        case SdtKind.STRING:
            return closed_text(value)
        case SdtKind.DESTINATION:
            return _read_destination(value)
        case SdtKind.MESSAGE:
            return EncodedMessage(value)
        case _:
            raise ProtocolError(f"structured data of type {kind} in {len(value)} bytes")


def _read_destination(value: bytes) -> Destination:
    if not value:
        raise ProtocolError("an empty destination")
    try:
        kind = DestinationKind(value[0])
    except ValueError as error:
        raise ProtocolError(f"a destination of kind {value[0]}") from error
    return Destination(kind, closed_text(value[1:]))
