"""Message frames, the hot path: what a broker reads of a published one, and how it forwards it without rebuilding it.

The parameters of one hop (ids, flow, flags of the acknowledgement) are removed once; everything else, body included, is
passed on unchanged after a prefix that only packs the ids of the new hop.
"""

import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

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
_PREVIOUS_ID = int(ParameterKind.PREVIOUS_ID)
_FLOW_ID = int(ParameterKind.FLOW_ID)
_PRIORITY = int(ParameterKind.PRIORITY)
_NUMBERS = frozenset((_PRIORITY, int(ParameterKind.TIME_TO_LIVE)))
_LONGEST_NUMBER_BYTES = 8
_LARGEST_ID = (1 << 63) - 1
_LARGE_BYTES = 16 * 1024


# These two are not frozen, unlike most values: freezing takes four times as long, and both are made for every message.
@dataclass(slots=True)
class PublishedFrame:
    """A message as a publisher sent it."""

    topic: str
    assured: bool
    """Published persistently: it has ids and expects an acknowledgement."""
    flow_id: int
    message_id: int
    previous_id: int | None
    """The id of the message that the publisher sent before on this flow; None if it does not say."""
    relay: "Relay"


@dataclass(slots=True)
class Relay:
    """The part of a message that passes a broker unchanged, made once and packed into each delivery. Never changed."""

    head: bytes
    """The first four bytes of a delivery from a queue: `ASSURED`, and no other flag of one hop."""
    rest: bytes
    """`carried`, then `body`: in one piece, as each piece of a message costs time and memory."""
    carried_bytes: int
    contents: bytes | None
    """The value of the contents summary, which says how the body is divided."""

    @classmethod
    def of(cls, head: bytes, carried: bytes, body: bytes, contents: bytes | None) -> Self:
        """Make one of its parts."""
        return cls(head, carried + body, len(carried), contents)

    @property
    def size_bytes(self) -> int:
        """The bytes needed to keep it."""
        return len(self.rest)

    @property
    def carried(self) -> bytes:
        """Parameters; a copy."""
        return self.rest[: self.carried_bytes]

    @property
    def body(self) -> bytes:
        """A copy, too."""
        return self.rest[self.carried_bytes :]

    @property
    def class_of_service(self) -> int:
        """That of a direct message: 0 to 2, the highest leaves first. Anything above counts as the highest."""
        return min(self.head[2] >> 4, HIGHEST_CLASS)

    @property
    def priority(self) -> int:
        """That which its publisher gave, 0 to 255; 4 where it gave none."""
        rest, position, end = self.rest, 0, self.carried_bytes
        while position < end:
            kind, start, following = parameter_at(rest, position, end)
            if not rest[position] & _LIGHT and kind == _PRIORITY:
                return int.from_bytes(rest[start:following], "big")
            position = following
        return DEFAULT_PRIORITY

    def with_contents(self, contents: bytes | None, body: bytes) -> "Relay":
        """The same message with other contents."""
        carried, pieces, position = self.carried, [], 0
        while position < len(carried):
            kind, _, end = parameter_at(carried, position, len(carried))
            if kind != _CONTENTS:
                pieces.append(carried[position:end])
            position = end
        if contents is not None:
            pieces.append(encode_parameter(Parameter(ParameterKind.CONTENTS, contents, mark=2)))
        return Relay.of(self.head, b"".join(pieces), body, contents)

    def delivery_prefix(
        self, delivery_id: int, previous_id: int, flow_id: int, redelivered: bool, number: int = 0
    ) -> bytes:
        """Bytes of a delivery from a queue up to `rest`, which follows them.

        `number` is the message's own, the same in each of its deliveries; 0 if it has none.
        """
        # One call for everything: this is the larger part of a delivery's cost.
        # fmt: off
        if number and not redelivered:
            return _USUAL_HOP.pack(
                self.head, _USUAL_HOP.size + self.carried_bytes, _USUAL_HOP.size + len(self.rest),
                _ID, delivery_id, _BEFORE, previous_id, _FLOW, flow_id, _NUMBER, number, _MODE,
            )
        mode = _REDELIVERED_MODE if redelivered else _MODE
        hop_bytes = len(mode) + (_NUMBERED_HOP.size if number else _HOP.size)
        lengths = hop_bytes + self.carried_bytes, hop_bytes + len(self.rest)
        if not number:
            return _HOP.pack(
                self.head, *lengths,
                _ID, delivery_id, _BEFORE, previous_id, _FLOW, flow_id,
            ) + mode
        return _NUMBERED_HOP.pack(
            self.head, *lengths,
            _ID, delivery_id, _BEFORE, previous_id, _FLOW, flow_id, _NUMBER, number,
        ) + mode
        # fmt: on

    def direct_prefix(self, *, discarded: bool = False) -> bytes:
        """Bytes of a direct delivery up to `rest`; `discarded` reports that messages before it were lost."""
        return _PLAIN.pack(
            _direct_head(self.head, discarded), HEADER_BYTES + self.carried_bytes, HEADER_BYTES + len(self.rest)
        )


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
    return bytes((head[0] & ~DISCARDED | ASSURED,)) + head[1:]


@lru_cache(maxsize=256)
def _direct_head(head: bytes, discarded: bool) -> bytes:
    return bytes((head[0] & ~ASSURED | DISCARDED * discarded,)) + head[1:]


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
    previous_id: int | None = None
    pieces: list[bytes | memoryview] = []
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
            elif kind == _PREVIOUS_ID:
                previous_id = _number(raw, start, end, 8)
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
    if topic is None:
        raise ProtocolError("a message without a topic", HEADER_BYTES)
    # A view takes longer to make than few bytes to copy; a large body should be copied once, not twice.
    pieces.append(raw[kept_from:] if total < _LARGE_BYTES else memoryview(raw)[kept_from:])
    rest = b"".join(pieces)
    relay = Relay(_assured_head(raw[:4]), rest, len(rest) - (total - header_bytes), contents)
    return PublishedFrame(topic, bool(raw[0] & ASSURED), flow_id, message_id, previous_id, relay)


def make_relay(topic: str, body: bytes, contents: bytes | None = None, priority: int = DEFAULT_PRIORITY) -> Relay:
    """What a publisher's message with this topic and body would become, for messages made in a broker or a test."""
    parameters = [Parameter(ParameterKind.TOPIC, topic.encode() + b"\0", mark=2)]
    if contents is not None:
        parameters.append(Parameter(ParameterKind.CONTENTS, contents, mark=2))
    parameters.append(Parameter(ParameterKind.PRIORITY, bytes((priority,))))
    head = bytes((VERSION | ASSURED | DEAD_MESSAGE_ELIGIBLE, 0x80 | Protocol.MESSAGE, 0, HOPS))
    return Relay.of(head, b"".join(map(encode_parameter, parameters)), body, contents)


def _text(raw: bytes, start: int, end: int) -> str:
    # An empty one is preceded by its length, which is never zero.
    if raw[end - 1] != 0:
        raise ProtocolError("a topic without its closing zero", start)
    try:
        return raw[start : end - 1].decode()
    except UnicodeDecodeError as error:
        raise ProtocolError("a topic that is not UTF-8", start + error.start) from error


def _number(raw: bytes, start: int, end: int, size: int) -> int:
    if end - start != size:
        raise ProtocolError(f"an id of {end - start} bytes where {size} are", start)
    return int.from_bytes(raw[start:end], "big")
