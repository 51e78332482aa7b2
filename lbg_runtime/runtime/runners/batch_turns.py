"""Whose batch is handled next: as many at the same time as there are runners, of all batch handlers of a member."""

from typing import Protocol


class BatchLine(Protocol):
    """Messages that wait for a batch of theirs."""

    def is_due(self) -> bool:
        """Whether a batch of them is to be handled."""
        ...

    def begin(self) -> None:
        """Have a batch of them handled; its turn lasts until `BatchTurns.end`."""
        ...


class BatchTurns:
    """One per pool of runners, on its loop. Lines that have a batch take turns, so that none keeps the others waiting.

    Nobody waits in a task for a turn: a line is told when it has one, and the messages in it hold no runner.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._asking: dict[BatchLine, None] = {}

    def ask(self, line: BatchLine) -> None:
        """A batch of the line is due: it is begun now, or else when it is its turn. Idempotent."""
        self._asking[line] = None
        self._give()

    def end(self) -> None:
        """A batch is out, or is not waited for any more."""
        self._free += 1
        self._give()

    def _give(self) -> None:
        while self._free and self._asking:
            line = next(iter(self._asking))
            del self._asking[line]
            if line.is_due():
                self._free -= 1
                line.begin()
                # At the end, where the line has another batch; one that is not due any more asks again when it is.
                if line.is_due():
                    self._asking[line] = None
