"""Compares texts with patterns that have wildcards, in one pass over the text, whatever the two are.

One client writes the pattern, another one the text, and all clients of the broker wait for the answer: so no pattern
may make it slow.
"""

from collections import defaultdict
from collections.abc import Iterable
from enum import Enum


class Wild(Enum):
    """A part of a pattern that stands for other texts than itself."""

    CHARACTER = "any one character"
    TEXT = "any text, the empty one included"


class Pattern:
    """What a whole text must look like, character by character."""

    def __init__(self, parts: Iterable[str | Wild]) -> None:
        # The places between the characters of the pattern are bits; the first is before all characters.
        place = 1
        self._before: dict[str, int] = defaultdict(int)
        """The places from which this character leads to the next."""
        self._before_any = 0
        self._in_text = 0
        """The places at which any text may occur."""
        for part in parts:
            if part is Wild.TEXT:
                self._in_text |= place
                continue
            if isinstance(part, Wild):
                self._before_any |= place
            else:
                self._before[part] |= place
            place <<= 1
        self._end = place

    def matches(self, text: str) -> bool:
        """Whether a text matches; one step per character, on one bit per character of the pattern."""
        places, before, any_one, in_text = 1, self._before.get, self._before_any, self._in_text
        for character in text:
            places = (places & (before(character, 0) | any_one)) << 1 | places & in_text
            if not places:
                return False
        return bool(places & self._end)
