from lbg_runtime.broker.engine.effects import ActivityChanged, Deliver
from lbg_runtime.broker.engine.engine import AccessType
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
    client, flow = stage.consumer("ann")
    stage.open(flow)

    first, second = stage.publish(2)

    assert isinstance(first, Deliver)
    assert isinstance(second, Deliver)
    assert (first.client, first.flow, first.previous_id) == (client, flow, 0)
    assert second.previous_id == first.delivery_id < second.delivery_id


def test_window_counts_from_the_last_transport_acknowledgement_not_from_settlements(stage):
    _, flow = stage.consumer("ann")
    sent = stage.ids(stage.open(flow, window=2) + stage.publish(4))

    assert len(sent) == 2
    assert stage.settle(flow, 0, sent[-1]) == []
    assert stage.numbers(stage.open(flow, received_up_to=sent[0], window=2)) == [3]


def test_closing_the_window_stops_delivery_and_opening_it_goes_on(stage):
    _, flow = stage.consumer("ann")
    stage.open(flow)
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


def test_failed_comes_again_flagged_in_its_old_place_under_a_new_id(stage):
    _, flow = stage.consumer("ann")
    sent = stage.ids(stage.open(flow, window=3) + stage.publish(5))

    assert stage.settle(flow, sent[1], sent[1], Outcome.FAILED) == []
    effects = stage.open(flow, sent[-1], window=3)

    assert stage.numbers(effects) == [2, 4, 5]
    assert stage.flags(effects) == [True, False, False]
    assert stage.ids(effects)[0] > sent[-1]


def test_rejected_is_removed_and_counted(stage):
    _, flow = stage.consumer("ann")
    stage.open(flow)
    (sent,) = stage.ids(stage.publish())

    stage.settle(flow, sent, sent, Outcome.REJECTED)

    assert (stage.queue.depth, stage.queue.rejected_count) == (0, 1)


def test_a_range_settles_only_what_was_delivered_on_that_flow(ring):
    flows = [ring.consumer(name)[1] for name in ("ann", "bob")]
    for flow in flows:
        ring.open(flow)
    ring.publish(6)

    ring.settle(flows[0], 0, (1 << 64) - 1)

    assert [flow.unacked_count for flow in ring.queue.flows] == [0, 3]
    assert ring.queue.depth == 3


def test_settling_twice_counts_once(stage):
    _, flow = stage.consumer("ann")
    stage.open(flow)
    (first, _) = stage.ids(stage.publish(2))
    stage.settle(flow, first, first)
    stage.settle(flow, 0, first, Outcome.REJECTED)

    assert (stage.queue.depth, stage.queue.rejected_count) == (1, 0)


def test_non_exclusive_queue_feeds_all_flows_in_turn_and_skips_those_without_room(ring):
    (_, ann), (_, bob), (_, cat) = (ring.consumer(name) for name in ("ann", "bob", "cat"))
    ring.open(ann)
    ring.open(bob, window=1)
    ring.open(cat)

    effects = ring.publish(7)

    flows = [effect.flow for effect in effects if isinstance(effect, Deliver)]
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


# -- binding a handle again (the numbers below are delivery ids as well as message numbers)


def lost_after_five(stage):
    """A client that got messages 1 to 5 under ids 1 to 5, and whose connection broke."""
    ann, flow = stage.consumer("ann")
    stage.open(flow)
    assert stage.ids(stage.publish(5)) == [1, 2, 3, 4, 5]
    return ann


def test_a_handle_bound_again_settles_by_old_ids_what_it_holds_and_is_not_sent_it_again(stage):
    stage.engine.disconnect(lost_after_five(stage))
    flow = stage.bind(stage.client("ann"), last_received_id=5).flow

    assert stage.open(flow, 5) == []
    assert stage.queue.unacked_count == 5
    stage.settle(flow, 0, 3)
    assert stage.queue.depth == 2


def test_what_was_on_the_way_when_the_connection_broke_comes_again_above_the_last_received_id(stage):
    stage.engine.disconnect(lost_after_five(stage))
    flow = stage.bind(stage.client("ann"), last_received_id=3).flow

    effects = stage.open(flow, 3)

    assert stage.numbers(effects) == [4, 5]
    assert stage.flags(effects) == [True, True]
    assert stage.ids(effects) == [6, 7]
    stage.settle(flow, 0, 5)
    assert stage.queue.depth == 2, "ids 4 and 5 never reached the client, so a range over them settles nothing"


def test_a_standby_settles_what_still_waits_and_nothing_that_went_to_someone_else(stage):
    ann = lost_after_five(stage)
    _, bob = stage.consumer("bob")
    stage.open(bob, window=2)
    assert stage.numbers(stage.engine.disconnect(ann)) == [1, 2]
    flow = stage.bind(stage.client("ann"), last_received_id=5).flow

    stage.settle(flow, 1, 3)

    assert stage.queue.depth == 4
    assert stage.numbers(stage.open(bob, 7)) == [4, 5]


def test_what_another_member_had_meanwhile_comes_back_under_new_ids_and_old_ones_settle_nothing(stage):
    ann = lost_after_five(stage)
    _, bob = stage.consumer("bob")
    stage.open(bob)
    assert stage.ids(stage.engine.disconnect(ann)) == [6, 7, 8, 9, 10]
    ann = stage.client("ann")
    flow = stage.bind(ann, last_received_id=5).flow
    stage.open(flow, 5)
    stage.settle(flow, 3, 3)
    stage.settle(bob, 6, 7)

    effects = stage.engine.unbind(bob)

    assert effects[0] == ActivityChanged(ann, flow, active=True)
    assert stage.numbers(effects) == [3, 4, 5], "3 was settled while it counted for nothing: it must not get stuck"
    assert stage.flags(effects) == [True] * 3
    stage.settle(flow, 0, 5)
    assert stage.queue.depth == 3
    stage.settle(flow, 11, 13)
    assert stage.queue.depth == 0


def test_what_nobody_else_had_stays_with_a_standby_that_becomes_active(stage):
    ann = lost_after_five(stage)
    _, bob = stage.consumer("bob")
    stage.open(bob, window=2)
    stage.engine.disconnect(ann)
    flow = stage.bind(stage.client("ann"), last_received_id=5).flow
    stage.open(flow, 5)

    effects = stage.engine.unbind(bob)

    assert stage.numbers(effects) == [1, 2]
    assert stage.queue.unacked_count == 5
    stage.settle(flow, 3, 5)
    assert stage.queue.depth == 2


def test_a_standby_whose_connection_breaks_again_still_holds_what_it_held(stage):
    stage.consumer("bob")
    bob = stage.queue.active_flow
    _, ann = stage.consumer("ann")
    stage.open(ann)
    stage.publish(3)
    stage.engine.unbind(bob)
    _, bob = stage.consumer("bob")
    for _ in range(3):
        flow = stage.bind(stage.client("ann"), last_received_id=3).flow

    assert stage.engine.unbind(bob) == [ActivityChanged(stage.queue.flows[0].client, flow, active=True)]
    assert stage.open(flow, 3) == []
    stage.settle(flow, 0, 3)
    assert stage.queue.depth == 0


def test_what_was_taken_over_is_remembered_through_the_next_break_and_ends_with_the_next_delivery(stage):
    stage.engine.disconnect(lost_after_five(stage))
    ann = stage.client("ann")
    stage.bind(ann, last_received_id=5)
    stage.engine.disconnect(ann)
    _, bob = stage.consumer("bob")
    stage.open(bob, window=1)
    flow = stage.bind(stage.client("ann"), last_received_id=5).flow

    stage.settle(flow, 0, 5)

    assert stage.queue.depth == 1


def test_a_new_handle_of_the_client_ends_what_the_lost_one_held(stage):
    stage.engine.disconnect(lost_after_five(stage))
    ann = stage.client("ann")
    new = stage.bind(ann).flow
    again = stage.bind(ann, last_received_id=5).flow

    stage.settle(again, 0, 5)

    assert stage.queue.depth == 5
    assert stage.numbers(stage.open(new)) == [1, 2, 3, 4, 5]


def test_two_handles_of_one_client_do_not_settle_for_each_other(ring):
    ann = ring.client("ann")
    flows = [ring.bind(ann).flow for _ in range(2)]
    for flow in flows:
        ring.open(flow)
    ring.publish(4)
    ring.engine.disconnect(ann)
    ann = ring.client("ann")

    first = ring.bind(ann, last_received_id=3).flow
    second = ring.bind(ann, last_received_id=2).flow
    ring.settle(first, 0, 3)

    assert ring.queue.depth == 2
    effects = ring.open(second, 2)
    assert ring.numbers(effects) == [4], "it was on its way and lost"
    ring.settle(second, 0, 2)
    assert ring.queue.depth == 1


def test_an_unknown_last_received_id_brings_everything_anew_above_it(stage):
    stage.engine.disconnect(lost_after_five(stage))
    flow = stage.bind(stage.client("ann"), last_received_id=1000).flow

    assert stage.ids(stage.open(flow, 1000)) == [1001, 1002, 1003, 1004, 1005]


def test_a_handle_that_received_nothing_gets_everything(stage):
    stage.engine.disconnect(lost_after_five(stage))
    flow = stage.bind(stage.client("ann"), last_received_id=0).flow

    assert stage.numbers(stage.open(flow)) == [1, 2, 3, 4, 5]


def test_unbinding_forgets_what_the_handle_held(stage):
    _, flow = stage.consumer("ann")
    stage.open(flow)
    stage.publish(2)
    stage.engine.unbind(flow)
    again = stage.bind(stage.client("ann"), last_received_id=2).flow

    assert stage.numbers(stage.open(again, 2)) == [1, 2]


# -- browsers


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


def test_a_browser_removes_what_it_settles_even_from_its_holder(make_stage):
    stage = make_stage(max_unacked_per_flow=1)
    _, ann = stage.consumer("ann")
    stage.open(ann)
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
    _, ann = stage.consumer("ann")
    stage.open(ann)
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


def test_a_browser_skips_what_was_settled_before_it_came_there(stage):
    _, ann = stage.consumer("ann")
    stage.open(ann)
    browser = stage.bind(stage.client("bob"), browser=True).flow
    sent = stage.ids(stage.publish(5))
    stage.settle(ann, sent[1], sent[3])

    assert stage.numbers(stage.open(browser)) == [1, 5]


def test_settled_messages_leave_the_memory_of_a_browser_and_it_can_still_remove_the_rest(stage):
    _, ann = stage.consumer("ann")
    stage.open(ann, window=10_000)
    browser = stage.bind(stage.client("bob"), browser=True).flow
    shown = stage.ids(stage.open(browser, window=10_000))
    for _ in range(3000):
        effects = stage.publish()
        own = [e.delivery_id for e in effects if isinstance(e, Deliver) and e.flow == ann]
        shown += [e.delivery_id for e in effects if isinstance(e, Deliver) and e.flow == browser]
        if stage.published > 1:
            stage.settle(ann, own[0], own[0])

    stage.settle(browser, shown[0], shown[0])

    assert stage.queue.depth == 0


def test_round_robin_queue_says_who_is_bound(make_stage):
    stage = make_stage(AccessType.NON_EXCLUSIVE)
    client, flow = stage.consumer("ann")

    (status,) = stage.queue.flows
    assert (status.client, status.flow, status.client_name, status.active) == (client, flow, "ann", True)
