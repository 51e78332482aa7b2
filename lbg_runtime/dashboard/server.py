"""The server of the live page, on the loop of its watch: a process that shows a group does nothing else."""

from types import TracebackType

from lbg_runtime.config.listen_address import ListenAddress
from lbg_runtime.dashboard.routes import DashboardRoutes
from lbg_runtime.dashboard.watch import GroupWatch
from lbg_runtime.model.errors import UserError
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.hashing import HashFunction
from lbg_runtime.status.connections import BoundedConnection
from lbg_runtime.status.serving import LoopServer, QuietServer

LAST_ANSWERS_S = 1


def check_address(address: ListenAddress, token: str | None) -> None:
    """Raises `UserError` for an address beyond loopback without a token."""
    if not address.is_loopback and token is None:
        expected = "an address on loopback, such as 127.0.0.1:0, or ops.status_token in the settings"
        raise UserError("--listen", str(address), expected)


class DashboardServer(LoopServer):
    """Shows the page while its context lasts. Made and used on one event loop."""

    def __init__(
        self,
        watch: GroupWatch,
        shape: GroupShape,
        hash_function: HashFunction,
        address: ListenAddress,
        token: str | None,
    ) -> None:
        """Raises `UserError` as `check_address` does; so does its context if the address cannot be had."""
        check_address(address, token)
        app = DashboardRoutes(watch, shape, hash_function).application(address, token)
        super().__init__(QuietServer(app, BoundedConnection, last_answers_s=LAST_ANSWERS_S), address, "--listen")
        self._watch = watch

    @property
    def url(self) -> str:
        """What to open in a browser."""
        return f"http://{self.address}/"

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch.end_feeds()
        await super().__aexit__(kind, error, trace)
