"""The trace context of the W3C, as user properties of a message, attributes of an event or headers of a request."""

import re
from collections.abc import Mapping

PARENT, STATE = "traceparent", "tracestate"
TRACE_CONTEXT = (PARENT, STATE)
"""The names of both parts, the parent first."""

TRACE_ID, SPAN_ID, FLAGS = slice(3, 35), slice(36, 52), slice(53, 55)
"""Their places in the text of a parent."""

_STATE = re.compile("[!-~](?:[ -~]{0,510}[!-~])?")
_IDS = "(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
_PARENT = re.compile(f"00-{_IDS}|(?!00|ff)[0-9a-f]{{2}}-{_IDS}(?:-[ -~]{{0,456}})?")
"""Versions after 00 may add something at the end."""


def trace_context(said: Mapping[str, object]) -> dict[str, str]:
    """The trace context among these properties, attributes or headers; empty if there is none. Its texts are unchanged,
    as readers of it know no percent-encoding.

    What the W3C tells readers to ignore counts as none: two parents in one, say, or a state without its parent.
    """
    told: dict[str, str] = {}
    for name, form in zip(TRACE_CONTEXT, (_PARENT, _STATE), strict=True):
        if not (isinstance(value := said.get(name), str) and form.fullmatch(value)):
            break
        told[name] = value
    return told
