"""Which messages have their bytes in the replay log's table, and which places in queues refer to them there."""

from collections.abc import Iterable


class Frames:
    """Part of a store. Without a replay log it is empty, and messages are written with their queues.

    A message that the log has given up stays in the table as long as some queue has it, so that nothing is written
    twice. Memory: two small entries for each message of the log, and one for each place in a queue that refers to it.
    """

    def __init__(self) -> None:
        self._users: dict[int, int] = {}
        """How many places refer to each message of the table."""
        self._leaning: dict[int, int] = {}
        """Places, each with the number of the message to which it refers."""
        self._outlived: set[int] = set()
        """Messages that the log has given up."""

    def add(self, number: int) -> None:
        """A message was added to the table."""
        self._users[number] = 0

    def lean(self, place: int, number: int) -> bool:
        """Whether a message that comes to a place in a queue is in the table; the place then refers to it."""
        if number not in self._users:
            return False
        self._users[number] += 1
        self._leaning[place] = number
        return True

    def leave(self, place: int) -> int | None:
        """A place is empty now; return the message that the table no longer needs, if there is one."""
        number = self._leaning.pop(place, None)
        if number is None:
            return None
        self._users[number] -= 1
        return self._forget(number) if number in self._outlived else None

    def leave_all(self, first: int, last: int) -> list[int]:
        """All places from `first` to `last` are empty now; as `leave`. Linear in them, or in all that refer if those
        are fewer."""
        places: Iterable[int] = range(first, last + 1)
        if last - first >= len(self._leaning):
            places = [place for place in self._leaning if first <= place <= last]
        return [number for number in map(self.leave, places) if number is not None]

    def let_go(self, number: int) -> bool:
        """The log has given a message up; return whether the table no longer needs it."""
        self._outlived.add(number)
        return self._forget(number) is not None

    def _forget(self, number: int) -> int | None:
        if self._users[number]:
            return None
        del self._users[number]
        self._outlived.remove(number)
        return number
