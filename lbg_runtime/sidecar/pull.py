"""Gives events to an application that pulls: each goes to the stream with the most room, and is open until settled."""

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncGenerator, Iterable
from contextlib import ExitStack, suppress
from typing import NamedTuple

import orjson
import structlog

from lbg_runtime.runtime.runners.attempts import attempt_put_off
from lbg_runtime.runtime.runners.handling import GivenBack
from lbg_runtime.sidecar.answer import Answer
from lbg_runtime.sidecar.application import ApplicationFailed
from lbg_runtime.sidecar.event import Event, facts, structured
from lbg_runtime.sidecar.gate import Gate
from lbg_runtime.sidecar.pulling import Stream, Streams
from lbg_runtime.sidecar.subscriptions import PUBSUB_NAME

_log = structlog.get_logger(__name__)

QUIET_S = 10.0
"""If there was no event for so long, an empty line is sent, so that each side finds out if the other is gone."""


class PulledEvents:
    """A `Receiver`, and what the routes for pulling and settling call; all on the member's loop."""

    def __init__(self, timeout_ms: int, gate: Gate) -> None:
        """`timeout_ms` is how long the application has to settle an event. `gate` is open while there is a stream."""
        self._gate = gate
        self._timeout_ms = timeout_ms
        self._streams = Streams(secrets.token_hex(4))
        self._outboxes: dict[int, _Outbox] = {}
        """The outboxes of the streams, by number of the stream."""
        self._answers: dict[str, asyncio.Future[Answer]] = {}
        self._waiting: deque[asyncio.Future[None]] = deque()
        """Deliveries that wait for room, in order."""
        self.closed = asyncio.Event()
        """Set when the sidecar ends."""

    # -- Receiver

    async def deliver(self, event: Event) -> Answer:
        stream, event_id = await self._room(event)
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._answers[event_id] = answer
        outbox = self._outboxes[stream.number]
        try:
            with ExitStack() as waits, suppress(TimeoutError):
                waits.enter_context(attempt_put_off())
                outbox.put(event_id, _Unread(_line(event_id, event), waits))
                # The time runs also while nobody reads, as the reader may be frozen.
                async with asyncio.timeout(self._timeout_ms / 1_000):
                    await answer
            # Not just because of the timeout: the event may have been settled in the same turn of the loop, and its
            # reader was told so.
            stream.is_overdue = answer.cancelled()
            if stream.is_overdue:
                raise ApplicationFailed(f"not settled within {self._timeout_ms} ms")
            return answer.result()
        finally:
            del self._answers[event_id]
            outbox.withdraw(event_id)
            self._streams.take_back(event_id)
            self._wake()

    # -- what the routes call

    async def stream(self, capacity: int) -> AsyncGenerator[bytes]:
        """The lines of a new stream, until its reader goes or the sidecar ends; events that are open on it then
        fail."""
        if self.closed.is_set():
            return
        stream = self._streams.open(capacity)
        outbox = self._outboxes[stream.number] = _Outbox()
        self._gate.open()
        _log.info("pull_started", stream=stream.number, capacity=capacity)
        self._wake()
        try:
            while (line := await outbox.next()) is not None:
                yield line
        finally:
            self._end(stream)

    def settle(self, answers: Iterable[tuple[str, Answer]]) -> list[str]:
        """End open events; return the ids that were not open: settled before, taken back, or never given out."""
        late = []
        for event_id, answer in answers:
            waiting = self._answers.get(event_id)
            if waiting is None or waiting.done():
                late.append(event_id)
            else:
                waiting.set_result(answer)
        return late

    def close(self) -> None:
        """End every stream, and later ones as soon as they are opened."""
        self.closed.set()
        for outbox in self._outboxes.values():
            outbox.end()

    # -- streams

    async def _room(self, event: Event) -> tuple[Stream, str]:
        """Get a place on a stream; while there is none, wait in line. Raises `GivenBack`."""
        while True:
            if not self._waiting and (given := self._streams.give()) is not None:
                return given
            await self._turn(event)
            if (given := self._streams.give()) is not None:
                self._wake()
                return given

    async def _turn(self, event: Event) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            try:
                with self._gate.waiting(turn, event):
                    await turn
            finally:
                self._waiting.remove(turn)
        except (GivenBack, asyncio.CancelledError):
            self._wake()  # if there was room for it, that goes to the next
            raise

    def _wake(self) -> None:
        # Only the first, which then wakes the next. It stays in line until it takes its room: otherwise a delivery that
        # comes before that would take the room, again and again.
        if self._waiting and self._streams.has_room and not self._waiting[0].done():
            self._waiting[0].set_result(None)

    def _end(self, stream: Stream) -> None:
        del self._outboxes[stream.number]
        lost = self._streams.close(stream)
        if not self._outboxes:
            self._gate.close("its last stream has ended")
        for event_id in lost:
            answer = self._answers.get(event_id)
            if answer is not None and not answer.done():
                answer.set_exception(ApplicationFailed("its stream ended"))
        _log.info("pull_ended", stream=stream.number, unsettled=len(lost))


class _Unread(NamedTuple):
    line: bytes
    waits: ExitStack
    """Closed when the line is sent: until then its event goes back if its flow is given up or lost."""


class _Outbox:
    """The lines to be sent on one stream; the line of an event that is taken back in time is not sent."""

    def __init__(self) -> None:
        self._lines: dict[str, _Unread] = {}
        self._has_news = asyncio.Event()
        self._is_ended = False

    def put(self, event_id: str, unread: _Unread) -> None:
        """Have the event's line sent, after the earlier ones."""
        self._lines[event_id] = unread
        self._has_news.set()

    def withdraw(self, event_id: str) -> None:
        """Do not send the event's line, unless it was sent already."""
        self._lines.pop(event_id, None)

    def end(self) -> None:
        """Send nothing more."""
        self._is_ended = True
        self._has_news.set()

    async def next(self) -> bytes | None:
        """The next line, or an empty one after `QUIET_S` without any; None at the end."""
        while not self._is_ended:
            while self._lines:
                unread = self._lines.pop(next(iter(self._lines)))
                # The line is not sent if it turns out now that its attempt must not begin any more.
                with suppress(asyncio.CancelledError):
                    unread.waits.close()
                    return unread.line
            self._has_news.clear()
            try:
                async with asyncio.timeout(QUIET_S):
                    await self._has_news.wait()
            except TimeoutError:
                return b"\n"
        return None


def _line(event_id: str, event: Event) -> bytes:
    told = {"id": event_id, "metadata": facts(event), "event": orjson.Fragment(structured(event, PUBSUB_NAME))}
    # The payload may be JSON on several lines; a line break in it is never part of a string.
    return orjson.dumps(told).replace(b"\r", b" ").replace(b"\n", b" ") + b"\n"
