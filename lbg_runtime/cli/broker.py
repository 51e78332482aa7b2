"""`lbg broker`: the development broker in a process of its own."""

import asyncio
import sys
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lbg_runtime.cli.garbage import collect_seldom
from lbg_runtime.cli.options import SIZE, ExitWithParent, listen_address, path_option, size_bytes
from lbg_runtime.model.errors import UserError
from lbg_runtime.runtime.stop import starting_parent, stop_requests

if TYPE_CHECKING:
    from lbg_runtime.broker.http_server import HttpServer
    from lbg_runtime.broker.server.tls import TlsFiles
    from lbg_runtime.broker.store.store import Store
    from lbg_runtime.config.listen_address import ListenAddress


def broker(
    smf: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address for clients; with port 0, the system chooses a port.")
    ] = "127.0.0.1:55555",
    semp: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Address for administrators. Default: none.")
    ] = None,
    web: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Address for clients over WebSocket, as in browsers. Default: none."),
    ] = None,
    tls_cert: Annotated[
        Path | None,
        path_option(metavar="FILE", help="Certificate in PEM. With it, clients and administrators use TLS."),
    ] = None,
    tls_key: Annotated[
        Path | None, path_option(metavar="FILE", help="Key of the certificate in PEM, not encrypted.")
    ] = None,
    client_ca: Annotated[
        Path | None,
        path_option(
            metavar="FILE", help="Authorities in PEM. With them, clients log in by certificate, not by password."
        ),
    ] = None,
    store: Annotated[
        Path | None,
        path_option(metavar="PATH", help="Keep everything in this file. Default: only in memory."),
    ] = None,
    replay_log: Annotated[
        str | None,
        typer.Option(
            metavar=SIZE,
            help="Keep a replay log of this size, such as 100M. Default: only one that the store has or SEMP makes.",
        ),
    ] = None,
    faults: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="Address, on loopback only, at which tests order faults. Default: none."
        ),
    ] = None,
    exit_with_parent: ExitWithParent = False,
) -> None:
    """Run the development broker until SIGTERM or SIGINT."""
    # Before the imports, which take their time.
    parent_pid = starting_parent() if exit_with_parent else None
    import uvloop

    from lbg_runtime.broker.store.store import Store
    from lbg_runtime.cli.log import configure_log

    address = listen_address("--smf", smf)
    administration = None if semp is None else listen_address("--semp", semp)
    web_address = None if web is None else listen_address("--web", web)
    fault_address = None if faults is None else listen_address("--faults", faults)
    replay_log_bytes = None if replay_log is None else size_bytes("--replay-log", replay_log)
    configure_log()
    collect_seldom()
    tls = tls_files(tls_cert, tls_key, client_ca)
    kept = None if store is None else Store.open(store)
    uvloop.run(
        _serve(
            address,
            administration,
            web_address,
            fault_address,
            tls,
            kept,
            replay_log_bytes=replay_log_bytes,
            parent_pid=parent_pid,
        )
    )


def tls_files(certificate: Path | None, key: Path | None, client_authorities: Path | None) -> "TlsFiles | None":
    """The TLS options combined; raises `UserError`."""
    from lbg_runtime.broker.server.tls import TlsFiles

    if certificate is not None and key is not None:
        return TlsFiles(certificate, key, client_authorities)
    given = {"--tls-cert": certificate, "--tls-key": key, "--client-ca": client_authorities}
    named = [option for option, value in given.items() if value is not None]
    if named:
        raise UserError(" and ".join(named), "given alone", "--tls-cert and --tls-key together")
    return None


async def _serve(
    address: "ListenAddress",
    administration: "ListenAddress | None",
    web: "ListenAddress | None",
    faults: "ListenAddress | None",
    tls: "TlsFiles | None",
    store: "Store | None",
    *,
    replay_log_bytes: int | None,
    parent_pid: int | None,
) -> None:
    from lbg_runtime.broker.semp.configuration import Configuration
    from lbg_runtime.broker.server.server import BrokerServer

    server = BrokerServer(address.host, address.port, tls=tls, store=store, replay_log_bytes=replay_log_bytes)
    semp: HttpServer | None = None
    # Before the first client comes, as this is when what administrators have stored begins to apply; and before the
    # server starts, as what the options say of logins applies then.
    if administration is not None:
        from lbg_runtime.broker.semp.server import SempServer

        semp = SempServer(
            server.engine,
            server.carry_out,
            administration.host,
            administration.port,
            tls=None if tls is None else tls.context(),
            kept=server,
            write_down=server.write_down,
        )
    elif store is not None:
        # Even if no SEMP is served.
        Configuration(server.engine, server.carry_out, server)
    stop = asyncio.Event()
    with stop_requests(lambda _: stop.set(), parent_pid=parent_pid):
        async with server, AsyncExitStack() as stack:
            ready = f"lbg broker ready: smf {server.address}"
            if semp is not None:
                await stack.enter_async_context(semp)
                ready += f", semp {semp.address}"
            if web is not None:
                from lbg_runtime.broker.web_listener import WebListener

                context = None if tls is None else tls.context()
                listener = await stack.enter_async_context(WebListener(server, web.host, web.port, tls=context))
                ready += f", web {listener.address}"
            if faults is not None:
                from lbg_runtime.broker.fault_port import FaultPort

                port = await stack.enter_async_context(FaultPort(server, faults.host, faults.port))
                ready += f", faults {port.address}"
            print(ready, file=sys.stderr, flush=True)
            # Unbounded on purpose: this is the life of the process.
            await _first_of(stop.wait(), server.failed())


async def _first_of(stopped: Coroutine[None, None, object], failed: Coroutine[None, None, object]) -> None:
    tasks = [asyncio.create_task(stopped), asyncio.create_task(failed)]
    done, left = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in left:
        task.cancel()
    for task in done:
        task.result()
