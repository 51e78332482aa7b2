"""Assured control bodies as a list of parameters: version 3 both ways, 1 and 2 for reading only."""

from dataclasses import dataclass
from enum import IntEnum

from lbg_runtime.model.errors import ProtocolError
from lbg_runtime.smf.text import closed_text

VERSION = 3
_OLD_VERSIONS = (1, 2)
_HEAD_BYTES = 6
_OLD_HEAD_BYTES = 3


class AssuredKind(IntEnum):
    """What an assured control body asks, answers or announces."""

    OPEN_FLOW = 0
    CLIENT_ACK = 3
    BIND = 4
    UNBIND = 5
    CLOSE_FLOW = 7
    CREATE = 8
    DELETE = 9
    TRANSACTION = 0x0B
    FLOW_CHANGE = 0x0C


class ItemKind(IntEnum):
    """Parameters of an assured control body that are read or written here."""

    LAST_SENT = 0x01
    LAST_ACKED = 0x02
    WINDOW = 0x03
    APPLICATION_ACK = 0x05
    FLOW_ID = 0x06
    QUEUE = 0x07
    FLOW_NAME = 0x0A
    DURABILITY = 0x0B
    ACCESS = 0x0C
    SELECTOR = 0x0D
    TRANSPORT_WINDOW = 0x0E
    LAST_RECEIVED = 0x10
    OTHERS_PERMISSIONS = 0x11
    FLOW_TYPE = 0x12
    QUOTA_MEGABYTES = 0x13
    MAX_MESSAGE_BYTES = 0x14
    PERMISSIONS = 0x15
    RESPECT_TTL = 0x16
    TRANSACTION_REQUEST = 0x17
    TRANSACTED_SESSION = 0x18
    TRANSACTED_SESSION_NAME = 0x19
    TRANSACTION = 0x1A
    TRANSACTED_SESSION_STATE = 0x1B
    PUBLISHED_PARTS = 0x1C
    ACCEPTED_PART = 0x1D
    CONSUMED_PARTS = 0x1E
    NO_LOCAL = 0x1F
    ACTIVE = 0x20
    WANTS_CHANGES = 0x21
    DISCARD_BEHAVIOR = 0x22
    PUBLISHER_ID = 0x23
    MAX_REDELIVERIES = 0x2A
    ENDPOINT_ID = 0x2C
    MAX_UNACKED = 0x31
    REPLAY_START = 0x33
    SPOOLER = 0x36
    PARTITION_GROUP = 0x38


@dataclass(frozen=True, slots=True)
class AssuredItem:
    """One parameter of an assured control body."""

    kind: int
    value: bytes
    mark: int = 0


@dataclass(frozen=True, slots=True)
class AssuredBody:
    """An assured control body; for version 3, all of it except padding."""

    kind: int
    items: tuple[AssuredItem, ...]


class Items:
    """Looks up parameters; the first of a kind counts. Raises `ProtocolError` for values of a wrong size."""

    def __init__(self, items: tuple[AssuredItem, ...]) -> None:
        self._items = items
        self._values = {item.kind: item.value for item in reversed(items)}

    def __contains__(self, kind: int) -> bool:
        return kind in self._values

    def value(self, kind: ItemKind) -> bytes | None:
        return self._values.get(kind)

    def every(self, kind: ItemKind) -> list[bytes]:
        """The values of a parameter that may come several times, in order."""
        return [item.value for item in self._items if item.kind == kind]

    def number(self, kind: ItemKind, size: int) -> int | None:
        """A number of so many bytes, or None."""
        value = self._values.get(kind)
        if value is None:
            return None
        if len(value) != size:
            raise ProtocolError(f"{kind.name.lower()} of {len(value)} bytes, not {size}")
        return int.from_bytes(value, "big")

    def flow_id(self) -> int:
        """The flow that the request is about."""
        value = self.number(ItemKind.FLOW_ID, 4)
        if value is None:
            raise ProtocolError("assured control without flow_id")
        return value

    def text(self, kind: ItemKind) -> str:
        """A text, empty if there is none."""
        value = self._values.get(kind)
        return "" if value is None else closed_text(value)


def decode_assured(body: bytes) -> AssuredBody:
    """Read an assured control body of either version; raises `ProtocolError`."""
    if len(body) < _OLD_HEAD_BYTES:
        raise ProtocolError(f"an assured control body of {len(body)} bytes")
    version = body[0] & 0x3F
    if version == VERSION:
        if len(body) < _HEAD_BYTES:
            raise ProtocolError(f"an assured control body of {len(body)} bytes")
        kind, size, start = body[1], int.from_bytes(body[2:6], "big"), _HEAD_BYTES
    elif version in _OLD_VERSIONS:
        word = int.from_bytes(body[1:3], "big")
        # The old form counts four-byte words and fills the last one up with zero bytes, which read as padding.
        kind, size, start = word >> 12, (word & 0x0FFF) * 4, _OLD_HEAD_BYTES
    else:
        raise ProtocolError(f"assured control version {version}")
    if size != len(body):
        raise ProtocolError(f"an assured control body says it is {size} bytes long and is {len(body)}", 1)
    return AssuredBody(kind, _decode_items(body, start, size))


def _decode_items(body: bytes, position: int, size: int) -> tuple[AssuredItem, ...]:
    items = []
    while position < size:
        lead = body[position]
        if lead & 0x3F == 0:
            position += 1
            continue
        start = position + 2
        if start > size:
            raise ProtocolError("an assured control parameter without its length", position)
        length = body[position + 1]
        if length == 0:
            # Cut off by the end of the body, it is a length that does not fit.
            start = position + 6
            length = int.from_bytes(body[position + 2 : start], "big")
        end = position + length
        if not start <= end <= size:
            raise ProtocolError("an assured control parameter with an impossible length", position)
        items.append(AssuredItem(lead & 0x3F, body[start:end], lead >> 6))
        position = end
    return tuple(items)


def encode_assured(message: AssuredBody) -> bytes:
    """The bytes of an assured control body in version 3."""
    items = b"".join(map(_encode_item, message.items))
    return bytes((VERSION, message.kind)) + (_HEAD_BYTES + len(items)).to_bytes(4, "big") + items


def assured_body(kind: int, *items: tuple[ItemKind, bytes]) -> bytes:
    return encode_assured(AssuredBody(kind, tuple(AssuredItem(item, value) for item, value in items)))


def _encode_item(item: AssuredItem) -> bytes:
    lead = item.mark << 6 | item.kind
    size = len(item.value) + 2
    if size <= 0xFF:
        return bytes((lead, size)) + item.value
    return bytes((lead, 0)) + (size + 4).to_bytes(4, "big") + item.value
