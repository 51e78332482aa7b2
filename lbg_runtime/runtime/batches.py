"""Handlers that take many messages at a time, each of which is settled for itself.

A lane gives its next message when the one before is settled, so a batch never has two messages of one key.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar, overload

from lbg_runtime.config.duration import parse_duration_ms
from lbg_runtime.model.errors import BatchCutShort, HandlerError
from lbg_runtime.model.message import Message
from lbg_runtime.runtime.bodies import Decoder
from lbg_runtime.runtime.handling import HandlerFunction
from lbg_runtime.runtime.receipts import Receipt
from lbg_runtime.runtime.resources import RESOURCES
from lbg_runtime.runtime.runner_pool import CURRENT_POOL, RunnerPool, aside

_Body = TypeVar("_Body")


class BatchItem(Receipt, Generic[_Body]):
    """One message of a batch. Settled at once with `accept` or `fail`; else with the batch."""

    def __init__(self, message: Message, body: _Body) -> None:
        super().__init__(message)
        self.body = body


class Batch(Sequence[BatchItem[_Body]]):
    """What a batch handler gets: `Batch[Order]`, or `Batch` with payloads for bodies.

    Where the handler returns, all that is not settled is accepted; where it raises, that has failed with it.
    """

    def __init__(self, items: Sequence[BatchItem[_Body]]) -> None:
        self._items = items

    @overload
    def __getitem__(self, index: int) -> BatchItem[_Body]: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[BatchItem[_Body]]: ...

    def __getitem__(self, index: int | slice) -> BatchItem[_Body] | Sequence[BatchItem[_Body]]:
        return self._items[index]

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[BatchItem[_Body]]:
        return iter(self._items)


CURRENT_BATCH: ContextVar[Batch[object]] = ContextVar("CURRENT_BATCH")
"""In a batch handler: its batch."""


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """When a batch is full, and when it is handled although it is not."""

    max_count: int
    max_wait_ms: int


def read_limits(max_count: int, max_wait: str) -> BatchLimits:
    """Raises `HandlerError` for what is none."""
    # What others than a type checker have let through; a boolean is an integer to Python.
    if type(max_count) is not int:
        raise HandlerError("@batch_handler", f"max_count {max_count!r}", "a whole number")
    if max_count < 1:
        raise HandlerError("@batch_handler", f"max_count {max_count}", "at least 1")
    try:
        max_wait_ms = parse_duration_ms(max_wait)
    except ValueError as error:
        raise HandlerError("@batch_handler", f"max_wait {max_wait!r}", str(error)) from None
    return BatchLimits(max_count, max_wait_ms)


def handled_in_batches(call: HandlerFunction, decode: Decoder, limits: BatchLimits) -> HandlerFunction:
    """A handler of single messages, each of which ends when it is settled; `call` is called once for a batch."""
    # Handlers may be shared by members of one process; their messages are not.
    name = object()

    async def join(message: Message) -> None:
        line = RESOURCES.get().own(name, lambda: _Line(CURRENT_POOL.get(), call, limits))
        item = BatchItem(message, decode(message.payload))
        try:
            with aside():
                await line.join(item)
        finally:
            item.close()

    return join


class _Line:
    """The messages of one member that wait for their batch, and the batches that are being handled."""

    def __init__(self, pool: RunnerPool, call: HandlerFunction, limits: BatchLimits) -> None:
        self._pool = pool
        self._call = call
        self._limits = limits
        self._waiting: list[BatchItem[object]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: dict[BatchItem[object], asyncio.Task[BaseException | None]] = {}
        self._cut: set[asyncio.Task[BaseException | None]] = set()
        """Those that are cut short. Their own word for it would not do: a task group may leave its task cancelled."""

    async def join(self, item: BatchItem[object]) -> None:
        """Return when it is accepted, raise what it failed with.

        Cancelled, it leaves the line; where its batch is being handled, that is cut short and its end waited for, as
        nothing may happen to a key while something of it is being handled (L2).
        """
        self._waiting.append(item)
        if len(self._waiting) >= self._limits.max_count:
            self._begin()
        elif self._timer is None:
            delay_s = self._limits.max_wait_ms / 1_000
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._begin)
        try:
            await item.until_settled()
        except asyncio.CancelledError:
            if item in self._waiting:
                self._leave(item)
            elif item in self._tasks:
                await self._cut_short(self._tasks[item])
            raise

    def _leave(self, item: BatchItem[object]) -> None:
        self._waiting.remove(item)
        if not self._waiting:
            self._stop_timer()

    async def _cut_short(self, task: "asyncio.Task[BaseException | None]") -> None:
        self._cut.add(task)
        task.cancel()
        while not task.done():
            try:
                # No bound: see `join`; the dispatcher says so where it takes longer than the time-out.
                await asyncio.wait((task,))
            except asyncio.CancelledError:
                task.cancel()

    def _begin(self) -> None:
        self._stop_timer()
        items, self._waiting = self._waiting, []
        task = self._pool.start(partial(self._handle, items))
        self._tasks |= dict.fromkeys(items, task)
        # Not at the end of `_handle`, which never begins where it is cut short before.
        task.add_done_callback(lambda task: self._settle(items, task))

    async def _handle(self, items: list[BatchItem[object]]) -> BaseException | None:
        """What the handler failed with."""
        CURRENT_BATCH.set(Batch(items))
        try:
            await self._call(items[0].message)
        except asyncio.CancelledError:
            return BatchCutShort()
        except (SystemExit, KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as failure:  # noqa: BLE001 - the handler boundary, as in the dispatcher
            return failure
        if asyncio.current_task() in self._cut:
            # It returned all the same: better handled twice than lost.
            return BatchCutShort()
        return None

    def _settle(self, items: list[BatchItem[object]], task: "asyncio.Task[BaseException | None]") -> None:
        self._cut.discard(task)
        is_lost = task.cancelled() or task.exception() is not None
        error = BatchCutShort() if is_lost else task.result()
        for item in items:
            del self._tasks[item]
            if item.is_open:
                if error is None:
                    item.accept()
                else:
                    item.fail(error)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
