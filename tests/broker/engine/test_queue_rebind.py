"""A handle bound again after a broken connection. Delivery ids are the message numbers, until something comes again."""

import pytest

from lbg_runtime.broker.engine.effects import ActivityChanged
from lbg_runtime.broker.engine.traits import Traits
from tests.broker.deadlines import call_due


def lost_after_five(stage):
    """A client that got messages 1 to 5 under ids 1 to 5, and whose connection broke."""
    ann, _ = stage.open_consumer("ann")
    assert stage.ids(stage.publish(5)) == [1, 2, 3, 4, 5]
    return ann


def test_a_handle_bound_again_settles_by_old_ids_what_it_holds_and_is_not_sent_it_again(stage):
    stage.engine.disconnect(lost_after_five(stage))
    flow = stage.bind(stage.client("ann"), last_received_id=5).flow

    assert stage.open(flow, 5) == []
    assert stage.queue.unacked_count == 5
    stage.settle(flow, 0, 3)
    assert stage.queue.depth == 2


@pytest.mark.parametrize("is_standby", [False, True])
def test_a_client_with_another_name_comes_back_under_that_one(stage, is_standby):
    ann = lost_after_five(stage)
    if is_standby:
        # Its handle was bound again, and has not been fed since.
        stage.consumer("bob")
        stage.engine.disconnect(ann)
        ann = stage.client("ann")
        stage.bind(ann, last_received_id=5)
    stage.engine.rename(ann, "anna")
    stage.engine.disconnect(ann)
    flow = stage.bind(stage.client("anna"), last_received_id=5).flow

    assert stage.open(flow, 5) == []
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


def test_a_standby_settles_what_it_holds_while_nobody_else_got_any_of_it(stage):
    ann = lost_after_five(stage)
    _, bob = stage.consumer("bob")
    stage.engine.disconnect(ann)
    flow = stage.bind(stage.client("ann"), last_received_id=5).flow

    stage.settle(flow, 1, 1)
    stage.settle(flow, 2, 3)

    assert stage.queue.depth == 2
    assert stage.numbers(stage.open(bob)) == [4, 5]


def test_what_another_member_had_meanwhile_comes_back_under_new_ids_and_old_ones_settle_nothing(stage):
    ann = lost_after_five(stage)
    _, bob = stage.open_consumer("bob")
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


def test_one_message_given_to_someone_else_ends_the_claim_on_all_of_a_lost_handle(stage):
    ann = lost_after_five(stage)
    _, bob = stage.consumer("bob")
    stage.open(bob, window=2)
    stage.engine.disconnect(ann)
    flow = stage.bind(stage.client("ann"), last_received_id=5).flow
    stage.open(flow, 5)
    stage.settle(flow, 3, 5)
    assert stage.queue.depth == 5, "1 and 2 are with bob: were 3 to 5 gone, what is settled would be no prefix"

    effects = stage.engine.unbind(bob)

    assert stage.numbers(effects) == [1, 2, 3, 4, 5]
    assert stage.flags(effects) == [True] * 5


def test_a_standby_that_lost_its_claim_gets_everything_again_when_it_is_fed(stage):
    ann = lost_after_five(stage)
    _, bob = stage.consumer("bob")
    stage.engine.disconnect(ann)
    flow = stage.bind(stage.client("ann"), last_received_id=5).flow
    stage.open(flow, 5)
    assert stage.numbers(stage.open(bob, window=1)) == [1]

    assert stage.numbers(stage.engine.unbind(bob)) == [1, 2, 3, 4, 5]


def test_a_standby_whose_connection_breaks_again_still_holds_what_it_held(stage):
    stage.consumer("bob")
    bob = stage.queue.active_flow
    stage.open_consumer("ann")
    stage.publish(3)
    stage.engine.unbind(bob)
    _, bob = stage.consumer("bob")
    for _ in range(3):
        client = stage.client("ann")
        flow = stage.bind(client, last_received_id=3).flow

    assert stage.engine.unbind(bob) == [ActivityChanged(client, flow, active=True)]
    assert stage.open(flow, 3) == []
    stage.settle(flow, 0, 3)
    assert stage.queue.depth == 0


def test_what_was_taken_over_is_remembered_through_the_next_break(stage):
    stage.engine.disconnect(lost_after_five(stage))
    ann = stage.client("ann")
    stage.bind(ann, last_received_id=5)
    stage.engine.disconnect(ann)
    stage.consumer("bob")
    flow = stage.bind(stage.client("ann"), last_received_id=5).flow

    stage.settle(flow, 0, 5)

    assert stage.queue.depth == 0


def test_what_was_taken_over_is_claimed_no_more_when_one_message_of_it_went_to_someone_else(stage):
    stage.engine.disconnect(lost_after_five(stage))
    ann = stage.client("ann")
    stage.bind(ann, last_received_id=5)
    _, bob = stage.consumer("bob")
    stage.open(bob, window=1)
    stage.engine.disconnect(ann)
    flow = stage.bind(stage.client("ann"), last_received_id=5).flow

    stage.settle(flow, 2, 5)

    assert stage.queue.depth == 5


def test_the_last_id_of_a_client_gives_another_client_no_claim_to_what_it_holds(stage):
    stage.engine.disconnect(lost_after_five(stage))
    flow = stage.bind(stage.client("bob"), last_received_id=5).flow

    assert stage.numbers(stage.open(flow, 5)) == [1, 2, 3, 4, 5]


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


def test_a_standby_keeps_what_it_holds_when_its_client_binds_one_more_handle(stage):
    ann = lost_after_five(stage)
    stage.consumer("bob")
    stage.engine.disconnect(ann)
    ann = stage.client("ann")
    standby = stage.bind(ann, last_received_id=5).flow
    stage.bind(ann)

    stage.settle(standby, 0, 5)

    assert stage.queue.depth == 0


def test_what_a_lost_handle_held_goes_to_the_first_that_is_bound_again(stage):
    ann = lost_after_five(stage)
    stage.consumer("bob")
    stage.engine.disconnect(ann)
    ann = stage.client("ann")
    first, second = (stage.bind(ann, last_received_id=5).flow for _ in range(2))

    stage.settle(second, 0, 5)
    assert stage.queue.depth == 5
    stage.settle(first, 0, 5)
    assert stage.queue.depth == 0


def test_a_handle_that_received_nothing_does_not_touch_what_another_of_the_client_holds(stage):
    ann = lost_after_five(stage)
    stage.bind(ann)
    stage.engine.disconnect(ann)
    ann = stage.client("ann")
    stage.consumer("bob")
    stage.bind(ann, last_received_id=0)
    other = stage.bind(ann, last_received_id=5).flow

    stage.settle(other, 0, 5)

    assert stage.queue.depth == 0


def test_an_unknown_last_received_id_brings_everything_anew_above_it(stage):
    stage.engine.disconnect(lost_after_five(stage))
    flow = stage.bind(stage.client("ann"), last_received_id=1000).flow

    assert stage.ids(stage.open(flow, 1000)) == [1001, 1002, 1003, 1004, 1005]


def test_a_handle_that_received_nothing_gets_everything(stage):
    stage.engine.disconnect(lost_after_five(stage))
    flow = stage.bind(stage.client("ann"), last_received_id=0).flow

    assert stage.numbers(stage.open(flow)) == [1, 2, 3, 4, 5]


def test_unbinding_forgets_what_the_handle_held(stage):
    _, flow = stage.open_consumer("ann")
    stage.publish(2)
    stage.engine.unbind(flow)
    again = stage.bind(stage.client("ann"), last_received_id=2).flow

    assert stage.numbers(stage.open(again, 2)) == [1, 2]


@pytest.mark.parametrize("is_standby", [False, True])
def test_a_handle_comes_back_to_what_lives_on_when_lives_ended_while_it_was_away(make_stage, is_standby):
    stage = make_stage(respect_time_to_live=True)
    surroundings, now_ms = stage.engine.surroundings, 0
    surroundings.timetable.now = lambda: now_ms
    surroundings.traits_of = lambda m: Traits(time_to_live_ms=100 if m.content != 3 else 0)
    ann = lost_after_five(stage)
    bob = stage.consumer("bob")[1] if is_standby else None
    stage.engine.disconnect(ann)
    now_ms = 100
    call_due(surroundings.timetable)
    assert stage.queue.depth == 1

    flow = stage.bind(stage.client("ann"), last_received_id=5).flow
    if bob is not None:
        stage.engine.unbind(bob)

    assert stage.open(flow, 5) == []
    assert stage.queue.unacked_count == 1
    stage.settle(flow, 0, 5)
    assert stage.queue.depth == 0
    assert stage.numbers(stage.publish()) == [6]
