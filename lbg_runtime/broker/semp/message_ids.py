"""Replication group message ids as text, in the form that PubSub+ and its clients use."""

import re

from lbg_runtime.broker.engine.replay.log import AfterMessage
from lbg_runtime.broker.semp.fault import SempFault
from lbg_runtime.broker.semp.schema import Json
from lbg_runtime.model.semp_code import SempCode

_FORM = re.compile(r"rmid1:([0-9a-f]{5})-([0-9a-f]{11})-([0-9a-f]{8})-([0-9a-f]{8})")


def message_id(spooler: int, number: int) -> str:
    """The text of a message's id."""
    digits = f"{spooler:016x}{number:016x}"
    return f"rmid1:{digits[:5]}-{digits[5:16]}-{digits[16:24]}-{digits[24:]}"


def after_message(name: str, text: Json) -> AfterMessage:
    """The place after the message with the id that an attribute has; raises `SempFault` for a text that is no id."""
    found = _FORM.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        expected = "a replication group message id, rmid1:xxxxx-xxxxxxxxxxx-xxxxxxxx-xxxxxxxx"
        raise SempFault(SempCode.INVALID_PARAMETER, f"{name} {text!r:.80} is not valid; expected {expected}")
    return AfterMessage(int(found[1] + found[2], 16), int(found[3] + found[4], 16))
