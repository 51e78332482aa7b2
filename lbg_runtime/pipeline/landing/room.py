"""Where messages wait while they cannot land: nothing is dropped, and the queue keeps what is not taken."""

import asyncio
from contextvars import Context

import structlog

from lbg_runtime.model.ids import Epoch, QueueName
from lbg_runtime.pipeline.landing.usage import DiskSpace
from lbg_runtime.runtime.companion import Handle, KeptHandles
from lbg_runtime.runtime.runners.attempts import attempt_put_off
from lbg_runtime.runtime.runners.handling import GivenBack

_log = structlog.get_logger(__name__)

PAUSE_MIN_S = 0.1
PAUSE_MAX_S = 5.0
"""Longest pause after a failed flush; the pause grows with each further failure."""


class Room:
    """Closed to all queues while the log has reached its quota, or its disk the reserve, and to one queue for a while
    after its flush has failed.

    Used on the member's loop. Handlers that wait here keep their deliveries in flight, so the broker sends no more. If
    their flow handle is being given up, or gone, the deliveries go back.
    """

    def __init__(self, quota_bytes: int | None) -> None:
        """With `quota_bytes` None, only the disk is a bound."""
        self._quota_bytes = quota_bytes
        self._used_bytes = 0
        self._disk: DiskSpace | None = None
        self._waiting: dict[asyncio.Future[None], Handle] = {}
        self._handles = KeptHandles()
        self._was_full = False
        self._pauses: dict[QueueName, asyncio.TimerHandle] = {}
        self._pause_s: dict[QueueName, float] = {}
        """Length of the next pause, for queues with a failed flush and no successful one since."""

    def is_closed(self, queue: QueueName) -> bool:
        """Whether nothing more of the queue is taken now."""
        return queue in self._pauses or self.is_full

    @property
    def is_full(self) -> bool:
        """Whether the log has reached its quota, or its disk the reserve."""
        return self._has_reached_quota or (self._disk is not None and self._disk.free_bytes <= self._disk.reserve_bytes)

    @property
    def _has_reached_quota(self) -> bool:
        return self._quota_bytes is not None and self._used_bytes >= self._quota_bytes

    def figures(self) -> dict[str, int]:
        """What is known of the bounds and of what is left of them, for the log: only what is measured."""
        figures: dict[str, int] = {}
        if self._quota_bytes is not None:
            figures.update(used_bytes=self._used_bytes, quota_bytes=self._quota_bytes)
        if self._disk is not None:
            figures.update(self._disk._asdict())
        return figures

    def count(self, used_bytes: int, disk: DiskSpace | None) -> None:
        """The log has `used_bytes` now, which only a quota needs, and its disk that much space, if that is known."""
        self._used_bytes, self._disk = used_bytes, disk
        if self.is_full != self._was_full:
            self._was_full = self.is_full
            # The line must not have the key and queue of the message in whose context the last flush happened to begin.
            Context().run(self._tell_of_change)
        self._let_in()

    def _tell_of_change(self) -> None:
        if not self.is_full:
            _log.info("landing_goes_on", **self.figures())
        elif self._has_reached_quota:
            _log.warning("landing_quota_reached", **self.figures())
        else:
            _log.warning("landing_disk_full", **self.figures())

    def count_written(self, size_bytes: int) -> None:
        """This member has written this many bytes."""
        disk = self._disk and self._disk._replace(free_bytes=self._disk.free_bytes - size_bytes)
        self.count(self._used_bytes + size_bytes, disk)

    def flush_failed(self, queue: QueueName) -> None:
        """Messages that waited for the flush come here, and try again when they are let in."""
        if queue in self._pauses:
            return
        pause_s = self._pause_s.get(queue, PAUSE_MIN_S)
        self._pause_s[queue] = min(2 * pause_s, PAUSE_MAX_S)
        self._pauses[queue] = asyncio.get_running_loop().call_later(pause_s, self._end_pause, queue)

    def flush_succeeded(self, queue: QueueName) -> None:
        """The next failure counts as the first again."""
        self._pause_s.pop(queue, None)

    async def wait(self, queue: QueueName, epoch: Epoch) -> None:
        """Return when there is room; raises `GivenBack`."""
        while self.is_closed(queue):
            if self._handles.is_given_up((queue, epoch)):
                raise GivenBack
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting[turn] = queue, epoch
            try:
                with attempt_put_off():
                    # No bound: the message is not to blame for the lack of room.
                    await turn
            finally:
                del self._waiting[turn]

    def flow_changed(self, queue: QueueName, epoch: Epoch, *, is_kept: bool) -> None:
        """See `Companion.flow_changed`."""
        self._handles.flow_changed(queue, epoch, is_kept=is_kept)
        for turn, handle in self._waiting.items():
            if not turn.done() and self._handles.is_given_up(handle):
                turn.set_exception(GivenBack())

    def close(self) -> None:
        """The member has left."""
        for timer in self._pauses.values():
            timer.cancel()

    def _end_pause(self, queue: QueueName) -> None:
        del self._pauses[queue]
        self._let_in()

    def _let_in(self) -> None:
        for turn, (queue, _) in self._waiting.items():
            if not turn.done() and not self.is_closed(queue):
                turn.set_result(None)
