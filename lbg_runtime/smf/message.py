"""Message frames, the hot path: what a broker reads of a published one, and how it forwards it without rebuilding it.

The parameters of one hop (ids, flow, flags of the acknowledgement) are removed once; everything else, body included, is
passed on unchanged after a prefix that only packs the ids of the new hop.
"""

import struct
from dataclasses import dataclass
from functools import lru_cache

from lbg_runtime.model.errors import ProtocolError
from lbg_runtime.model.message import DEFAULT_PRIORITY
from lbg_runtime.model.topic import LARGEST_TOPIC_BYTES
from lbg_runtime.smf.extended import ExtendedKind
from lbg_runtime.smf.frame import (
    ASSURED,
    DEAD_MESSAGE_ELIGIBLE,
    DISCARDED,
    HEADER_BYTES,
    HOPS,
    VERSION,
    LightKind,
    Parameter,
    ParameterKind,
    Protocol,
    check_lengths,
    encode_parameter,
    parameter_at,
)

PERSISTENT = 1
"""Delivery mode; 0 is non-persistent, spooled like persistent; none at all is direct."""

HIGHEST_CLASS = 2
"""The highest class of service of direct messages; the lowest is 0."""

_PLAIN = struct.Struct(">4sII")
# The kind and the length of a parameter are one number, as packing costs per item.
_HOP = struct.Struct(">4sIIHQHQHI")
_NUMBERED_HOP = struct.Struct(">4sIIHQHQHIIQ")
_USUAL_HOP = struct.Struct(_NUMBERED_HOP.format + "3s")
"""Followed by the mode of a message that was not shown before."""
_NUMBER_BYTES = _NUMBERED_HOP.size - _HOP.size
_REDELIVERED = bytes((0x80 | ParameterKind.REDELIVERED, 2))
_LIGHT = 0x20
"""Added to the kind of a lightweight parameter."""
_KIND_BITS = _LIGHT | 0x1F
_HOP_KINDS = frozenset(
    int(kind)
    for kind in (
        ParameterKind.MESSAGE_ID,
        ParameterKind.PREVIOUS_ID,
        ParameterKind.REDELIVERED,
        ParameterKind.FLOW_ID,
        ParameterKind.DELIVERY_MODE,
        # Not part of the message at all; passed on, they would confuse the next hop.
        ParameterKind.RESPONSE,
        ParameterKind.USERNAME,
        ParameterKind.PASSWORD,
        _LIGHT | LightKind.ACK_IMMEDIATELY,
        _LIGHT | LightKind.CORRELATION_TAG,
    )
)
# Plain integers: comparing with enum members costs as much as everything else in reading a message.
_TOPIC = int(ParameterKind.TOPIC)
_CONTENTS = int(ParameterKind.CONTENTS)
_MESSAGE_ID = int(ParameterKind.MESSAGE_ID)
_FLOW_ID = int(ParameterKind.FLOW_ID)
_PRIORITY = int(ParameterKind.PRIORITY)
_NUMBERS = frozenset((_PRIORITY, int(ParameterKind.TIME_TO_LIVE)))
_LONGEST_NUMBER_BYTES = 8
_LARGEST_ID = (1 << 63) - 1


# These two are not frozen, unlike most values: freezing takes four times as long, and both are made for every message.
@dataclass(slots=True)
class PublishedFrame:
    """A message as a publisher sent it."""

    topic: str
    assured: bool
    """Published persistently: it has ids and expects an acknowledgement."""
    flow_id: int
    message_id: int
    relay: "Relay"


@dataclass(slots=True)
class Relay:
    """The part of a message that passes a broker unchanged, made once and packed into each delivery. Never changed."""

    head: bytes
    """The first four bytes of the frame, without the flags of one hop."""
    carried: bytes
    """Parameters."""
    body: bytes
    contents: bytes | None
    """The value of the contents summary, which says how the body is divided."""

    @property
    def size_bytes(self) -> int:
        """The bytes needed to keep it."""
        return len(self.carried) + len(self.body)

    @property
    def class_of_service(self) -> int:
        """That of a direct message: 0 to 2, the highest leaves first. Anything above counts as the highest."""
        return min(self.head[2] >> 4, HIGHEST_CLASS)

    @property
    def priority(self) -> int:
        """That which its publisher gave, 0 to 255; 4 where it gave none."""
        position, end = 0, len(self.carried)
        while position < end:
            kind, start, following = parameter_at(self.carried, position, end)
            if not self.carried[position] & _LIGHT and kind == _PRIORITY:
                return int.from_bytes(self.carried[start:following], "big")
            position = following
        return DEFAULT_PRIORITY

    def with_contents(self, contents: bytes | None, body: bytes) -> "Relay":
        """The same message with other contents."""
        pieces, position = [], 0
        while position < len(self.carried):
            kind, _, end = parameter_at(self.carried, position, len(self.carried))
            if self.carried[position] & 0x20 or kind != _CONTENTS:
                pieces.append(self.carried[position:end])
            position = end
        if contents is not None:
            pieces.append(encode_parameter(Parameter(ParameterKind.CONTENTS, contents, mark=2)))
        return Relay(self.head, b"".join(pieces), body, contents)

    def delivery_prefix(
        self, delivery_id: int, previous_id: int, flow_id: int, redelivered: bool, number: int = 0
    ) -> bytes:
        """Bytes of a delivery from a queue up to `carried`; `carried` and `body` follow it.

        `number` is the message's own, the same in each of its deliveries; 0 if it has none.
        """
        # One call for everything: this is the larger part of a delivery's cost.
        # fmt: off
        if number and not redelivered:
            header_bytes = _USUAL_HOP.size + len(self.carried)
            return _USUAL_HOP.pack(
                _assured_head(self.head), header_bytes, header_bytes + len(self.body),
                _ID, delivery_id, _BEFORE, previous_id, _FLOW, flow_id, _NUMBER, number, _MODE,
            )
        head = _assured_head(self.head)
        mode = _REDELIVERED_MODE if redelivered else _MODE
        header_bytes = len(mode) + len(self.carried)
        if not number:
            header_bytes += _HOP.size
            return _HOP.pack(
                head, header_bytes, header_bytes + len(self.body),
                _ID, delivery_id, _BEFORE, previous_id, _FLOW, flow_id,
            ) + mode
        header_bytes += _NUMBERED_HOP.size
        return _NUMBERED_HOP.pack(
            head, header_bytes, header_bytes + len(self.body),
            _ID, delivery_id, _BEFORE, previous_id, _FLOW, flow_id, _NUMBER, number,
        ) + mode
        # fmt: on

    def direct_prefix(self, *, discarded: bool = False) -> bytes:
        """Bytes of a direct delivery up to `carried`; `discarded` reports that messages before it were lost."""
        head = bytes((self.head[0] | DISCARDED,)) + self.head[1:] if discarded else self.head
        header_bytes = HEADER_BYTES + len(self.carried)
        return _PLAIN.pack(head, header_bytes, header_bytes + len(self.body))


_ID = (0x80 | ParameterKind.MESSAGE_ID) << 8 | 10
_BEFORE = (0x80 | ParameterKind.PREVIOUS_ID) << 8 | 10
_FLOW = (0x80 | ParameterKind.FLOW_ID) << 8 | 6
# The kind with its format, a value of eight bytes, in an extended parameter.
_NUMBER = (ParameterKind.EXTENDED << 8 | _NUMBER_BYTES) << 16 | 4 << 12 | ExtendedKind.MESSAGE_NUMBER
_MODE = bytes((0x80 | ParameterKind.DELIVERY_MODE, 3, PERSISTENT))
_REDELIVERED_MODE = _REDELIVERED + _MODE


# There are few different heads, so each is made once.
@lru_cache(maxsize=256)
def _assured_head(head: bytes) -> bytes:
    return bytes((head[0] | ASSURED,)) + head[1:]


@lru_cache(maxsize=256)
def _plain_head(head: bytes) -> bytes:
    return bytes((head[0] & ~(ASSURED | DISCARDED) & 0xFF,)) + head[1:]


def read_published(
    raw: bytes,
    longest_number_bytes: int = _LONGEST_NUMBER_BYTES,
    longest_topic_bytes: int = LARGEST_TOPIC_BYTES,
) -> PublishedFrame:
    """Read a message frame, as cut by `FrameReader`; raises `ProtocolError`.

    The limits of priority and time to live, and of the topic, are parameters because all of these may be longer in a
    store of an older version. An id has 63 bits at most.
    """
    header_bytes, total = check_lengths(raw, 0)
    if total != len(raw):
        raise ProtocolError(f"the frame says it is {total} bytes long and is {len(raw)}", 8)
    topic: str | None = None
    contents: bytes | None = None
    flow_id = message_id = 0
    pieces = []
    position = kept_from = HEADER_BYTES
    while position < header_bytes:
        kind = raw[position] & _KIND_BITS
        # Nearly all have the short form and are valid: a call for each would take as long as everything else.
        if (
            0 < kind < _LIGHT
            and position + 1 < header_bytes
            and 2 <= (size := raw[position + 1]) <= header_bytes - position
        ):
            start, end = position + 2, position + size
        else:
            of_its_form, start, end = parameter_at(raw, position, header_bytes)
            kind = of_its_form | kind & _LIGHT
        if kind in _HOP_KINDS:
            if kept_from < position:
                pieces.append(raw[kept_from:position])
            kept_from = end
            if kind == _MESSAGE_ID:
                message_id = _number(raw, start, end, 8)
                if message_id > _LARGEST_ID:
                    # No store of the broker could keep it.
                    raise ProtocolError(f"the id {message_id} where {_LARGEST_ID} is the largest", start)
            elif kind == _FLOW_ID:
                flow_id = _number(raw, start, end, 4)
        elif kind == _TOPIC:
            if end - start > longest_topic_bytes + 1:
                # Each level is compared with what is subscribed, prefix by prefix, while all others wait.
                raise ProtocolError(f"a topic of more than {longest_topic_bytes} bytes", start)
            topic = _text(raw, start, end)
        elif kind == _CONTENTS:
            contents = raw[start:end]
        elif kind in _NUMBERS and end - start > longest_number_bytes:
            # Code that uses it later, perhaps in another life of the broker, could no longer refuse it.
            raise ProtocolError(f"a number of {end - start} bytes where {longest_number_bytes} are the most", start)
        position = end
    if kept_from < header_bytes:
        pieces.append(raw[kept_from:header_bytes])
    if topic is None:
        raise ProtocolError("a message without a topic", HEADER_BYTES)
    relay = Relay(_plain_head(raw[:4]), b"".join(pieces), raw[header_bytes:], contents)
    return PublishedFrame(topic, bool(raw[0] & ASSURED), flow_id, message_id, relay)


def make_relay(topic: str, body: bytes, contents: bytes | None = None, priority: int = DEFAULT_PRIORITY) -> Relay:
    """What a publisher's message with this topic and body would become, for messages made in a broker or a test."""
    parameters = [Parameter(ParameterKind.TOPIC, topic.encode() + b"\0", mark=2)]
    if contents is not None:
        parameters.append(Parameter(ParameterKind.CONTENTS, contents, mark=2))
    parameters.append(Parameter(ParameterKind.PRIORITY, bytes((priority,))))
    head = bytes((VERSION | DEAD_MESSAGE_ELIGIBLE, 0x80 | Protocol.MESSAGE, 0, HOPS))
    return Relay(head, b"".join(map(encode_parameter, parameters)), body, contents)


def _text(raw: bytes, start: int, end: int) -> str:
    if start == end or raw[end - 1] != 0:
        raise ProtocolError("a topic without its closing zero", start)
    try:
        return raw[start : end - 1].decode()
    except UnicodeDecodeError as error:
        raise ProtocolError("a topic that is not UTF-8", start + error.start) from error


def _number(raw: bytes, start: int, end: int, size: int) -> int:
    if end - start != size:
        raise ProtocolError(f"an id of {end - start} bytes where {size} are", start)
    return int.from_bytes(raw[start:end], "big")
