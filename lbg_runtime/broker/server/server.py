"""The development broker as one object: a listener on loopback, the connections, and the engine they share."""

import asyncio
import secrets
import socket
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import count, groupby
from operator import attrgetter
from types import TracebackType

import structlog

from lbg_runtime.broker.engine.changes import Changes
from lbg_runtime.broker.engine.effects import ClientId, Effect
from lbg_runtime.broker.engine.engine import DEFAULT_VPN, Engine
from lbg_runtime.broker.engine.settings import QueueSettings
from lbg_runtime.broker.listening import Accepting
from lbg_runtime.broker.server.connection import Connection, Origin
from lbg_runtime.broker.server.engine_timer import EngineTimer
from lbg_runtime.broker.server.faults import Faults
from lbg_runtime.broker.server.keys import closes_group, key_of
from lbg_runtime.broker.server.session import Session
from lbg_runtime.broker.server.tls import TlsFiles
from lbg_runtime.broker.server.traits import fields_of, traits_of
from lbg_runtime.broker.store.statements import Row, RowPut
from lbg_runtime.broker.store.store import Store
from lbg_runtime.model.errors import LbgError, StoreFailed, UserError
from lbg_runtime.model.ids import QueueName

DEFAULT_HOST = "127.0.0.1"

_log = structlog.get_logger(__name__)

_CLIENT = attrgetter("client")


class BrokerServer(Accepting):
    """Serves real clients. Everything is called from the event loop's thread."""

    def __init__(
        self,
        host: str = DEFAULT_HOST,
        port: int = 0,
        *,
        engine: Engine | None = None,
        tls: TlsFiles | None = None,
        store: Store | None = None,
        replay_log_bytes: int | None = None,
        tells_clients: bool = True,
    ) -> None:
        """With `tls` every client must speak TLS. With a `store`, which it closes in the end, it continues where the
        store's last broker stopped; raises `UserError` for a store that cannot be read. With `replay_log_bytes` the
        default VPN keeps a replay log of this size; one in the store is kept without it too. `tells_clients`: whether
        the log says which clients come and go."""
        super().__init__(host, port, "tcp", is_secure=tls is not None)
        self._store = store
        self._tells_clients = tells_clients
        self._changes = None if store is None else Changes()
        self._rows: list[RowPut] = []
        """Changes of rows that are not on disk yet."""
        if store is None:
            self.engine = engine or Engine(secrets.token_hex(4), spooler=secrets.randbits(64))
        else:
            self.engine = Engine(store.instance, self._changes, store.spooler)
        self._failure: StoreFailed | None = None
        self._has_failed = asyncio.Event()
        self._tls = tls
        self._connections: dict[Connection, None] = {}
        self._by_client: dict[ClientId, Connection] = {}
        self._to_flush: dict[Connection, None] = {}
        self._will_flush = False
        """Whether `_flush` is to be called at the end of this turn."""
        self._anonymous_names = (f"client-{number}" for number in count(1))
        self._no_connections = asyncio.Event()
        self._no_connections.set()
        self._is_stopped = False
        self._is_full = False
        """Whether the log says that no further client is let in."""
        self._timer = EngineTimer(self.engine, self.carry_out)
        self.engine.surroundings.key_of = key_of
        self.engine.surroundings.traits_of = traits_of
        self.engine.surroundings.fields_of = fields_of
        self.engine.surroundings.wall_s = time.time
        self.engine.surroundings.closes_group = closes_group
        self.engine.surroundings.choose = secrets.randbelow
        self.faults = Faults(
            self.engine.surroundings, lambda: [(each.session.client_name, each) for each in self._connections]
        )
        """The faults that tests inject into the broker."""
        if store is not None:
            self._restore(store)
        if replay_log_bytes is not None:
            self.engine.replays.keep_log_of_size(DEFAULT_VPN, replay_log_bytes)

    def _restore(self, store: Store) -> None:
        try:
            self.engine.restore(store.read())
        except UserError:
            raise
        except (LookupError, TypeError, ValueError, LbgError) as error:
            # Each row can be read, and they do not fit together.
            raise UserError(f"store {store.path}", f"it is damaged: {error!r}", "an undamaged store") from error

    async def start(self) -> None:
        """Listen; raises `UserError` if the address is not available, or for files of `tls` that cannot be used."""
        tls = None if self._tls is None else self._tls.context()
        if self._tls is not None and self._tls.client_authorities is not None:
            accounts = self.engine.administration.accounts(DEFAULT_VPN)
            accounts.takes_certificates, accounts.takes_passwords = True, False
        self._is_stopped = False
        await self._accept_for("smf", self._accept, tls)
        # Deadlines restored from the store may be due.
        self._timer.arm()

    async def stop(self) -> None:
        """Stop listening and cut every connection; returns when all are gone, if it is cancelled, too. Idempotent."""
        self._is_stopped = True
        self.engine.send_no_more()
        self.faults.drop()
        cancellation = await self._accept_no_more()
        # Without a bound: an aborted connection is gone in the next turn of the loop, whatever its peer does.
        while self._connections:
            try:
                await self._no_connections.wait()
            except asyncio.CancelledError as error:
                # Nobody would close the store, so that no other broker could open it.
                cancellation = error
        self._timer.stop()
        if self._store is not None:
            with suppress(StoreFailed):
                self.write_down()
            self._store.close()
        if cancellation is not None:
            raise cancellation

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await super().__aexit__(kind, error, trace)
        if self._failure is not None and error is None:
            # Of the last write, or of one with which the request to stop came.
            raise self._failure

    async def admit(
        self, peer: socket.socket, address: tuple[str, int] | None, certificate: str | None
    ) -> asyncio.Event:
        """Serve the client at the other end of a connected socket, which is closed in the end, as if it had come from
        this address, with a certificate of this common name. Returns what is set when the broker is done with it."""
        loop = asyncio.get_running_loop()
        _, connection = await loop.connect_accepted_socket(lambda: self._accept(Origin(address, certificate)), peer)
        return connection.is_gone

    # -- administration and faults

    def create_queue(
        self,
        queue: str,
        subscriptions: Sequence[str] = (),
        *,
        settings: QueueSettings | None = None,
        vpn: str = DEFAULT_VPN,
    ) -> None:
        """Create a queue with its topic subscriptions; raises `BrokerRefusal` as the engine does."""
        self.engine.create_queue(vpn, QueueName(queue), settings or QueueSettings())
        for subscription in subscriptions:
            self.engine.add_queue_subscription(vpn, QueueName(queue), subscription)
        self.write_down()

    def delete_queue(self, queue: str) -> None:
        """Delete a queue and its messages; its flows end."""
        self.carry_out(self.engine.delete_queue(DEFAULT_VPN, QueueName(queue)))

    def client_names(self) -> list[str]:
        """Names of all logged-in clients, sorted."""
        sessions = (connection.session for connection in self._by_client.values())
        return sorted(session.client_name for session in sessions if session.client_name and not session.ended)

    def carry_out(self, effects: Iterable[Effect]) -> None:
        """Hand the engine's effects to the sessions they are for, in order."""
        for client, theirs in groupby(effects, _CLIENT):
            # Otherwise it closed in this very turn; the engine takes everything back when it is told.
            if (connection := self._by_client.get(client)) is not None:
                connection.session.apply(theirs)
                self.written_to(connection)
        self._timer.arm()
        if self._changes:
            self._flush_soon()

    def rows(self) -> list[Row]:
        """The rows that administrators left, in the order in which they were first put; none without a store."""
        return [] if self._store is None else self._store.rows()

    def put_row(self, kind: str, keys: bytes, body: bytes | None) -> None:
        """Keep a row with the next write, or forget it if `body` is None: a request that changes many, or the engine
        too, does all of it or nothing."""
        if self._store is not None:
            self._rows.append((kind, keys, body))
            self._flush_soon()

    def write_down(self) -> None:
        """Return once all changes to the engine, and all rows, are on disk; raises `StoreFailed`, from then on at every
        call."""
        if self._failure is not None:
            raise self._failure
        if self._store is None or self._changes is None or not (self._changes or self._rows):
            return
        rows, self._rows = self._rows, []
        try:
            self._store.write(self._changes.take(), rows)
        except StoreFailed as failure:
            # Nobody may learn of what is not on disk, so nobody learns of anything any more.
            self._failure = failure
            self._has_failed.set()
            self._is_stopped = True
            self.faults.drop()
            raise

    async def failed(self) -> None:
        """Wait until a write to the store has failed, then raise `StoreFailed`; returns in no other case."""
        await self._has_failed.wait()
        self.write_down()

    # -- called by connections

    def opened(self, connection: Connection) -> None:
        self._connections[connection] = None
        self._no_connections.clear()
        connection.suffer(self.faults.trouble_of(None))
        self._look_for_room()
        if self._is_stopped:
            connection.abort()  # Accepted in the turn in which we were asked to stop.

    def written_to(self, connection: Connection) -> None:
        """Flush this connection at the end of this turn of the loop, with one write for all output until then."""
        self._flush_soon()
        self._to_flush[connection] = None

    def lost(self, connection: Connection) -> None:
        """Unregister a connection and give back what its client held."""
        self._connections.pop(connection, None)
        self._to_flush.pop(connection, None)
        session = connection.session
        if session.client is not None and self._by_client.pop(session.client, None) is not None:
            reason = {} if session.end_reason is None else {"reason": session.end_reason}
            self._tell_of("client_disconnected", connection, **reason)
            self.carry_out(self.engine.disconnect(session.client))
        if not self._connections:
            self._no_connections.set()

    def _look_for_room(self) -> None:
        """Tell once that the process has no file descriptor left for another connection, and once that it has again."""
        # Looked for ahead: uvloop ends a connection that gets none, and tells nobody.
        try:
            socket.socket().close()
        except OSError as error:
            if not self._is_full:
                self._is_full = True
                _log.warning("clients_not_let_in", connections=len(self._connections), reason=error.strerror)
            return
        if self._is_full:
            self._is_full = False
            _log.info("clients_let_in", connections=len(self._connections))

    def _accept(self, origin: Origin | None = None) -> Connection:
        return Connection(self, self._make_session, origin)

    def _tell_of(self, event: str, connection: Connection, **facts: str) -> None:
        tell = _log.info if self._tells_clients else _log.debug
        tell(event, client_name=connection.session.client_name, **facts)

    def _make_session(self, connection: Connection) -> Session:
        def on_login(client: ClientId) -> None:
            self._by_client[client] = connection
            connection.suffer(self.faults.trouble_of(connection.session.client_name))
            self._tell_of("client_connected", connection, peer=connection.peer)

        return Session(
            self.engine,
            self.carry_out,
            on_login,
            next(self._anonymous_names),
            connection.peer_address,
            connection.name_on_certificate,
        )

    def _flush_soon(self) -> None:
        if not self._will_flush:
            self._will_flush = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._will_flush = False
        if self._changes or self._rows:
            # What the broker says must still be true after a crash, so it leaves only after the state behind it is on
            # disk.
            with suppress(StoreFailed):
                self.write_down()
        connections = tuple(self._to_flush)
        self._to_flush.clear()
        for connection in connections:
            try:
                connection.flush()
            except Exception as error:  # noqa: BLE001 - the others wait for theirs
                # The client does not get this output; its messages are given back when the connection is gone.
                name = connection.session.client_name
                _log.error("output_failed", client_name=name, peer=connection.peer, exc_info=error)
                connection.abort()
