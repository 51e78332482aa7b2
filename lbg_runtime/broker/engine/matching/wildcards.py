"""Texts with wildcards. A client writes the pattern and another one the text, and all clients wait for the answer: so
whatever both are, they are compared in one walk through the text."""

from collections import defaultdict
from collections.abc import Iterable
from enum import Enum


class Wild(Enum):
    """A part of a pattern that stands for others than itself."""

    CHARACTER = "any one character"
    TEXT = "any text, the empty one included"


class Pattern:
    """What a whole text is to look like, character by character."""

    def __init__(self, parts: Iterable[str | Wild]) -> None:
        # Places between the characters of the pattern are bits, the first of them before all.
        place = 1
        self._before: dict[str, int] = defaultdict(int)
        """Places from which this character leads on to the next."""
        self._before_any = 0
        self._in_text = 0
        """Places at which any character may come."""
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
        """Whether a text looks like it; one step a character, each of a bit for every character of the pattern."""
        places, before, any_one, in_text = 1, self._before.get, self._before_any, self._in_text
        for character in text:
            places = (places & (before(character, 0) | any_one)) << 1 | places & in_text
            if not places:
                return False
        return bool(places & self._end)
