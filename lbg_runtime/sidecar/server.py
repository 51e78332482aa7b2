"""The sidecar's own port, on the member's loop: what is published goes out by the member's session."""

import asyncio
import socket
from types import TracebackType
from typing import Self

import structlog
import uvicorn
from starlette.types import ASGIApp

from lbg_runtime.config.listen_address import ListenAddress
from lbg_runtime.status import connections
from lbg_runtime.status.server import listen

_log = structlog.get_logger(__name__)

LAST_ANSWERS_S = 2
"""For requests under way when the member leaves."""


class SidecarConnection(connections.BoundedConnection):
    """One that asks nothing gives way; where all are asking, the newest is told that the service is not available.

    What was published would have an unknown fate otherwise, and what was pulled would come again.
    """

    keeps_work = True


class SidecarServer:
    """Serves while its context lasts."""

    def __init__(self, app: ASGIApp, address: ListenAddress) -> None:
        self.address = address
        """Where it listens; within the context with the port that the system chose."""
        # Not `serve`, which takes the process's signals.
        self._config = uvicorn.Config(
            app,
            http=SidecarConnection,
            ws="none",
            lifespan="off",
            interface="asgi3",
            # Its loggers are those of the whole process, which may serve something else with the same library.
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            # uvicorn refuses at the number itself, so more than there are where somebody has given way.
            limit_concurrency=connections.MAX_CONNECTIONS + 1,
            timeout_graceful_shutdown=LAST_ANSWERS_S,
        )
        self._server = uvicorn.Server(self._config)
        self._listener: socket.socket | None = None
        self._serving: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Raises `ConfigError` where the address cannot be had."""
        self._listener = listen(self.address, "sidecar.listen")
        self.address = ListenAddress(self.address.host, self._listener.getsockname()[1])
        self._config.load()
        self._server.lifespan = self._config.lifespan_class(self._config)
        await self._server.startup(sockets=[self._listener])
        self._serving = asyncio.create_task(self._server.main_loop())
        _log.info("sidecar_served", address=str(self.address))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.should_exit = True
        if self._serving is not None and self._listener is not None:
            await self._serving
            await self._server.shutdown(sockets=[self._listener])
