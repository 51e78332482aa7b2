"""Durations as settings write them: `500ms`, `30s`, `2m`, `1h`."""

import re

_WRITTEN = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)(ms|s|m|h)")
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}

DURATION_FORM = "a duration such as 500ms, 30s or 2m"


def parse_duration_ms(text: object) -> int:
    """Milliseconds of a written duration; raises `ValueError` for anything else, a bare number included."""
    match = _WRITTEN.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(DURATION_FORM)
    number, unit = match.groups()
    return round(float(number) * _UNIT_MS[unit])


def duration_text(ms: int) -> str:
    """The shortest notation that `parse_duration_ms` reads."""
    for unit in ("h", "m", "s"):
        if ms and ms % _UNIT_MS[unit] == 0:
            return f"{ms // _UNIT_MS[unit]}{unit}"
    return f"{ms}ms"
