"""Converts values of the engine to the form in which a store writes them, and back."""

from array import array
from dataclasses import fields
from enum import Enum
from sys import byteorder
from typing import cast

import orjson

from lbg_runtime.broker.engine.effects import Published
from lbg_runtime.broker.engine.settings import Grouping, QueueSettings, ReplayLogSettings
from lbg_runtime.model.ids import DeliveryId
from lbg_runtime.smf.message import Relay, read_published

_DEFAULTS = QueueSettings()


def encode_message(message: Published) -> bytes:
    """Encode a message as a frame that can be read again."""
    relay = message.content
    if not isinstance(relay, Relay):
        raise TypeError(f"a message that is kept holds a relay, not {type(relay).__name__}")
    return b"".join((relay.direct_prefix(), relay.rest))


def decode_message(frame: bytes, spooled_at_s: int | None, number: int) -> Published:
    """The message that `encode_message` was given; raises `ProtocolError`."""
    read = read_published(frame, longest_number_bytes=len(frame), longest_topic_bytes=len(frame))
    return Published(read.topic, read.relay, read.relay.size_bytes, spooled_at_s, number=number)


def encode_settings(settings: QueueSettings) -> bytes:
    """Encode settings by name, except those with default values."""
    said = {each.name: getattr(settings, each.name) for each in fields(settings)}
    return orjson.dumps({name: value for name, value in said.items() if value != getattr(_DEFAULTS, name)})


def decode_settings(encoded: bytes) -> QueueSettings:
    """Decode settings; raises `ValueError` or `TypeError` for what `encode_settings` cannot have made."""
    said = cast(dict[str, object], orjson.loads(encoded))
    for name, value in said.items():
        default = getattr(_DEFAULTS, name, None)
        if isinstance(default, Grouping):
            said[name] = Grouping(**cast(dict[str, object], value))  # type: ignore[arg-type]  # as below
        elif isinstance(default, Enum):
            said[name] = type(default)(value)
    return QueueSettings(**said)  # type: ignore[arg-type]  # what was written had the right types


def encode_log_settings(settings: ReplayLogSettings) -> bytes:
    return orjson.dumps(settings)


def decode_log_settings(encoded: bytes) -> ReplayLogSettings:
    """Decode settings; raises `ValueError` or `TypeError` for what `encode_log_settings` cannot have made."""
    return ReplayLogSettings(**orjson.loads(encoded))


def encode_ids(ids: tuple[DeliveryId, ...]) -> bytes:
    """Encode ids, eight bytes each."""
    packed = array("Q", ids)
    if byteorder == "little":
        packed.byteswap()
    return packed.tobytes()


def decode_ids(encoded: bytes) -> tuple[DeliveryId, ...]:
    """Decode ids; raises `ValueError` for a length that is not a multiple of eight."""
    packed = array("Q")
    packed.frombytes(encoded)
    if byteorder == "little":
        packed.byteswap()
    return tuple(DeliveryId(each) for each in packed)
