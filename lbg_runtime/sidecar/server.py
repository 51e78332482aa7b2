"""The server on the sidecar's own port. It runs on the member's loop, as it publishes through the member's session."""

from typing import Self

import structlog
from starlette.types import ASGIApp

from lbg_runtime.config.listen_address import ListenAddress
from lbg_runtime.status import connections
from lbg_runtime.status.serving import LoopServer, QuietServer

_log = structlog.get_logger(__name__)

LAST_ANSWERS_S = 2
"""How long requests may take that are under way when the member leaves."""


class SidecarConnection(connections.BoundedConnection):
    """If there are too many connections, one without a request gives way; if all have one, the newest is told that the
    service is not available.

    If one with a request gave way, a message being published would have an unknown fate, or pulled events would come
    again.
    """

    keeps_work = True


class SidecarServer(LoopServer):
    """Serves while its context lasts."""

    def __init__(self, app: ASGIApp, address: ListenAddress) -> None:
        # uvicorn refuses from this number on, so it is one more than are left when one has given way.
        limit = connections.MAX_CONNECTIONS + 1
        server = QuietServer(app, SidecarConnection, last_answers_s=LAST_ANSWERS_S, limit_concurrency=limit)
        super().__init__(server, address, "sidecar.listen")

    async def __aenter__(self) -> Self:
        """Raises `ConfigError` if the address cannot be had."""
        await super().__aenter__()
        _log.info("sidecar_served", address=str(self.address))
        return self
