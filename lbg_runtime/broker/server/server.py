"""The development broker as one object: a listener on loopback, the connections, and the engine they share."""

import asyncio
import os
import secrets
import socket
import time
from collections.abc import Iterable, Sequence
from itertools import count
from types import TracebackType
from typing import Self

import structlog

from lbg_runtime.broker.engine.effects import ClientId, Effect
from lbg_runtime.broker.engine.engine import Engine, QueueSettings
from lbg_runtime.broker.server.connection import Connection
from lbg_runtime.broker.server.login import DEFAULT_VPN
from lbg_runtime.broker.server.session import Session
from lbg_runtime.broker.server.tls import HANDSHAKE_TIMEOUT_S, TlsFiles
from lbg_runtime.model.errors import UserError
from lbg_runtime.model.ids import QueueName

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 55555

_log = structlog.get_logger(__name__)


class BrokerServer:
    """Serves real clients from `start` to `stop`, or as an async context manager.

    Everything is called from the event loop's thread. With `port` 0 the system chooses one; read `port` after `start`.
    """

    def __init__(
        self,
        host: str = DEFAULT_HOST,
        port: int = DEFAULT_PORT,
        *,
        engine: Engine | None = None,
        tls: TlsFiles | None = None,
    ) -> None:
        """With `tls` every client must speak TLS."""
        self.engine = engine or Engine(instance=secrets.token_hex(4))
        self.host = host
        self.port = port
        self._tls = tls
        self._listener: asyncio.Server | None = None
        self._connections: dict[Connection, None] = {}
        self._by_client: dict[ClientId, Connection] = {}
        self._to_flush: dict[Connection, None] = {}
        self._anonymous_names = (f"client-{number}" for number in count(1))
        self._no_connections = asyncio.Event()
        self._no_connections.set()
        self._is_stopped = False

    async def start(self) -> None:
        """Listen; raises `UserError` when the address cannot be had, or for files of `tls` that cannot be used."""
        tls = None if self._tls is None else self._tls.context()
        if self._tls is not None and self._tls.client_authorities is not None:
            accounts = self.engine.administration.accounts(DEFAULT_VPN)
            accounts.takes_certificates, accounts.takes_passwords = True, False
        # One family, or a name with two of them would be given two different ports where the system chooses.
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        self._is_stopped = False
        try:
            self._listener = await asyncio.get_running_loop().create_server(
                self._accept,
                self.host,
                self.port,
                family=family,
                ssl=tls,
                ssl_handshake_timeout=None if tls is None else HANDSHAKE_TIMEOUT_S,
            )
        except OSError as error:
            # The number says it in fewer words than the event loop's own text; a host that has no address has neither.
            reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error.strerror or error)
            expected = "an address of this machine with a free port"
            raise UserError(f"smf {self.host}:{self.port}", reason, expected) from error
        self.port = self._listener.sockets[0].getsockname()[1]

    @property
    def url(self) -> str:
        """What a client is given."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'tcp' if self._tls is None else 'tcps'}://{host}:{self.port}"

    async def stop(self) -> None:
        """Stop listening and cut every connection; returns when all of them are gone. Idempotent."""
        self._is_stopped = True
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        self.abort_connections()
        # Not bounded: an aborted connection is gone in the next turn of the loop, whatever its peer does.
        await self._no_connections.wait()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # -- administration and faults

    def create_queue(
        self,
        queue: str,
        subscriptions: Sequence[str] = (),
        *,
        settings: QueueSettings | None = None,
        vpn: str = DEFAULT_VPN,
    ) -> None:
        """Create a queue with its topic subscriptions; `BrokerRefusal` as for the engine."""
        self.engine.create_queue(vpn, QueueName(queue), settings or QueueSettings())
        for subscription in subscriptions:
            self.engine.add_queue_subscription(vpn, QueueName(queue), subscription)

    def delete_queue(self, queue: str, *, vpn: str = DEFAULT_VPN) -> None:
        """Delete a queue with its messages; its flows end."""
        self.carry_out(self.engine.delete_queue(vpn, QueueName(queue)))

    def abort_connections(self, client_name: str | None = None) -> int:
        """Cut the connections of this client, or all of them, as a network does; how many there were."""
        chosen = [
            connection
            for connection in self._connections
            if client_name is None or client_name == connection.session.client_name
        ]
        for connection in chosen:
            connection.abort()
        return len(chosen)

    def client_names(self) -> list[str]:
        """Names of the clients that are logged in, sorted."""
        sessions = (connection.session for connection in self._by_client.values())
        return sorted(session.client_name for session in sessions if session.client_name and not session.ended)

    def carry_out(self, effects: Iterable[Effect]) -> None:
        """Hand effects of the engine to the sessions they are for, in order."""
        for effect in effects:
            connection = self._by_client.get(effect.client)
            if connection is None:
                continue  # The connection went in this very turn; the engine takes everything back when it hears of it.
            connection.session.apply(effect)
            self.written_to(connection)

    # -- called by connections

    def opened(self, connection: Connection) -> None:
        """Count a connection in."""
        self._connections[connection] = None
        self._no_connections.clear()
        if self._is_stopped:
            connection.abort()  # It was accepted in the turn in which the listener closed.

    def written_to(self, connection: Connection) -> None:
        """Flush this connection at the end of this turn of the loop, in one write for all that happens until then."""
        if not self._to_flush:
            asyncio.get_running_loop().call_soon(self._flush)
        self._to_flush[connection] = None

    def lost(self, connection: Connection) -> None:
        """Count a connection out and give back what its client held."""
        self._connections.pop(connection, None)
        self._to_flush.pop(connection, None)
        session = connection.session
        if session.client is not None and self._by_client.pop(session.client, None) is not None:
            _log.info("client_disconnected", client_name=session.client_name, reason=session.end_reason)
            self.carry_out(self.engine.disconnect(session.client))
        if not self._connections:
            self._no_connections.set()

    def _accept(self) -> Connection:
        return Connection(self, self._make_session)

    def _make_session(self, connection: Connection) -> Session:
        def on_login(client: ClientId) -> None:
            self._by_client[client] = connection
            _log.info("client_connected", client_name=connection.session.client_name, peer=connection.peer)

        return Session(
            self.engine,
            self.carry_out,
            on_login,
            next(self._anonymous_names),
            lambda: connection.peer_address,
            time.time,
            lambda: connection.name_on_certificate,
        )

    def _flush(self) -> None:
        connections = tuple(self._to_flush)
        self._to_flush.clear()
        for connection in connections:
            connection.flush()
