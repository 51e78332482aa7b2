"""Frames: a 12-byte header, parameters, a body; and the reader that cuts a byte stream into them."""

import struct
from dataclasses import dataclass
from enum import IntEnum

from lbg_runtime.model.errors import ProtocolError

HEADER_BYTES = 12
VERSION = 3
HOPS = 255
"""The hop count that a broker writes."""
LARGEST_HEADER_BYTES = 64 * 1024
"""The longest header that is read from a stream. That of a message with all fields takes less than 1 KB, as headers and
user properties of applications are in the body; and it is read parameter by parameter while all others wait."""

DISCARDED = 0x80
"""Flag: messages before this one were lost on the way."""
ASSURED = 0x10
"""Flag: the message was published persistently, or is delivered from a queue."""
DEAD_MESSAGE_ELIGIBLE = 0x08

_LENGTHS = struct.Struct(">II")
_PROTOCOL_BITS = 0x3F


class Protocol(IntEnum):
    """What kind of body a frame has."""

    ASSURED_CTRL = 0x09
    KEEP_ALIVE = 0x0B
    CLIENT_CTRL = 0x0C
    MESSAGE = 0x0D
    SUBSCRIPTION = 0x0F
    ASSURED_PASS_THROUGH = 0x13


class ParameterKind(IntEnum):
    """Standard parameters of a frame that are read or written here."""

    PUBLISHER_ID = 0x01
    PRIORITY = 0x03
    USERNAME = 0x06
    PASSWORD = 0x07
    RESPONSE = 0x08
    DELIVERY_MODE = 0x10
    MESSAGE_ID = 0x11
    PREVIOUS_ID = 0x12
    REDELIVERED = 0x13
    CONTENTS = 0x16
    FLOW_ID = 0x17
    TOPIC = 0x18
    TIME_TO_LIVE = 0x1C
    EXTENDED = 0x1F
    """Extended parameters, one after the other: `smf/extended.py`."""


class LightKind(IntEnum):
    """Lightweight parameters: one byte, then up to 3 bytes of value."""

    CORRELATION_TAG = 0
    ACK_IMMEDIATELY = 3


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a frame. `mark` holds the two bits that tell readers without knowledge of it what to do."""

    kind: int
    value: bytes = b""
    light: bool = False
    mark: int = 0


@dataclass(frozen=True, slots=True)
class Frame:
    """One whole frame, every bit of it except padding."""

    protocol: int
    parameters: tuple[Parameter, ...] = ()
    body: bytes = b""
    flags: int = 0
    """The bits 0xF8 of the first byte."""
    mark: int = 2
    service: int = 0
    """The third byte, unchanged; its high half is the class of service."""
    hops: int = HOPS

    def find(self, kind: int, *, light: bool = False) -> bytes | None:
        """The value of the first parameter of this kind, or None."""
        for parameter in self.parameters:
            if parameter.kind == kind and parameter.light is light:
                return parameter.value
        return None

    @property
    def tag(self) -> bytes | None:
        """The correlation tag, to be echoed byte for byte in the answer."""
        return self.find(LightKind.CORRELATION_TAG, light=True)


def encode_frame(frame: Frame) -> bytes:
    """The bytes of a frame; raises `ValueError` for a field that does not fit."""
    parameters = b"".join(map(encode_parameter, frame.parameters))
    header_bytes = HEADER_BYTES + len(parameters)
    head = bytes((frame.flags | VERSION, frame.mark << 6 | frame.protocol, frame.service, frame.hops))
    return head + _LENGTHS.pack(header_bytes, header_bytes + len(frame.body)) + parameters + frame.body


def encode_parameter(parameter: Parameter) -> bytes:
    """The bytes of one parameter, in the long form if the value needs it."""
    size = len(parameter.value)
    mark = parameter.mark << 6
    if parameter.light:
        if size > 3:
            raise ValueError(f"a lightweight parameter holds 3 bytes at most, not {size}")
        return bytes((mark | 0x20 | parameter.kind << 2 | size,)) + parameter.value
    if size + 2 <= 0xFF:
        return bytes((mark | parameter.kind, size + 2)) + parameter.value
    return bytes((mark | parameter.kind, 0)) + (size + 6).to_bytes(4, "big") + parameter.value


def decode_frame(raw: bytes) -> Frame:
    """Read one whole frame, as cut by `FrameReader`."""
    header_bytes, total = check_lengths(raw, 0)
    if total != len(raw):
        raise ProtocolError(f"the frame says it is {total} bytes long and is {len(raw)}", 8)
    parameters = []
    position = HEADER_BYTES
    while position < header_bytes:
        lead = raw[position]
        kind, start, end = parameter_at(raw, position, header_bytes)
        if kind >= 0:
            light = bool(lead & 0x20)
            parameters.append(Parameter(kind, raw[start:end], light, lead >> 6))
        position = end
    return Frame(
        protocol=raw[1] & _PROTOCOL_BITS,
        parameters=tuple(parameters),
        body=raw[header_bytes:],
        flags=raw[0] & 0xF8,
        mark=raw[1] >> 6,
        service=raw[2],
        hops=raw[3],
    )


def parameter_at(raw: bytes, position: int, header_bytes: int) -> tuple[int, int, int]:
    """Kind, first byte of the value and end of the parameter at `position`; kind -1 for a padding byte.

    The caller asks only for positions below `header_bytes`. The end is always beyond `position`, so a loop over it
    terminates.
    """
    lead = raw[position]
    if lead & 0x20:
        start = position + 1
        end = start + (lead & 3)
        kind = lead >> 2 & 7
    elif lead & 0x1F == 0:
        return -1, position + 1, position + 1
    else:
        if position + 2 > header_bytes:
            raise ProtocolError("a parameter without its length", position)
        kind = lead & 0x1F
        start = position + 2
        size = raw[position + 1]
        if size == 0:
            # Cut off by the end of the header, it is a length that does not fit.
            start = position + 6
            size = int.from_bytes(raw[position + 2 : start], "big")
        end = position + size
        if end < start:
            raise ProtocolError(f"a parameter shorter than its own head: {size} bytes", position)
    if end > header_bytes:
        raise ProtocolError("a parameter longer than the header", position)
    return kind, start, end


def protocol_of(raw: bytes) -> int:
    """The protocol number of a whole frame."""
    return raw[1] & _PROTOCOL_BITS


def check_lengths(data: bytes, position: int) -> tuple[int, int]:
    """Header and total length of the frame that starts at `position`, of which at least 12 bytes are available."""
    if data[position] & 7 != VERSION:
        raise ProtocolError(f"version {data[position] & 7} where {VERSION} is spoken", 0)
    header_bytes, total = _LENGTHS.unpack_from(data, position + 4)
    if not HEADER_BYTES <= header_bytes <= total:
        raise ProtocolError(f"a header of {header_bytes} bytes in a frame of {total}", 4)
    return header_bytes, total


class FrameReader:
    """Cuts a byte stream, in pieces of any size, into frames. Owned by one connection.

    Linear in the bytes fed, and never holds more than one unfinished frame, at most `limit_bytes` of it. After a
    `ProtocolError` the stream can be read no further.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        """The longest frame accepted; may be changed between frames."""
        self._data = b""
        self._position = 0
        self._unfinished = bytearray()
        self._needed = HEADER_BYTES

    def feed(self, data: bytes) -> None:
        """Add what arrived, behind what `next_frame` has not returned yet, which is copied then."""
        if self._position < len(self._data):
            self._data = self._data[self._position :] + data
            self._position = 0
            return
        if not self._unfinished:
            self._data = data
            self._position = 0
            return
        self._unfinished += data
        if len(self._unfinished) >= self._needed:
            self._data = bytes(self._unfinished)
            self._position = 0
            self._unfinished.clear()

    def next_frame(self) -> bytes | None:
        """The next whole frame, or None until more is fed; raises `ProtocolError` at the first impossible header."""
        data, position = self._data, self._position
        available = len(data) - position
        if not available:
            return None  # `_needed` remains that of the unfinished frame
        self._needed = HEADER_BYTES
        if available >= HEADER_BYTES:
            header_bytes, total = check_lengths(data, position)
            if header_bytes > LARGEST_HEADER_BYTES:
                raise ProtocolError(f"a header of {header_bytes} bytes where {LARGEST_HEADER_BYTES} are allowed", 4)
            if total > self.limit_bytes:
                raise ProtocolError(f"a frame of {total} bytes where {self.limit_bytes} are allowed", 8)
            if available >= total:
                self._position = position + total
                return data[position : position + total]
            self._needed = total
        self._unfinished += data[position:]
        self._data = b""
        self._position = 0
        return None
