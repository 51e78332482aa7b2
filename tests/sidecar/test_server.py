"""A member's sidecar on a real port: pulling and settling over HTTP, publishing, who may, and the end of it."""

import asyncio
import json
import logging
import socket
from contextlib import asynccontextmanager

import aiohttp
import pytest
from starlette.responses import PlainTextResponse
from structlog.testing import capture_logs

from lbg_runtime.config.listen_address import ListenAddress
from lbg_runtime.journal.reader import read_run
from lbg_runtime.model.errors import ConfigError
from lbg_runtime.sidecar import server
from lbg_runtime.status import connections
from lbg_runtime.validator.findings import VerdictKind
from lbg_runtime.validator.judge import validate
from tests.patience import PATIENCE_S
from tests.sidecar.conftest import SUCCESS, ScriptedApplication

pytestmark = pytest.mark.real_time

QUICK = {"membership": {"mode": "static", "index": 0, "count": 1, "heartbeat": "100ms"}}


async def succeed(_):
    return SUCCESS


@asynccontextmanager
async def serving(trial, application=None, listen="127.0.0.1:0", journal=None, **sidecar):
    """A member with a port, a client for it, and the running member."""
    app = trial.app(
        application,
        sidecar={"listen": listen, **sidecar},
        ops={"journal": {"path": journal}},
        # Nothing comes again only because its time is over.
        failure={"timeout": "10m"},
    )
    with capture_logs() as log:
        async with trial.running(app) as left:
            async with asyncio.timeout(PATIENCE_S):
                while not (served := [each for each in log if each["event"] == "sidecar_served"]):  # noqa: ASYNC110
                    await asyncio.sleep(0)
            port = served[0]["address"].rpartition(":")[2]
            async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client:
                yield client, app, left


async def next_event(response):
    async with asyncio.timeout(PATIENCE_S):
        while True:
            line = await response.content.readline()
            if line.strip():
                return json.loads(line)


async def settle(client, *events, status="SUCCESS"):
    told = [{"id": event["id"], "status": status} for event in events]
    async with client.post("/v1/settle", json=told) as response:
        return await response.json()


async def test_an_application_without_a_port_pulls_and_settles(trial):
    async with serving(trial) as (client, app, left):
        async with client.post("/v1/pull?max=8") as stream:
            assert stream.headers["content-type"] == "application/x-ndjson"
            await trial.until(lambda: trial.owners() == 2, PATIENCE_S)
            await trial.publish(8)
            first = [await next_event(stream) for _ in range(4)]
            assert {event["metadata"]["lbg-fencing-token"] for event in first} == {"1"}
            assert await settle(client, *first) == {"settled": 4, "late": []}
            second = [await next_event(stream) for _ in range(4)]
            assert {event["metadata"]["lbg-fencing-token"] for event in second} == {"2"}
            assert await settle(client, *second, *first) == {"settled": 4, "late": [event["id"] for event in first]}
            await trial.until(lambda: sum(trial.depths()) == 0, PATIENCE_S)
            app.stop()
            # The stream ends in good order.
            async with asyncio.timeout(PATIENCE_S):
                assert (await stream.content.read()).strip() == b""
        assert (await left).is_clean


async def test_a_client_that_is_gone_gives_back_what_it_had(trial):
    async with serving(trial) as (client, _, _):
        stream = await client.post("/v1/pull")
        await trial.until(lambda: trial.owners() == 2, PATIENCE_S)
        await trial.publish(1)
        event = await next_event(stream)
        stream.close()
        async with client.post("/v1/pull") as other:
            again = await next_event(other)
            assert again["metadata"]["lbg-attempt"] == "2"
            assert again["event"] == event["event"]
            assert await settle(client, event) == {"settled": 0, "late": [event["id"]]}
            assert await settle(client, again) == {"settled": 1, "late": []}
            await trial.until(lambda: sum(trial.depths()) == 0, PATIENCE_S)


async def test_what_the_application_publishes_comes_back_to_it_as_an_event(trial):
    application = ScriptedApplication(succeed)
    async with serving(trial, application) as (client, _, _):
        await trial.until(lambda: trial.owners() == 2, PATIENCE_S)
        event = {"specversion": "1.0", "id": "7", "source": "/shop", "type": "created", "data": {"a": 1}}
        body, headers = json.dumps(event), {"content-type": "application/cloudevents+json", "lbg-key": "k"}
        async with client.post("/v1.0/publish/pubsub/orders/new", data=body, headers=headers) as response:
            assert response.status == 204
        await trial.until(lambda: len(application.taken) == 1, PATIENCE_S)
        told = json.loads(application.taken[0].body)
        assert told.items() >= event.items()
        assert (told["partitionkey"], told["topic"]) == ("k", "orders/new")


async def test_what_is_published_before_anybody_pulls_waits_for_them(trial):
    async with serving(trial) as (client, _, _):
        for number in range(8):
            async with client.post(f"/v1/publish/orders/new?key=k{number}", data=b"x") as response:
                assert response.status == 200
        assert sum(trial.depths()) == 8
        async with client.post("/v1/pull") as stream:
            keys = {(await next_event(stream))["metadata"]["lbg-key"] for _ in range(8)}
    assert keys == {f"k{number}" for number in range(8)}


async def test_what_is_published_last_is_confirmed_before_the_member_is_gone(trial):
    application = ScriptedApplication(succeed)
    async with serving(trial, application) as (client, app, left):
        await trial.until(lambda: trial.owners() == 2, PATIENCE_S)
        publishing = [
            asyncio.ensure_future(client.post(f"/v1/publish/orders/new?key={n}", data=b"x")) for n in range(20)
        ]
        await asyncio.wait(publishing[:1])
        app.stop()
        await left
        confirmed = [each.result().status == 200 for each in publishing if not each.exception()]
    assert trial.broker.engine.queue_depth("default", "orders/0") + trial.broker.engine.queue_depth(
        "default", "orders/1"
    ) + len(application.taken) == sum(confirmed)


async def test_with_a_journal_a_sidecar_lists_what_was_published_through_it(trial, tmp_path):
    """The validator's verdict was unknown. A member that publishes nothing leaves nothing that a kill could tear."""
    application = ScriptedApplication(succeed)
    async with serving(trial, application, journal=str(tmp_path)) as (client, _, _):
        await trial.until(lambda: trial.owners() == 2, PATIENCE_S)
        assert not list(tmp_path.glob("*.ledger.jsonl"))
        for number in range(8):
            async with client.post(f"/v1/publish/orders/new?key=k{number % 4}", data=b"x") as response:
                assert response.status == 200
        await trial.until(lambda: len(application.taken) == 8, PATIENCE_S)
    assert len(list(tmp_path.glob("*.ledger.jsonl"))) == 1
    verdict = validate(read_run(tmp_path))
    assert (verdict.kind, verdict.accounts.published) == (VerdictKind.VALID, 8), verdict.reasons


async def test_beyond_loopback_the_token_is_asked_for(trial):
    async with serving(trial, ScriptedApplication(succeed), "0.0.0.0:0", token="s3cret") as (client, _, _):
        async with client.post("/v1/publish/orders/new?key=k", data=b"x") as response:
            assert response.status == 401
        # By whatever name others know it.
        headers = {"dapr-api-token": "s3cret", "host": "sidecar.example:3500"}
        async with client.post("/v1/publish/orders/new?key=k", data=b"x", headers=headers) as response:
            assert response.status == 200


async def test_silent_connections_take_no_answer_from_the_application(trial):
    async with serving(trial, ScriptedApplication(succeed)) as (client, _, _):
        await trial.until(lambda: trial.owners() == 2, PATIENCE_S)
        url = client._base_url
        many = range(connections.MAX_CONNECTIONS + 20)
        silent = [await asyncio.open_connection(url.host, url.port) for _ in many]
        try:
            async with client.post("/v1/publish/orders/new?key=k", data=b"x") as response:
                assert response.status == 200
            # The oldest gave way.
            assert await silent[0][0].read(1) == b""
        finally:
            for _, writer in silent:
                writer.close()


async def test_where_all_connections_are_asking_the_newest_is_refused(trial, monkeypatch):
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 2)
    monkeypatch.setattr(connections, "READ_WITHIN_S", 0.1)
    async with (
        serving(trial) as (client, _, _),
        client.post("/v1/pull") as first,
        client.post("/v1/pull") as second,
    ):
        async with client.post("/v1/publish/orders/new?key=k", data=b"x") as response:
            assert response.status == 503
        await trial.until(lambda: trial.owners() == 2, PATIENCE_S)
        await trial.publish(40)
        for stream in (first, second):
            assert (await next_event(stream))["event"]


async def test_a_stream_may_be_read_as_late_as_its_client_likes(trial, monkeypatch):
    monkeypatch.setattr(connections, "READ_WITHIN_S", 0.0)
    paused = asyncio.Event()

    class Watched(server.SidecarConnection):
        def pause_writing(self):
            super().pause_writing()
            paused.set()

    monkeypatch.setattr(server, "SidecarConnection", Watched)
    async with serving(trial) as (client, _, _), client.post("/v1/pull?max=100") as stream:
        await trial.until(lambda: trial.owners() == 2, PATIENCE_S)
        await trial.publish(100, keys=100, payload=b"x" * 200_000)
        async with asyncio.timeout(PATIENCE_S):
            await paused.wait()
        # The server has had its turn to give it up.
        async with client.get("/v1/sidecar") as response:
            assert response.status == 200
        for _ in range(100):
            event = await next_event(stream)
            assert await settle(client, event) == {"settled": 1, "late": []}


async def test_a_port_that_is_taken_stops_the_start(trial):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        app = trial.app(ScriptedApplication(succeed), sidecar={"listen": address})
        with pytest.raises(ConfigError, match=r"sidecar\.listen: .* in use"):
            await app.run()


async def test_the_access_log_of_the_process_is_left_to_the_process():
    access, heard = logging.getLogger("uvicorn.access"), []
    handler = logging.Handler()
    handler.emit = heard.append
    level = access.level
    access.addHandler(handler)
    access.setLevel(logging.INFO)
    try:
        async with (
            server.SidecarServer(PlainTextResponse("well"), ListenAddress("127.0.0.1", 0)) as served,
            aiohttp.ClientSession(f"http://{served.address}") as client,
            client.get("/") as response,
        ):
            assert await response.text() == "well"
        assert (access.handlers, access.propagate, heard) == ([handler], True, [])
    finally:
        access.removeHandler(handler)
        access.setLevel(level)
