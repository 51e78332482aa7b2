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
    """Changes the engine as the loop's other tasks do, and hands the effects to `carry_out`, which is that of a
    `BrokerServer` or `MemoryBroker.post`."""

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
