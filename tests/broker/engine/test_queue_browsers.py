"""Browsers of a queue: they see everything, take nothing, and may remove."""

from dataclasses import replace
from weakref import ref

import pytest

from lbg_runtime.broker.engine.effects import Published
from lbg_runtime.broker.engine.settings import AccessType
from lbg_runtime.model.errors import BrokerRefusal
from lbg_runtime.model.outcome import Outcome


class Content:
    """Something that a weak reference can watch."""


def test_a_browser_sees_everything_in_order_and_takes_nothing(stage):
    _, ann = stage.consumer("ann")
    stage.open(ann, window=1)
    stage.publish(3)
    browser = stage.bind(stage.client("bob"), browser=True).flow

    assert stage.numbers(stage.open(browser, window=2)) == [1, 2]
    assert stage.numbers(stage.open(browser, 3)) == [3]
    assert stage.numbers(stage.publish()) == [4]
    assert stage.queue.active_flow == ann
    assert (stage.queue.depth, stage.queue.unacked_count) == (4, 1)
    assert [flow.unacked_count for flow in stage.queue.flows] == [1, 0]


def test_a_browser_removes_what_it_settles_even_from_its_holder(make_stage):
    stage = make_stage(max_unacked_per_flow=1)
    _, ann = stage.open_consumer("ann")
    stage.publish(3)
    browser = stage.bind(stage.client("bob"), browser=True).flow
    shown = stage.ids(stage.open(browser))

    effects = stage.settle(browser, shown[0], shown[0])
    assert stage.numbers(effects) == [2], "the holder has room again"
    stage.settle(browser, shown[2], shown[2])
    assert stage.queue.depth == 1
    assert stage.numbers(stage.settle(ann, 0, 100)) == []
    assert stage.queue.spooled_bytes == 0


def test_a_browser_cannot_put_back_what_it_was_only_shown(stage):
    stage.open_consumer("ann")
    stage.publish(1)
    browser = stage.bind(stage.client("bob"), browser=True).flow
    (shown,) = stage.ids(stage.open(browser))

    assert stage.settle(browser, shown, shown, Outcome.FAILED) == []
    assert stage.queue.unacked_count == 1


def test_a_browser_leaves_without_a_trace(stage):
    stage.publish(2)
    bob = stage.client("bob")
    browser = stage.bind(bob, browser=True).flow
    stage.open(browser)

    assert stage.engine.unbind(browser) == []
    stage.bind(bob, browser=True)
    assert stage.engine.disconnect(bob) == []
    assert stage.queue.flows == ()


def test_a_browser_that_was_ended_with_its_queue_is_shown_nothing_more(stage):
    browser = stage.bind(stage.client("bob"), browser=True).flow
    stage.open(browser)
    shut = replace(stage.queue.settings, egress_enabled=False)

    (ended,) = stage.engine.administration.change_queue("default", stage.queue.name, shut)

    assert ended.flow == browser
    assert stage.publish() == []


def test_a_browser_skips_what_was_settled_before_it_came_there(stage):
    _, ann = stage.open_consumer("ann")
    browser = stage.bind(stage.client("bob"), browser=True).flow
    sent = stage.ids(stage.publish(5))
    stage.settle(ann, sent[1], sent[3])

    assert stage.numbers(stage.open(browser)) == [1, 5]


def test_settled_messages_leave_the_memory_of_a_browser_and_it_can_still_remove_the_rest(stage):
    _, ann = stage.consumer("ann")
    stage.open(ann, window=10_000)
    browser = stage.bind(stage.client("bob"), browser=True).flow
    shown = stage.ids(stage.open(browser, window=10_000))
    contents = []
    for number in range(1, 3001):
        content = Content()
        contents.append(ref(content))
        delivered = stage.deliveries(stage.engine.publish(stage.publisher, number, Published("orders/new", content, 1)))
        own = [each.delivery_id for each in delivered if each.flow == ann]
        shown += [each.delivery_id for each in delivered if each.flow == browser]
        if number > 1:
            stage.settle(ann, own[0], own[0])
    assert sum(each() is not None for each in contents) < 1500

    stage.settle(browser, shown[0], shown[0])

    assert stage.queue.depth == 0


def test_what_a_client_held_returns_though_it_browsed_too(stage):
    ann = stage.client("ann")
    stage.bind(ann, browser=True)
    flow = stage.bind(ann).flow
    stage.open(flow)
    stage.publish(2)
    stage.open_consumer("bob")

    assert stage.numbers(stage.engine.disconnect(ann)) == [1, 2]


def test_a_browser_removes_a_range_and_each_holder_of_a_shared_queue_has_room_again(make_stage):
    stage = make_stage(AccessType.NON_EXCLUSIVE, max_unacked_per_flow=1)
    flows = [stage.consumer(name)[1] for name in ("ann", "bob")]
    for flow in flows:
        stage.open(flow)
    assert stage.numbers(stage.publish(5)) == [1, 2]
    browser = stage.bind(stage.client("carl"), browser=True).flow
    shown = stage.ids(stage.open(browser))

    assert stage.numbers(stage.settle(browser, shown[0], shown[2])) == [4, 5]
    assert stage.queue.depth == 2


def test_a_browser_is_told_what_comes_again(stage):
    _, ann = stage.consumer("ann")
    stage.open(ann, window=1)
    stage.publish(2)
    stage.client("carl")
    bob = stage.client("bob")
    browser = stage.bind(bob, browser=True).flow
    assert bob != browser, "or one could be told for the other"

    shown = stage.deliveries(stage.open(browser))

    assert [(each.client, each.flow, each.redelivered) for each in shown] == [
        (bob, browser, True),
        (bob, browser, False),
    ]


def test_a_partitioned_queue_has_no_browsers(make_stage):
    stage = make_stage(AccessType.NON_EXCLUSIVE, partition_count=2)
    with pytest.raises(BrokerRefusal, match="403 Browsing Not Supported on Partitioned Queue"):
        stage.bind(stage.client("ann"), browser=True)
    assert stage.queue.flows == ()
