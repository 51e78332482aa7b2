"""A lane while its member lands: gathers what the handlers bring, and flushes it on a thread."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass

import structlog

from lbg_runtime.model.ids import DeliveryId
from lbg_runtime.model.message import Message
from lbg_runtime.pipeline.landing.lane import LaneWriter
from lbg_runtime.pipeline.landing.rows import Gathered, to_batches

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class FlushLimits:
    """When what has gathered is flushed: at this many rows, or this long after the first of them."""

    rows: int = 1_000
    wait_ms: int = 20


_QUIET_S = 0.001
"""Rows that were held up are flushed when nothing more has come for this long: others of them come at about the same
time, as everything that held them up was settled together. So are rows in a hurry."""

_ON_ITS_WAY_NS = 1_000_000
"""A message that came no longer than this before a flush began was not held up; it was on its way here."""


class OpenLane:
    """The rows of one flow handle, on the member's loop. One flush at a time; what comes meanwhile gathers.

    No delivery is written into one lane twice, however often its handler is started: see the promise in `lane.py`.
    After a failed flush, the rows go into a new lane when their handlers bring them again.
    """

    def __init__(
        self,
        queue: int,
        name: str,
        make_writer: Callable[[], LaneWriter],
        limits: FlushLimits,
        threads: Executor,
        clock_us: Callable[[], int],
        on_written: Callable[[int], None],
    ) -> None:
        """`name` distinguishes this flow handle from all others that ever land into the log.

        `make_writer` is called on a thread, with the first rows; `on_written` on the loop, with the bytes.
        """
        self._queue = queue
        self._name = name
        self._make_writer = make_writer
        self._limits = limits
        self._threads = threads
        self._clock_us = clock_us
        self._on_written = on_written
        self._loop = asyncio.get_running_loop()
        self._rows = Gathered()
        """Those that wait for a flush to begin."""
        self._answers: list[asyncio.Future[None]] = []
        """What their handlers wait for; cancelled if a handler is gone, whose row lands all the same."""
        self._outcome: asyncio.Future[bool] = self._loop.create_future()
        """Whether the flush that these rows wait for has succeeded."""
        self._unclaimed: dict[DeliveryId, asyncio.Future[bool]] = {}
        """Outcomes for rows whose handlers are gone, by delivery; the next attempt finds its row there."""
        self._first_at_s = 0.0
        """When the first of the waiting rows came."""
        self._last_at_s = 0.0
        """When the last of them came."""
        self._is_sooner = False
        """Whether any of them is in a hurry, or was with the member when the last flush began, but not in it."""
        self._began_at_ns = 0
        """When the last flush began."""
        self._timer: asyncio.TimerHandle | None = None
        self._flush: asyncio.Future[int] | None = None
        """The flush under way."""
        self._is_closed = False
        self._writer: LaneWriter | None = None
        """Touched only by the flush's thread while there is a flush, otherwise only by the loop."""

    async def land(
        self,
        message: Message,
        shard: int | None,
        key: str | None,
        delivery_id: DeliveryId,
        *,
        redelivered: bool,
        received_at_ns: int | None = None,
        is_hurried: bool = False,
    ) -> None:
        """Return when the row is durable. Raises `LandingError` if it is not, though it may be there all the same.

        `key` is found by the rule of the group. `received_at_ns`, on the loop's clock, shows whether a row was held up,
        usually by one of its key in the last flush. Such a row does not wait for rows that may come: of a hot key none
        can come before it has landed. Nor does one that `is_hurried`. If cancelled while its flush is under way, the
        row may be there too; it counts as not landed by this member.
        """
        if self._unclaimed and await self._landed_before(delivery_id):
            return
        answer = self._loop.create_future()
        self._last_at_s = self._loop.time()
        if not self._answers:
            self._first_at_s = self._last_at_s
        self._rows.add(message, shard, key, delivery_id, redelivered=redelivered)
        self._answers.append(answer)
        outcome = self._outcome
        is_held_up = received_at_ns is not None and received_at_ns < self._began_at_ns - _ON_ITS_WAY_NS
        if self._flush is None and len(self._answers) >= self._limits.rows:
            self._begin_flush()
        elif is_held_up or is_hurried:
            self.hurry()
        elif self._flush is None and self._timer is None:
            self._set_timer()
        try:
            # No bound: the disk takes as long as it takes, and whoever wants the flow back cancels.
            await answer
        except asyncio.CancelledError:
            self._unclaimed[delivery_id] = outcome
            raise

    def hurry(self) -> None:
        """Have the rows that wait for a flush wait for no others that may come. Idempotent."""
        if self._answers and not self._is_sooner:
            self._is_sooner = True
            if self._flush is None:
                self._set_timer()

    def end(self) -> None:
        """Begin nothing more: the lane ends now, or with the flush under way. To be called when all handlers are gone.

        Rows that they have left are dropped, as their messages come again. Idempotent.
        """
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        # Not kept for as long as a disk may hang: nobody waits for them any more.
        self._rows, self._answers = Gathered(), []
        if self._flush is None:
            self._end_writer()

    async def close(self) -> None:
        """`end`, and wait for the flush under way. If cancelled, the lane ends with its flush."""
        self.end()
        if self._flush is not None:
            # No bound: as above.
            await asyncio.wait((self._flush,))

    async def _landed_before(self, delivery_id: DeliveryId) -> bool:
        """Whether the row of an earlier attempt is on the disk."""
        outcome = self._unclaimed.get(delivery_id)
        if outcome is None:
            return False
        # No bound: as above. Not awaited directly, as a cancellation would then cancel it.
        await asyncio.wait((outcome,))
        # Forgotten meanwhile if a later flush has failed.
        return self._unclaimed.pop(delivery_id, None) is not None and outcome.result()

    def _due_at_s(self) -> float:
        due_at_s = self._first_at_s + self._limits.wait_ms / 1_000
        return min(due_at_s, self._last_at_s + _QUIET_S) if self._is_sooner else due_at_s

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        due_at_s = self._due_at_s()
        self._timer = self._loop.call_at(due_at_s, self._look, due_at_s)

    def _look(self, due_at_s: float) -> None:
        # Rows that came since may have postponed it.
        if self._due_at_s() > due_at_s:
            self._set_timer()
        else:
            self._begin_flush()

    def _begin_flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        rows, answers, outcome = self._rows, self._answers, self._outcome
        self._rows, self._answers, self._outcome = Gathered(), [], self._loop.create_future()
        self._is_sooner = False
        self._began_at_ns = int(self._loop.time() * 1e9)
        self._flush = self._loop.run_in_executor(self._threads, self._write, rows)
        self._flush.add_done_callback(lambda flush: self._conclude(answers, outcome, flush))

    def _write(self, rows: Gathered) -> int:
        """Runs on a thread. Returns the bytes that this flush has added to the lane."""
        if self._writer is None:
            self._writer = self._make_writer()
        writer = self._writer
        before = writer.bytes
        try:
            for batch in to_batches(self._queue, self._name, rows, self._clock_us()):
                writer.append(batch)
        except BaseException:
            self._writer = None
            writer.close()
            raise
        return writer.bytes - before

    def _conclude(
        self, answers: "list[asyncio.Future[None]]", outcome: "asyncio.Future[bool]", flush: "asyncio.Future[int]"
    ) -> None:
        self._flush = None
        error = asyncio.CancelledError() if flush.cancelled() else flush.exception()
        if error is None:
            self._on_written(flush.result())
        else:
            _log.error("flush_failed", queue=self._queue, rows=len(answers), reason=str(error))
            # Rows of the lane that ends here: it may be gone, with them. In the next lane they are not there twice.
            self._unclaimed = {row: landed for row, landed in self._unclaimed.items() if not landed.done()}
        outcome.set_result(error is None)
        for answer in answers:
            if not answer.done():
                if error is None:
                    answer.set_result(None)
                else:
                    answer.set_exception(error)
        if self._is_closed:
            # Here, as nobody may wait for it: on a disk that hangs, whoever closes a lane is cancelled.
            self._end_writer()
        elif len(self._answers) >= self._limits.rows:
            self._begin_flush()
        elif self._answers:
            self._set_timer()

    def _end_writer(self) -> None:
        if self._writer is not None:
            self._writer.close()
