"""What the application may ask of the sidecar, without a socket: publishing, settling, refusals.

More than 400 lines, as all of them ask the one sidecar that is set up here.
"""

import asyncio
import json

import httpx
import pytest
from structlog.testing import capture_logs

from lbg_runtime.config.listen_address import ListenAddress
from lbg_runtime.model.errors import PublishFailed, PublishRefused, UserError
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.hashing import HashFunction
from lbg_runtime.model.ids import GroupName
from lbg_runtime.model.keys import KeySource
from lbg_runtime.model.message import NO_HEADERS, Headers
from lbg_runtime.publisher.hashed import MAX_UNCONFIRMED, HashedPublisher
from lbg_runtime.sidecar.access import SidecarAccess
from lbg_runtime.sidecar.answer import Status
from lbg_runtime.sidecar.counts import Counts
from lbg_runtime.sidecar.pull import PulledEvents
from lbg_runtime.sidecar.routes import CONFIRM_WITHIN_S, LAST_LINES_S, EventStream, SidecarRoutes
from lbg_runtime.sidecar.server import LAST_ANSWERS_S
from tests.sidecar.events import make_event, make_gate

SHAPE = GroupShape(GroupName("orders"), "h", 8, 2)


class Broker:
    """Confirms what is sent, or does with it as a test says."""

    def __init__(self):
        self.sent = []
        self.failure = None
        self.is_silent = False

    def send(self, message):
        self.sent.append(message)
        answer = asyncio.get_running_loop().create_future()
        if self.failure is not None:
            answer.set_exception(self.failure)
        elif not self.is_silent:
            answer.set_result(None)
        return answer


class Rig:
    """The routes behind the rules of access, and a client."""

    def __init__(self, listen="127.0.0.1:3500", token=None, pulls=True, max_body_bytes=1_000):
        self.broker = Broker()
        self.no_publisher = None
        self.counts = Counts()
        self.publisher = HashedPublisher(
            self.broker, SHAPE, HashFunction.CRC32, publisher_id="p", key_source=KeySource.parse("json:/k")
        )
        self.gate = make_gate()
        self.pulled = PulledEvents(1_000, self.gate) if pulls else None
        routes = SidecarRoutes(self.current, self.gate, self.pulled, self.counts, max_body_bytes)
        app = SidecarAccess(routes.application(), ListenAddress.parse(listen), token, self.counts)
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:3500")

    def current(self):
        if self.no_publisher is not None:
            raise self.no_publisher
        return self.publisher

    async def post(self, path, body=b"{}", **headers):
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.client.post(path, content=body, headers=headers)


@pytest.fixture
def rig():
    return Rig()


async def test_a_message_is_published_with_confirm(rig):
    answer = await rig.post("/v1/publish/orders/new", b'{"k": "a"}', content_type="application/json")
    assert answer.status_code == 200
    [message] = rig.broker.sent
    assert answer.json() == {
        "key": "a",
        "shard": answer.json()["shard"],
        "key_sequence": 1,
        "topic": message.topic,
        "message_id": "p-1",
    }
    assert message.topic.endswith("/orders/new")
    assert (message.payload, message.key) == (b'{"k": "a"}', "a")
    assert message.properties["ce_datacontenttype"] == "application/json"
    assert rig.counts.published == 1


async def test_a_message_is_published_with_the_headers_of_its_event(rig):
    await rig.post("/v1/publish/orders/new?key=a", b"x", ce_correlationid="c", ce_priority="9")
    await rig.post("/v1/publish/orders/new?key=a", b"x")
    assert [message.headers for message in rig.broker.sent] == [Headers("c", priority=9), NO_HEADERS]


async def test_the_path_of_dapr_publishes_as_well(rig):
    answer = await rig.post("/v1.0/publish/pubsub/orders/new?metadata.partitionKey=b", b"x")
    assert (answer.status_code, answer.content) == (204, b"")
    assert rig.broker.sent[0].key == "b"
    assert (await rig.client.put("/v1.0/publish/pubsub/orders/new?key=c", content=b"x")).status_code == 204


async def test_a_topic_may_be_percent_encoded_and_end_in_a_slash(rig):
    assert (await rig.post("/v1/publish/orders%2F%C3%A4/?key=k")).status_code == 200
    assert rig.broker.sent[0].topic.endswith("/orders/ä/")


@pytest.mark.parametrize(
    ("path", "key"),
    [("a%EF%BF%BD?key=k", "k"), ("a?key=%EF%BF%BD", "\ufffd"), ("a?metadata.partitionKey=b%EF%BF%BD", "b\ufffd")],
)
async def test_the_character_that_stands_for_what_is_no_text_is_text(rig, path, key):
    assert (await rig.post(f"/v1/publish/{path}")).status_code == 200
    [message] = rig.broker.sent
    assert message.key == key
    assert message.topic.endswith("a\ufffd") == ("?key=k" in path)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/publish/orders/new", b"no key"),
        ("/v1/publish/?key=k", b""),
        ("/v1/publish/" + "x" * 300 + "?key=k", b""),
        ("/v1/publish/%FF?key=k", b""),
        ("/v1/publish/a?key=%FF", b""),
        ("/v1.0/publish/pubsub/a?metadata.partitionKey=%FF", b""),
    ],
)
async def test_what_cannot_be_published_is_refused(rig, path, body):
    answer = await rig.post(path, body)
    assert answer.status_code == 400
    assert answer.json()["expected"]
    assert rig.broker.sent == []


async def test_a_message_without_a_key_is_refused_with_the_ways_to_give_one(rig):
    expected = (await rig.post("/v1/publish/orders/new")).json()["expected"]
    assert "lbg-key" in expected


async def test_a_body_that_is_no_event_is_refused(rig):
    answer = await rig.post("/v1/publish/a?key=k", b"{broken", content_type="application/cloudevents+json")
    assert (answer.status_code, answer.json()["where"]) == (400, "body")


@pytest.mark.parametrize(("encoding", "status"), [("gzip", 415), ("identity, br", 415), ("Identity", 200), ("", 200)])
async def test_a_body_that_is_compressed_is_refused(rig, encoding, status):
    answer = await rig.post("/v1/publish/a?key=k", b"x", content_encoding=encoding)
    assert answer.status_code == status
    assert len(rig.broker.sent) == (status == 200)


@pytest.mark.parametrize(
    ("failure", "status", "fate"),
    [(PublishRefused("t", "no"), 422, "refused"), (PublishFailed("t", "gone"), 503, "unknown")],
)
async def test_what_the_broker_does_not_confirm_is_told(rig, failure, status, fate):
    rig.broker.failure = failure
    answer = await rig.post("/v1/publish/a?key=k")
    assert (answer.status_code, answer.json()["fate"]) == (status, fate)
    answer = await rig.post("/v1.0/publish/pubsub/a?key=k")
    assert answer.status_code == 500
    assert answer.json()["errorCode"] == "ERR_PUBSUB_PUBLISH_MESSAGE"
    assert rig.counts.unpublished == 2


async def test_a_confirm_that_does_not_come_leaves_the_fate_unknown(rig):
    rig.broker.is_silent = True
    began_s = asyncio.get_running_loop().time()
    answer = await rig.post("/v1/publish/a?key=k")
    assert (answer.status_code, answer.json()["fate"]) == (504, "unknown")
    assert asyncio.get_running_loop().time() - began_s == CONFIRM_WITHIN_S


async def test_a_message_for_which_there_is_no_room_in_time_was_not_sent(rig):
    """In an outage it was told as unknown, so that whoever repeats it had to reckon with two."""
    rig.broker.is_silent = True
    for _ in range(MAX_UNCONFIRMED):
        await rig.publisher.submit("a", b"", key="k")
    began_s = asyncio.get_running_loop().time()
    answer = await rig.post("/v1/publish/a?key=k")
    assert (answer.status_code, answer.json()["fate"]) == (503, "refused")
    assert "not sent" in answer.json()["error"]
    assert asyncio.get_running_loop().time() - began_s == CONFIRM_WITHIN_S
    assert len(rig.broker.sent) == MAX_UNCONFIRMED
    assert rig.counts.unpublished == 1


async def test_a_sidecar_that_ends_publishes_nothing_any_more(rig):
    await rig.publisher.close()
    answer = await rig.post("/v1/publish/a?key=k")
    assert (answer.status_code, answer.json()["fate"]) == (503, "refused")


async def test_a_ledger_that_cannot_be_begun_is_no_mistake_of_the_request(rig):
    rig.no_publisher = UserError("ledger", "/full: No space left on device", "a new file")
    answer = await rig.post("/v1/publish/a?key=k")
    assert (answer.status_code, answer.json()["fate"]) == (503, "refused")
    assert rig.counts.unpublished == 1
    rig.no_publisher = None
    assert (await rig.post("/v1/publish/a?key=k")).status_code == 200


async def test_a_body_that_is_too_large_is_refused_with_one_line(rig):
    with capture_logs() as log:
        answer = await rig.post("/v1/publish/a?key=k", b"x" * 1_001)
    assert answer.status_code == 413
    assert [(entry["event"], entry["status"]) for entry in log] == [("request_refused", 413)]
    assert rig.counts.refused == 1


async def test_a_body_that_does_not_say_how_long_it_is_is_not_read_beyond_the_limit(rig):
    sent = 0

    async def endless():
        nonlocal sent
        while True:
            sent += 100
            yield b"x" * 100

    answer = await rig.client.post("/v1/publish/a?key=k", content=endless())
    assert answer.status_code == 413
    assert sent <= 1_200


async def answer_to(rig, receive, **headers):
    """The status that a client gets whose body comes as `receive` says."""
    path, sent = "/v1/publish/a", []
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"key=k",
        "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
    }

    async def send(message):
        sent.append(message)

    await rig.client._transport.app(scope, receive, send)
    assert not rig.broker.sent
    return sent[0]["status"]


async def test_a_body_that_does_not_come_whole_is_not_published(rig):
    parts = [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}]

    async def go():
        return parts.pop(0)

    assert await answer_to(rig, go, host="localhost") == 400
    assert await answer_to(rig, asyncio.Event().wait, host="localhost") == 408


@pytest.mark.parametrize("length", ["1001", "9" * 5_000], ids=["just", "far"])
async def test_a_body_that_says_that_it_is_too_large_is_not_read(rig, length):
    async def read():
        raise AssertionError("it is read")

    assert await answer_to(rig, read, host="localhost", content_length=length) == 413


async def test_a_body_of_the_limit_is_taken(rig):
    assert (await rig.post("/v1/publish/a?key=k", b"x" * 1_000)).status_code == 200


@pytest.mark.parametrize("path", ["/v1/publish/a?key=k", "/v1/settle", "/v1/sidecar"])
async def test_a_page_in_a_browser_is_not_let_in(rig, path):
    with capture_logs() as log:
        answer = await rig.client.request("GET" if path == "/v1/sidecar" else "POST", path, headers={"Origin": "null"})
    assert answer.status_code == 403
    assert len(log) == 1
    assert rig.broker.sent == []


async def test_a_name_that_resolves_to_loopback_is_not_let_in(rig):
    answer = await rig.post("/v1/publish/a?key=k", host="evil.example:3500")
    assert answer.status_code == 421
    assert (await rig.post("/v1/publish/a?key=k", host="localhost:1")).status_code == 200


@pytest.mark.parametrize(
    "shown", [{}, {"dapr_api_token": "wrong"}, {"authorization": "Bearer wrong"}, {"authorization": "Basic s3cret"}]
)
async def test_without_the_token_nothing_is_done_and_one_line_says_so(shown):
    rig = Rig("0.0.0.0:3500", "s3cret")
    for path in ("/v1/publish/a?key=k", "/v1.0/publish/pubsub/a?key=k", "/v1/settle", "/v1/pull"):
        with capture_logs() as log:
            answer = await rig.post(path, **shown)
        assert answer.status_code == 401
        assert [entry["event"] for entry in log] == ["request_refused"]
    assert rig.broker.sent == []
    assert (await rig.client.get("/v1.0/healthz")).status_code == 204
    assert (await rig.client.get("/v1/sidecar", headers={"dapr-api-token": "s3cret"})).json()["refused"] == 4


@pytest.mark.parametrize("shown", [{"dapr_api_token": "s3cret"}, {"authorization": "Bearer s3cret"}])
async def test_with_the_token_everything_is_as_without(shown):
    rig = Rig("0.0.0.0:3500", "s3cret")
    assert (await rig.post("/v1/publish/a?key=k", **shown)).status_code == 200


async def test_whoever_waits_for_the_sidecar_finds_it(rig):
    for path in ("/v1.0/healthz", "/v1.0/healthz/outbound"):
        assert (await rig.client.get(path)).status_code == 204


async def test_counts_are_told(rig):
    await rig.post("/v1/publish/a?key=k")
    told = (await rig.client.get("/v1/sidecar")).json()
    assert told == {
        "application": "away",
        "accepted": 0,
        "dropped": 0,
        "failed": 0,
        "published": 1,
        "unpublished": 0,
        "refused": 0,
    }
    rig.gate.open()
    assert (await rig.client.get("/v1/sidecar")).json() == told | {"application": "ready"}


async def test_settling_says_what_came_too_late(rig):
    answer = await rig.post("/v1/settle", json.dumps([{"id": "9-9", "status": "SUCCESS"}]).encode())
    assert answer.json() == {"settled": 0, "late": ["9-9"]}
    assert (await rig.post("/v1/settle", b"{broken")).status_code == 400


async def test_of_a_list_with_a_status_that_is_none_nothing_is_settled(rig):
    lines = rig.pulled.stream(1)
    answer = asyncio.ensure_future(rig.pulled.deliver(make_event()))
    event_id = json.loads(await anext(lines))["id"]
    settled = {"id": event_id, "status": "SUCCESS"}
    refused = await rig.post("/v1/settle", json.dumps([settled, {"id": "9-9", "status": "success"}]).encode())
    assert (refused.status_code, refused.json()["found"]) == (400, "an entry with status 'success'")
    accepted = await rig.post("/v1/settle", json.dumps(settled).encode())
    assert accepted.json() == {"settled": 1, "late": []}, "it was still open"
    assert (await answer).status is Status.SUCCESS
    await lines.aclose()


@pytest.mark.parametrize("capacity", ["0", "-1", "x", "1001", "٣", ""])
async def test_a_stream_has_a_sensible_size(rig, capacity):
    assert (await rig.post(f"/v1/pull?max={capacity}")).status_code == 400


async def test_a_stream_whose_client_does_not_read_ends_when_the_sidecar_does():
    gate = make_gate()
    pulled = PulledEvents(1_000, gate)
    is_sending = asyncio.Event()

    async def block(_):
        is_sending.set()
        await asyncio.Event().wait()

    async def stay():
        await asyncio.Event().wait()

    answering = asyncio.ensure_future(EventStream(pulled.stream(1), pulled.closed)({}, stay, block))
    await is_sending.wait()
    pulled.close()
    async with asyncio.timeout(LAST_ANSWERS_S / 2):
        await answering
    assert not gate.is_open


async def test_a_stream_whose_client_reads_is_ended_whole_and_at_once():
    has_begun = asyncio.Event()
    pulled = PulledEvents(1_000, make_gate(has_begun.set))
    sent = []

    async def send(message):
        sent.append(message)

    async def stay():
        await asyncio.Event().wait()

    answering = asyncio.ensure_future(EventStream(pulled.stream(1), pulled.closed)({}, stay, send))
    await has_begun.wait()
    pulled.close()
    async with asyncio.timeout(0.01):
        await answering
    # It is seen to begin before there is an event.
    assert [(message["type"], message.get("body")) for message in sent] == [
        ("http.response.start", None),
        ("http.response.body", b"\n"),
        ("http.response.body", b""),
    ]
    assert "more_body" not in sent[-1]


async def test_an_application_that_is_called_cannot_pull():
    rig = Rig(pulls=False)
    for path in ("/v1/pull", "/v1/settle"):
        answer = await rig.post(path)
        assert answer.status_code == 409
        assert "sidecar.application" in answer.json()["error"]


async def test_a_stream_whose_client_reads_is_told_to_its_end():
    closed, said = asyncio.Event(), []

    async def lines():
        await closed.wait()
        await asyncio.sleep(LAST_LINES_S / 2)
        yield b"the last\n"

    async def stay():
        await asyncio.Event().wait()

    async def send(message):
        said.append(message.get("body"))

    answering = asyncio.ensure_future(EventStream(lines(), closed)({}, stay, send))
    await asyncio.sleep(1)
    closed.set()
    await answering
    assert said == [None, b"\n", b"the last\n", b""]


async def test_there_is_nothing_else(rig):
    for method, path, status in [
        ("GET", "/", 404),
        ("GET", "/v1/publish/a", 405),
        ("POST", "/v1/sidecar", 405),
        ("POST", "/v1/settle/", 404),
    ]:
        assert (await rig.client.request(method, path)).status_code == status


async def test_a_request_by_another_method_is_told_the_right_one(rig):
    """Whoever tried the pulling by hand read "Method Not Allowed"."""
    for method, path, allowed in (
        ("GET", "/v1/pull", "POST"),
        ("GET", "/v1.0/publish/pubsub/a", "POST, PUT"),
        ("POST", "/v1/sidecar", "GET, HEAD"),
    ):
        answer = await rig.client.request(method, path)
        assert (answer.status_code, answer.headers["allow"]) == (405, allowed)
        assert answer.json() == {"error": f"{method}; expected {allowed}"}
