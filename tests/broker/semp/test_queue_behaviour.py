"""What an administrator says of dying, waiting and ranking messages is what the engine does, and is counted."""

from contextlib import nullcontext
from dataclasses import replace

import pytest

from lbg_runtime.broker.engine.answers import SettledRange
from lbg_runtime.broker.engine.settings import QueueSettings, RejectOnDiscard
from lbg_runtime.model.errors import BrokerRefusal
from lbg_runtime.model.ids import QueueName
from lbg_runtime.model.outcome import Outcome

CONFIG = "config/msgVpns/default/queues"
MONITOR = "monitor/msgVpns/default/queues"

SAID = {
    "deadMsgQueue": "graves",
    "maxRedeliveryCount": 3,
    "maxTtl": 60,
    "redeliveryDelayEnabled": True,
    "redeliveryDelayInitialInterval": 10,
    "redeliveryDelayMaxInterval": 20,
    "redeliveryDelayMultiplier": 150,
    "redeliveryEnabled": False,
    "respectDmqEligibleEnabled": True,
    "respectMsgPriorityEnabled": True,
    "respectTtlEnabled": True,
}


async def test_every_attribute_is_the_engines(desk):
    await desk.post(CONFIG, queueName="q", **SAID)
    assert desk.status("q").settings == QueueSettings(
        owner=None,
        permission=desk.status("q").settings.permission,
        ingress_enabled=False,
        egress_enabled=False,
        dead_message_queue="graves",
        max_redelivery_count=3,
        max_ttl_s=60,
        redelivery_delay_enabled=True,
        redelivery_delay_initial_ms=10,
        redelivery_delay_max_ms=20,
        redelivery_delay_multiplier_percent=150,
        redelivery_enabled=False,
        respect_dead_message_eligible=True,
        respect_priority=True,
        respect_time_to_live=True,
    )
    shown = await desk.get(CONFIG, "q")
    assert {name: shown[name] for name in SAID} == SAID
    await desk.ask("PUT", CONFIG, "q", body={})
    assert desk.status("q").settings.dead_message_queue == "#DEAD_MSG_QUEUE"


async def test_values_out_of_bounds_are_refused(desk):
    for name, value in (
        ("maxRedeliveryCount", 256),
        ("redeliveryDelayMultiplier", 99),
        ("redeliveryDelayInitialInterval", 0),
        ("respectTtlEnabled", 1),
    ):
        assert await desk.code("POST", CONFIG, body={"queueName": "q", name: value}) == 11


async def test_the_dead_message_queue_is_the_one_reserved_name(desk):
    assert await desk.code("POST", CONFIG, body={"queueName": "#DEAD_MSG_QUEUE"}) == 0
    assert await desk.code("POST", CONFIG, body={"queueName": "#other"}) == 11


async def test_dead_and_redelivered_messages_are_counted_by_where_they_went(desk):
    opened = {"permission": "consume", "ingressEnabled": True, "egressEnabled": True}
    await desk.post(CONFIG, queueName="#DEAD_MSG_QUEUE", **opened)
    await desk.post(CONFIG, queueName="kept", maxRedeliveryCount=1, **opened)
    await desk.post(CONFIG, queueName="lost", maxRedeliveryCount=1, deadMsgQueue="missing", **opened)
    for queue in ("kept", "lost"):
        await desk.post(CONFIG, queue, "subscriptions", subscriptionTopic="a/>")
    flows = [desk.bind(desk.client("ann"), "kept"), desk.bind(desk.client("bob"), "lost")]
    for sent in desk.publish("a/1"):
        (again,) = desk.engine.settle(sent.flow, [SettledRange(sent.first_id, sent.first_id, Outcome.FAILED)])
        desk.engine.settle(sent.flow, [SettledRange(again.first_id, again.first_id, Outcome.FAILED)])
    for flow, queue in zip(flows, ("kept", "lost"), strict=True):
        assert (await desk.get(MONITOR, queue, "txFlows", str(flow)))["redeliveredMsgCount"] == 1
    names = ("redeliveredMsgCount", "maxRedeliveryExceededToDmqMsgCount", "maxRedeliveryExceededDiscardedMsgCount")
    kept, lost = await desk.get(MONITOR, "kept"), await desk.get(MONITOR, "lost")
    assert [kept[name] for name in names] == [1, 1, 0]
    assert [lost[name] for name in names] == [1, 0, 1]
    assert [kept["maxTtlExpiredToDmqMsgCount"], kept["maxTtlExpiredDiscardedMsgCount"]] == [0, 0]
    assert desk.status("#DEAD_MSG_QUEUE").depth == 1


async def test_a_profile_says_whether_its_clients_may_have_transactions(desk):
    await desk.post("config/msgVpns/default/clientProfiles", clientProfileName="plain")
    await desk.post(
        "config/msgVpns/default/clientUsernames", clientUsername="ann", clientProfileName="plain", enabled=True
    )
    assert not desk.engine.profile_of(desk.client("a", "ann")).may_use_transactions
    assert desk.engine.profile_of(desk.client("b", "anybody")).may_use_transactions


async def test_what_a_queue_could_not_take_is_counted_by_its_reason(desk):
    await desk.post(CONFIG, queueName="q", ingressEnabled=True, maxMsgSize=5)
    await desk.post(CONFIG, "q", "subscriptions", subscriptionTopic="a/>")
    # A quota in bytes, as SEMP has none: one message of three fills it.
    queue = QueueName("q")
    desk.engine.administration.change_queue("default", queue, replace(desk.status("q").settings, quota_bytes=5))
    desk.publish("a/1")

    async def counted(topic, *, is_told=True):
        with pytest.raises(BrokerRefusal) if is_told else nullcontext():
            desk.publish(topic)
        seen = await desk.get(MONITOR, "q")
        reasons = ("maxMsgSpoolUsageExceeded", "maxMsgSizeExceeded", "disabled")
        return [seen[f"{reason}DiscardedMsgCount"] for reason in reasons]

    assert await counted("a/1") == [1, 0, 0]
    assert await counted("a/2222") == [1, 1, 0]
    off = replace(desk.status("q").settings, ingress_enabled=False, reject_on_discard=RejectOnDiscard.NEVER)
    desk.engine.administration.change_queue("default", queue, off)
    assert await counted("a/1", is_told=False) == [1, 1, 1]
    assert desk.status("q").depth == 1
