"""The official client against the server while an administrator changes it over HTTP: what SEMP says is so."""

import os
import queue

import httpx
import pytest
from solace.messaging.config.sub_code import SolClientSubCode
from solace.messaging.errors.pubsubplus_client_error import MessageRejectedByBrokerError, PubSubPlusClientError
from solace.messaging.resources.topic import Topic
from solace.messaging.resources.topic_subscription import TopicSubscription
from solace.messaging.utils.life_cycle_control import TerminationNotificationListener

from lbg_runtime.broker.semp.server import SempServer
from tests.patience import PATIENCE_MS, PATIENCE_S

pytestmark = pytest.mark.real_time


class Semp:
    """Requests that must succeed."""

    def __init__(self, url):
        self.http = httpx.Client(
            base_url=f"{url}/SEMP/v2/", auth=("admin", "admin"), trust_env=False, timeout=PATIENCE_S
        )

    def config(self, method, path, **body):
        answer = self.http.request(method, f"config/msgVpns/default/{path}", json=body)
        assert answer.status_code == 200, answer.text

    def queue(self, name, *topics, **attributes):
        on = {"ingressEnabled": True, "egressEnabled": True, "permission": "consume"}
        self.config("POST", "queues", queueName=name, **{**on, **attributes})
        for topic in topics:
            self.config("POST", f"queues/{name}/subscriptions", subscriptionTopic=topic)

    def account(self, name, **attributes):
        self.config("POST", "clientUsernames", clientUsername=name, enabled=True, **attributes)


@pytest.fixture(scope="module")
def semp(broker):
    def make():
        return SempServer(broker.server.engine, broker.server.carry_out, port=0)

    server = broker.call(make)
    broker.await_on_loop(server.start())
    semp = Semp(server.url)
    yield semp
    semp.http.close()
    broker.await_on_loop(server.stop())


def username(name):
    return {"solace.messaging.authentication.scheme.basic.username": name}


def refused(act, *args, **options):
    with pytest.raises(PubSubPlusClientError) as caught:
        act(*args, **options)
    return SolClientSubCode(caught.value.sub_code).name.removeprefix("SOLCLIENT_SUBCODE_")


def test_an_administrator_sees_which_program_a_client_is(semp, make_client):
    make_client("program")
    seen = semp.http.get("monitor/msgVpns/default/clients/program").json()["data"]
    assert seen["softwareVersion"].startswith("pubsubplus-python-client 1.11")
    assert "C SDK" in seen["platform"]
    assert f"Process ID: {os.getpid()}" in seen["user"]
    assert 0 <= seen["uptime"] < PATIENCE_S


def test_ingress_and_egress_are_switched(semp, broker, client):
    semp.queue("switched", "switched/>", rejectMsgToSenderOnDiscardBehavior="always")
    publisher = client.publisher()
    received = client.receiver("switched")
    client.publish(publisher, "switched/a", "1")
    received.receiver.ack(received.next())
    broker.wait_for_status("switched", lambda status: status.depth == 0)

    semp.config("PATCH", "queues/switched", ingressEnabled=False)
    with pytest.raises(PubSubPlusClientError, match="QUEUE_SHUTDOWN"):
        client.publish(publisher, "switched/a", "2")
    semp.config("PATCH", "queues/switched", ingressEnabled=True)
    client.publish(publisher, "switched/a", "3")
    assert received.next().get_payload_as_string() == "3"

    ended = queue.Queue()

    class Listener(TerminationNotificationListener):
        def on_termination(self, termination_notification):
            ended.put(str(termination_notification.cause))

    received.receiver.set_termination_notification_listener(Listener())
    semp.config("PATCH", "queues/switched", egressEnabled=False)
    assert refused(client.receiver, "switched") == "QUEUE_SHUTDOWN"

    semp.config("PATCH", "queues/switched", egressEnabled=True)
    # The client binds again by itself.
    again = received.next()
    assert (again.get_payload_as_string(), again.is_redelivered(), ended.empty()) == ("3", True, True)


def test_a_permission_is_checked_at_the_bind(semp, client, make_client):
    semp.queue("private", owner="boss", permission="no-access")
    assert refused(client.receiver, "private") == "PERMISSION_NOT_ALLOWED"
    boss = make_client("boss", **username("boss"))
    boss.receiver("private").close()
    semp.config("PATCH", "queues/private", permission="consume")
    client.receiver("private").close()


def test_only_so_many_flows_are_bound(semp, client):
    semp.queue("narrow", maxBindCount=0)
    assert refused(client.receiver, "narrow") == "MAX_CLIENTS_FOR_QUEUE"
    semp.config("PATCH", "queues/narrow", maxBindCount=1)
    client.receiver("narrow").close()


def test_only_so_many_messages_are_out(semp, client):
    semp.queue("few", "few/>", maxDeliveredUnackedMsgsPerFlow=2)
    received = client.receiver("few")
    client.publish(client.publisher(), "few/a", "1", "2", "3")
    received.take(2)
    assert received.is_silent()
    semp.config("PATCH", "queues/few", maxDeliveredUnackedMsgsPerFlow=3)
    assert received.next().get_payload_as_string() == "3"


def test_a_username_that_is_disabled_is_cut_off_and_comes_back_when_enabled(semp, make_client):
    semp.account("temp")
    client = make_client("temp", **username("temp"))
    semp.queue("temp", "temp/>")
    received = client.receiver("temp")
    semp.config("PATCH", "clientUsernames/temp", enabled=False)
    # It tries again and again by itself, until it is let in.
    assert client.reconnected.empty()
    semp.config("PATCH", "clientUsernames/temp", enabled=True)
    client.reconnected.get(timeout=PATIENCE_S)
    client.publish(client.publisher(), "temp/a", "1")
    assert received.next().get_payload_as_string() == "1"


def test_a_disabled_username_is_told_so(semp, broker, client_class):
    semp.account("closed")
    semp.config("PATCH", "clientUsernames/closed", enabled=False)
    client = client_class(broker.port, "closed", **username("closed"))
    assert refused(client.connect) == "CLIENT_USERNAME_IS_SHUTDOWN"
    client.service.disconnect()


def test_a_client_is_disconnected(semp, make_client):
    client = make_client("victim/1")
    answer = semp.http.put("action/msgVpns/default/clients/victim%2F1/disconnect", json={})
    assert answer.status_code == 200
    client.reconnected.get(timeout=PATIENCE_S)


def test_topics_are_denied_by_an_acl_profile(semp, make_client):
    semp.config("POST", "aclProfiles", aclProfileName="strict", clientConnectDefaultAction="allow")
    semp.config(
        "POST",
        "aclProfiles/strict/publishTopicExceptions",
        publishTopicExceptionSyntax="smf",
        publishTopicException="open/>",
    )
    semp.account("strict", aclProfileName="strict")
    client = make_client("strict", **username("strict"))
    publisher = client.publisher()
    client.publish(publisher, "open/a", "1")
    with pytest.raises(MessageRejectedByBrokerError, match="Publish ACL Denied"):
        publisher.publish_await_acknowledgement(client.message(), Topic.of("closed/a"), PATIENCE_MS)
    builder = client.service.create_direct_message_receiver_builder()
    with pytest.raises(PubSubPlusClientError, match="Subscription ACL Denied"):
        builder.with_subscriptions([TopicSubscription.of("news/>")]).build().start()


def test_an_acl_profile_can_keep_clients_out(semp, broker, client_class):
    semp.config("POST", "aclProfiles", aclProfileName="nowhere")
    semp.account("nowhere", aclProfileName="nowhere")
    client = client_class(broker.port, "nowhere", **username("nowhere"))
    assert refused(client.connect) == "CLIENT_ACL_DENIED"
    client.service.disconnect()


def test_a_client_profile_takes_capabilities_away(semp, make_client):
    semp.config("POST", "clientProfiles", clientProfileName="direct")
    semp.account("direct", clientProfileName="direct")
    semp.queue("direct")
    client = make_client("direct", **username("direct"))
    assert refused(client.receiver, "direct") == "INVALID_SESSION_OPERATION"
    client.direct_publisher().publish(client.message(), Topic.of("news"))


def test_messages_are_deleted(semp, broker, client):
    semp.queue("cleared", "cleared/>")
    client.publish(client.publisher(), "cleared/a", "1", "2")
    assert semp.http.put("action/msgVpns/default/queues/cleared/deleteMsgs", json={}).status_code == 200
    assert broker.status("cleared").depth == 0
    assert client.receiver("cleared").is_silent()
