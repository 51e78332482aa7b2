"""The application as the sidecar sees it: reached over HTTP, on TCP or a Unix socket."""

import asyncio
import os
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from functools import cache
from io import BytesIO
from typing import NamedTuple, Protocol

import aiohttp
from aiohttp.connector import Connection
from aiohttp.tracing import Trace
from yarl import URL

from lbg_runtime.config.sidecar_settings import SidecarSettings
from lbg_runtime.config.trust import trust
from lbg_runtime.model.errors import ConfigError, LbgError

TOKEN_HEADER = "dapr-api-token"  # noqa: S105 - the header's name

SUBSCRIBE_PATH = "/dapr/subscribe"

MAX_ANSWER_BYTES = 1024 * 1024
"""The longest answer that is read; Dapr's contract needs some twenty bytes for an event."""

PROBE_TIMEOUT_S = 1.0
CONNECT_TIMEOUT_S = 5.0
"""The longest time to connect. Half of the time for an answer if that is less, so that an event that could not be sent
does not count as unanswered."""

NO_CONNECTION = "no connection in time"

KEEP_ALIVE_S = 4.0
"""How long an idle connection is kept. Shorter than servers commonly allow, as a connection that closes while a request
is on its way costs an attempt."""

_COPIED_BYTES = 256 * 1024
"""Longer bodies are written in pieces, as they would hold up the loop if written whole."""


class ApplicationUnreachable(LbgError):
    """Nothing was sent: nobody listens at the application's address."""

    retriable = True

    def __init__(self, reason: str) -> None:
        super().__init__(f"the application cannot be reached: {reason}")
        self.reason = reason


class ApplicationFailed(LbgError):
    """There was no answer, or none that ends the event; the event may have been handled all the same."""

    retriable = True

    def __init__(self, reason: str) -> None:
        super().__init__(f"the application did not take the event: {reason}")
        self.reason = reason


class NotSent(LbgError):
    """Nothing was sent: when there was a connection for it, it was no longer wanted."""

    def __init__(self) -> None:
        super().__init__("the request was taken back")


class Response(NamedTuple):
    status: int
    content_type: str
    body: bytes | None
    """None if it was longer than `MAX_ANSWER_BYTES`."""


MaySend = Callable[[], bool]


def always() -> bool:
    """A `MaySend` for requests that are wanted in any case."""
    return True


_MAY_SEND: ContextVar[MaySend] = ContextVar("_MAY_SEND", default=always)
"""The `MaySend` of the request for which a connection is being obtained."""


class Application(Protocol):
    """Called on the member's loop, by many tasks at once."""

    async def post(self, route: str, headers: Mapping[str, str], body: bytes, may_send: MaySend = always) -> Response:
        """Send one request; raises `ApplicationUnreachable` or `ApplicationFailed`. Hangs up if cancelled.

        `may_send` is called when there is a connection, right before the request leaves; if it returns False, this
        raises `NotSent`.
        """
        ...

    async def probe(self) -> None:
        """Return if the application is well; raises `ApplicationUnreachable` or `ApplicationFailed`."""
        ...

    async def subscriptions(self) -> bytes | None:
        """What the application says that it wants; None if it says nothing. Raises what `post` raises.

        404 says nothing; so do 405 and 501, if the settings have subscriptions.
        """
        ...

    async def close(self) -> None:
        """Hang up. Idempotent."""
        ...


class _FreshConnections(aiohttp.BaseConnector):
    """Never lends a connection on which an answer is already waiting: it would count as the answer to the next request,
    so that an event is accepted which the application has not even received.

    The library checks for this only when a connection is given back. Nor does this class lend a connection for a
    request that `_MAY_SEND` forbids by now.
    """

    async def connect(
        self, req: aiohttp.ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout
    ) -> Connection:
        # This ends: each kept connection comes up only once, and a new one has had no time to receive anything.
        while True:
            connection = await super().connect(req, traces, timeout)
            if connection.protocol is None or not connection.protocol.should_close:
                break
            connection.close()
        if not _MAY_SEND.get()():
            connection.release()
            raise NotSent
        return connection


class _TcpConnector(_FreshConnections, aiohttp.TCPConnector):
    pass


class _UnixConnector(_FreshConnections, aiohttp.UnixConnector):
    pass


class HttpApplication:
    """An `Application` behind HTTP. Made on the loop that uses it."""

    def __init__(self, address: str, settings: SidecarSettings, timeout_ms: int) -> None:
        """`address` is that of the settings; `timeout_ms` bounds one answer, with the time to connect.

        Raises `ConfigError` if the authorities of `sidecar.tls` cannot be read.
        """
        self._timeout_ms = timeout_ms
        self._health_path = settings.health.path
        # 405 and 501 are the answers of a server that has no GET at all. That may be ignored only if the settings say
        # what the application gets.
        self._says_nothing = {404, 405, 501} if settings.subscriptions else {404}
        path = address.removeprefix("unix:")
        self._tls = settings.tls
        self._trust: ssl.SSLContext | bool = True
        connector: aiohttp.BaseConnector
        # No limit on connections: there is never more than one request for each runner.
        if path != address:
            self._base, self._socket = "http://localhost", path
            connector = _UnixConnector(path, limit=0, keepalive_timeout=KEEP_ALIVE_S)
        else:
            self._base, self._socket = address, ""
            if address.startswith("https://"):
                self._trust = trust(settings.tls, "sidecar.tls")
            connector = _TcpConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S)
        token = settings.application_token
        self._session = aiohttp.ClientSession(
            connector=connector,
            headers={TOKEN_HEADER: token.get_secret_value()} if token else None,
            cookie_jar=aiohttp.DummyCookieJar(),
            # Answers are not decompressed: a few bytes must not become many.
            auto_decompress=False,
            skip_auto_headers=("Accept-Encoding", "User-Agent"),
        )
        self._urls: dict[str, URL] = {}

    async def post(self, route: str, headers: Mapping[str, str], body: bytes, may_send: MaySend = always) -> Response:
        data = body if len(body) <= _COPIED_BYTES else BytesIO(body)
        asked = _MAY_SEND.set(may_send)
        try:
            return await self._request("POST", route, self._timeout_ms, headers=headers, data=data)
        finally:
            _MAY_SEND.reset(asked)

    async def probe(self) -> None:
        if self._health_path is None:
            await self._connect()
            return
        response = await self._request("GET", self._health_path, int(PROBE_TIMEOUT_S * 1_000))
        if not 200 <= response.status <= 299:
            raise ApplicationFailed(f"HTTP {response.status} from {self._health_path}")

    async def subscriptions(self) -> bytes | None:
        response = await self._request("GET", SUBSCRIBE_PATH, self._timeout_ms)
        if response.status in self._says_nothing:
            return None
        if response.status != 200:
            raise ApplicationFailed(f"HTTP {response.status} from {SUBSCRIBE_PATH}")
        if response.body is None:
            raise ApplicationFailed(f"more than {MAX_ANSWER_BYTES} bytes from {SUBSCRIBE_PATH}")
        return response.body

    async def close(self) -> None:
        await self._session.close()

    async def _request(
        self,
        method: str,
        path: str,
        timeout_ms: int,
        *,
        headers: Mapping[str, str] | None = None,
        data: bytes | BytesIO | None = None,
    ) -> Response:
        trusted = self._trust
        try:
            url = self._urls.get(path)
            if url is None:
                url = self._urls[path] = URL(f"{self._base}/{path.removeprefix('/')}")
            async with (
                asyncio.timeout(timeout_ms / 1_000),
                self._session.request(
                    method,
                    url,
                    headers=headers,
                    data=data,
                    allow_redirects=False,
                    ssl=trusted,
                    timeout=_bounds(timeout_ms),
                ) as response,
            ):
                return Response(response.status, response.headers.get("content-type", ""), await _body(response))
        except aiohttp.ClientConnectorError as error:
            if isinstance(error, aiohttp.ClientConnectorCertificateError) and self._trust is trusted:
                # The application's certificate may be from another authority by now, and that may be in the trust
                # store. This is read on the loop, so only once for all requests that have failed together.
                with suppress(ConfigError):
                    self._trust = trust(self._tls, "sidecar.tls")
            # By the error within, so that the reason is the same as that of a probe.
            raise ApplicationUnreachable(_reason(error.os_error)) from None
        except aiohttp.ConnectionTimeoutError:
            raise ApplicationUnreachable(NO_CONNECTION) from None
        except TimeoutError:
            raise ApplicationFailed(f"no answer within {timeout_ms} ms to {method} {path}") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise ApplicationFailed(f"{_reason(error)}, at {method} {path}") from None

    async def _connect(self) -> None:
        """Open a new connection and close it; a kept one could belong to a process that hangs."""
        url = URL(self._base)
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                if self._socket:
                    _, writer = await asyncio.open_unix_connection(self._socket)
                else:
                    _, writer = await asyncio.open_connection(url.host, url.port)
        except TimeoutError:
            raise ApplicationUnreachable(NO_CONNECTION) from None
        except (OSError, UnicodeError) as error:
            raise ApplicationUnreachable(_reason(error)) from None
        # Not waited for: it closes by itself, as nothing was written.
        writer.close()


@cache
def _bounds(timeout_ms: int) -> aiohttp.ClientTimeout:
    # `connect` also bounds the look-up of the name, and the handshake of TLS.
    return aiohttp.ClientTimeout(total=None, connect=min(CONNECT_TIMEOUT_S, timeout_ms / 2_000))


async def _body(response: aiohttp.ClientResponse) -> bytes | None:
    """The body, or None if it is too long: then the connection is closed, as the rest would count as the next
    answer."""
    length = response.content_length
    if length is not None and length <= MAX_ANSWER_BYTES:
        return await response.read()
    parts: list[bytes] = []
    left = -1 if length is not None else MAX_ANSWER_BYTES
    while left >= 0:
        part = await response.content.readany()
        if not part:
            return b"".join(parts)
        parts.append(part)
        left -= len(part)
    response.close()
    return None


def _reason(error: Exception) -> str:
    """The reason in words that are the same for the same cause, on whatever loop: during an absence, each reason is
    logged once."""
    number = error.errno if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) else None
    if number is not None and number > 0:  # that of the system; resolvers have negative ones
        return f"{type(error).__name__}: {os.strerror(number)}"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
