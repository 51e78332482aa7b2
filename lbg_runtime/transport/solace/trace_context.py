"""The trace context that the vendor's integration with OpenTelemetry puts into messages, beside our user properties.

A message carries two such contexts: that of its creation, which the publisher sets and nobody changes, and that of its
transport, which each broker sets anew with its own span. Here they become the user properties that the W3C defines, so
that nothing else has to know of them: whatever looks for a context, passes a message on or moves it, uses those.
"""

from collections.abc import Mapping
from ctypes import PyDLL, byref, c_int, c_size_t, c_uint8, c_void_p, string_at
from typing import Any

import structlog

from lbg_runtime.model.message import PropertyValue
from lbg_runtime.model.trace_context import FLAGS, PARENT, SPAN_ID, STATE, TRACE_ID, trace_context
from lbg_runtime.transport.solace.library import CORE, SOLCLIENT_OK

_log = structlog.get_logger(__name__)

TRANSPORT, CREATION = c_int(0), c_int(1)

_TRACE_ID_BYTES, _SPAN_ID_BYTES = c_size_t(16), c_size_t(8)
_IS_SAMPLED = 1
"""The bit of a context's flags."""


_SAMPLE: Mapping[str, str] = {PARENT: f"00-{'c1' * 16}-{'c2' * 8}-01", STATE: "check=1"}


class TraceContexts:
    """Reads and writes the vendor's contexts, with functions of the library. Can be used on any thread.

    The functions keep the interpreter's lock, like those that read a message on the fast path. Making this raises
    `AttributeError` if the library lacks one of them.
    """

    def __init__(self) -> None:
        library = PyDLL(CORE._name, handle=CORE._handle)
        self.span_id: Any = library["solClient_msg_tracing_getSpanIdByte"]
        """The function that tells soonest whether there is a context."""
        self._trace_id: Any = library["solClient_msg_tracing_getTraceIdByte"]
        self._is_sampled: Any = library["solClient_msg_tracing_isSampled"]
        self._state: Any = library["solClient_msg_tracing_getTraceStatePtr"]
        self._set_trace_id: Any = library["solClient_msg_tracing_setTraceIdByte"]
        self._set_span_id: Any = library["solClient_msg_tracing_setSpanIdByte"]
        self._set_sampled: Any = library["solClient_msg_tracing_setSampled"]
        self._set_state: Any = library["solClient_msg_tracing_setTraceState"]

    def add_to(self, properties: dict[str, PropertyValue], native: c_void_p) -> None:
        """Put the context of a received message among its properties.

        The transport's context is preferred, as it has the newest span; what only older contexts of the trace have in
        their state is added to it. Properties that have a context already keep it, unless the transport's is of the
        same trace: a broker that does not read properties begins a trace of its own. Raises nothing; a context that
        cannot be read counts as missing.
        """
        newest, created = self._read(native, TRANSPORT), self._read(native, CREATION)
        said = trace_context(properties)
        if said and (newest is None or not _are_of_one_trace(said, newest)):
            return
        found = created if newest is None else _after(newest, said or created)
        if found:
            # The state belongs to the span that is replaced.
            properties.pop(STATE, None)
            properties.update(found)

    def write(self, native: c_void_p, properties: Mapping[str, PropertyValue]) -> None:
        """Set the creation context of a message to be published, if its properties have one. Raises nothing.

        `native` must have none yet. The transport's context is left to brokers, as in the vendor's integration.
        """
        if PARENT not in properties or not (said := trace_context(properties)):
            return
        parent = said[PARENT]
        self._set_trace_id(native, CREATION, bytes.fromhex(parent[TRACE_ID]), _TRACE_ID_BYTES)
        self._set_span_id(native, CREATION, bytes.fromhex(parent[SPAN_ID]), _SPAN_ID_BYTES)
        self._set_sampled(native, CREATION, int(parent[FLAGS], 16) & _IS_SAMPLED)
        if (state := said.get(STATE)) is not None:
            self._set_state(native, CREATION, state.encode())

    def _read(self, native: c_void_p, kind: c_int) -> dict[str, str] | None:
        span_id = (c_uint8 * 8)()
        if self.span_id(native, kind, byref(span_id), _SPAN_ID_BYTES) != SOLCLIENT_OK:
            return None
        trace_id, is_sampled, address, size = (c_uint8 * 16)(), c_uint8(), c_void_p(), c_size_t()
        if self._trace_id(native, kind, byref(trace_id), _TRACE_ID_BYTES) != SOLCLIENT_OK:
            return None
        self._is_sampled(native, kind, byref(is_sampled))
        found = {PARENT: f"00-{bytes(trace_id).hex()}-{bytes(span_id).hex()}-{is_sampled.value & _IS_SAMPLED:02x}"}
        if self._state(native, kind, byref(address), byref(size)) == SOLCLIENT_OK and address.value and size.value:
            found[STATE] = string_at(address.value, size.value).decode(errors="replace")
        # Ids of zeros mean that there is none.
        return trace_context(found) or None


def vendor_traces() -> TraceContexts | None:
    """What reads and writes the vendor's contexts; None, with a warning in the log, if the client does that in another
    way."""
    try:
        traces = TraceContexts()
        found: dict[str, PropertyValue] = {}
        native = c_void_p()
        CORE.solClient_msg_alloc(byref(native))
        try:
            traces.write(native, _SAMPLE)
            traces.add_to(found, native)
        finally:
            CORE.solClient_msg_free(byref(native))
    except AttributeError as error:
        reason = f"the client lacks a function: {error}"
    else:
        if found == _SAMPLE:
            return traces
        reason = "a context was read as something else"
    # Messages are read and sent without them.
    _log.warning("vendor_traces_ignored", reason=reason)
    return None


def _are_of_one_trace(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    return one[PARENT][TRACE_ID] == other[PARENT][TRACE_ID]


def _after(newest: dict[str, str], older: Mapping[str, str] | None) -> dict[str, str]:
    """The newest context, with entries of an older state added whose names its own state does not have, as far as there
    is room."""
    if not older or STATE not in older or not _are_of_one_trace(newest, older):
        return newest
    entries: dict[str, str] = {}
    for entry in f"{newest.get(STATE, '')},{older[STATE]}".split(","):
        if entry.strip():
            entries.setdefault(entry.partition("=")[0].strip(), entry.strip())
    joined = newest | {STATE: ",".join(entries.values())}
    return joined if trace_context(joined) == joined else newest
