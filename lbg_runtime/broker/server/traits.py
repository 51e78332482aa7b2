"""What a message from the wire declares about itself."""

from collections.abc import Mapping

from lbg_runtime.broker.engine.effects import Published
from lbg_runtime.broker.engine.traits import HIGHEST_PRIORITY, Fields, FieldValue, Traits
from lbg_runtime.model.errors import ProtocolError
from lbg_runtime.model.message import DEFAULT_PRIORITY
from lbg_runtime.smf.contents import CORRELATION_ID, MESSAGE_ID, SENT_AT, decode_contents
from lbg_runtime.smf.frame import DEAD_MESSAGE_ELIGIBLE, ParameterKind, parameter_at
from lbg_runtime.smf.message import Relay

_PRIORITY, _TIME_TO_LIVE = int(ParameterKind.PRIORITY), int(ParameterKind.TIME_TO_LIVE)
LONGEST_LIFE_MS = (1 << 64) - 1
"""Messages stored by an earlier version may declare more, which no timer can take."""
_HEADERS = {MESSAGE_ID: "JMSMessageID", CORRELATION_ID: "JMSCorrelationID", "mt": "JMSType", SENT_AT: "JMSTimestamp"}


def traits_of(message: Published) -> Traits:
    """Priority, time to live and eligibility for a dead message queue."""
    relay = message.content
    if not isinstance(relay, Relay):
        return Traits()
    values = _parameters(relay.carried)
    return Traits(
        priority=min(values.get(_PRIORITY, DEFAULT_PRIORITY), HIGHEST_PRIORITY),
        time_to_live_ms=min(values.get(_TIME_TO_LIVE, 0), LONGEST_LIFE_MS),
        may_go_to_dead_messages=bool(relay.head[0] & DEAD_MESSAGE_ELIGIBLE),
    )


def fields_of(message: Published) -> Fields:
    """Headers by their JMS names, and user properties; none for a message with contents that cannot be read."""
    relay = message.content
    if not isinstance(relay, Relay):
        return {}
    values: dict[str, FieldValue] = {"JMSPriority": traits_of(message).priority, "JMSDeliveryMode": "PERSISTENT"}
    try:
        contents = decode_contents(relay.contents, relay.body)
    except ProtocolError:
        return values
    _add(values, contents.properties)
    _add(values, {_HEADERS[name]: value for name, value in contents.headers.items() if name in _HEADERS})
    return values


def _add(values: dict[str, FieldValue], found: Mapping[str, object]) -> None:
    values.update({name: value for name, value in found.items() if isinstance(value, bool | int | float | str)})


def _parameters(carried: bytes) -> dict[int, int]:
    """The standard parameters as numbers; the frame's reader has checked that they are well formed."""
    values: dict[int, int] = {}
    position, end = 0, len(carried)
    while position < end:
        kind, start, following = parameter_at(carried, position, end)
        if not carried[position] & 0x20 and kind in (_PRIORITY, _TIME_TO_LIVE):
            values[kind] = int.from_bytes(carried[start:following], "big")
        position = following
    return values
