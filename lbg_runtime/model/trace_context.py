"""The trace context of the W3C, as user properties of a message, attributes of an event or headers of a request."""

import re
from collections.abc import Mapping

PARENT, STATE = "traceparent", "tracestate"
TRACE_CONTEXT = (PARENT, STATE)
"""The parent first."""

TRACE_ID, SPAN_ID, FLAGS = slice(3, 35), slice(36, 52), slice(53, 55)
"""Where a parent has them."""

_STATE = re.compile("[!-~](?:[ -~]{0,510}[!-~])?")
_IDS = "(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
_PARENT = re.compile(f"00-{_IDS}|(?!00|ff)[0-9a-f]{{2}}-{_IDS}(?:-[ -~]{{0,456}})?")
"""Versions after 00 may say more behind what it has."""


def trace_context(said: Mapping[str, object]) -> dict[str, str]:
    """The context of a trace among what is said, as it came: whoever reads it knows no percent-encoding.

    What the W3C has readers ignore is none, so two parents in one are none, and so is a state without its parent.
    """
    told: dict[str, str] = {}
    for name, form in zip(TRACE_CONTEXT, (_PARENT, _STATE), strict=True):
        if not (isinstance(value := said.get(name), str) and form.fullmatch(value)):
            break
        told[name] = value
    return told
