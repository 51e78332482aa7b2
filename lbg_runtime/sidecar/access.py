"""Decides who may ask the sidecar: for every request, before any route.

- On loopback the `Host` must name loopback, as for the status API.
- Nothing that a page in a browser sends is let in, which its browser marks with `Origin`: a page needs no permission to
  post to an address of this machine.
- With a token, only requests that show it are let in, as a bearer token or as Dapr's clients do. But anybody may ask
  whether the sidecar is there.
"""

import hmac

import structlog
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from lbg_runtime.config.listen_address import ListenAddress
from lbg_runtime.sidecar.application import TOKEN_HEADER
from lbg_runtime.sidecar.counts import Counts
from lbg_runtime.status.access import as_json, names_loopback, shows_token

OPEN_PATHS = frozenset({"/v1.0/healthz", "/v1.0/healthz/outbound"})

_log = structlog.get_logger(__name__)


class SidecarAccess:
    """An ASGI application behind these rules."""

    def __init__(self, app: ASGIApp, address: ListenAddress, token: str | None, counts: Counts) -> None:
        self._app = app
        self._is_loopback = address.is_loopback
        self._token = None if token is None else token.encode()
        self._counts = counts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse requests that are not allowed, pass on the rest."""
        headers = Headers(scope=scope)
        if self._is_loopback and not names_loopback(headers.getlist("host")):
            status, reason = 421, "the Host header must name a loopback address or localhost"
        elif "origin" in headers:
            status, reason = 403, "requests with an Origin header (browser pages) are refused"
        elif not (scope["path"] in OPEN_PATHS or self._shows_token(headers)):
            status, reason = 401, "a token is needed"
        else:
            await self._app(scope, receive, send)
            return
        self._counts.refused += 1
        _log.warning("request_refused", status=status, reason=reason)
        await as_json({"error": reason}, status)(scope, receive, send)

    def _shows_token(self, headers: Headers) -> bool:
        if self._token is None or shows_token(headers, self._token):
            return True
        shown = headers.getlist(TOKEN_HEADER)
        return len(shown) == 1 and hmac.compare_digest(shown[0].encode("latin-1"), self._token)
