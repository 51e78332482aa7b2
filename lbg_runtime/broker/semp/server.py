"""SEMPv2 over HTTP, next to a broker on the same event loop."""

import ssl
from collections.abc import Callable

from lbg_runtime.broker.engine.effects import CarryOut
from lbg_runtime.broker.engine.engine import Engine
from lbg_runtime.broker.http_server import HttpServer
from lbg_runtime.broker.semp.access import DEFAULT_ADMINISTRATORS, Administrator
from lbg_runtime.broker.semp.app import make_app
from lbg_runtime.broker.semp.collection import Kept


class SempServer(HttpServer):
    """Serves from `start` to `stop`, or as an async context manager, on the loop's thread.

    It changes the engine as the loop's other tasks do, and hands the effects to `carry_out`: `BrokerServer.carry_out`
    or `MemoryBroker.post`. With `port` 0, as by default, the system chooses one; read `port` after `start`.
    """

    def __init__(
        self,
        engine: Engine,
        carry_out: CarryOut,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        administrators: tuple[Administrator, ...] = DEFAULT_ADMINISTRATORS,
        tls: ssl.SSLContext | None = None,
        kept: Kept | None = None,
        write_down: Callable[[], None] = lambda: None,
    ) -> None:
        """With `tls` it speaks HTTPS and nothing else. `kept` and `write_down` as for `make_app`."""
        app = make_app(engine, carry_out, administrators, kept, write_down)
        super().__init__("semp", app, host, port, tls=tls)
