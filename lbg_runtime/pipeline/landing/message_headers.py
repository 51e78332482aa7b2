"""Writes the `Headers` of a message as entries among the user properties of its row, and reads them back."""

from collections.abc import Collection, Mapping

from lbg_runtime.model.message import NO_HEADERS, Headers

_CORRELATION_ID = "lbg_correlation_id"
_MESSAGE_TYPE = "lbg_message_type"
_SEQUENCE_NUMBER = "lbg_sequence_number"
_PRIORITY = "lbg_priority"


def written(headers: Headers, taken: Collection[str]) -> list[tuple[str, str]]:
    """Entries for the headers that are set, as text. `taken`: names of user properties, which are not written again."""
    values = {
        _CORRELATION_ID: headers.correlation_id,
        _MESSAGE_TYPE: headers.message_type,
        _SEQUENCE_NUMBER: headers.sequence_number,
        _PRIORITY: headers.priority,
    }
    return [(name, str(value)) for name, value in values.items() if value is not None and name not in taken]


def read(entries: Mapping[str, str]) -> tuple[dict[str, str], Headers]:
    """The user properties among a row's entries, and the headers.

    A number that none of our rows has, or that cannot be sent, is a user property.
    """
    properties = dict(entries)
    sequence_number = _number(entries.get(_SEQUENCE_NUMBER), 1 << 64)
    priority = _number(entries.get(_PRIORITY), 1 << 8)
    if sequence_number is not None:
        del properties[_SEQUENCE_NUMBER]
    if priority is not None:
        del properties[_PRIORITY]
    headers = Headers(
        properties.pop(_CORRELATION_ID, None), properties.pop(_MESSAGE_TYPE, None), sequence_number, priority
    )
    return properties, NO_HEADERS if headers == NO_HEADERS else headers


def _number(text: str | None, end: int) -> int | None:
    """The number below `end` that Python writes like this."""
    if text is None or not text.isdecimal() or len(text) > len(str(end)) or str(int(text)) != text:
        return None
    return number if (number := int(text)) < end else None
