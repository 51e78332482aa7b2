"""The server of a member's status API, in a thread and on an event loop of its own.

So it can report on a member whose loop is blocked, and no slow or hostile client takes time from handling. Everything
that it tells about the member is looked up on the member's loop (`status/member_loop.py`).
"""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

import structlog
import uvloop

from lbg_runtime.config.listen_address import ListenAddress
from lbg_runtime.model.errors import ConfigError
from lbg_runtime.status.connections import BoundedConnection
from lbg_runtime.status.member_loop import MemberLoop
from lbg_runtime.status.routes import StatusRoutes
from lbg_runtime.status.serving import QuietServer, listen
from lbg_runtime.status.source import StatusSource

_log = structlog.get_logger(__name__)

LAST_ANSWERS_S = 1
"""How long answers may take that are under way when the member leaves."""
END_WITHIN_S = 3.0
"""How long the server may take to end: enough for the last answers, two of its looks at whether it must end, and a busy
machine."""


class StatusServer:
    """Answers while its context lasts. Made and used on the member's loop; `show` and `stop` return at once."""

    def __init__(self, address: ListenAddress, token: str | None, waits_for: Callable[[], str] = str) -> None:
        """`waits_for` is called on the member's loop; it says what keeps the member from beginning, or nothing."""
        self.address = address
        """Where it listens; once the context has begun, with the port that the system chose."""
        self._source: StatusSource | None = None
        self._member_loop = asyncio.get_running_loop()
        routes = StatusRoutes(MemberLoop(self._member_loop), lambda: self._source, waits_for)
        app = routes.application(address, token)
        self._server = QuietServer(app, BoundedConnection, last_answers_s=LAST_ANSWERS_S)
        self._thread: threading.Thread | None = None
        self._has_ended = asyncio.Event()

    def show(self, source: StatusSource) -> None:
        """Report on this member from now on; before it has begun, only that its loop is alive."""
        self._source = source

    def stop(self) -> None:
        """Begin to end, so that the end of the context does not take long. Idempotent."""
        self._server.should_exit = True

    async def __aenter__(self) -> Self:
        """Raises `ConfigError` if the address or a thread cannot be had."""
        listener = listen(self.address, "ops.status")
        self.address = ListenAddress(self.address.host, listener.getsockname()[1])
        # A daemon, as nothing may keep the process of a member alive that has left.
        self._thread = threading.Thread(target=self._serve, args=(listener,), name="lbg-status", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            listener.close()
            raise ConfigError(
                "ops.status", f"no thread for it: {error}", "a limit of threads with room for more"
            ) from error
        _log.info("status_served", address=str(self.address))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        try:
            async with asyncio.timeout(END_WITHIN_S):
                await self._has_ended.wait()
        except TimeoutError:
            _log.warning("status_not_ended", within_s=END_WITHIN_S)
        else:
            if self._thread is not None:
                # To say so was the last thing that the thread had to do.
                self._thread.join()

    def _serve(self, listener: socket.socket) -> None:
        try:
            # Not asyncio's own loop: if the process has no descriptor left, a connection that waits makes that loop use
            # up a core and log thousands of lines a second. uvloop drops the connection.
            with listener, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._server.serve(sockets=[listener]))
        finally:
            # If the loop is closed, nobody waits any more.
            with contextlib.suppress(RuntimeError):
                self._member_loop.call_soon_threadsafe(self._has_ended.set)
