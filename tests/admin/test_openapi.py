"""Every request that administration sends, against the vendor's OpenAPI files in the folder LBG_SEMP_SPEC_DIR.

The files are not part of the project; without the variable this module is not collected.
"""

import json
import os
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote

import httpx
import pytest

from lbg_runtime.admin.backlog import find_shard_queues, read_backlog
from lbg_runtime.admin.group import GroupAdmin
from lbg_runtime.admin.queues import QueueAccess, QueueAdmin
from lbg_runtime.admin.sight import disconnect, read_sights
from lbg_runtime.broker.engine.effects import Published
from lbg_runtime.model.errors import QueueInUse
from lbg_runtime.model.ids import QueueName
from tests.admin.conftest import Broker
from tests.admin.group_steps import SPEC, create, log_in

PREFIX = "/SEMP/v2/"
KINDS: dict[str, type | tuple[type, ...]] = {"string": str, "integer": int, "boolean": bool, "object": dict}


@cache
def spec(api: str) -> dict[str, Any]:
    (path,) = Path(os.environ["LBG_SEMP_SPEC_DIR"]).glob(f"*{api}*.json")
    loaded = json.loads(path.read_text())
    assert isinstance(loaded, dict)
    return loaded


class Recorder(httpx.AsyncBaseTransport):
    """Keeps every request, and passes it on."""

    def __init__(self, inner: httpx.AsyncBaseTransport) -> None:
        self._inner = inner
        self.requests: list[httpx.Request] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        return await self._inner.handle_async_request(request)


def problems(request: httpx.Request) -> list[str]:
    """What the documents have against a request."""
    path, _, query = request.url.raw_path.decode().partition("?")
    api, _, below = path.removeprefix(PREFIX).partition("/")
    where = f"{request.method} {api}/{below}"
    segments = below.split("/")
    found = [
        template
        for template in spec(api)["paths"]
        if len(parts := template.strip("/").split("/")) == len(segments)
        and all(part.startswith("{") or part == segment for part, segment in zip(parts, segments, strict=True))
    ]
    if len(found) != 1:
        return [f"{where}: no such path"]
    operation = spec(api)["paths"][found[0]].get(request.method.lower())
    if operation is None:
        return [f"{where}: no such method"]
    parameters = [_resolved(api, one) for one in operation.get("parameters", ())]
    names = {one["name"] for one in parameters if one["in"] == "query"}
    told = [f"{where}: no query parameter {name}" for name, _ in parse_qsl(query) if name not in names]
    body = json.loads(request.content) if request.content else None
    schema = next((one["schema"] for one in parameters if one["in"] == "body"), None)
    if (body is None) != (schema is None):
        return [*told, f"{where}: a body is {'missing' if body is None else 'not wanted'}"]
    if body is not None:
        told += [f"{where}: {problem}" for problem in _against(api, _resolved(api, schema), body, request.method)]
    if "select" in dict(parse_qsl(query)):
        answer = _resolved(api, operation["responses"]["200"]["schema"])
        data = _resolved(api, answer["properties"]["data"])
        known = _resolved(api, data.get("items", data))["properties"]
        told += [
            f"{where}: selects {name}" for name in dict(parse_qsl(query))["select"].split(",") if name not in known
        ]
    return told


def _resolved(api: str, one: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in one:
        _, section, name = one["$ref"].split("/")
        one = spec(api)[section][name]
    return one


def _against(api: str, schema: dict[str, Any], body: dict[str, Any], method: str) -> list[str]:
    properties = schema.get("properties", {})
    told = [f"{name} is required" for name, one in properties.items() if _is_required(one, method) and name not in body]
    for name, value in body.items():
        if name not in properties:
            told.append(f"{name} is unknown")
            continue
        one = _resolved(api, properties[name])
        if properties[name].get("x-readOnlyPost" if method == "POST" else "x-readOnlyOther"):
            told.append(f"{name} cannot be set by {method}")
        if "properties" in one:
            told += _against(api, one, value, "PATCH")
        elif not isinstance(value, KINDS[one["type"]]) or (one["type"] == "integer" and isinstance(value, bool)):
            told.append(f"{name} is no {one['type']}")
        elif "enum" in one and value not in one["enum"]:
            told.append(f"{name} cannot be {value}")
        elif isinstance(value, str) and len(value) > one.get("maxLength", len(value)):
            told.append(f"{name} is too long")
        elif one["type"] == "integer" and not one.get("minimum", value) <= value <= one.get("maximum", value):
            told.append(f"{name} is out of bounds")
    return told


def _is_required(one: dict[str, Any], method: str) -> bool:
    return method == "POST" and bool(one.get("x-requiredPost")) and not one.get("x-identifying", False)


@pytest.fixture
def recorder(broker: Broker) -> Recorder:
    recorder = Recorder(broker.transport)
    broker.transport = recorder
    return recorder


async def test_the_documents_accept_every_request(broker: Broker, recorder: Recorder, client) -> None:
    admin = await create(client)
    queue, fresh = QueueName("orders/0"), QueueName("orders/2")
    # Drift, mended by apply.
    await client.update(("msgVpns", "default", "queues", queue), {"maxRedeliveryCount": 3, "egressEnabled": False})
    await client.delete(("msgVpns", "default", "queues", queue, "subscriptions", "orders-hash/0/>"))
    await admin.apply(await admin.plan(SPEC))
    await admin.stored_groups()
    # What members and publishers see, and an eviction.
    publisher = log_in(broker, "default", "", "publisher")
    flow = broker.engine.open_publisher(publisher, "").flow
    broker.engine.publish(flow, 1, Published("orders-hash/3/new", 1, 1, spooled_at_s=1_000))
    member = log_in(broker, name="orders/ann/host/1")
    broker.engine.bind(member, queue)
    await read_sights(client, "default", await find_shard_queues(client, "default", "orders"))
    await read_backlog(client, "default", "orders")
    assert await disconnect(client, "default", "orders", "ann") == ["orders/ann/host/1"]
    # What a re-striping does to queues.
    queues = QueueAdmin(client, "default", QueueAccess("members"), 100)
    await queues.create_queue(fresh)
    await queues.ensure_fit(fresh)
    await queues.ensure_like_new(fresh)
    await queues.refusal(fresh, 1)
    await queues.subscribe(fresh, "orders-hash/2/>")
    await queues.unsubscribe(fresh, "orders-hash/2/>")
    assert await queues.depth(fresh) == 0
    assert await queues.subscriptions(fresh) == frozenset()
    await queues.delete_queue(fresh)
    with pytest.raises(QueueInUse):
        await queues.delete_queue(QueueName("orders/1"))
    await GroupAdmin(client, "default").delete(SPEC, force=True)

    found = {request.method for request in recorder.requests}
    assert found >= {"GET", "POST", "PATCH", "PUT", "DELETE"}
    assert len(recorder.requests) > 60
    assert [problem for request in recorder.requests for problem in problems(request)] == []


@pytest.mark.parametrize(
    ("method", "path", "body", "problem"),
    [
        ("GET", "config/msgVpns/default/queue", None, "no such path"),
        ("PUT", "monitor/msgVpns/default/queues", {}, "no such method"),
        ("GET", "config/msgVpns/default/queues?colour=red", None, "no query parameter colour"),
        ("GET", "config/msgVpns/default/queues?select=queueName,colour", None, "selects colour"),
        ("POST", "config/msgVpns/default/queues", None, "a body is missing"),
        ("POST", "config/msgVpns/default/queues", {"colour": "red"}, "colour is unknown"),
        ("POST", "config/msgVpns/default/queues", {"accessType": "both"}, "accessType cannot be both"),
        ("POST", "config/msgVpns/default/queues", {"maxBindCount": True}, "maxBindCount is no integer"),
        ("PATCH", "config/msgVpns/default/queues/q", {"maxBindCount": -1}, "maxBindCount is out of bounds"),
        ("PATCH", "config/msgVpns/default/queues/q", {"owner": "x" * 500}, "owner is too long"),
        ("PATCH", "config/msgVpns/default/queues/q", {"queueName": "r"}, "queueName cannot be set by PATCH"),
    ],
)
def test_a_request_that_they_do_not_accept_is_found(method: str, path: str, body: Any, problem: str) -> None:
    request = httpx.Request(method, f"http://broker{PREFIX}{path}", json=body)
    (told,) = problems(request)
    assert told.endswith(problem), unquote(told)
