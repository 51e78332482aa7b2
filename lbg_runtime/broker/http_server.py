"""An HTTP server beside a broker, on the same event loop."""

import asyncio
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from lbg_runtime.broker.listening import Listening

KEEP_ALIVE_S = 65
"""From the connection, or the last answer, to the end of a request."""
STOP_TIMEOUT_S = 2
"""How long requests that are under way may take when the server stops."""


async def answer_nobody(_request: Request, _gone: Exception) -> Response:
    """For applications to use when a client has gone before its request was whole: no fault, and nobody to tell."""
    return Response(status_code=400)


class HttpServer(Listening):
    """Serves an application."""

    def __init__(self, name: str, app: ASGIApp, host: str, port: int, *, tls: ssl.SSLContext | None = None) -> None:
        """`name` is what errors call it."""
        super().__init__(host, port, "http", is_secure=tls is not None)
        self._name = name
        self._app = app
        self._tls = tls
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        listener = self._listen(self._name)
        config = uvicorn.Config(
            self._app,
            http=_Connection,
            ws="none",
            lifespan="off",
            proxy_headers=False,
            # The library's loggers are those of the whole process. So not `access_log` either, which empties one.
            log_config=None,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=STOP_TIMEOUT_S,
        )
        config.load()
        config.ssl = self._tls
        self._server = _Server(config)
        self._serving = asyncio.create_task(self._server.serve(sockets=[listener]))
        started = asyncio.create_task(self._server.is_listening.wait())
        try:
            # Not bounded: one of the two comes in the next turns of the loop.
            await asyncio.wait((self._serving, started), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            # Nobody need stop what has not started.
            self._server.should_exit = True
            raise
        finally:
            started.cancel()
        if self._serving.done():
            await self._serving

    async def stop(self) -> None:
        """Stop listening and end every connection, when cancelled, too. Idempotent."""
        if self._server is None or self._serving is None:
            return
        self._server.should_exit = True
        await asyncio.shield(self._serving)
        self._server = self._serving = None


class _Connection(H11Protocol):
    """Writes no line for a request, and ends if none comes to its end in time."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self.access_log = False
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        # Which uvicorn leaves when a connection is lost by an error.
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        super().handle_events()
        is_whole = bool(self.cycle) and not (self.cycle.response_complete or self.cycle.more_body)
        if is_whole:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        # Before the next one is taken, which may be here already.
        self._await_request()
        super().on_response_complete()

    def _await_request(self) -> None:
        self._stop_waiting()
        # Not uvicorn's timer for idle connections: it waits for no first request, and a single byte ends it.
        self._timer = self.loop.call_later(KEEP_ALIVE_S, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class _Server(uvicorn.Server):
    """Leaves signals to the process that it is part of, and says when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_listening = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self.is_listening.set()
