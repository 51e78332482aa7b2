"""Decides who may ask a member's status API: for every request, before any route.

- Only GET, as nothing here changes anything.
- On loopback the `Host` must name loopback. Otherwise a page in a browser on this machine could ask by a name of its
  own that resolves to 127.0.0.1 (DNS rebinding), and read the answers as its own.
- A page of another origin gets nothing, if its browser says that it is one (`Sec-Fetch-Site`): it could not read the
  answer, and has no business asking. A link that somebody follows does not count as such.
- With a token, requests that do not show it reach only the open routes, which tell no facts. By default, those are the
  probes, which only tell whether they pass, as an orchestrator's probe needs.
"""

import hmac
from urllib.parse import unquote_to_bytes

import orjson
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from lbg_runtime.config.listen_address import ListenAddress
from lbg_runtime.model.errors import UserError
from lbg_runtime.model.whole import whole_number

OPEN_PATHS = frozenset({"/livez", "/readyz", "/startedz"})
NOT_KEPT = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
"""Headers by which nobody may cache an answer, and a browser takes it for nothing but its declared type."""


class Access:
    """An ASGI application behind these rules; it finds in `request.state.is_trusted` whether it may tell facts."""

    def __init__(
        self, app: ASGIApp, address: ListenAddress, token: str | None, open_paths: frozenset[str] = OPEN_PATHS
    ) -> None:
        self._app = app
        self._open_paths = open_paths
        self._is_loopback = address.is_loopback
        self._token = None if token is None else token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse requests that are not allowed, pass on the rest."""
        headers = Headers(scope=scope)
        is_trusted = self._token is None or shows_token(headers, self._token)
        if scope["method"] != "GET":
            response = as_json({"error": "only GET is answered"}, 405, {"Allow": "GET"})
        elif self._is_loopback and not names_loopback(headers.getlist("host")):
            response = as_json({"error": "the Host header must name a loopback address or localhost"}, 421)
        elif is_from_another_page(headers):
            response = as_json({"error": "a page of another origin may not ask"}, 403)
        elif not is_trusted and scope["path"] not in self._open_paths:
            response = as_json({"error": "a bearer token is needed"}, 401, {"WWW-Authenticate": "Bearer"})
        else:
            scope.setdefault("state", {})["is_trusted"] = is_trusted
            await self._app(scope, receive, send)
            return
        await response(scope, receive, send)


def as_json(told: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON answer with the headers of `NOT_KEPT`."""
    return Response(orjson.dumps(told), status, {**NOT_KEPT, **(headers or {})}, media_type="application/json")


def text_of(where: str, encoded: bytes) -> str:
    """A percent-encoded part of a request's target as text; raises `UserError` if it is not text.

    The framework would replace bytes that are not text by other characters, so different keys would become one.
    """
    try:
        return unquote_to_bytes(encoded).decode()
    except UnicodeDecodeError:
        raise UserError(where, "bytes that are no text", "text in UTF-8, percent-encoded") from None


def number_of(where: str, text: str, most: int) -> int:
    """A parameter as a number from 1 to `most` (which has four digits at most); raises `UserError` for anything
    else."""
    number = whole_number(text, 4)
    if number is None or not 1 <= number <= most:
        raise UserError(where, ascii(text)[:80], f"a whole number from 1 to {most}")
    return number


def is_from_another_page(headers: Headers) -> bool:
    """Whether a browser sends this for a page from elsewhere; another port of this machine counts as elsewhere."""
    is_foreign = headers.get("sec-fetch-site") in ("cross-site", "same-site")
    return is_foreign and headers.get("sec-fetch-mode") != "navigate"


def shows_token(headers: Headers, token: bytes) -> bool:
    """Whether there is exactly one `Authorization` header, and it has this bearer token."""
    shown = headers.getlist("authorization")
    if len(shown) != 1:
        return False
    scheme, _, rest = shown[0].partition(" ")
    # In constant time, so that nobody finds the token letter by letter.
    return scheme.lower() == "bearer" and hmac.compare_digest(rest.strip(" ").encode("latin-1"), token)


def names_loopback(hosts: list[str]) -> bool:
    """Whether there is exactly one `Host` header, and it names a loopback address or `localhost`."""
    if len(hosts) != 1:
        return False
    # Any port will do, as a port that is forwarded to us is another one.
    name, _, port = hosts[0].rpartition(":")
    if not (port.isascii() and port.isdecimal()):
        name = hosts[0]
    is_bracketed = name.startswith("[") and name.endswith("]")
    return ListenAddress(name[1:-1] if is_bracketed else name.lower(), 0).is_loopback
