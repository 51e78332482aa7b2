"""The sidecar's own port, on the member's loop: what is published goes out by the member's session."""

import asyncio
import os
import socket
from types import TracebackType
from typing import Self

import structlog
import uvicorn
from starlette.types import ASGIApp

from lbg_runtime.config.listen_address import ListenAddress
from lbg_runtime.model.errors import ConfigError

_log = structlog.get_logger(__name__)

MAX_CONNECTIONS = 256
"""Further ones are told that the service is not available."""

LAST_ANSWERS_S = 2
"""For requests under way when the member leaves."""


class SidecarServer:
    """Serves while its context lasts."""

    def __init__(self, app: ASGIApp, address: ListenAddress) -> None:
        self.address = address
        """Where it listens; within the context with the port that the system chose."""
        # Not `serve`, which takes the process's signals.
        self._config = uvicorn.Config(
            app,
            http="h11",
            ws="none",
            lifespan="off",
            interface="asgi3",
            # Its loggers are those of the whole process, which may serve something else with the same library.
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_graceful_shutdown=LAST_ANSWERS_S,
        )
        self._server = uvicorn.Server(self._config)
        self._listener: socket.socket | None = None
        self._serving: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Raises `ConfigError` where the address cannot be had."""
        self._listener = _listen(self.address)
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


def _listen(address: ListenAddress) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        return socket.create_server((address.host, address.port), family=family)
    except OSError as error:
        # The number says it in fewer words than the text; a name that has no address has no number either.
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error.strerror or error)
        expected = "an address of this machine with a free port"
        raise ConfigError("sidecar.listen", f"{address}: {reason}", expected) from None
