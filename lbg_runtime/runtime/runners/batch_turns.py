"""Decides which batch is handled next: over all batch handlers of a member, as many at a time as there are runners."""

from collections.abc import Callable
from typing import Protocol

from lbg_runtime.core.lanes import Queued
from lbg_runtime.model.ids import Epoch, QueueName


class BatchLine(Protocol):
    """Messages that wait to be handled in a batch."""

    def is_due(self) -> bool:
        """Whether a batch of them should be handled now."""
        ...

    def begin(self) -> None:
        """Start handling a batch of them; its turn lasts until `BatchTurns.end`."""
        ...


class Gathered(Queued, Protocol):
    """A message that may wait for others."""

    @property
    def shard(self) -> int | None:
        """Its shard, if it has one."""
        ...


class BatchTurns:
    """One per pool of runners, on its loop. Lines that have a batch take turns, so that none holds up the others.

    No task waits for a turn: a line is called when it gets one, and the messages in it occupy no runner.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._asking: dict[BatchLine, None] = {}
        self._looks: dict[Callable[[], None], None] = {}
        self._leaving: dict[QueueName, Epoch] = {}
        self._moving: dict[QueueName, tuple[Epoch, frozenset[int | None]]] = {}

    @property
    def any_leave(self) -> bool:
        """Whether `is_leaving` may be True for any message."""
        return bool(self._leaving or self._moving)

    def is_leaving(self, each: Gathered) -> bool:
        """Whether the message's flow handle is given up in good order, or a re-striping waits for its shard. Then it
        must not wait for other messages: its batch is due."""
        if self._leaving.get(each.queue) == each.epoch:
            return True
        moving = self._moving.get(each.queue)
        return moving is not None and moving[0] == each.epoch and each.shard in moving[1]

    def join(self, look: Callable[[], None]) -> None:
        """For whoever gathers messages: have `look` called whenever the answers of `is_leaving` may have changed."""
        self._looks[look] = None

    def part(self, look: Callable[[], None]) -> None:
        """Take back `join`: nothing is gathered there any more."""
        del self._looks[look]

    def leave(self, queue: QueueName, epoch: Epoch) -> None:
        """Note that a flow handle is given up in good order."""
        self._leaving[queue] = epoch
        self._have_all_look()

    def stay(self, queue: QueueName) -> None:
        """Take `leave` back: the handle is kept after all, or is gone."""
        if self._leaving.pop(queue, None) is not None:
            # A line that waits for a turn, and is not due any more, has to see by itself when it is.
            self._have_all_look()

    def move(self, queue: QueueName, epoch: Epoch, shards: frozenset[int | None]) -> None:
        """Set the shards of which a re-striping waits until what is here is handled; None stands for no shard."""
        if shards:
            self._moving[queue] = epoch, shards
        else:
            self._moving.pop(queue, None)
        self._have_all_look()

    def ask(self, line: BatchLine) -> None:
        """Ask for a turn, as a batch of the line is due: it begins now or when its turn comes. Idempotent."""
        self._asking[line] = None
        self._give()

    def end(self) -> None:
        """End a turn: its batch is done, or nobody waits for it any more."""
        self._free += 1
        self._give()

    def _have_all_look(self) -> None:
        for look in self._looks:
            look()

    def _give(self) -> None:
        while self._free and self._asking:
            line = next(iter(self._asking))
            del self._asking[line]
            if line.is_due():
                self._free -= 1
                line.begin()
                # If the line has another batch, it goes to the end; a line that is not due asks again when it is.
                if line.is_due():
                    self._asking[line] = None
