"""Handlers that take many messages at a time, each of which is settled individually.

A lane gives its next message only when the previous one is settled, so a batch never has two messages of one key. At
most as many batches are handled at the same time as there are runners (`BatchTurns`). While a message waits for its
batch, the time of its attempt does not run.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Generic, overload

from typing_extensions import TypeVar

from lbg_runtime.config.duration import parse_duration_ms
from lbg_runtime.model.errors import BatchCutShort, HandlerError
from lbg_runtime.model.message import Delivery, Message
from lbg_runtime.runtime.handlers.bodies import Decoder
from lbg_runtime.runtime.handlers.receipts import Receipt
from lbg_runtime.runtime.handlers.resources import RESOURCES
from lbg_runtime.runtime.runners.attempts import CLOCK_RESOLUTION_S
from lbg_runtime.runtime.runners.handling import CURRENT_HANDLING, HandlerFunction, Handling
from lbg_runtime.runtime.runners.pool import CURRENT_POOL, RunnerPool, aside, is_closed

if TYPE_CHECKING:
    from opentelemetry.trace import Link

# With its default, which Python's own has from 3.13 on, a `Batch` without brackets has the type that it is.
_Body = TypeVar("_Body", default=bytes)


class BatchItem(Receipt, Generic[_Body]):
    """One message of a batch. Settled at once with `accept` or `fail`, otherwise with the batch."""

    def __init__(self, message: Message, body: _Body) -> None:
        super().__init__(message)
        self.body = body
        """The payload, read as the batch is annotated."""

    @property
    def delivery(self) -> Delivery:
        """What handlers of single messages get as `Delivery`."""
        return self.handling.shown


class Batch(Sequence[BatchItem[_Body]]):
    """What a batch handler gets: `Batch[Order]`, or `Batch` with payloads as bodies.

    If the handler returns, every message that is not settled yet is accepted; if it raises, each of these has failed.
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
    """When a batch is full, and when it is handled even if it is not."""

    max_count: int
    max_wait_ms: int


def read_limits(max_count: int, max_wait: str, where: str) -> BatchLimits:
    """The limits from a decorator's arguments. Raises `HandlerError` for invalid ones."""
    # Perhaps no type checker has seen these; and to Python, a boolean is an integer.
    if type(max_count) is not int:
        raise HandlerError(where, f"max_count {max_count!r}", "a whole number")
    if max_count < 1:
        raise HandlerError(where, f"max_count {max_count}", "at least 1")
    try:
        max_wait_ms = parse_duration_ms(max_wait)
    except ValueError as error:
        raise HandlerError(where, f"max_wait {max_wait!r}", str(error)) from None
    return BatchLimits(max_count, max_wait_ms)


def handled_in_batches(call: HandlerFunction, decode: Decoder, limits: BatchLimits) -> HandlerFunction:
    """A handler of single messages, which returns when its message is settled; `call` is called once per batch."""
    # The line belongs to a member and not to the handler: members in one process may share handlers, but not messages.
    name = object()

    async def join(message: Message) -> None:
        line = RESOURCES.get().own(name, lambda: _Line(CURRENT_POOL.get(), call, limits))
        item = BatchItem(message, decode(message.payload))
        try:
            with aside():
                await line.join(item, CURRENT_HANDLING.get())
        finally:
            item.close()

    return join


@dataclass(frozen=True, slots=True)
class _Place:
    """The place of an item in the line."""

    handling: Handling
    due_s: float
    """When the item has waited long enough, on the loop's clock."""
    link: "Link | None"
    """The link to the span of its attempt, if spans are made."""


class _Call:
    """A batch that is being handled."""

    __slots__ = ("is_cut", "places", "task", "turn_end")

    def __init__(self, places: dict[BatchItem[object], _Place]) -> None:
        self.places = places
        """The items of the batch, with the place that each had in the line."""
        self.is_cut = False
        """Whether the batch is cut short. Its task's cancellation would not prove that: a task group may leave one
        behind."""
        self.task: asyncio.Task[BaseException | None]
        self.turn_end: asyncio.TimerHandle | None
        """Ends the turn of the batch when others need wait for it no longer; None once it has ended."""


class _Line:
    """The messages of one member that wait for their batch, and the batches that are being handled."""

    def __init__(self, pool: RunnerPool, call: HandlerFunction, limits: BatchLimits) -> None:
        self._pool = pool
        self._call = call
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[BatchItem[object], _Place] = {}
        """In the order of arrival."""
        self._timer: asyncio.TimerHandle | None = None
        """Set while a message waits and no batch is due."""
        self._calls: dict[BatchItem[object], _Call] = {}
        pool.batch_turns.join(self.look)

    async def join(self, item: BatchItem[object], handling: Handling) -> None:
        """Put the item in the line; return when it is accepted, raise what it failed with. The time of its attempt
        begins with its batch.

        When cancelled, the item leaves the line. If its batch is being handled, that is cut short and its end is waited
        for, as nothing may happen to a key while one of its messages is being handled (L2).
        """
        attempts = handling.route.attempts
        attempts.put_off(handling)
        link = None if (spans := RESOURCES.get().spans) is None else spans.link()
        self._waiting[item] = _Place(handling, self._loop.time() + self._limits.max_wait_ms / 1_000, link)
        if (
            self._timer is None
            or len(self._waiting) >= self._limits.max_count
            or self._pool.batch_turns.is_leaving(handling)
        ):
            self.look()
        try:
            await item.until_settled()
        except asyncio.CancelledError:
            if item in self._waiting:
                del self._waiting[item]
                self.look()
            elif item in self._calls:
                await self._cut_short(self._calls[item], handling)
            raise
        finally:
            # A message that was recalled while it waited is watched again, as a middleware around it may not let go.
            attempts.begin(handling)

    def is_due(self) -> bool:
        """Whether a batch is full, or its first message has waited long enough, or one is of a queue or shard that
        leaves."""
        # Recalled messages stay in the line until their runners are woken.
        first = next((place for item, place in self._waiting.items() if item.is_open), None)
        if first is None or first.due_s <= self._loop.time() + CLOCK_RESOLUTION_S:
            return first is not None
        turns = self._pool.batch_turns
        if turns.any_leave and any(
            item.is_open and turns.is_leaving(place.handling) for item, place in self._waiting.items()
        ):
            return True
        max_count = self._limits.max_count
        return len(self._waiting) >= max_count and sum(item.is_open for item in self._waiting) >= max_count

    def begin(self) -> None:
        """Handle the first messages that wait in one batch; none if the pool ends."""
        if not self._pool.is_open:
            # Their runners are cancelled: messages that are still here have middleware that kept that from them.
            waiting, self._waiting = self._waiting, {}
            _settle_open(waiting, BatchCutShort())
            return
        items = list(islice((item for item in self._waiting if item.is_open), self._limits.max_count))
        call = _Call({item: self._waiting.pop(item) for item in items})
        timeout_ms = call.places[items[0]].handling.route.policy.timeout_ms
        self._set_timer()
        call.task = self._pool.start(partial(self._handle, call))
        # The moment at which a runner would be replaced: its handler has gone on for a whole timeout after it was
        # cancelled.
        call.turn_end = self._loop.call_later(2 * timeout_ms / 1_000, self._end_turn, call)
        self._calls |= dict.fromkeys(items, call)
        # Not at the end of `_handle`, which never begins if the pool ends before that. No message of the batch is woken
        # in between: one that was recalled before the batch was made is not in it, and one that is recalled later is
        # woken after the batch has begun.
        call.task.add_done_callback(lambda _: self._conclude(call))

    def look(self) -> None:
        """Ask for a turn if a batch is due: a message came or left, or the first has waited long enough."""
        self._set_timer()
        if self.is_due():
            self._pool.batch_turns.ask(self)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting and not self.is_due():
            self._timer = self._loop.call_at(self._first_due_s(), self.look)

    def _first_due_s(self) -> float:
        return next(iter(self._waiting.values())).due_s

    async def _cut_short(self, call: _Call, handling: Handling) -> None:
        call.is_cut = True
        call.task.cancel()
        has_second = False
        try:
            while not call.task.done():
                try:
                    # No bound: see `join`; the dispatcher reports it if it takes longer than the timeout.
                    await asyncio.wait((call.task,))
                except asyncio.CancelledError:
                    call.task.cancel()
                    if not has_second and handling.route.attempts.is_stuck(handling):
                        # The dispatcher has added a runner in place of this one. But this one stands aside already, and
                        # so has a replacement.
                        has_second = True
                        self._pool.stand_down()
        finally:
            if has_second:
                # The dispatcher is about to take away the runner it added.
                self._pool.stand_in()

    async def _handle(self, call: _Call) -> BaseException | None:
        """Call the handler; return what it failed with."""
        self._begin_attempts(call)
        if not call.places:
            return None
        items = list(call.places)
        CURRENT_BATCH.set(Batch(items))
        try:
            with _spanned(call.places.values()):
                await self._call(items[0].message)
        except asyncio.CancelledError:
            return BatchCutShort()
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as failure:  # the handler boundary, as in the dispatcher
            if is_closed(call.task):
                raise
            return failure
        # If the handler was cut short and returned nevertheless, that is no success: better handled twice than lost.
        return BatchCutShort() if call.is_cut else None

    def _begin_attempts(self, call: _Call) -> None:
        """Begin the attempts of the batch, and leave out messages that must not begin any more: since the batch was
        made, the process may have been stopped, or a flow lost."""
        for item, place in list(call.places.items()):
            attempts = place.handling.route.attempts
            try:
                attempts.look_before_begin(place.handling)
            except asyncio.CancelledError:
                del call.places[item], self._calls[item]
                if item.is_open:
                    # Middleware kept the cancellation from this message, which would otherwise wait for ever.
                    item.settle(BatchCutShort())
            else:
                attempts.begin(place.handling)

    def _conclude(self, call: _Call) -> None:
        if call.turn_end is not None:
            call.turn_end.cancel()
            self._end_turn(call)
        for item in call.places:
            del self._calls[item]
        is_lost = call.task.cancelled() or call.task.exception() is not None
        _settle_open(call.places, BatchCutShort() if is_lost else call.task.result())

    def _end_turn(self, call: _Call) -> None:
        call.turn_end = None
        self._pool.batch_turns.end()


def _spanned(places: Iterable[_Place]) -> AbstractContextManager[None]:
    """The span of the call, if spans are made."""
    if (spans := RESOURCES.get().spans) is None:
        return nullcontext()
    links = [place.link for place in places if place.link is not None]
    return spans.handling_batch({place.handling.queue for place in places}, links)


def _settle_open(items: Iterable[BatchItem[object]], error: BaseException | None) -> None:
    for item in items:
        if item.is_open:
            item.settle(error)
