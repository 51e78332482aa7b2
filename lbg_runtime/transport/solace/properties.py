"""User properties of a received message, read field by field.

The client's own reader is not used: it copies a byte array's declared length out of a string that ends at the first
zero byte. Any such property of a foreign publisher would be wrong, and a long one would end the process.
"""

from ctypes import c_char_p, c_void_p, string_at
from typing import Any

from lbg_runtime.model.keys import as_sendable
from lbg_runtime.model.message import PropertyValue
from lbg_runtime.transport.solace.library import (
    SOLCLIENT_EOS,
    SOLCLIENT_NOT_FOUND,
    SOLCLIENT_OK,
    Field,
    FieldType,
    close_map,
    get_last_error_info,
    get_next_field,
)

_MEMBERS = {
    FieldType.SOLCLIENT_BOOL.value: "boolean",
    FieldType.SOLCLIENT_UINT8.value: "uint8",
    FieldType.SOLCLIENT_INT8.value: "int8",
    FieldType.SOLCLIENT_UINT16.value: "uint16",
    FieldType.SOLCLIENT_INT16.value: "int16",
    FieldType.SOLCLIENT_UINT32.value: "uint32",
    FieldType.SOLCLIENT_INT32.value: "int32",
    FieldType.SOLCLIENT_UINT64.value: "uint64",
    FieldType.SOLCLIENT_INT64.value: "int64",
    FieldType.SOLCLIENT_FLOAT.value: "float32",
    FieldType.SOLCLIENT_DOUBLE.value: "float64",
}
"""Where the client's union keeps each kind of scalar that Python can read directly."""

STRING = FieldType.SOLCLIENT_STRING.value
INT64 = FieldType.SOLCLIENT_INT64.value
_CHARACTER = FieldType.SOLCLIENT_WCHAR.value
_BYTES = FieldType.SOLCLIENT_BYTEARRAY.value
_DESTINATION = FieldType.SOLCLIENT_DESTINATION.value
_NULL = FieldType.SOLCLIENT_NULL.value


def read_properties(inbound: Any) -> dict[str, PropertyValue]:
    """Scalars as they are, destinations by name; maps and streams have no place in the model and are left out.

    So is a property without a name, as other protocols allow it: a message with one could not be moved to another
    queue, as no client sends it. Raises the client's errors.
    """
    properties: dict[str, PropertyValue] = {}
    container = c_void_p(None)
    code = inbound.solace_message.get_user_property_map(container)
    if code == SOLCLIENT_NOT_FOUND:
        return properties
    if code != SOLCLIENT_OK:
        raise get_last_error_info(code, "read properties")
    field, name = Field(), c_char_p()
    try:
        while (code := get_next_field(container, field, name)) == SOLCLIENT_OK:
            if name.value:
                add_property(properties, text_of(name.value), field)
        if code != SOLCLIENT_EOS:
            raise get_last_error_info(code, "read properties")
    finally:
        close_map(container)
    return properties


def add_property(properties: dict[str, PropertyValue], name: str, field: Any) -> None:
    """Add the value of a field if the model has a place for it."""
    if field.type == _CHARACTER:
        # A zero, of which nothing that is sent on can consist, is no character either.
        properties[name] = as_sendable(field.value.wchar).replace("\0", "\ufffd")
    elif field.type in _MEMBERS:
        properties[name] = getattr(field.value, _MEMBERS[field.type])
    elif field.type == STRING:
        properties[name] = text_of(field.value.string)
    elif field.type == _BYTES:
        properties[name] = _bytes_of(field)
    elif field.type == _DESTINATION:
        properties[name] = text_of(field.value.dest.dest)
    elif field.type == _NULL:
        properties[name] = None


def text_of(raw: bytes | None) -> str:
    """A text of the client. What is no UTF-8 in it is U+FFFD, the same in every member and on either path.

    So two keys can become one, which keeps the order of both. Refusing the message would hold up all keys of its queue.
    """
    return (raw or b"").decode(errors="replace")


def _bytes_of(field: Any) -> bytes:
    # The pointer itself, not what Python makes of a C string.
    pointer = c_void_p.from_buffer(field.value).value
    return string_at(pointer, field.length) if pointer and field.length else b""
