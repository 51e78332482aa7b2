"""Text on the wire: UTF-8, mostly terminated by a zero byte."""

from lbg_runtime.model.errors import ProtocolError


def text_of(value: bytes, encoding: str = "utf-8") -> str:
    """Decode text that has no terminating zero; raises `ProtocolError`."""
    try:
        return value.decode(encoding)
    except UnicodeDecodeError as error:
        raise ProtocolError(f"text that is not {encoding.upper()}", error.start) from error


def closed_text(value: bytes) -> str:
    """Decode UTF-8 with its terminating zero, which is required; raises `ProtocolError`."""
    if not value.endswith(b"\0"):
        raise ProtocolError("text without its closing zero", len(value))
    return text_of(value[:-1])


def close_text(text: str) -> bytes:
    """The bytes of a text with its terminating zero."""
    return text.encode() + b"\0"
