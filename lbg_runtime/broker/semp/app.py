"""The three APIs as one ASGI application."""

import base64
from collections.abc import Callable, Mapping

import orjson
import structlog
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from lbg_runtime.broker.engine.effects import CarryOut
from lbg_runtime.broker.engine.engine import Engine
from lbg_runtime.broker.http_server import answer_nobody
from lbg_runtime.broker.semp import reply
from lbg_runtime.broker.semp.about import About
from lbg_runtime.broker.semp.access import DEFAULT_ADMINISTRATORS, Administrator, find_administrator
from lbg_runtime.broker.semp.action import Action
from lbg_runtime.broker.semp.collection import Kept
from lbg_runtime.broker.semp.configuration import Configuration
from lbg_runtime.broker.semp.fault import SempFault
from lbg_runtime.broker.semp.monitor import Monitor
from lbg_runtime.broker.semp.schema import Row
from lbg_runtime.model.errors import StoreFailed

BASE_PATH = "/SEMP/v2/"
LARGEST_BODY_BYTES = 1_000_000
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")

_log = structlog.get_logger(__name__)

_Handle = Callable[[reply.Request, Administrator], Row]


def make_app(
    engine: Engine,
    carry_out: CarryOut,
    administrators: tuple[Administrator, ...] = DEFAULT_ADMINISTRATORS,
    kept: Kept | None = None,
    write_down: Callable[[], None] = lambda: None,
) -> Starlette:
    """Make SEMPv2 of one engine, to be served on the event loop of the front end that `carry_out` belongs to.

    `kept` is where rows outlive the broker; `write_down` returns once they and the engine's changes are on disk, or
    raises `StoreFailed`.
    """
    front = _FrontEnd(engine, carry_out, administrators, kept, write_down)
    # The path is taken as it came over the wire: once decoded, a `/` in a name is indistinguishable from a separator.
    return Starlette(
        routes=[Route("/{path:path}", front.answer, methods=list(METHODS))],
        exception_handlers={ClientDisconnect: answer_nobody},
    )


class _FrontEnd:
    def __init__(
        self,
        engine: Engine,
        carry_out: CarryOut,
        administrators: tuple[Administrator, ...],
        kept: Kept | None,
        write_down: Callable[[], None],
    ) -> None:
        self._administrators = administrators
        self._write_down = write_down
        self._about: _Handle = About(engine.administration).handle
        configured = Configuration(engine, carry_out, kept).handle
        self._apis: Mapping[str, _Handle] = {
            "config": configured,
            "monitor": Monitor(engine, configured).handle,
            "action": Action(engine, carry_out).handle,
        }

    async def answer(self, http: HttpRequest) -> Response:
        """Answer every request, whatever its path."""
        if "origin" in http.headers:
            # A browser that remembers a password sends it for any page that asks; no page is meant to administer this.
            return Response("a page in a browser may not ask", 403)
        administrator = _who_asks(self._administrators, http.headers.get("authorization", ""))
        if administrator is None:
            return Response(status_code=401, headers={"www-authenticate": 'Basic realm="SEMP"'})
        path = http.scope["raw_path"].decode("ascii")
        api, _, below = path.removeprefix(BASE_PATH).partition("/")
        if not path.startswith(BASE_PATH) or api not in self._apis:
            return Response(status_code=404)
        body = await _body_of(http)
        if body is None:
            return Response(status_code=413)
        host = f"{http.url.scheme}://{http.url.netloc}"
        query = http.url.query
        request = reply.Request(
            method="GET" if http.method == "HEAD" else http.method,
            uri=f"{host}{path}?{query}" if query else host + path,
            base=f"{host}{BASE_PATH}{api}",
            segments=reply.segments_of(below),
            query=query,
            body=body,
        )
        handle = self._about if request.segments[:1] == ("about",) else self._apis[api]
        try:
            answer, status = handle(request, administrator), 200
            self._write_down()
        except StoreFailed as failure:
            return Response(str(failure), 503)
        except SempFault as fault:
            answer, status = reply.failed(request, fault), reply.REFUSED
        if request.method != "GET":
            _log.info("semp_changed", method=request.method, path=path, username=administrator.username, status=status)
        return Response(orjson.dumps(answer), status, media_type="application/json")


async def _body_of(http: HttpRequest) -> bytes | None:
    parts: list[bytes] = []
    size = 0
    async for part in http.stream():
        size += len(part)
        parts.append(part)
        if size > LARGEST_BODY_BYTES:
            return None
    return b"".join(parts)


def _who_asks(administrators: tuple[Administrator, ...], header: str) -> Administrator | None:
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        username, _, password = base64.b64decode(encoded, validate=True).decode().partition(":")
    except ValueError:  # Not ASCII, not BASE64, or not UTF-8.
        return None
    return find_administrator(administrators, username, password)
