"""Flows with selectors: the content of a message is its mapping of fields."""

import pytest

from lbg_runtime.broker.engine.engine import Engine
from lbg_runtime.broker.engine.settings import AccessType, QueueSettings
from lbg_runtime.broker.engine.spool import Spool
from lbg_runtime.model.errors import BrokerRefusal
from lbg_runtime.model.outcome import Outcome
from tests.broker.engine.conftest import QUEUE, Stage


class PickyStage(Stage):
    def __init__(self, access_type: AccessType = AccessType.NON_EXCLUSIVE, **settings: object) -> None:
        super().__init__()
        self.engine = Engine()
        self.engine.surroundings.fields_of = lambda message: {"n": message.content}
        self.engine.create_queue("default", QUEUE, QueueSettings(access_type, **settings))
        self.engine.add_queue_subscription("default", QUEUE, "orders/>")
        self.publisher_client, _ = self.engine.connect("default", "user", "", "publisher")
        self.publisher = self.engine.open_publisher(self.publisher_client, "").flow

    def picky(self, name: str, selector: str, browser: bool = False) -> int:
        return self.engine.bind(self.client(name), QUEUE, selector=selector, browser=browser)[0].flow


def test_each_flow_gets_what_it_wants_in_order():
    stage = PickyStage()
    stage.publish(6)
    low, high = stage.picky("ann", "n <= 3"), stage.picky("bob", "n >= 3")
    assert stage.numbers(stage.open(high)) == [3, 4, 5, 6]
    assert stage.numbers(stage.open(low)) == [1, 2]


def test_what_nobody_wants_stays_until_somebody_does():
    stage = PickyStage()
    flow = stage.picky("ann", "n > 2")
    stage.open(flow)
    assert stage.numbers(stage.publish(4)) == [3, 4]
    assert stage.queue.depth == 4
    _, everything = stage.consumer("bob")
    assert stage.numbers(stage.open(everything)) == [1, 2]


def test_what_comes_back_is_looked_at_again_by_all():
    stage = PickyStage()
    stage.publish(3)
    ann, bob = stage.picky("ann", "n < 3"), stage.picky("bob", "n = 1 OR n = 3")
    assert stage.numbers(stage.open(ann)) == [1, 2]
    assert stage.numbers(stage.open(bob)) == [3]
    stage.open(ann, 2, 0)
    assert stage.numbers(stage.settle(ann, 1, 1, Outcome.FAILED)) == [1]
    assert stage.flags(stage.engine.unbind(bob)) == []
    assert stage.numbers(stage.open(ann, 2, 255)) == [1]


def test_the_first_flow_of_an_exclusive_queue_keeps_its_place_whatever_it_wants():
    stage = PickyStage(AccessType.EXCLUSIVE)
    first, second = stage.picky("ann", "n = 2"), stage.picky("bob", "n = 1")
    stage.open(first)
    stage.open(second)
    assert stage.numbers(stage.publish(2)) == [2]
    assert stage.numbers(stage.engine.unbind(first)) == [1]


def test_flows_that_want_the_same_take_turns():
    stage = PickyStage()
    flows = [stage.picky(name, "n > 0") for name in ("ann", "bob")]
    for flow in flows:
        stage.open(flow)
    assert [effect.flow for effect in stage.publish(4)] == flows * 2


def test_a_window_bounds_a_selective_flow_too():
    stage = PickyStage()
    flow = stage.picky("ann", "n <> 2")
    stage.open(flow, 0, 2)
    assert stage.numbers(stage.publish(5)) == [1, 3]
    assert stage.numbers(stage.open(flow, 2, 2)) == [4, 5]


def test_a_browser_is_shown_what_it_wants():
    stage = PickyStage()
    stage.publish(4)
    browser = stage.picky("ann", "n IN ('x') OR n > 2", browser=True)
    assert stage.numbers(stage.open(browser)) == [3, 4]
    assert stage.numbers(stage.publish(1)) == [5]


def test_a_bad_selector_and_one_on_a_partitioned_queue_are_refused():
    with pytest.raises(BrokerRefusal, match="400 Invalid Selector"):
        PickyStage().picky("ann", "n =")
    with pytest.raises(BrokerRefusal, match="403 Selectors Not Supported on Partitioned Queue"):
        PickyStage(partition_count=2).picky("ann", "n = 1")


def test_the_first_place_of_a_queue_is_not_looked_for_with_each_message(monkeypatch):
    # It is found behind all that are gone, so each message would cost more than the one before.
    looks = []
    found = Spool.first_sequence.fget
    monkeypatch.setattr(Spool, "first_sequence", property(lambda spool: looks.append(spool) or found(spool)))
    stage = PickyStage()
    stage.publish(40)
    flow = stage.picky("ann", "n > 0")
    sent = stage.ids(stage.open(flow, window=1))
    while len(sent) < 40:
        stage.settle(flow, sent[-1], sent[-1])
        sent += stage.ids(stage.open(flow, sent[-1], window=1))
    assert len(looks) == 1


def test_after_a_failure_only_what_stands_behind_it_is_looked_at_again():
    # Each look reads a message's properties; what a flow does not want stays, so that there may be very many.
    stage = PickyStage()
    looks = []
    stage.engine.surroundings.fields_of = lambda message: looks.append(message.content) or {"n": message.content}
    stage.publish(40)
    flow = stage.picky("ann", "n > 30")
    sent = stage.ids(stage.open(flow))
    stage.settle(flow, sent[4], sent[4])
    looks.clear()
    assert stage.numbers(stage.settle(flow, sent[5], sent[5], Outcome.FAILED)) == [36]
    assert looks == [36]


def test_what_came_back_while_nobody_chose_is_not_passed_over_when_somebody_does():
    stage = PickyStage()
    picky = stage.picky("ann", "n > 3")
    _, everything = stage.open_consumer("bob")
    sent = stage.ids(stage.publish(3))
    stage.engine.unbind(picky)
    stage.open(everything, sent[-1], 0)
    stage.settle(everything, sent[0], sent[0], Outcome.FAILED)
    stage.open(stage.picky("cid", "n > 3"))
    assert stage.numbers(stage.open(everything, sent[-1])) == [1]
