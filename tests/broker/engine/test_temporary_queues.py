"""Whom a temporary queue serves, and how long it lasts."""

import pytest

from lbg_runtime.broker.engine.effects import Effect
from lbg_runtime.broker.engine.settings import QueueSettings
from lbg_runtime.model.errors import BrokerRefusal
from lbg_runtime.model.ids import DeliveryId, QueueName
from tests.broker.deadlines import call_due
from tests.broker.engine.conftest import QUEUE, Stage

TEMPORARY = QueueName("#P2P/QTMP/v:broker/1")


class _Minute:
    """A broker whose time passes by hand."""

    def __init__(self, stage: Stage) -> None:
        self.now_ms = 5
        self._timetable = stage.engine.surroundings.timetable
        self._timetable.now = lambda: self.now_ms

    def pass_by(self, ms: int = 60_000) -> list[Effect]:
        self.now_ms += ms
        return call_due(self._timetable)


def test_a_temporary_queue_is_made_by_its_bind_serves_its_owner_only_and_goes_with_its_last_flow(stage):
    ann, bob = stage.client("ann"), stage.client("bob")
    bound, _ = stage.engine.bind(ann, TEMPORARY, create_temporary=True)
    stage.engine.subscribe_queue(ann, TEMPORARY, "replies")
    stage.open(bound.flow)

    assert stage.numbers(stage.publish(topic="replies")) == [1]
    for call in (
        lambda: stage.engine.bind(bob, TEMPORARY),
        lambda: stage.engine.bind(bob, TEMPORARY, create_temporary=True),
        lambda: stage.engine.subscribe_queue(bob, TEMPORARY, "replies"),
    ):
        with pytest.raises(BrokerRefusal, match="403 Permission Not Allowed"):
            call()
    browser, _ = stage.engine.bind(ann, TEMPORARY, browser=True)
    stage.engine.unbind(bound.flow)
    assert TEMPORARY in stage.engine.queue_names("default")
    stage.engine.unbind(browser.flow)
    assert stage.engine.queue_names("default") == (QUEUE,)
    assert stage.publish(topic="replies") == []


def test_a_temporary_queue_waits_a_minute_for_a_client_whose_connection_broke(stage):
    minute, ann = _Minute(stage), stage.client("ann")
    stage.open(stage.engine.bind(ann, TEMPORARY, create_temporary=True)[0].flow)
    stage.engine.subscribe_queue(ann, TEMPORARY, "replies")
    assert stage.ids(stage.publish(topic="replies")) == [1]

    assert stage.engine.disconnect(ann) == []
    assert stage.publish(topic="replies") == []
    with pytest.raises(BrokerRefusal, match="403 Permission Not Allowed"):
        stage.engine.bind(stage.client("bob"), TEMPORARY, create_temporary=True)
    assert minute.pass_by(59_999) == []
    again = stage.client("ann")
    flow = stage.engine.bind(again, TEMPORARY, create_temporary=True, last_received_id=DeliveryId(1))[0].flow
    # The first one is held by the client still.
    assert stage.numbers(stage.open(flow, received_up_to=1)) == [2]
    minute.pass_by()
    assert stage.numbers(stage.publish(topic="replies")) == [3]


def test_a_temporary_queue_whose_client_does_not_come_back_is_gone_after_a_minute(stage):
    minute = _Minute(stage)
    for name in ("ann", "bob"):
        client = stage.client(name)
        stage.engine.bind(client, QueueName(f"{TEMPORARY}/{name}"), create_temporary=True)
        stage.engine.disconnect(client)
        minute.pass_by(10_000)

    minute.pass_by(39_999)
    assert len(stage.engine.queue_names("default")) == 3
    minute.pass_by(1)
    assert stage.engine.queue_names("default") == (QUEUE, f"{TEMPORARY}/bob")
    minute.pass_by(10_000)
    assert stage.engine.queue_names("default") == (QUEUE,)
    assert stage.engine.surroundings.timetable.next_ms is None


def test_a_temporary_queue_is_not_given_to_another_user_of_its_clients_name(stage):
    minute, ann = _Minute(stage), stage.client("ann")
    stage.engine.bind(ann, TEMPORARY, create_temporary=True)
    stage.engine.disconnect(ann)
    other, _ = stage.engine.connect("default", "other", "", "ann")
    with pytest.raises(BrokerRefusal, match="403 Permission Not Allowed"):
        stage.engine.bind(other, TEMPORARY, create_temporary=True)
    minute.pass_by()
    stage.engine.bind(other, TEMPORARY, create_temporary=True)


def test_who_takes_the_name_of_a_client_that_is_away_has_its_temporary_queues(stage):
    """They stayed for good where it left some itself: nobody could bind them, and no time deleted them."""
    minute, ann, bob = _Minute(stage), stage.client("ann"), stage.client("bob")
    other = QueueName(f"{TEMPORARY}/bob")
    stage.engine.bind(ann, TEMPORARY, create_temporary=True)
    stage.engine.bind(bob, other, create_temporary=True)
    stage.engine.disconnect(ann)
    stage.engine.rename(bob, "ann")
    stage.engine.bind(bob, TEMPORARY, create_temporary=True)
    stage.engine.disconnect(bob)
    minute.pass_by()
    assert stage.engine.queue_names("default") == (QUEUE,)


def test_a_temporary_queue_that_was_deleted_while_its_client_was_away_is_not_deleted_again(stage):
    minute, ann = _Minute(stage), stage.client("ann")
    stage.engine.bind(ann, TEMPORARY, create_temporary=True)
    stage.engine.disconnect(ann)
    stage.engine.delete_queue("default", TEMPORARY)
    stage.engine.create_queue("default", TEMPORARY, QueueSettings())
    minute.pass_by()
    assert TEMPORARY in stage.engine.queue_names("default")


def test_a_bind_with_a_selector_that_cannot_be_read_makes_no_temporary_queue(stage):
    with pytest.raises(BrokerRefusal, match="400 Invalid Selector"):
        stage.engine.bind(stage.client("ann"), TEMPORARY, create_temporary=True, selector="n >")
    assert stage.engine.queue_names("default") == (QUEUE,)


def test_a_temporary_queue_cannot_have_the_name_of_a_durable_one(stage):
    with pytest.raises(BrokerRefusal, match="400 Invalid Queue or Topic Endpoint Durability"):
        stage.engine.bind(stage.client("ann"), QUEUE, create_temporary=True)


def test_a_client_that_provisions_a_non_durable_queue_takes_it_along(stage):
    minute, ann = _Minute(stage), stage.client("ann")
    stage.engine.provision(ann, TEMPORARY, QueueSettings(durable=False))
    stage.engine.disconnect(ann)
    minute.pass_by()

    assert stage.engine.queue_names("default") == (QUEUE,)
