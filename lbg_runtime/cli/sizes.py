"""Sizes as commands take them: `500M`, `20G`, `1.5T`; powers of 1024."""

import re

_WRITTEN = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)([KMGT])B?")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}

SIZE_FORM = "a size such as 500M or 20G"

_LARGEST = (1 << 63) - 1
"""What stores and logs can hold of a number."""


def parse_bytes(text: str) -> int:
    """Bytes of a written size; raises `ValueError` for anything else, including a bare number, for a size of 0, and for
    one that no disk has."""
    match = _WRITTEN.fullmatch(text)
    if match is None or not float(match[1]):
        raise ValueError(SIZE_FORM)
    count = round(float(match[1]) * _UNITS[match[2]])
    if count > _LARGEST:
        raise ValueError(SIZE_FORM)
    return count


def bytes_text(count: int) -> str:
    """A size for people: `1.5 GB`."""
    size = float(count)
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1_024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1_024
    return f"{size:.1f} TB"
