"""Partitioned queues on a socket, with the official client."""

import pytest
from solace.messaging.config.message_acknowledgement_configuration import Outcome
from solace.messaging.resources.topic import Topic

from lbg_runtime.broker.engine.lines.partitions import PartitionState
from lbg_runtime.broker.engine.settings import AccessType
from tests.broker.deadlines import call_due
from tests.patience import PATIENCE_MS, PATIENCE_S

pytestmark = pytest.mark.real_time

KEYS = tuple(f"key-{number}" for number in range(12))
DELAY_MS, HANDOFF_MS = 150, 600_000
"""The second longer than anything is waited for: partitions move because of what happens, and not in the end."""


@pytest.fixture
def make_queue(broker, request):
    def make(partition_count=6, **settings):
        name = request.node.name.partition("[")[0]
        times = {"partition_rebalance_delay_ms": DELAY_MS, "partition_max_handoff_ms": HANDOFF_MS}
        broker.create_queue(
            name,
            f"{name}/>",
            access_type=AccessType.NON_EXCLUSIVE,
            partition_count=partition_count,
            **(times | settings),
        )
        return name

    return make


@pytest.fixture
def publish(client):
    publisher = client.publisher()

    def publish(queue, *pairs):
        for key, number in pairs:
            message = client.message(f"{key} {number}", JMSXGroupID=key)
            publisher.publish_await_acknowledgement(message, Topic.of(f"{queue}/new"), PATIENCE_MS)

    return publish


def is_settled_down(status):
    return all(p.state is PartitionState.READY for p in status.partitions) and status.rebalance.value == "ready"


def pairs_of(messages):
    return [tuple(message.get_payload_as_string().split()) for message in messages]


def test_each_key_comes_in_order_to_one_client_alone(broker, make_client, make_queue, publish):
    queue = make_queue()
    receivers = [make_client(f"spread-{name}").receiver(queue, exclusive=False) for name in ("ann", "bob")]
    broker.wait_for_status(queue, lambda s: is_settled_down(s) and len({p.flow for p in s.partitions}) == 2)
    publish(queue, *((key, number) for number in range(3) for key in KEYS))
    status = broker.wait_for_status(queue, lambda s: s.unacked_count == 36)
    counts = [flow.unacked_count for flow in status.flows]
    taken = [pairs_of(receiver.take(count)) for receiver, count in zip(receivers, counts, strict=True)]
    keys = [{key for key, _ in pairs} for pairs in taken]
    assert keys[0] | keys[1] == set(KEYS)
    assert not keys[0] & keys[1]
    for pairs in taken:
        for key in {key for key, _ in pairs}:
            assert [number for k, number in pairs if k == key] == ["0", "1", "2"]


def test_a_partition_moves_when_its_messages_are_settled(broker, make_client, make_queue, publish):
    queue = make_queue(partition_count=2)
    ann = make_client("move-ann").receiver(queue, exclusive=False)
    broker.wait_for_status(queue, is_settled_down)
    publish(queue, *((key, 0) for key in KEYS))
    held = ann.take(len(KEYS))
    bob = make_client("move-bob").receiver(queue, exclusive=False)
    broker.wait_for_status(queue, lambda s: s.rebalance.value == "rebalancing")
    publish(queue, *((key, 1) for key in KEYS))
    for message in held:
        ann.receiver.ack(message)
    status = broker.wait_for_status(queue, lambda s: is_settled_down(s) and s.unacked_count == len(KEYS))
    counts = {flow.client_name: flow.unacked_count for flow in status.flows}
    moved = pairs_of(bob.take(counts["move-bob"]))
    kept = pairs_of(ann.take(counts["move-ann"]))
    assert {number for _, number in moved + kept} == {"1"}
    assert {key for key, _ in moved + kept} == set(KEYS)
    assert not any(m.is_redelivered() for m in held)


def test_a_client_that_reconnects_in_time_keeps_its_partitions(broker, make_client, make_queue, publish):
    queue = make_queue(partition_rebalance_delay_ms=60_000)
    # The first rebalance need not wait that long.
    client = make_client("back-ann")
    ann = client.receiver(queue, exclusive=False)
    bob = make_client("back-bob").receiver(queue, exclusive=False)
    broker.wait_for_status(queue, lambda s: len(s.flows) == 2)
    broker.call(rebalance_now, broker, queue)
    before = broker.wait_for_status(queue, is_settled_down)
    publish(queue, *((key, 0) for key in KEYS))
    status = broker.wait_for_status(queue, lambda s: s.unacked_count == len(KEYS))
    counts = {flow.client_name: flow.unacked_count for flow in status.flows}
    held = ann.take(counts["back-ann"])
    bob.take(counts["back-bob"])
    broker.call(broker.server.faults.drop, "back-ann")
    client.reconnected.get(timeout=PATIENCE_S)
    status = broker.wait_for_status(queue, lambda s: len(s.flows) == 2 and is_known(s, counts))
    publish(queue, *((key, 1) for key in KEYS))
    again = pairs_of(ann.take(len(held)))
    assert [key for key, _ in again] == [key for key, _ in pairs_of(held)]
    assert {number for _, number in again} == {"1"}, "what it had is not sent again"
    assert [p.client_name for p in status.partitions] == [p.client_name for p in before.partitions]
    for message in held:
        ann.receiver.ack(message)
    broker.wait_for_status(queue, lambda s: s.depth == 24 - len(held))


def test_a_client_that_never_received_anything_keeps_its_partitions_too(broker, make_client, make_queue):
    queue = make_queue(partition_rebalance_delay_ms=60_000)
    client = make_client("silent-ann")
    client.receiver(queue, exclusive=False)
    make_client("silent-bob").receiver(queue, exclusive=False)
    broker.wait_for_status(queue, lambda s: len(s.flows) == 2)
    broker.call(rebalance_now, broker, queue)
    before = broker.wait_for_status(queue, is_settled_down)
    broker.call(broker.server.faults.drop, "silent-ann")
    client.reconnected.get(timeout=PATIENCE_S)
    status = broker.wait_for_status(queue, is_back)
    assert [p.client_name for p in status.partitions] == [p.client_name for p in before.partitions]


def is_back(status):
    return len(status.flows) == 2 and all(p.state is PartitionState.READY for p in status.partitions)


def is_known(status, counts):
    return {flow.client_name: flow.unacked_count for flow in status.flows} == counts


def rebalance_now(broker, queue):
    """The delay is over, as far as the queue is concerned."""
    engine = broker.server.engine
    now, timetable = engine.surroundings.timetable.now, engine.surroundings.timetable
    timetable.now = lambda: now() + 60_000
    broker.server.carry_out(call_due(timetable))
    timetable.now = now


def test_a_failed_message_comes_back_to_the_same_client(broker, make_client, make_queue, publish):
    queue = make_queue()
    receivers = [make_client(f"fail-{name}").receiver(queue, exclusive=False, outcomes=True) for name in ("ann", "bob")]
    broker.wait_for_status(queue, lambda s: is_settled_down(s) and len({p.flow for p in s.partitions}) == 2)
    publish(queue, ("key-1", 0))
    broker.wait_for_status(queue, lambda s: s.unacked_count == 1)
    status = broker.status(queue)
    holder = next(r for r, flow in zip(receivers, status.flows, strict=True) if flow.unacked_count)
    message = holder.next()
    holder.receiver.settle(message, Outcome.FAILED)
    again = holder.next()
    assert again.is_redelivered()
    assert pairs_of([again]) == [("key-1", "0")]
