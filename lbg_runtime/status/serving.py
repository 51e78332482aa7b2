"""Web servers within a process that belongs to something else, and the listening sockets that they are given."""

import asyncio
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self
from urllib.parse import unquote

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from lbg_runtime.config.listen_address import ListenAddress
from lbg_runtime.model.errors import ConfigError
from lbg_runtime.status.connections import BoundedConnection

_ABSOLUTE = re.compile(rb"https?://([^/]*)(/.*)?", re.IGNORECASE)


class QuietServer(uvicorn.Server):
    """A server that leaves the process's signals and loggers alone, and logs no requests."""

    def __init__(
        self,
        app: ASGIApp,
        connection: type[BoundedConnection],
        *,
        last_answers_s: int,
        limit_concurrency: int | None = None,
    ) -> None:
        """`last_answers_s`: how long answers may take that are under way when the server must end; their clients may
        read slowly or not at all."""
        super().__init__(
            uvicorn.Config(
                in_origin_form(app),
                http=connection,
                ws="none",
                lifespan="off",
                interface="asgi3",
                # The library's loggers belong to the whole process, which may serve something else with it. So
                # `access_log` is not set either, as it would silence that logger for all; `BoundedConnection` does it
                # for itself.
                log_config=None,
                proxy_headers=False,
                server_header=False,
                limit_concurrency=limit_concurrency,
                timeout_graceful_shutdown=last_answers_s,
            )
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none: signals are left to the process."""
        yield


class LoopServer:
    """Serves on the event loop that it is entered on, while its context lasts; once."""

    def __init__(self, server: QuietServer, address: ListenAddress, where: str) -> None:
        """`where` says which setting the address comes from, for `listen`."""
        self.address = address
        """Where it listens; once the context has begun, with the port that the system chose."""
        self._where = where
        self._server = server
        self._serving: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Raises as `listen` does if the address cannot be had."""
        listener = listen(self.address, self._where)
        self.address = ListenAddress(self.address.host, listener.getsockname()[1])
        self._serving = asyncio.create_task(self._server.serve(sockets=[listener]))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.should_exit = True
        if self._serving is not None:
            # A cancellation must end only this wait: the server, if cancelled, would leave its socket open.
            await asyncio.shield(self._serving)


def in_origin_form(app: ASGIApp) -> ASGIApp:
    """The application, with requests for `http://host/path`, as proxies send them, turned into requests for the path.

    The host in the target then counts, and not that of the `Host` header, as RFC 9112 demands.
    """

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        if (found := _ABSOLUTE.fullmatch(scope["raw_path"])) is not None:
            raw_path = found[2] or b"/"
            headers = [(b"host", found[1]), *(each for each in scope["headers"] if each[0] != b"host")]
            scope = {**scope, "raw_path": raw_path, "path": unquote(raw_path.decode("ascii")), "headers": headers}
        await app(scope, receive, send)

    return call


def listen(address: ListenAddress, where: str) -> socket.socket:
    """A socket that listens there; raises a `ConfigError` that names the address's setting, `where`."""
    return address.listen(lambda reason, expected: ConfigError(where, f"{address}: {reason}", expected))
