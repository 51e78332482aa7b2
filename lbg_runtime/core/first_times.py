"""Recognises what has not been seen yet, for what is told once: in bounded memory, and so that a flood fills no log."""

from collections.abc import Hashable


class FirstTimes:
    """Not safe for use by two threads."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._seen: set[Hashable] = set()

    def is_first(self, what: Hashable) -> bool:
        """True once for each thing, until `most` things have been seen; False for every new thing after that."""
        if what in self._seen or len(self._seen) >= self._most:
            return False
        self._seen.add(what)
        return True
