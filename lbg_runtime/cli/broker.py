"""`lbg broker`: the development broker in a process of its own."""

import sys
from typing import Annotated

import typer

from lbg_runtime.model.errors import UserError


def broker(
    smf: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where clients connect; port 0 lets the system choose.")
    ] = "127.0.0.1:55555",
    exit_with_parent: Annotated[
        bool, typer.Option("--exit-with-parent", help="Leave when the process that started this one is gone.")
    ] = False,
    log_json: Annotated[bool, typer.Option("--log-json", help="Log lines as JSON.")] = False,
) -> None:
    """Run the development broker until SIGTERM or SIGINT. Queues live in memory and go with it."""
    import uvloop

    from lbg_runtime.broker.server.serve import serve
    from lbg_runtime.broker.server.server import BrokerServer

    host, port = parse_address(smf)
    _configure_log(as_json=log_json)
    server = BrokerServer(host, port)

    def announce() -> None:
        print(f"lbg broker ready: smf {server.host}:{server.port}", file=sys.stderr, flush=True)

    uvloop.run(serve(server, exit_with_parent=exit_with_parent, on_ready=announce))


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`, the host in brackets or not; raises `UserError`."""
    host, colon, port = text.rpartition(":")
    if not (host and colon and port.isascii() and port.isdecimal() and int(port) <= 65_535):
        raise UserError("--smf", repr(text), "HOST:PORT with a port from 0 to 65535")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _configure_log(*, as_json: bool) -> None:
    import structlog

    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            # Names that a peer chose may hold line breaks; written as literals they stay in one line.
            structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer(repr_native_str=True),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
