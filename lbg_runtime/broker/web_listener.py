"""The broker's clients over WebSocket: those in browsers, and whatever is given a `ws://` address.

The bytes are those of a TCP connection, in binary messages whose bounds mean nothing. So a client gets one end of a
pair of sockets, and at the other end is a connection like any other, with the same limits and faults.
"""

import asyncio
import socket
import ssl
from contextlib import suppress

from aiohttp import WSMsgType, web

from lbg_runtime.broker.listening import Accepting
from lbg_runtime.broker.server.connection import CLOSE_TIMEOUT_S, LOGIN_TIMEOUT_S
from lbg_runtime.broker.server.server import BrokerServer
from lbg_runtime.broker.server.tls import common_name

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""The most that a client may send at once; more than the largest message that the broker takes."""

_CHUNK_BYTES = 256 * 1024


class WebListener(Accepting):
    """Serves clients over WebSocket."""

    def __init__(self, server: BrokerServer, host: str, port: int, *, tls: ssl.SSLContext | None = None) -> None:
        """`server` must be started before this and stopped after it."""
        super().__init__(host, port, "ws", is_secure=tls is not None)
        self._server = server
        self._tls = tls
        self._http = web.Server(self._serve, access_log=None)
        self._clients: set[asyncio.Transport] = set()
        self._looks: dict[web.RequestHandler, asyncio.TimerHandle] = {}
        """Of connections on which no WebSocket has begun: when they are cut."""

    async def start(self) -> None:
        await self._accept_for("web", self._accept, self._tls)

    async def stop(self) -> None:
        """Stop listening and cut every client, when cancelled, too. Idempotent."""
        if self._listener is None:
            return
        cancellation = await self._accept_no_more()
        for look in self._looks.values():
            look.cancel()
        self._looks.clear()
        for client in self._clients:
            client.abort()
        # A cancellation must end only this wait: the library would leave connections open.
        await asyncio.shield(asyncio.ensure_future(self._http.shutdown(CLOSE_TIMEOUT_S)))
        if cancellation is not None:
            raise cancellation

    def _accept(self) -> web.RequestHandler:
        handler = self._http()
        # Once it has begun, the broker waits for a login.
        self._looks[handler] = asyncio.get_running_loop().call_later(LOGIN_TIMEOUT_S, self._cut_unbegun, handler)
        return handler

    def _cut_unbegun(self, handler: web.RequestHandler) -> None:
        del self._looks[handler]
        if handler.transport is not None:
            handler.transport.abort()

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        # A browser takes no answer without one of the protocols that it has offered.
        offered = request.headers.get("Sec-WebSocket-Protocol", "")
        client = web.WebSocketResponse(
            protocols=[name.strip() for name in offered.split(",")], max_msg_size=MAX_MESSAGE_BYTES, compress=False
        )
        await client.prepare(request)
        if (look := self._looks.pop(request.protocol, None)) is not None:
            look.cancel()
        transport = request.transport
        if transport is None:  # it has gone already
            return client
        self._clients.add(transport)
        try:
            await self._join(client, transport)
        finally:
            self._clients.discard(transport)
            transport.abort()
        return client

    async def _join(self, client: web.WebSocketResponse, transport: asyncio.Transport) -> None:
        """Pass on what the client and the broker say, until either ends."""
        ours, theirs = socket.socketpair()
        certificate = common_name(transport.get_extra_info("peercert"))
        try:
            is_gone = await self._server.admit(theirs, transport.get_extra_info("peername"), certificate)
        except BaseException:
            ours.close()
            theirs.close()
            raise
        try:
            reader, writer = await asyncio.open_connection(sock=ours, limit=_CHUNK_BYTES)
        except BaseException:
            # What has been admitted ends with it.
            ours.close()
            raise
        sending = asyncio.create_task(_send(reader, client))
        cutting = asyncio.create_task(_cut_after(is_gone, sending, transport))
        try:
            await _receive(client, writer)
        finally:
            cutting.cancel()
            sending.cancel()
            writer.transport.abort()


async def _receive(client: web.WebSocketResponse, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        async for message in client:
            if message.type is not WSMsgType.BINARY:
                return
            writer.write(message.data)
            await writer.drain()


async def _send(reader: asyncio.StreamReader, client: web.WebSocketResponse) -> None:
    with suppress(ConnectionError):
        while chunk := await reader.read(_CHUNK_BYTES):
            await client.send_bytes(chunk)
        await client.close()


async def _cut_after(is_gone: asyncio.Event, sending: asyncio.Task[None], transport: asyncio.Transport) -> None:
    """Once the broker is done with a client, let it have the rest and a close, and cut it if it does not take them."""
    await is_gone.wait()
    await asyncio.wait((sending,), timeout=CLOSE_TIMEOUT_S)
    transport.abort()
