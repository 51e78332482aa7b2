"""Reads a request to publish: plain data with a content type, or an event in either content mode."""

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from starlette.datastructures import Headers, QueryParams

from lbg_runtime.model.errors import UserError
from lbg_runtime.model.message import Headers as MessageHeaders
from lbg_runtime.model.nesting import MAX_NESTING, is_nested_too_deep
from lbg_runtime.model.trace_context import TRACE_CONTEXT, trace_context
from lbg_runtime.sidecar.event import (
    CONTENT_TYPE_ATTRIBUTE,
    KEY_ATTRIBUTE,
    KEY_HEADER,
    STRUCTURED_TYPE,
    attribute_headers,
    attribute_properties,
    is_integer,
    is_json_type,
)

KEY_PARAMETER = "key"
DAPR_KEY_PARAMETER = "metadata.partitionKey"
RAW_PARAMETER = "metadata.rawPayload"

MAX_ATTRIBUTES = 1_000
"""The most attributes of one event: each costs several steps on the member's event loop, and a body of `max_body_kb`
can have many."""

_BINARY_PREFIX = "ce-"

_TOKEN = re.compile(r"[^\s,:]")
"""Finds the next place where a member's name, its value or the end of the object begins, in text known to be JSON."""


@dataclass(frozen=True, slots=True)
class Publication:
    """The arguments for the publisher."""

    payload: bytes
    properties: Mapping[str, str | int | bool]
    """The attributes of an event, and the trace context of the request or, if that has none, of the event."""
    key: str | None
    """The key that was given; None if the rule of the group must find it."""
    headers: MessageHeaders


def read_publication(headers: Headers, query: QueryParams, body: bytes) -> Publication:
    """Read a request. The query must be text. Raises `UserError` for an invalid event."""
    content_type = headers.get("content-type", "")
    media_type = content_type.partition(";")[0].strip().lower()
    attributes: dict[str, object] = {}
    payload = body
    is_raw = query.get(RAW_PARAMETER, "").lower() == "true"
    if media_type == STRUCTURED_TYPE and not is_raw:
        attributes, payload = _read_structured(body)
    else:
        if not is_raw:
            for header, said in headers.items():
                if header.startswith(_BINARY_PREFIX):
                    text = _header_text(header, said)
                    if attributes.setdefault(header.removeprefix(_BINARY_PREFIX), text) != text:
                        raise UserError(f"header {ascii(header)[:80]}", "two different ones", "one")
        _check_count(len(attributes))
        if content_type:
            attributes[CONTENT_TYPE_ATTRIBUTE] = content_type
    for name, value in attributes.items():
        _check_attribute(name, value)
    key = _key(headers, query, attributes)
    # A `tracestate` may come in several headers. Two headers `traceparent` become an invalid one, which is ignored.
    of_request = {name: ",".join(headers.getlist(name)) for name in TRACE_CONTEXT}
    properties = attribute_properties(attributes) | (trace_context(of_request) or trace_context(attributes))
    return Publication(payload, properties, key, attribute_headers(attributes))


def _check_count(count: int) -> None:
    if count > MAX_ATTRIBUTES:
        raise UserError("event", f"more than {MAX_ATTRIBUTES} attributes", f"at most {MAX_ATTRIBUTES}")


def _check_attribute(name: str, value: object) -> None:
    if isinstance(value, str) and not value.isascii():
        _encoded(value)
    elif isinstance(value, int) and not is_integer(value):
        raise UserError(f"attribute {ascii(name)[:80]}", "a long integer", "one of 32 bits, or a text")


def _key(headers: Headers, query: QueryParams, attributes: Mapping[str, object]) -> str | None:
    """The key that was given in the event or beside it; raises `UserError` for two different keys."""
    named = attributes.get(KEY_ATTRIBUTE)
    if not (named is None or isinstance(named, str)):
        raise UserError(f"attribute {KEY_ATTRIBUTE}", "no text", "the key, as a text")
    given = _key_beside(headers, query)
    if not named:
        return given
    if given is not None and given != named:
        # Members put the key by which a message is kept in order into its event, so this one would come out changed.
        raise UserError(f"attribute {KEY_ATTRIBUTE}", ascii(named)[:80], "the same key as is given beside the event")
    return named


def _key_beside(headers: Headers, query: QueryParams) -> str | None:
    given = {_header_text(KEY_HEADER, said) for said in headers.getlist(KEY_HEADER)}
    for parameter in (KEY_PARAMETER, DAPR_KEY_PARAMETER):
        given.update(query.getlist(parameter))
    if len(given) > 1:
        raise UserError("key", "two different ones", "one, wherever it is given")
    if "" in given:
        # Mostly this is a variable that was not set. All such messages would have one key, and no event could say it,
        # as CloudEvents has no empty `partitionkey`.
        raise UserError("key", "an empty one", "the key; without it, that of group.key")
    return next(iter(given), None)


def _header_text(name: str, value: str) -> str:
    """The text that `header_text` has encoded; raises `UserError` for raw UTF-8, which would be read as another text
    than was meant."""
    try:
        if value.isascii():
            return unquote(value, errors="strict")
    except UnicodeDecodeError:
        pass
    raise UserError(f"header {ascii(name)[:80]}", "bytes that are no text", "text in UTF-8, percent-encoded")


def _read_structured(body: bytes) -> tuple[dict[str, object], bytes]:
    try:
        text = body.decode(json.detect_encoding(body))
        if is_nested_too_deep(text):
            raise UserError("body", "nested too deeply", f"at most {MAX_NESTING} levels")
        # Not with orjson, which turns integers too long for a machine word into floats.
        told = _READER.decode(text)
        written = _data_text(text) if isinstance(told, dict) else ""
    except ValueError:
        raise UserError("body", "no JSON", f"an event, as content-type {STRUCTURED_TYPE} says") from None
    if not isinstance(told, dict) or told.get("specversion") != "1.0":
        raise UserError("body", "no event", 'a JSON object with "specversion": "1.0"')
    # An integer with more digits than these is too large for an attribute anyway.
    told = {name: int(value[:20]) if isinstance(value, bytes) else value for name, value in told.items()}
    encoded = told.pop("data_base64", None)
    data = told.pop("data", None)
    if encoded is not None:
        return told, _decoded(encoded)
    content_type = told.get(CONTENT_TYPE_ATTRIBUTE)
    if isinstance(data, str) and isinstance(content_type, str) and not is_json_type(content_type):
        return told, _encoded(data)
    if data is None:
        return told, b""
    if not isinstance(content_type, str):
        told[CONTENT_TYPE_ATTRIBUTE] = "application/json"
    return told, written.encode()


def _data_text(text: str) -> str:
    """The text of an event's `data` as it was written, the last one if there are several; `text` is known to be JSON.

    To decode and encode it would not give the same text: numbers lose digits, and repeated names disappear. Raises
    `UserError` if there are more members beside the data, repeated ones counted, than an event may have attributes.
    """
    found = ""
    count = 0
    at = _token(text, text.index("{") + 1)
    while text[at] != "}":
        key, after = _READER.raw_decode(text, at)
        count += key not in _DATA_MEMBERS
        _check_count(count)
        begin = _token(text, after)
        _, end = _READER.raw_decode(text, begin)
        if key == "data":
            found = text[begin:end]
        at = _token(text, end)
    return found


def _token(text: str, begin: int) -> int:
    found = _TOKEN.search(text, begin)
    return len(text) if found is None else found.start()


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


_DATA_MEMBERS = ("data", "data_base64")

_READER = json.JSONDecoder(parse_constant=_refuse_constant, parse_int=str.encode)
"""Reads integers as bytes, as they may have more digits than Python converts to a number. The data itself is not used:
its text is kept."""


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise UserError("body", "half of a surrogate pair", "text that UTF-8 can carry") from None


def _decoded(encoded: object) -> bytes:
    try:
        return base64.b64decode(encoded if isinstance(encoded, str) else "=", validate=True)
    except ValueError:
        raise UserError("body", "data_base64 that is none", "base64") from None
