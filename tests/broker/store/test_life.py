"""`lbg broker --store` as a process, with the official client: what a death leaves, and when it will not start."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from solace.messaging.config.replay_strategy import ReplayStrategy
from solace.messaging.errors.pubsubplus_client_error import PubSubPlusClientError
from solace.messaging.messaging_service import MessagingService
from solace.messaging.receiver.inbound_message import ReplicationGroupMessageId
from solace.messaging.resources.queue import Queue
from solace.messaging.resources.topic import Topic

from lbg_runtime.broker.store.store import Store
from tests.broker.store.kills import REPLAY_LOG_MANY, Broker, run
from tests.patience import PATIENCE_MS, PATIENCE_S
from tests.warm import Warm

pytestmark = [pytest.mark.real_time, pytest.mark.end_to_end]


@contextmanager
def running(warm: Warm, store: Path, **options: object) -> Iterator[Broker]:
    broker = Broker(warm, store, **options)
    try:
        yield broker
    finally:
        broker.end(signal.SIGKILL)


def test_killed_again_and_again_it_loses_nothing_confirmed_and_keeps_the_order(warm, tmp_path):
    verdict = run(warm, 2, 7, tmp_path / "store", tell=lambda _: None)
    assert verdict.broken == []
    assert verdict.kills == 3
    assert verdict.replayed >= min(verdict.confirmed, REPLAY_LOG_MANY)
    assert verdict.confirmed == verdict.published > 0


def test_what_administrators_said_and_a_replay_log_with_the_ids_of_its_messages_survive(warm, tmp_path):
    with running(warm, tmp_path / "store", options=("--replay-log", "1M")) as broker:
        broker.configure("aclProfiles", aclProfileName="narrow", clientConnectDefaultAction="allow")
        broker.configure(
            "aclProfiles/narrow/publishTopicExceptions", publishTopicExceptionSyntax="smf", publishTopicException="a/>"
        )
        broker.configure(
            "clientUsernames", clientUsername="ann", password="right", enabled=True, aclProfileName="narrow"
        )
        broker.configure("jndiQueues", queueName="/g", physicalName="{}")
        broker.configure("queues", queueName="other", permission="consume", maxTtl=7, messageGroupsEnabled=True)
        broker.configure("queues", queueName="q", permission="delete", ingressEnabled=True, egressEnabled=True)
        broker.configure("queues/q/subscriptions", subscriptionTopic="a/>")
        ann = service(broker, "ann", "right")
        publisher = ann.create_persistent_message_publisher_builder().build().start()
        for number in ("1", "2", "3"):
            publisher.publish_await_acknowledgement(number, Topic.of("a/b"), PATIENCE_MS)
        before = received(ann, 3)
        publisher.terminate(0)
        ann.disconnect()
        broker.end(signal.SIGKILL)
        # A log that is there is kept without being asked for.
        broker.options = ()
        broker.start()
        url = f"http://{broker.semp}/SEMP/v2"
        with httpx.Client(auth=("admin", "admin"), timeout=PATIENCE_S, trust_env=False) as http:
            config = f"{url}/config/msgVpns/default"
            queue = http.get(f"{config}/queues/other").json()["data"]
            assert (queue["permission"], queue["maxTtl"], queue["messageGroupsEnabled"]) == ("consume", 7, True)
            assert http.get(f"{config}/clientUsernames/ann").json()["data"]["aclProfileName"] == "narrow"
            assert http.get(f"{config}/jndiQueues/%2Fg").json()["data"]["physicalName"] == "{}"
            log = http.get(f"{url}/monitor/msgVpns/default/replayLogs/default").json()
            assert log["collections"]["msgs"]["count"] == 3
            with pytest.raises(PubSubPlusClientError):
                service(broker, "ann", "wrong")
            ann = service(broker, "ann", "right")
            start = ReplicationGroupMessageId.of(before[0][0])
            assert received(ann, 2, ReplayStrategy.replication_group_message_id_based(start)) == before[1:]
            action = f"{url}/action/msgVpns/default/queues/q/startReplay"
            http.put(action, json={"replayLogName": "default"}).raise_for_status()
        assert received(ann, 3) == before
        publisher = ann.create_persistent_message_publisher_builder().build().start()
        publisher.publish_await_acknowledgement("4", Topic.of("a/b"), PATIENCE_MS)
        with pytest.raises(PubSubPlusClientError, match="ACL"):
            publisher.publish_await_acknowledgement("4", Topic.of("b"), PATIENCE_MS)
        # Its own thread may not have counted the refusal yet.
        publisher.terminate(5000)
        ann.disconnect()


def received(
    client: MessagingService, count: int, replay: ReplayStrategy | None = None
) -> list[tuple[str, str | None]]:
    """Ids and payloads of the next messages on `q`, which are acknowledged."""
    builder = client.create_persistent_message_receiver_builder()
    if replay is not None:
        builder = builder.with_message_replay(replay)
    receiver = builder.build(Queue.durable_exclusive_queue("q")).start()
    messages = [receiver.receive_message(PATIENCE_MS) for _ in range(count)]
    for message in messages:
        receiver.ack(message)
    receiver.terminate(5_000)
    return [(str(each.get_replication_group_message_id()), each.get_payload_as_string()) for each in messages]


def test_a_disk_without_room_ends_it_and_loses_nothing_that_was_confirmed(warm, tmp_path):
    store = tmp_path / "store"
    # A limit on the size of its files: for the process, it is as if the disk were full.
    with running(warm, store, limit_bytes=440_000) as broker:
        broker.configure("queues", queueName="q", ingressEnabled=True)
        broker.configure("queues/q/subscriptions", subscriptionTopic="a/>")
        ann = service(broker, "ann", "")
        publisher = ann.create_persistent_message_publisher_builder().build().start()
        confirmed = 0
        with pytest.raises(PubSubPlusClientError):  # noqa: PT012  # until it cannot
            while confirmed < 1_000:
                publisher.publish_await_acknowledgement(bytearray(10_000), Topic.of("a/b"), PATIENCE_MS)
                confirmed += 1
        publisher.terminate(0)
        ann.disconnect()
        assert broker.process.wait(PATIENCE_S) == 1
        assert broker.last_words().startswith(f"lbg: store {store}: ")
    assert 10 < confirmed < 1_000
    kept = Store.open(store)
    assert sum(type(each).__name__ == "MessageKept" for each in kept.read()) in (confirmed, confirmed + 1)
    kept.close()


def test_it_does_not_start_on_a_store_in_use_or_damaged(lbg, tmp_path):
    store = Store.open(tmp_path / "store")
    refused = lbg(tmp_path, "broker", "--smf", "127.0.0.1:0", "--store", "store")
    store.close()
    assert (refused.returncode, "another broker has it" in refused.stderr) == (2, True)
    (tmp_path / "other").write_text("something else" * 1_000)
    refused = lbg(tmp_path, "broker", "--smf", "127.0.0.1:0", "--store", "other")
    assert (refused.returncode, "file is not a database" in refused.stderr) == (2, True)
    assert refused.stderr.count("\n") == 1


def service(broker: Broker, username: str, password: str) -> MessagingService:
    properties = {
        "solace.messaging.transport.host": f"tcp://{broker.smf}",
        "solace.messaging.service.vpn-name": "default",
        "solace.messaging.authentication.scheme.basic.username": username,
        "solace.messaging.authentication.scheme.basic.password": password,
        "solace.messaging.transport.connection-attempts-timeout": PATIENCE_MS,
        "solace.messaging.transport.reconnection-attempts": 0,
    }
    return MessagingService.builder().from_properties(properties).build().connect()
