"""The fault switch on a real broker, as clients feel it."""

import threading

import httpx
import pytest
from solace.messaging.errors.pubsubplus_client_error import PubSubPlusClientError
from solace.messaging.resources.topic import Topic

from lbg_runtime.broker.engine.surroundings import Asked
from lbg_runtime.broker.fault_port import FaultPort
from lbg_runtime.model.errors import UserError
from tests.patience import PATIENCE_MS, PATIENCE_S

pytestmark = pytest.mark.real_time


@pytest.fixture
def faults(broker):
    """The switch, called on the broker's loop; everything is right again at the end."""

    class Switch:
        def __getattr__(self, name):
            return lambda *args, **options: broker.call(getattr(broker.server.faults, name), *args, **options)

    yield Switch()
    broker.call(broker.server.faults.clear)


def publish(publisher, client, topic, *payloads, timeout_ms=PATIENCE_MS):
    for payload in payloads:
        publisher.publish_await_acknowledgement(client.message(payload), Topic.of(topic), timeout_ms)


def settled(received, count):
    messages = received.take(count)
    for message in messages:
        received.receiver.ack(message)
    return [message.get_payload_as_string() for message in messages]


def test_a_dropped_connection_comes_back(broker, make_client, faults):
    client = make_client("drop-me")
    assert faults.drop("drop-me") == 1
    client.reconnected.get(timeout=PATIENCE_S)
    assert faults.drop("nobody") == 0


def test_a_stalled_connection_goes_on_where_it_stood(broker, client, make_client, faults, queue_name):
    stalled = make_client("stall-me")
    received = stalled.receiver(queue_name)
    faults.stall("stall-me")
    publish(client.publisher(), client, f"{queue_name}/a", "1", "2")
    assert received.is_silent(0.3)
    faults.stall("stall-me", on=False)
    assert settled(received, 2) == ["1", "2"]


def test_withheld_acks_come_when_it_is_over(broker, client, receipts, faults, queue_name):
    publisher = client.publisher()
    publisher.set_message_publish_receipt_listener(receipts)
    faults.withhold_acks("shared")
    for number in range(3):
        publisher.publish(client.message(str(number)), Topic.of(f"{queue_name}/a"), user_context=number)
    broker.wait_for_status(queue_name, lambda s: s.depth == 3)
    assert receipts.inbox.empty()
    faults.withhold_acks("shared", on=False)
    assert [receipts.inbox.get(timeout=PATIENCE_S).user_context for _ in range(3)] == [0, 1, 2]
    assert broker.status(queue_name).depth == 3, "nothing was sent twice"


def test_stopped_egress_keeps_messages_back_and_answers_go_on(broker, client, make_client, faults, queue_name):
    consumer = make_client("hungry")
    received = consumer.receiver(queue_name)
    faults.stop_egress("hungry")
    publish(client.publisher(), client, f"{queue_name}/a", "1", "2")
    broker.wait_for_status(queue_name, lambda s: s.unacked_count == 2)
    publish(consumer.publisher(), consumer, "elsewhere", "answered")
    assert received.inbox.empty()
    faults.stop_egress("hungry", on=False)
    assert settled(received, 2) == ["1", "2"]


def test_a_delay_is_the_same_for_all_that_is_written(broker, client, faults, queue_name):
    received = client.receiver(queue_name)
    publisher = client.publisher()
    faults.delay(150)
    publish(publisher, client, f"{queue_name}/a", "1", "2")
    faults.delay(0)
    assert settled(received, 2) == ["1", "2"]


@pytest.mark.parametrize("times", [1, None])
def test_a_publish_is_refused_with_the_error_that_was_ordered(broker, client, faults, queue_name, times):
    publisher = client.publisher()
    faults.refuse(Asked.PUBLISH, 503, "Spool Over Quota", "shared", times)
    with pytest.raises(PubSubPlusClientError, match="Spool Over Quota"):
        publish(publisher, client, f"{queue_name}/a", "refused")
    if times is None:
        with pytest.raises(PubSubPlusClientError, match="Spool Over Quota"):
            publish(publisher, client, f"{queue_name}/a", "refused again")
        faults.clear()
    publish(publisher, client, f"{queue_name}/a", "accepted")
    assert broker.status(queue_name).depth == 1


def test_binds_and_subscriptions_are_refused_too(broker, client, faults, queue_name):
    faults.refuse(Asked.BIND, 503, "Max clients exceeded for queue", times=1)
    with pytest.raises(PubSubPlusClientError, match="Max clients exceeded for queue"):
        client.receiver(queue_name)
    client.receiver(queue_name)


def test_a_login_is_refused(broker, client_class, faults):
    faults.refuse(Asked.LOGIN, 503, "Too Many Clients", "late")
    with pytest.raises(PubSubPlusClientError):
        client_class(broker.port, "late").connect()
    faults.clear()
    client_class(broker.port, "late").connect().close()


@pytest.fixture
def port(broker):
    port = FaultPort(broker.server, "127.0.0.1", 0)
    broker.await_on_loop(port.start())
    yield port
    broker.await_on_loop(port.stop())
    broker.call(broker.server.faults.clear)


def test_the_port_orders_faults(broker, make_client, port, client, queue_name):
    make_client("by-port")
    with httpx.Client(base_url=port.url, trust_env=False, timeout=PATIENCE_S) as http:
        assert "by-port" in http.get("/").json()["clients"]
        for path, body in {
            "stall": {"client": "by-port"},
            "delay": {"client": "by-port", "ms": 5},
            "withhold_acks": {"client": "by-port", "on": True},
            "stop_egress": {"client": "by-port"},
        }.items():
            assert http.post(f"/{path}", json=body).status_code == 200
        trouble = broker.server.faults.trouble_of("by-port")
        assert (trouble.is_stalled, trouble.delay_ms, trouble.withholds_acks, trouble.stops_egress) == (
            True,
            5,
            True,
            True,
        )
        assert http.post("/clear").json() == {}
        assert broker.server.faults.trouble_of("by-port").is_stalled is False
        http.post("/refuse", json={"what": "publish", "code": 503, "text": "Queue Shutdown", "times": 1})
        with pytest.raises(PubSubPlusClientError, match="Queue Shutdown"):
            publish(client.publisher(), client, f"{queue_name}/a", "x")
        assert http.post("/drop", json={"client": "by-port"}).json() == {"dropped": 1}


@pytest.mark.parametrize(
    ("path", "body", "text"),
    [
        ("drop", {"cilent": "by-port"}, "cilent: unknown here; expected one of client"),
        ("clear", {"client": "by-port"}, "client: unknown here; expected no attribute"),
        ("refuse", {"what": "login", "code": 200, "text": "OK"}, "code: 200; expected a code of a refusal"),
        ("refuse", {"what": "login", "code": 1 << 32, "text": ""}, "code: 4294967296; expected a code of a refusal"),
        ("delay", {"ms": -1}, "ms: -1; expected a whole number"),
        ("stall", {"on": 1}, "on: 1; expected true or false"),
        ("stall", {"client": 7}, "client: 7; expected a text"),
        ("refuse", {"what": "tea", "code": 1, "text": ""}, "one of login, bind, publish, subscribe"),
        ("stall", [], "body: list; expected a JSON object"),
        ("stall", "x" * 20_000, "body: more than 10000 bytes"),
    ],
)
def test_a_mistake_is_named_and_changes_nothing(port, path, body, text):
    answer = httpx.post(f"{port.url}/{path}", json=body, trust_env=False, timeout=PATIENCE_S)
    assert answer.status_code == 400
    assert text in answer.json()["error"]


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "example.org"])  # noqa: S104 - refused
def test_the_port_is_for_this_machine_alone(broker, host):
    with pytest.raises(UserError, match="--faults"):
        FaultPort(broker.server, host, 0)


def test_faults_are_off_at_first_and_hold_for_those_to_come(broker, client_class, faults):
    faults.stall("later")
    later = client_class(broker.port, "later", **{"solace.messaging.transport.connection-attempts-timeout": 800})
    failed = threading.Event()
    try:
        later.connect()
    except PubSubPlusClientError:
        failed.set()
    assert failed.is_set(), "its login was never answered"
