"""The fault switch over HTTP, on a port of its own: for tests that drive a broker in another process.

`POST /drop`, `/stall`, `/delay`, `/withhold_acks`, `/stop_egress`, `/refuse` and `/clear`, each with a JSON object that
may name a `client`; `GET /` tells who is connected. Whoever reaches the port may do all of it: it is for loopback
alone.
"""

from collections.abc import Awaitable, Callable

import orjson
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from lbg_runtime.broker.engine.surroundings import Asked
from lbg_runtime.broker.http_server import HttpServer, answer_nobody
from lbg_runtime.broker.server.server import BrokerServer
from lbg_runtime.config.listen_address import ListenAddress
from lbg_runtime.model.errors import UserError

MAX_BODY_BYTES = 10_000
_CODES = range(400, 600)
"""A client takes another one for success, or cannot be told it."""

_Act = Callable[["_Order"], "dict[str, int] | None"]
"""Does what is ordered."""


class FaultPort(HttpServer):
    """Raises `UserError` for an address that others can reach."""

    def __init__(self, server: BrokerServer, host: str, port: int) -> None:
        address = ListenAddress(host, port)
        if not address.is_loopback:
            raise UserError("--faults", str(address), "an address of this machine alone, like 127.0.0.1:55999")
        super().__init__("faults", make_fault_app(server), host, port)


def make_fault_app(server: BrokerServer) -> Starlette:
    """The application of the port."""
    faults = server.faults

    def drop(order: "_Order") -> dict[str, int]:
        return {"dropped": faults.drop(order.client)}

    def stall(order: "_Order") -> None:
        faults.stall(order.client, on=order.is_on())

    def delay(order: "_Order") -> None:
        faults.delay(order.count("ms"), order.client)

    def withhold_acks(order: "_Order") -> None:
        faults.withhold_acks(order.client, on=order.is_on())

    def stop_egress(order: "_Order") -> None:
        faults.stop_egress(order.client, on=order.is_on())

    def refuse(order: "_Order") -> None:
        words = [asked.value for asked in Asked]
        what = order.text("what")
        if what not in words:
            raise UserError("what", repr(what), f"one of {', '.join(words)}")
        times = order.count("times") if "times" in order.said else None
        code = order.count("code")
        if code not in _CODES:
            raise UserError("code", str(code), f"a code of a refusal, from {_CODES[0]} to {_CODES[-1]}")
        faults.refuse(Asked(what), code, order.text("text"), order.client, times)

    def clear(order: "_Order") -> None:  # noqa: ARG001  # it is for everybody
        faults.clear()

    async def look(request: Request) -> Response:  # noqa: ARG001  # there is one thing to see
        return JSONResponse({"clients": server.client_names()})

    acts: dict[str, tuple[_Act, tuple[str, ...]]] = {
        "drop": (drop, ("client",)),
        "stall": (stall, ("client", "on")),
        "delay": (delay, ("client", "ms")),
        "withhold_acks": (withhold_acks, ("client", "on")),
        "stop_egress": (stop_egress, ("client", "on")),
        "refuse": (refuse, ("client", "what", "code", "text", "times")),
        "clear": (clear, ()),
    }
    return Starlette(
        routes=[
            Route("/", look, methods=["GET"]),
            *(Route(f"/{name}", _endpoint(act, names), methods=["POST"]) for name, (act, names) in acts.items()),
        ],
        exception_handlers={ClientDisconnect: answer_nobody},
    )


def _endpoint(act: "_Act", names: tuple[str, ...]) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            answer = act(_Order(await _read(request), names))
        except UserError as error:
            return JSONResponse({"error": str(error)}, status_code=400)
        return JSONResponse(answer if answer is not None else {})

    return endpoint


async def _read(request: Request) -> dict[str, object]:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise UserError("body", f"more than {MAX_BODY_BYTES} bytes", "a small JSON object")
    try:
        said = orjson.loads(body or b"{}")
    except orjson.JSONDecodeError as error:
        raise UserError("body", str(error), "a JSON object") from error
    if not isinstance(said, dict):
        raise UserError("body", type(said).__name__, "a JSON object")
    return said


class _Order:
    """What a request says, with the mistakes named."""

    def __init__(self, said: dict[str, object], names: tuple[str, ...]) -> None:
        for name in said:
            if name not in names:
                # Otherwise a misspelt `client` would be ignored, and the order would apply to all clients.
                raise UserError(name, "unknown here", f"one of {', '.join(names)}" if names else "no attribute")
        self.said = said
        self.client = None if said.get("client") is None else self.text("client")

    def text(self, name: str) -> str:
        value = self.said.get(name)
        if not isinstance(value, str):
            raise UserError(name, repr(value), "a text")
        return value

    def is_on(self) -> bool:
        value = self.said.get("on", True)
        if not isinstance(value, bool):
            raise UserError("on", repr(value), "true or false")
        return value

    def count(self, name: str) -> int:
        value = self.said.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise UserError(name, repr(value), "a whole number, not negative")
        return value
