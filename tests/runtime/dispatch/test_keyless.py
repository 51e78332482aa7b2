"""Messages in which no key is found, by each of the rules for them."""

import asyncio
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from lbg_runtime.model.message import FencingToken
from lbg_runtime.model.outcome import Outcome
from lbg_runtime.runtime.handlers.registry import Handlers
from lbg_runtime.runtime.parking.parked_queue import lane_name
from tests.runtime.error_queue import TakingErrorQueue

BY_CUSTOMER = {"key": "property:customer"}


def _made(rig, handle, rule, **options):
    handlers = Handlers()
    handlers.handler(">")(handle)
    return rig(handlers=handlers, group=BY_CUSTOMER, dispatch={"missing_key": rule}, **options)


@pytest.mark.parametrize(
    ("rule", "at_once"),
    [("shard", {"h/4/orders/new": 1, "h/5/orders/new": 1}), ("no_order", {"h/4/orders/new": 3, "h/5/orders/new": 3})],
)
async def test_a_shard_is_handled_in_order_or_all_at_once(rig, delivery, rule, at_once):
    running, most, order = {}, {}, {}

    async def handle(message):
        topic = message.topic
        running[topic] = running.get(topic, 0) + 1
        most[topic] = max(most.get(topic, 0), running[topic])
        order.setdefault(topic, []).append(message.payload)
        await asyncio.sleep(1)
        running[topic] -= 1

    made = _made(rig, handle, rule)
    async with made.running():
        for number in range(6):
            made.dispatcher.dispatch(delivery(number, topic=f"h/{4 + number % 2}/orders/new"))
        await made.until_ended(6)
    assert most == at_once
    if rule == "shard":
        assert order == {"h/4/orders/new": [b"0", b"2", b"4"], "h/5/orders/new": [b"1", b"3", b"5"]}
    assert made.dispatcher.counts.without_key == 6


async def test_what_is_handled_in_no_order_is_parked_alone_whatever_an_earlier_life_has_parked(rig, delivery):
    """Each life numbers epochs and deliveries from 1: what was parked behind those of another would wait for ever."""

    async def handle(message): ...

    parked_as = []
    for life in (1, 2):
        made = _made(rig, handle, "no_order", seed=life)
        async with made.running():
            for number in (1, 2):
                made.dispatcher.dispatch(delivery(number))
            await made.until_ended(2)
        parked_as += map(lane_name, made.ends)
    assert len(set(parked_as)) == 4


async def test_one_that_counts_as_failed_goes_the_way_of_its_handlers_policy(rig, delivery):
    async def handle(message):
        raise AssertionError

    error_queue = TakingErrorQueue()
    made = _made(rig, handle, "error", error_queue=error_queue, failure={"then": "error_queue"})
    with capture_logs() as logs:
        async with made.running():
            for number in (1, 2):
                made.dispatcher.dispatch(delivery(number, topic="h/4/orders/new"))
            await made.until_ended(2)
    error = "KeyMissing: no key by the rule of group.key"
    assert error_queue.taken == [(1, 1, error), (2, 1, error)]
    assert made.outcomes() == {1: Outcome.ACCEPTED, 2: Outcome.ACCEPTED}
    failed = [line for line in logs if line["event"] == "handling_failed"]
    assert [(line["reason"], line.get("exc_info")) for line in failed] == [(error, None)] * 2


async def test_it_is_said_once_for_a_topic(rig, delivery):
    async def handle(message): ...

    made = _made(rig, handle, "shard")
    with capture_logs() as logs:
        async with made.running():
            for number in range(4):
                made.dispatcher.dispatch(delivery(number, topic=f"h/{number}/orders/{'old' if number == 3 else 'new'}"))
            await made.until_ended(4)
    told = [(line["topic"], line["rule"], line["log_level"]) for line in logs if line["event"] == "key_missing"]
    assert told == [("orders/new", "shard", "warning"), ("orders/old", "shard", "warning")]


async def test_a_message_with_a_key_is_as_ever_whatever_the_rule(rig, delivery):
    async def handle(message): ...

    handlers = Handlers()
    handlers.handler(">")(handle)
    made = rig(handlers=handlers, dispatch={"missing_key": "error"})
    async with made.running():
        await made.handle(delivery(1, "a"))
    assert (made.ends[0].lane, made.dispatcher.counts.without_key) == ("a", 0)


@pytest.mark.parametrize(
    ("customer", "rule", "has_token"),
    [("k", "shard", True), ("other", "shard", False), (None, "shard", True), (None, "no_order", False)],
)
async def test_a_number_of_another_keys_order_is_no_fencing_token_which_is_said_once(
    rig, delivery, customer, rule, has_token
):
    tokens = []

    async def handle(message):
        tokens.append(message.fencing_token)

    stamps = {"JMSXGroupID": "k", "lbg_publisher": "p", "lbg_key_sequence": 7}
    properties = stamps if customer is None else {**stamps, "customer": customer}
    made = _made(rig, handle, rule)
    with capture_logs() as logs:
        async with made.running():
            for plain in (delivery(1), delivery(2)):
                made.dispatcher.dispatch(replace(plain, message=replace(plain.message, properties=properties)))
            await made.until_ended(2)
    assert tokens == [FencingToken("p", 7) if has_token else None] * 2
    assert [log["event"] for log in logs].count("key_differs_from_stamp") == (0 if has_token else 1)


@pytest.mark.parametrize("stamps", [{}, {"JMSXGroupID": "k"}, {"JMSXGroupID": 5}])
async def test_handlers_see_the_key_that_the_groups_rule_finds_wherever_it_is_and_the_delivery_stays_as_it_came(
    rig, delivery, stamps
):
    seen = []

    async def handle(message):
        seen.append((message.key, message.is_first_of_key))

    made = _made(rig, handle, "shard")
    came = replace(delivery(1).message, properties={**stamps, "customer": "c"})
    async with made.running():
        for number in (1, 2):
            made.dispatcher.dispatch(replace(delivery(number), message=came))
        await made.until_ended(2)
    assert seen == [("c", True), ("c", False)]
    assert all(each.delivery.message is came for each in made.ends)


async def test_handlers_see_a_stamped_number_as_the_key_that_it_is(rig, delivery):
    seen = []

    async def handle(message):
        seen.append(message.key)

    handlers = Handlers()
    handlers.handler(">")(handle)
    made = rig(handlers=handlers)
    async with made.running():
        plain = delivery(1)
        made.dispatcher.dispatch(replace(plain, message=replace(plain.message, properties={"JMSXGroupID": 5})))
        await made.until_ended(1)
    assert seen == [made.ends[0].key] == ["5"]
