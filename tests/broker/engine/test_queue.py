from dataclasses import replace

from lbg_runtime.broker.engine.answers import Death, DeathCounts
from lbg_runtime.broker.engine.effects import ActivityChanged
from lbg_runtime.broker.engine.settings import AccessType
from lbg_runtime.model.outcome import Outcome


def test_first_flow_of_an_exclusive_queue_is_active_and_the_second_is_not(stage):
    ann, bob = stage.client("ann"), stage.client("bob")

    assert stage.bind(ann).active
    assert not stage.bind(bob).active


def test_nothing_is_delivered_before_the_window_is_open(stage):
    _, flow = stage.consumer("ann")

    assert stage.publish(2) == []
    assert stage.numbers(stage.open(flow)) == [1, 2]


def test_delivery_names_the_one_before_it_on_the_flow(stage):
    client, flow = stage.open_consumer("ann")

    first, second = stage.deliveries(stage.publish(2))

    assert (first.client, first.flow, first.previous_id) == (client, flow, 0)
    assert second.previous_id == first.delivery_id < second.delivery_id


def test_what_is_sent_together_keeps_its_order_and_each_message_its_own_flag(stage):
    ann, flow = stage.consumer("ann")
    stage.publish(5)
    shown = stage.ids(stage.open(flow, window=3))
    stage.settle(flow, shown[1], shown[1])
    stage.engine.unbind(flow)
    again = stage.bind(ann).flow

    effects = stage.open(again)

    assert [len(effect.messages) for effect in effects] == [2, 2]
    delivered = stage.deliveries(effects)
    assert [each.message.content for each in delivered] == [1, 3, 4, 5]
    assert [each.redelivered for each in delivered] == [True, True, False, False]
    ids = [each.delivery_id for each in delivered]
    assert ids == list(range(ids[0], ids[0] + 4))
    assert [each.previous_id for each in delivered] == [0, *ids[:3]]
    assert stage.queue.redelivered_count == 2


def test_window_counts_from_the_last_transport_acknowledgement_not_from_settlements(stage):
    _, flow = stage.consumer("ann")
    sent = stage.ids(stage.open(flow, window=2) + stage.publish(4))

    assert len(sent) == 2
    assert stage.settle(flow, 0, sent[-1]) == []
    assert stage.numbers(stage.open(flow, received_up_to=sent[0], window=2)) == [3]


def test_closing_the_window_stops_delivery_and_opening_it_goes_on(stage):
    _, flow = stage.open_consumer("ann")
    (sent,) = stage.ids(stage.publish())
    stage.open(flow, sent, window=0)

    assert stage.publish(2) == []
    assert stage.numbers(stage.open(flow, sent)) == [2, 3]


def test_unacknowledged_limit_stops_delivery_until_something_is_settled(make_stage):
    stage = make_stage(max_unacked_per_flow=2)
    _, flow = stage.consumer("ann")
    sent = stage.ids(stage.open(flow) + stage.publish(4))

    assert len(sent) == 2
    assert stage.numbers(stage.settle(flow, sent[0], sent[0])) == [3]


def test_next_in_line_is_told_before_it_gets_the_messages_back_flagged_and_in_order(stage):
    _, ann = stage.consumer("ann")
    bob_client, bob = stage.consumer("bob")
    stage.open(ann)
    stage.open(bob)
    sent = stage.ids(stage.publish(5))
    stage.settle(ann, sent[1], sent[1])

    effects = stage.engine.unbind(ann)

    assert effects[0] == ActivityChanged(bob_client, bob, active=True)
    assert stage.numbers(effects[1:]) == [1, 3, 4, 5]
    assert all(stage.flags(effects))
    assert min(stage.ids(effects)) > max(sent)


def test_a_flow_can_become_active_with_its_window_closed(stage):
    _, ann = stage.consumer("ann")
    bob_client, bob = stage.consumer("bob")
    stage.publish(2)

    assert stage.engine.unbind(ann) == [ActivityChanged(bob_client, bob, active=True)]
    assert stage.flags(stage.open(bob)) == [False, False]


def test_bind_line_keeps_its_order(stage):
    flows = [stage.consumer(name)[1] for name in ("ann", "bob", "cat", "dan")]
    stage.engine.unbind(flows[1])
    stage.engine.unbind(flows[0])

    assert stage.queue.active_flow == flows[2]
    assert [flow.client_name for flow in stage.queue.flows] == ["cat", "dan"]


def test_a_client_that_goes_with_two_flows_is_not_elected_once_more(stage):
    ann = stage.client("ann")
    stage.bind(ann)
    stage.bind(ann)
    bob_client, bob = stage.consumer("bob")

    assert stage.engine.disconnect(ann) == [ActivityChanged(bob_client, bob, active=True)]


def test_the_one_between_two_flows_of_a_client_that_goes_is_elected(stage):
    ann = stage.client("ann")
    stage.bind(ann)
    bob_client, bob = stage.consumer("bob")
    stage.bind(ann)

    assert stage.engine.disconnect(ann) == [ActivityChanged(bob_client, bob, active=True)]


def test_nobody_is_elected_when_a_standby_is_lost(stage):
    stage.consumer("ann")
    bob, _ = stage.consumer("bob")

    assert stage.engine.disconnect(bob) == []


def test_a_flow_at_its_unacknowledged_limit_gets_its_turn_again_when_it_settles(make_stage):
    stage = make_stage(AccessType.NON_EXCLUSIVE, max_unacked_per_flow=1)
    flow = stage.consumer("ann")[1]
    stage.open(flow)
    (sent,) = stage.ids(stage.publish(2))

    assert stage.numbers(stage.settle(flow, sent, sent)) == [2]


def test_failed_comes_again_flagged_in_its_old_place_under_a_new_id(stage):
    _, flow = stage.consumer("ann")
    sent = stage.ids(stage.open(flow, window=3) + stage.publish(5))

    assert stage.settle(flow, sent[1], sent[1], Outcome.FAILED) == []
    effects = stage.open(flow, sent[-1], window=3)

    assert stage.numbers(effects) == [2, 4, 5]
    assert stage.flags(effects) == [True, False, False]
    assert stage.ids(effects)[0] > sent[-1]


def test_rejected_is_removed_and_counted(stage):
    _, flow = stage.open_consumer("ann")
    (sent,) = stage.ids(stage.publish())

    stage.settle(flow, sent, sent, Outcome.REJECTED)

    assert (stage.queue.depth, stage.queue.deaths.discarded[Death.REJECTED]) == (0, 1)


def test_a_range_settles_only_what_was_delivered_on_that_flow(ring):
    flows = [ring.consumer(name)[1] for name in ("ann", "bob")]
    for flow in flows:
        ring.open(flow)
    ring.publish(6)

    ring.settle(flows[0], 0, (1 << 64) - 1)

    assert [flow.unacked_count for flow in ring.queue.flows] == [0, 3]
    assert ring.queue.depth == 3


def test_settling_twice_counts_once(stage):
    _, flow = stage.open_consumer("ann")
    (first, _) = stage.ids(stage.publish(2))
    stage.settle(flow, first, first)
    stage.settle(flow, 0, first, Outcome.REJECTED)

    assert (stage.queue.depth, stage.queue.deaths) == (1, DeathCounts())


def test_non_exclusive_queue_feeds_all_flows_in_turn_and_skips_those_without_room(ring):
    (_, ann), (_, bob), (_, cat) = (ring.consumer(name) for name in ("ann", "bob", "cat"))
    ring.open(ann)
    ring.open(bob, window=1)
    ring.open(cat)

    effects = ring.publish(7)

    flows = [each.flow for each in ring.deliveries(effects)]
    assert flows == [ann, bob, cat, ann, cat, ann, cat]
    assert all(flow.active for flow in ring.queue.flows)
    assert ring.queue.active_flow is None


def test_messages_of_a_gone_flow_reach_a_living_one_under_new_ids(ring):
    (_, ann), (_, bob) = (ring.consumer(name) for name in ("ann", "bob"))
    ring.open(ann)
    ring.open(bob)
    sent = ring.ids(ring.publish(4))

    effects = ring.engine.unbind(ann)

    assert ring.numbers(effects) == [1, 3]
    assert ring.flags(effects) == [True, True]
    assert ring.ids(effects)[0] > sent[-1]


def test_what_a_flow_leaves_behind_goes_to_the_others_in_turn(ring):
    (_, ann), (_, bob), (_, cat) = (ring.consumer(name) for name in ("ann", "bob", "cat"))
    ring.open(ann)
    ring.publish(4)
    ring.open(bob)
    ring.open(cat)

    assert [each.flow for each in ring.deliveries(ring.engine.unbind(ann))] == [bob, cat, bob, cat]


def test_round_robin_queue_says_who_is_bound(make_stage):
    stage = make_stage(AccessType.NON_EXCLUSIVE)
    _, flow = stage.consumer("ann")

    (status,) = stage.queue.flows
    assert (status.flow, status.client_name, status.active) == (flow, "ann", True)


def test_flows_of_a_shared_queue_are_fed_again_once_they_may_hold_more(make_stage):
    stage = make_stage(AccessType.NON_EXCLUSIVE, max_unacked_per_flow=1)
    for name in ("ann", "bob"):
        stage.open(stage.consumer(name)[1])
    assert stage.numbers(stage.publish(5)) == [1, 2]

    settings = replace(stage.queue.settings, max_unacked_per_flow=2)

    effects = stage.engine.administration.change_queue("default", stage.queue.name, settings)
    assert stage.numbers(effects) == [3, 4]


def test_a_flow_says_how_many_of_its_messages_came_again(stage):
    ann, flow = stage.open_consumer("ann")
    stage.publish(3)
    stage.settle(flow, 1, 1)
    stage.engine.unbind(flow)
    again = stage.bind(ann).flow
    stage.open(again)
    assert [each.redelivered_count for each in stage.queue.flows] == [2]
    stage.publish(1)
    stage.settle(again, 0, 100, Outcome.FAILED)
    assert ([each.redelivered_count for each in stage.queue.flows], stage.queue.redelivered_count) == ([5], 5)
