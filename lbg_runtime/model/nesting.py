"""How deep JSON may be nested: the same for all our readers, and on every version of Python."""

from itertools import accumulate

MAX_NESTING = 500
"""How many levels of arrays and objects there may be.

Python's own limit differs between versions, and before 3.12 the frames of the caller count towards it (1,000 in all).
If that limit decided, one process would find a key in a payload where another finds none, and the key would have two
lanes.
"""

_STEPS = [(byte in b"[{") - (byte in b"]}") for byte in range(256)]
_NO_BRACKETS = bytes(byte for byte in range(256) if _STEPS[byte] == 0)


def is_nested_too_deep(text: str) -> bool:
    """Whether JSON has more than `MAX_NESTING` levels. Text that is no JSON may get either answer.

    If not, `json` handles the text without a `RecursionError`, unless the frames of the caller use up half of Python's
    limit. Cheap for text with at most `MAX_NESTING` arrays and objects.
    """
    if text.count("[") + text.count("{") <= MAX_NESTING:
        return False
    # Brackets in strings do not count. Without escapes, every other piece between quotes is a string.
    unescaped = text.replace("\\\\", "").replace('\\"', "")
    outside = "".join(unescaped.split('"')[::2])
    brackets = outside.encode(errors="replace").translate(None, _NO_BRACKETS)
    return max(accumulate(map(_STEPS.__getitem__, brackets)), default=0) > MAX_NESTING
