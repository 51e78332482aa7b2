"""User properties of a received message, read field by field.

The client's own reader is not used. Of a byte array, it copies as many bytes as the array has, but from a string that
ends at the first zero byte: such a property of a foreign publisher would be wrong, and a long one would end the
process.
"""

from ctypes import c_char_p, c_void_p, string_at
from typing import Any

from lbg_runtime.model.message import PropertyValue
from lbg_runtime.model.sendable import as_sendable
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
"""For each kind of scalar that Python can read directly, the member of the client's union that has it."""

STRING = FieldType.SOLCLIENT_STRING.value
INT64 = FieldType.SOLCLIENT_INT64.value
_CHARACTER = FieldType.SOLCLIENT_WCHAR.value
_BYTES = FieldType.SOLCLIENT_BYTEARRAY.value
_DESTINATION = FieldType.SOLCLIENT_DESTINATION.value
_NULL = FieldType.SOLCLIENT_NULL.value


def read_properties(inbound: Any) -> dict[str, PropertyValue]:
    """Scalars as they are, destinations by name; maps and streams have no place in the model and are left out.

    A property without a name, which other protocols allow, is left out as well: no client sends one, so its message
    could not be moved to another queue. Raises the client's errors.
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
        # A zero character cannot be sent on either.
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
    """The client's bytes as a text. What is not UTF-8 becomes U+FFFD, in every member and on both paths.

    So two keys can become one, which keeps the order of both. To refuse the message would hold up all keys of its
    queue.
    """
    return (raw or b"").decode(errors="replace")


def _bytes_of(field: Any) -> bytes:
    # Reads the pointer itself: ctypes would make a string of it that ends at the first zero.
    pointer = c_void_p.from_buffer(field.value).value
    return string_at(pointer, field.length) if pointer and field.length else b""
