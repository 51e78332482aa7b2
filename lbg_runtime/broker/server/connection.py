"""One TCP connection: bytes to the session, its outbox to the socket, and the watch over a silent or slow peer."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol, cast

import structlog

from lbg_runtime.broker.server.compression import DeflateStreams, is_deflate
from lbg_runtime.broker.server.session import Session
from lbg_runtime.broker.server.tls import common_name
from lbg_runtime.model.errors import ProtocolError

LOGIN_TIMEOUT_S = 10.0
"""How long a connection may stay without a login."""

CLOSE_TIMEOUT_S = 5.0
"""How long a peer may take to read the last answer."""

SILENT_INTERVALS = 3.5
"""A client that is silent for more keep-alive intervals than this is gone."""

_LOGIN_LOOKS = 4
"""How many looks find no login until `LOGIN_TIMEOUT_S` is over."""

_LOOKS_PER_INTERVAL = 4
"""How many looks there are in a keep-alive interval."""

_MUCH_INPUT_BYTES = 128 * 1024
"""After this much, the other connections have their turn; more than a window of messages of 256 bytes."""

_WRITE_HIGH_BYTES = 1024 * 1024
_WRITE_LOW_BYTES = 256 * 1024
_MAX_ANSWER_BYTES = 1024 * 1024
"""Answers that may wait for a client that does not read; above, its requests wait too."""

_MAX_WAITING_COUNT = 100_000
"""The same for answers and deliveries from queues: as many as about 400 flows can have in transit."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Trouble:
    """The faults that a fault switch can set on a connection."""

    is_stalled: bool = False
    """Nothing is read or written, as if the network swallowed it; the TCP connection stays."""
    delay_ms: int = 0
    """How much everything written is delayed."""
    withholds_acks: bool = False
    """Publishers are told only of refusals, not of accepted messages."""
    stops_egress: bool = False
    """Messages are held back; answers are not."""


NO_TROUBLE = Trouble()


class ConnectionOwner(Protocol):
    """What a connection needs from the server."""

    def opened(self, connection: "Connection") -> None:
        """The connection was made."""
        ...

    def written_to(self, connection: "Connection") -> None:
        """Something may wait in the connection's outbox: call `flush` once, after everything else in this turn."""
        ...

    def lost(self, connection: "Connection") -> None:
        """The connection is gone; called exactly once."""
        ...


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a connection comes from."""

    address: tuple[str, int] | None
    certificate: str | None
    """The common name of the peer's certificate, if it presented one that was verified."""


class Connection(asyncio.Protocol):
    """Made by the server for every accepted socket; called only by the event loop and the server."""

    def __init__(
        self, owner: ConnectionOwner, make_session: Callable[["Connection"], Session], origin: Origin | None = None
    ) -> None:
        """`origin`: if not what the socket says."""
        self.session: Session
        """From `connection_made` on."""
        self._make_session = make_session
        self.peer = "gone"
        self.peer_address: str = ""
        self._origin = origin
        self.name_on_certificate: str | None = None
        """The common name of the peer's certificate, if it presented one that was verified."""
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self.is_gone = asyncio.Event()
        """Set when the connection is lost."""
        self._transport: asyncio.Transport | None = None
        self._streams: DeflateStreams | None = None
        """Set by the first byte of a compressed connection, or by the answer to a login that asks for it."""
        self._has_begun = False
        self._writable = True
        self._reading = True
        self._look_count = 0
        self._silent_look_count = 0
        """Since the last bytes came."""
        self._watch: asyncio.TimerHandle | None = None
        self._trouble = NO_TROUBLE
        self._write_after_s = 0.0
        self._delayed: deque[Callable[[], object]] = deque()
        """What is written later, and the end, in order."""

    def suffer(self, trouble: Trouble) -> None:
        """Show these faults from now on, and no others."""
        self._trouble = trouble
        session = self.session
        if trouble.stops_egress:
            session.outbox.hold_messages()
        else:
            session.outbox.release_messages()
        if trouble.withholds_acks:
            session.withholds_acks = True
        elif session.withholds_acks:
            session.give_acks()
        if self._transport is not None:
            self._throttle(self._transport)
        self._owner.written_to(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not derive from asyncio's classes, so there is nothing to check at run time.
        self._transport = transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(_WRITE_HIGH_BYTES, _WRITE_LOW_BYTES)
        origin = self._origin or Origin(
            transport.get_extra_info("peername"), common_name(transport.get_extra_info("peercert"))
        )
        # There is no address if the peer has gone already.
        if origin.address:
            self.peer_address = origin.address[0]
            self.peer = f"{origin.address[0]}:{origin.address[1]}"
        self.name_on_certificate = origin.certificate
        self.session = self._make_session(self)
        self._set_watch(LOGIN_TIMEOUT_S / _LOGIN_LOOKS, self._check_silence)
        self._owner.opened(self)

    def data_received(self, data: bytes) -> None:
        """Feed the session; bytes that are not the protocol end this connection and no other."""
        if not self._has_begun:
            self._has_begun = True
            self._streams = DeflateStreams() if is_deflate(data[0]) else None
        self._receive(data)

    def pause_writing(self) -> None:
        """The peer reads too slowly: further output waits in the outbox."""
        self._writable = False

    def resume_writing(self) -> None:
        """The peer has caught up."""
        self._writable = True
        # Not at once: output of this turn may have to wait for the disk.
        self._owner.written_to(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # asyncio calls it so
        """The socket is closed, by either side."""
        if self._watch is not None:
            self._watch.cancel()
        self._transport = None
        self.is_gone.set()
        self._owner.lost(self)

    def flush(self) -> None:
        """Write waiting output, as far as the peer reads it; then close, if the session has ended."""
        transport, outbox = self._transport, self.session.outbox
        if transport is None or transport.is_closing() or self._trouble.is_stalled:
            return
        while outbox and self._writable:
            data = b"".join(outbox.take())
            self._write(transport, data if self._streams is None else self._streams.deflate(data))
            if self._streams is None and self.session.compresses:
                # The client waits for this answer before it sends more.
                self._streams = DeflateStreams()
        self._throttle(transport)
        if self.session.end_reason is not None:
            if self._delayed:
                self._do_delayed(transport.close)
            else:
                transport.close()
            # A peer that does not read would keep a closing socket open forever.
            self._set_watch(CLOSE_TIMEOUT_S, self.abort)

    def _write(self, transport: asyncio.Transport, data: bytes) -> None:
        now_s = self._loop.time()
        # Later output never overtakes delayed output, even if the delay has been reduced.
        self._write_after_s = max(now_s + self._trouble.delay_ms / 1_000, self._write_after_s)
        # Delayed output that is due may still wait for its turn of the loop, and must not be overtaken.
        if self._write_after_s <= now_s and not self._delayed:
            transport.write(data)
        else:
            self._do_delayed(partial(transport.write, data))

    def _do_delayed(self, act: Callable[[], object]) -> None:
        self._delayed.append(act)
        self._loop.call_at(self._write_after_s, self._do_first_delayed)

    def _do_first_delayed(self) -> None:
        # Whichever timer it is: a loop may call those of the same moment in any order.
        act = self._delayed.popleft()
        # uvloop raises for what is written to a socket that was cut meanwhile.
        if self._transport is not None and not self._transport.is_closing():
            act()

    def abort(self) -> None:
        """Cut the connection at once, as a network does."""
        if self._transport is not None:
            self._transport.abort()

    def _receive(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return  # It closed while the rest of its input was waiting for its turn.
        self._silent_look_count = 0
        try:
            # Inflated input is read first: otherwise a few compressed bytes could become very many that wait in memory.
            if self._streams is not None and (data or not self.session.has_more):
                data = self._streams.inflate(data)
            self.session.receive(data)
        except ProtocolError as error:
            self._drop(error.what, offset=error.offset)
            return
        if self.session.ended and self.session.client is None and self.session.login is not None:
            login = self.session.login
            reason = self.session.end_reason
            _log.warning("login_refused", peer=self.peer, client_name=login.client_name, vpn=login.vpn, reason=reason)
        if self._has_more or len(data) > _MUCH_INPUT_BYTES:
            # At once, until the next flush: uvloop reads up to 32 times in a turn from a socket that is always full.
            self._read_on(False, self._transport)
        self._owner.written_to(self)

    @property
    def _has_more(self) -> bool:
        """Whether input has come that waits for another turn; nothing is read meanwhile."""
        return self.session.has_more or (self._streams is not None and self._streams.has_more)

    def _throttle(self, transport: asyncio.Transport) -> None:
        outbox = self.session.outbox
        slow = (
            self._trouble.is_stalled
            or outbox.answer_bytes > _MAX_ANSWER_BYTES
            or outbox.waiting_count > _MAX_WAITING_COUNT
        )
        more = self._has_more
        if more and not slow:
            # The rest of the input, after the other connections have had their turn.
            self._loop.call_soon(self._receive, b"")
        self._read_on(not slow and not more, transport)

    def _read_on(self, reading: bool, transport: asyncio.Transport) -> None:
        if reading is self._reading:
            return
        self._reading = reading
        if reading:
            transport.resume_reading()
        else:
            transport.pause_reading()

    def _drop(self, reason: str, offset: int = 0) -> None:
        name = self.session.client_name
        _log.warning("peer_dropped", peer=self.peer, client_name=name, reason=reason, offset=offset)
        self.abort()

    def _check_silence(self) -> None:
        # Looks are counted rather than seconds: however long a turn of the loop takes, it is one look, and what came
        # meanwhile is read before the next.
        self._look_count += 1
        self._silent_look_count += 1
        login = self.session.login
        if self.session.client is None or login is None:
            if self._look_count >= _LOGIN_LOOKS:
                self._drop("no login in time")
            else:
                self._set_watch(LOGIN_TIMEOUT_S / _LOGIN_LOOKS, self._check_silence)
            return
        if not login.keep_alive_s:
            return  # The client promised nothing.
        # One look more than in these intervals, as the first may come at once after the last bytes.
        if self._silent_look_count > SILENT_INTERVALS * _LOOKS_PER_INTERVAL:
            self._drop(f"silent for more than {SILENT_INTERVALS} keep-alive intervals")
        else:
            self._set_watch(login.keep_alive_s / _LOOKS_PER_INTERVAL, self._check_silence)

    def _set_watch(self, delay_s: float, check: Callable[[], None]) -> None:
        if self._watch is not None:
            self._watch.cancel()
        self._watch = self._loop.call_later(delay_s, check)
