"""Requests whose client has gone before they were whole, without sockets."""

from collections.abc import MutableMapping
from typing import Any

import pytest
from starlette.types import ASGIApp

from lbg_runtime.broker.engine.effects import Effect
from lbg_runtime.broker.engine.engine import Engine
from lbg_runtime.broker.fault_port import make_fault_app
from lbg_runtime.broker.semp.app import make_app
from lbg_runtime.broker.server.server import BrokerServer


async def hang_up_at(app: ASGIApp, path: str) -> list[int]:
    """Send half a body and go; the statuses that were answered. Raises what the server would log as its own fault."""
    parts: list[MutableMapping[str, Any]] = [
        {"type": "http.request", "body": b"{", "more_body": True},
        {"type": "http.disconnect"},
    ]
    answered: list[int] = []

    async def receive() -> MutableMapping[str, Any]:
        return parts.pop(0)

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            answered.append(message["status"])

    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"authorization", b"Basic YWRtaW46YWRtaW4=")],
        "scheme": "http",
        "server": ("broker", 80),
    }
    await app(scope, receive, send)
    return answered


async def test_an_administrator_who_hangs_up_is_no_fault_of_the_broker() -> None:
    effects: list[Effect] = []
    engine = Engine()
    assert await hang_up_at(make_app(engine, effects.extend), "/SEMP/v2/config/msgVpns/default/queues") == [400]
    assert engine.queue_names("default") == ()


@pytest.mark.parametrize("path", ["/drop", "/delay"])
async def test_a_test_that_hangs_up_orders_no_fault(path: str) -> None:
    assert await hang_up_at(make_fault_app(BrokerServer(port=0)), path) == [400]
