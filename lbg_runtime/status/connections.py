"""The connections of our servers: bounded in number and in time, so that nobody is refused because of what others do.

uvicorn's own limit counts connections without a request as well and refuses the newest, and a first request may take
for ever. So a client that holds that many sockets open would have the probes of an orchestrator answered with 503, and
its members killed.
"""

import asyncio
from typing import ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_CONNECTIONS = 256
"""If there are so many, the one that has waited longest gives way to a new one; those without a request go first."""
REQUEST_WITHIN_S = 5.0
"""How long it may take from the connection, or the last answer, until the whole head of a request has come; uvicorn
keeps idle connections for as long."""
READ_WITHIN_S = 20.0
"""How long a client may take to read what is ready for it."""


class BoundedConnection(H11Protocol):
    """One connection. The server creates it and calls it, on its loop."""

    keeps_work: ClassVar[bool] = False
    """Whether a connection with a request under way is left alone: it does not give way, and its client may read as
    slowly as it likes."""

    _request_timer: asyncio.TimerHandle | None = None
    _read_timer: asyncio.TimerHandle | None = None
    _since_s = 0.0
    """When it began to wait for a request, or for the answer to one."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Wait for a request, and let another connection give way if there are too many."""
        super().connection_made(transport)
        # Set here, as uvicorn's setting of that name applies to the whole process.
        self.access_log = False
        self._await_request()
        if len(self.connections) > MAX_CONNECTIONS:
            others = [each for each in self.connections if isinstance(each, BoundedConnection) and each is not self]
            giving = [each for each in others if not each._is_kept]
            if giving:
                min(giving, key=lambda each: (each._is_at_work, each._since_s))._give_way()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing more."""
        self._cancel_timers()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Take what has been received; if that begins a request, stop waiting for one."""
        before = self.cycle
        super().handle_events()
        if self.cycle is not before and self._is_at_work:
            self._since_s = self.loop.time()
            if self._request_timer is not None:
                self._request_timer.cancel()

    def on_response_complete(self) -> None:
        """Wait for the next request, which may be here already."""
        self._await_request()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """The client does not read as fast as data is sent: give it `READ_WITHIN_S`."""
        super().pause_writing()
        if not self._is_kept:
            self._await_reading()

    def resume_writing(self) -> None:
        """The client has read; but if the connection is closing, it must still read the rest in time."""
        if self._read_timer is not None and not self.transport.is_closing():
            self._read_timer.cancel()
        super().resume_writing()

    @property
    def _is_at_work(self) -> bool:
        return bool(self.cycle) and not self.cycle.response_complete

    @property
    def _is_kept(self) -> bool:
        return self.keeps_work and self._is_at_work

    def _await_request(self) -> None:
        if self._request_timer is not None:
            self._request_timer.cancel()
        self._since_s = self.loop.time()
        # Not uvicorn's timer for idle connections, which a single byte ends.
        self._request_timer = self.loop.call_later(REQUEST_WITHIN_S, self._end)

    def _await_reading(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
        self._read_timer = self.loop.call_later(READ_WITHIN_S, self.transport.abort)

    def _end(self) -> None:
        # It closes only when the last answer has been sent, for which the client has to read.
        self.transport.close()
        self._await_reading()

    def _give_way(self) -> None:
        # From now on it does not count, although the loop reports its end only later.
        self.connections.discard(self)
        self.transport.abort()

    def _cancel_timers(self) -> None:
        # uvicorn's own as well, which it leaves when a connection is lost by an error.
        for timer in (self._request_timer, self._read_timer, self.timeout_keep_alive_task):
            if timer is not None:
                timer.cancel()
