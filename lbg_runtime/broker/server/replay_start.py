"""Reads from a bind where the client wants the replay to start."""

from lbg_runtime.broker.engine.replay.log import AfterMessage, FromBeginning, FromTime, ReplayStart
from lbg_runtime.model.errors import BrokerRefusal

_BEGINNING, _TIME, _MESSAGE = range(3)
_TIME_BYTES = 8
_MESSAGE_ID_BYTES = 16
_SPOOLER_BYTES = 8
"""The leading bytes of a message's id: the broker whose number the rest is."""


def replay_start(value: bytes) -> ReplayStart:
    """Decode the parameter; 403 `Unknown Start Location Type` for anything else."""
    kind, rest = value[0] if value else None, value[1:]
    if kind == _BEGINNING and not rest:
        return FromBeginning()
    if kind == _TIME and len(rest) == _TIME_BYTES:
        return FromTime(int.from_bytes(rest, "big"))
    if kind == _MESSAGE and len(rest) == _MESSAGE_ID_BYTES:
        spooler, number = rest[:_SPOOLER_BYTES], rest[_SPOOLER_BYTES:]
        return AfterMessage(int.from_bytes(spooler, "big"), int.from_bytes(number, "big"))
    raise BrokerRefusal(403, "Unknown Start Location Type")
