"""The server of the live page, on the loop of its watch: a process that shows a group does nothing else."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

import uvicorn

from lbg_runtime.config.listen_address import ListenAddress
from lbg_runtime.dashboard.routes import DashboardRoutes
from lbg_runtime.dashboard.watch import GroupWatch
from lbg_runtime.model.errors import UserError
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.hashing import HashFunction
from lbg_runtime.status.connections import BoundedConnection
from lbg_runtime.status.server import listen

LAST_ANSWERS_S = 1


def check_address(address: ListenAddress, token: str | None) -> None:
    """Raises `UserError` for an address beyond loopback without a token."""
    if not address.is_loopback and token is None:
        expected = "an address on loopback, such as 127.0.0.1:0, or ops.status_token in the settings"
        raise UserError("--listen", str(address), expected)


class DashboardServer:
    """Shows the page while its context lasts. Made and used on one event loop."""

    def __init__(
        self,
        watch: GroupWatch,
        shape: GroupShape,
        hash_function: HashFunction,
        address: ListenAddress,
        token: str | None,
    ) -> None:
        """Raises `UserError` as `check_address` does."""
        check_address(address, token)
        self.address = address
        """Where it listens; from the beginning of the context on with the port that the system chose."""
        self._watch = watch
        self._server = _Server(
            uvicorn.Config(
                DashboardRoutes(watch, shape, hash_function).application(address, token),
                http=BoundedConnection,
                ws="none",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_graceful_shutdown=LAST_ANSWERS_S,
            )
        )
        self._serving: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """What to open in a browser."""
        return f"http://{self.address}/"

    async def __aenter__(self) -> Self:
        """Raises `UserError` where the address cannot be had."""
        listener = listen(self.address, "--listen")
        self.address = ListenAddress(self.address.host, listener.getsockname()[1])
        self._serving = asyncio.create_task(self._server.serve(sockets=[listener]))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch.end_feeds()
        self._server.should_exit = True
        if self._serving is not None:
            await self._serving


class _Server(uvicorn.Server):
    """Leaves signals to the process that it is part of."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
