"""Decides whose batch is handled next: as many at a time as there are runners, over all batch handlers of a member."""

from collections.abc import Callable
from typing import Protocol


class BatchLine(Protocol):
    """Messages that wait to be handled in a batch."""

    def is_due(self) -> bool:
        """Whether a batch of them should be handled now."""
        ...

    def begin(self) -> None:
        """Start handling a batch of them; its turn lasts until `BatchTurns.end`."""
        ...


class BatchTurns:
    """One per pool of runners, on its loop. Lines that have a batch take turns, so that none holds up the others.

    No task waits for a turn: a line is called when it gets one, and the messages in it occupy no runner.
    """

    def __init__(self, count: int, before_turn: Callable[[], None] = lambda: None) -> None:
        """`before_turn` is called before a line is asked whether it has a batch; it may take messages out of lines."""
        self._free = count
        self._before_turn = before_turn
        self._asking: dict[BatchLine, None] = {}

    def ask(self, line: BatchLine) -> None:
        """Ask for a turn, as a batch of the line is due: it begins now or when its turn comes. Idempotent."""
        self._asking[line] = None
        self._give()

    def end(self) -> None:
        """End a turn: its batch is done, or is no longer waited for."""
        self._free += 1
        self._give()

    def _give(self) -> None:
        while self._free and self._asking:
            line = next(iter(self._asking))
            del self._asking[line]
            self._before_turn()
            if line.is_due():
                self._free -= 1
                line.begin()
                # To the end, if the line has another batch; a line that is not due asks again when it is.
                if line.is_due():
                    self._asking[line] = None
