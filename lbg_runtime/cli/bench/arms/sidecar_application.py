"""An application as users write it, on starlette and uvicorn, that checks what is posted to it; for `sidecar`.

Reports on standard output where it listens, as one JSON line, once it does. It leaves when its input ends.
"""

import socket
import sys
import time
from dataclasses import asdict, dataclass

import anyio
import orjson
import uvicorn
import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from lbg_runtime.cli.lines import read_lines, say

TOPIC = "orders/>"
ROUTE = "/orders"


@dataclass(slots=True)
class Report:
    """What came since the last report."""

    count: int = 0
    out_of_order: int = 0
    """Numbers that are not the next of their key."""
    overlapping: int = 0
    """Events that came while the previous one of their key had no answer yet."""
    first_ns: int = 0
    last_ns: int = 0


class OrderedApplication:
    """Takes events whose headers contain key and number."""

    def __init__(self) -> None:
        self._report = Report()
        self._last: dict[str, int] = {}
        self._inside: set[str] = set()

    def application(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/dapr/subscribe", self._subscribe),
                Route(ROUTE, self._take, methods=["POST"]),
                Route("/look", self._look),
                Route("/report", self._tell, methods=["POST"]),
            ]
        )

    async def _subscribe(self, _: Request) -> Response:
        return JSONResponse([{"pubsubname": "pubsub", "topic": TOPIC, "route": ROUTE}])

    async def _take(self, request: Request) -> Response:
        key, number = request.headers["lbg-key"], int(request.headers["lbg-fencing-token"])
        report = self._report
        report.overlapping += key in self._inside
        self._inside.add(key)
        orjson.loads(await request.body())
        now_ns = time.monotonic_ns()
        report.first_ns = report.first_ns or now_ns
        report.last_ns = now_ns
        report.count += 1
        report.out_of_order += number != self._last.get(key, 0) + 1
        self._last[key] = number
        self._inside.discard(key)
        return Response(b'{"status":"SUCCESS"}', media_type="application/json")

    async def _look(self, _: Request) -> Response:
        return JSONResponse(asdict(self._report))

    async def _tell(self, _: Request) -> Response:
        told = self._report
        self._report = Report()
        self._last.clear()
        return JSONResponse(asdict(told))


async def _serve() -> None:
    config = uvicorn.Config(OrderedApplication().application(), lifespan="off", log_level="warning", access_log=False)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        say({"url": f"http://127.0.0.1:{listener.getsockname()[1]}"})
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve, [listener])
            async for _ in read_lines(sys.stdin.fileno()):
                pass
            server.should_exit = True


if __name__ == "__main__":
    uvloop.run(_serve())
