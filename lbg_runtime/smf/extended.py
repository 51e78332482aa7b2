"""Extended parameters: a separate stream inside one parameter of a frame."""

from enum import IntEnum

from lbg_runtime.model.errors import ProtocolError

_HEAD_BYTES = 2
_FIXED_BYTES = (0, 1, 2, 4, 8)
"""A value's size by the format in its head; the next two formats have a length that counts itself and the head."""
_KIND_BITS = 0x0FFF


class ExtendedKind(IntEnum):
    """Extended parameters that are read or written here."""

    MESSAGE_NUMBER = 0x29
    """Eight bytes, the latter half of a message's replication group message id; without it a client uses the delivery
    id, which differs between deliveries."""
    OAUTH_ISSUER = 0x2F
    OPENID_TOKEN = 0x30
    ACCESS_TOKEN = 0x31


def decode_extended(stream: bytes) -> dict[int, bytes]:
    """Decode values by kind, the last one of each; raises `ProtocolError`."""
    values: dict[int, bytes] = {}
    position = 0
    while position < len(stream):
        head = stream[position : position + _HEAD_BYTES]
        kind, form = int.from_bytes(head, "big") & _KIND_BITS, head[0] >> 4 & 7
        start, end = _value_at(stream, position, form)
        if not start <= end <= len(stream):
            raise ProtocolError("an extended parameter with an impossible length", position)
        values[kind] = stream[start:end]
        position = end
    return values


def _value_at(stream: bytes, position: int, form: int) -> tuple[int, int]:
    """Where a value starts and ends, according to its head."""
    start = position + _HEAD_BYTES
    if form < len(_FIXED_BYTES):
        return start, start + _FIXED_BYTES[form]
    size_bytes = form - len(_FIXED_BYTES) + 1
    if size_bytes > 2:
        raise ProtocolError(f"an extended parameter of the unknown format {form}", position)
    value = start + size_bytes
    return value, position + int.from_bytes(stream[start:value], "big")
