"""The sidecar's own port, on the member's loop: what is published goes out through the member's session."""

from typing import Self

import structlog
from starlette.types import ASGIApp

from lbg_runtime.config.listen_address import ListenAddress
from lbg_runtime.status import connections
from lbg_runtime.status.serving import LoopServer, QuietServer

_log = structlog.get_logger(__name__)

LAST_ANSWERS_S = 2
"""For requests under way when the member leaves."""


class SidecarConnection(connections.BoundedConnection):
    """One without a request gives way; if all have one, the newest is told that the service is not available.

    Otherwise messages being published would have an unknown fate, and pulled events would come again.
    """

    keeps_work = True


class SidecarServer(LoopServer):
    """Serves while its context lasts."""

    def __init__(self, app: ASGIApp, address: ListenAddress) -> None:
        # uvicorn refuses at the number itself, so this is more than are left once one has given way.
        limit = connections.MAX_CONNECTIONS + 1
        server = QuietServer(app, SidecarConnection, last_answers_s=LAST_ANSWERS_S, limit_concurrency=limit)
        super().__init__(server, address, "sidecar.listen")

    async def __aenter__(self) -> Self:
        """Raises `ConfigError` if the address cannot be had."""
        await super().__aenter__()
        _log.info("sidecar_served", address=str(self.address))
        return self
