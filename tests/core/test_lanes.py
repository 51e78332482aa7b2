import pytest

from lbg_runtime.core.lanes import KeyLanes, Lane, LaneKey, LaneSight, LaneStage
from lbg_runtime.model.errors import InvariantViolated
from lbg_runtime.model.ids import DeliveryId, Epoch, QueueName
from lbg_runtime.model.message import Delivery, Message

QUEUE = QueueName("orders/0")
A, B, C = LaneKey("orders:a"), LaneKey("orders:b"), LaneKey("orders:c")
MESSAGE = Message("lbg/0/orders", b"")


def delivery(number: int, epoch: int = 1, queue: QueueName = QUEUE) -> Delivery:
    return Delivery(queue, Epoch(epoch), DeliveryId(number), MESSAGE, redelivered=False, received_at_ns=0)


def lanes_with(*offers: tuple[LaneKey, int]) -> KeyLanes[Delivery]:
    lanes: KeyLanes[Delivery] = KeyLanes()
    for lane_key, number in offers:
        lanes.offer(lane_key, delivery(number))
    return lanes


def start(lanes: KeyLanes[Delivery]) -> Lane[Delivery]:
    lane = lanes.next_ready()
    assert lane is not None
    return lane


def turn_of(lanes: KeyLanes[Delivery]) -> tuple[LaneKey, Delivery, int]:
    lane = start(lanes)
    return lane.key, lane.head, lane.attempt


def lane_of(lanes: KeyLanes[Delivery], lane_key: LaneKey) -> Lane[Delivery]:
    lane = lanes.find(lane_key)
    assert lane is not None
    return lane


def test_the_second_of_a_key_waits_for_the_first() -> None:
    lanes = lanes_with((A, 1), (A, 2))
    assert turn_of(lanes) == (A, delivery(1), 1)
    assert lanes.next_ready() is None
    assert (lanes.running, lanes.waiting) == (1, 1)
    lanes.finish(lane_of(lanes, A))
    assert turn_of(lanes) == (A, delivery(2), 1)


def test_keys_take_turns_in_the_order_they_became_ready() -> None:
    lanes = lanes_with((A, 1), (A, 2), (B, 3), (C, 4))
    assert start(lanes).key == A
    lanes.finish(lane_of(lanes, A))
    assert [start(lanes).key for _ in range(3)] == [B, C, A]


def test_an_idle_lane_holds_no_memory() -> None:
    lanes = lanes_with((A, 1))
    start(lanes)
    lanes.finish(lane_of(lanes, A))
    assert lanes == KeyLanes()


def test_a_key_that_is_tried_again_waits_and_no_other_does() -> None:
    lanes = lanes_with((A, 1), (A, 2), (B, 3))
    start(lanes)
    assert lanes.delay(lane_of(lanes, A), until_ms=500)
    assert start(lanes).key == B
    assert lanes.next_ready() is None
    assert (lanes.running, lanes.waiting, lanes.next_delayed_ms()) == (1, 2, 500)
    lanes.release_due(499)
    assert lanes.next_ready() is None
    lanes.release_due(500)
    assert lanes.next_delayed_ms() is None
    assert turn_of(lanes) == (A, delivery(1), 2)
    lanes.finish(lane_of(lanes, A))
    assert turn_of(lanes) == (A, delivery(2), 1)


def test_delayed_keys_come_back_in_the_order_of_their_times() -> None:
    lanes = lanes_with((A, 1), (B, 2), (C, 3))
    for lane_key, until_ms in [(A, 30), (B, 10), (C, 10)]:
        start(lanes)
        lanes.delay(lane_of(lanes, lane_key), until_ms)
    lanes.release_due(30)
    assert [start(lanes).key for _ in range(3)] == [B, C, A]


def test_lanes_whose_time_comes_together_are_ready_in_the_order_in_which_they_were_delayed() -> None:
    lanes = lanes_with((B, 1), (A, 2))
    for _ in range(2):
        lanes.delay(start(lanes), 10)
    lanes.release_due(10)
    assert [start(lanes).key, start(lanes).key] == [B, A]


def test_a_redelivered_message_waits_behind_the_handler_of_an_older_handle() -> None:
    lanes = lanes_with((A, 1))
    start(lanes)
    lanes.offer(A, delivery(7, epoch=2))
    assert lanes.return_unstarted(QUEUE, Epoch(1)) == []
    assert lanes.next_ready() is None
    lanes.finish(lane_of(lanes, A))
    assert start(lanes).head == delivery(7, epoch=2)


def test_what_has_not_started_is_returned_in_order_and_what_runs_stays() -> None:
    lanes = lanes_with((A, 1), (A, 2), (A, 3), (B, 4))
    start(lanes)
    assert lanes.return_unstarted(QUEUE, Epoch(1)) == [delivery(2), delivery(3), delivery(4)]
    assert (lanes.running, lanes.waiting) == (1, 0)
    assert lanes.next_ready() is None
    lanes.finish(lane_of(lanes, A))
    assert lanes == KeyLanes()


def test_a_head_between_two_tries_is_returned() -> None:
    lanes = lanes_with((A, 1), (A, 2), (B, 3))
    start(lanes)
    start(lanes)
    lanes.delay(lane_of(lanes, A), until_ms=10)
    lanes.delay(lane_of(lanes, B), until_ms=20)
    lanes.offer(B, delivery(9, epoch=2))
    assert lanes.return_unstarted(QUEUE, Epoch(1)) == [delivery(1), delivery(2), delivery(3)]
    assert lanes.next_delayed_ms() is None
    assert turn_of(lanes) == (B, delivery(9, epoch=2), 1)


def test_a_lane_whose_head_is_kept_goes_on_with_its_tries() -> None:
    lanes = lanes_with((A, 1), (A, 2), (B, 3), (C, 4))
    for lane in (A, B, C):
        start(lanes)
        if lane is not C:
            lanes.delay(lane_of(lanes, lane), until_ms=10)
    kept = (delivery(1), delivery(4))
    assert lanes.return_unstarted(QUEUE, Epoch(1), lambda each: each in kept) == [delivery(3)]
    assert lanes.delay(lane_of(lanes, C), until_ms=20), "it may be tried again"
    lanes.release_due(10)
    assert turn_of(lanes) == (A, delivery(1), 2)


def test_a_running_head_is_not_tried_again_once_its_flow_took_back_the_rest() -> None:
    lanes = lanes_with((A, 1))
    start(lanes)
    lanes.return_unstarted(QUEUE, Epoch(1))
    lanes.offer(A, delivery(7, epoch=2))
    assert not lanes.delay(lane_of(lanes, A), until_ms=10)
    assert lanes.running == 1
    lanes.finish(lane_of(lanes, A))
    start(lanes)
    assert lanes.delay(lane_of(lanes, A), until_ms=10)


def test_other_flows_keep_what_waits() -> None:
    other_queue = QueueName("orders/1")
    lanes = lanes_with((A, 1))
    lanes.offer(A, delivery(2, epoch=2))
    lanes.offer(A, delivery(1, queue=other_queue))
    assert lanes.return_unstarted(QUEUE, Epoch(1)) == [delivery(1)]
    assert lanes.return_unstarted(QUEUE, Epoch(1)) == []
    assert start(lanes).head == delivery(2, epoch=2)
    assert lanes.return_unstarted(other_queue, Epoch(1)) == [delivery(1, queue=other_queue)]


def test_a_lane_whose_ready_head_goes_back_has_one_turn_and_not_two() -> None:
    lanes = lanes_with((A, 1))
    lanes.offer(A, delivery(2, epoch=2))
    lanes.return_unstarted(QUEUE, Epoch(1))
    assert start(lanes).head == delivery(2, epoch=2)
    assert lanes.next_ready() is None


def test_a_flow_is_stalled_when_all_of_it_waits_for_another_attempt_or_behind_one() -> None:
    lanes = lanes_with((A, 1), (A, 2), (B, 3))
    lanes.offer(C, delivery(4, epoch=2))
    assert not lanes.is_stalled(QUEUE, Epoch(1)), "ready"
    start(lanes)
    start(lanes)
    lanes.delay(lane_of(lanes, A), until_ms=10)
    assert not lanes.is_stalled(QUEUE, Epoch(1)), "one runs"
    lanes.hold(lane_of(lanes, B))
    assert lanes.is_stalled(QUEUE, Epoch(1)), "the other flow does not matter"
    assert not lanes.is_stalled(QUEUE, Epoch(2))
    lanes.release_due(10)
    assert not lanes.is_stalled(QUEUE, Epoch(1)), "about to be tried again"


def test_what_waits_behind_another_flow_is_not_stalled() -> None:
    """Behind a handler that outlives its handle: given to another member, its key would be handled in two places."""
    lanes = lanes_with((A, 1))
    start(lanes)
    lanes.offer(A, delivery(2, epoch=2))
    assert not lanes.is_stalled(QUEUE, Epoch(2))
    lanes.delay(lane_of(lanes, A), until_ms=10)
    assert lanes.is_stalled(QUEUE, Epoch(1))
    assert not lanes.is_stalled(QUEUE, Epoch(2))


def test_what_another_queue_holds_does_not_stall_a_flow_and_what_waits_behind_it_is_not_stalled() -> None:
    """Epochs are counted for each queue: flows of two queues may have the same."""
    other = QueueName("orders/1")
    lanes = lanes_with((A, 1))
    start(lanes)
    lanes.offer(A, delivery(1, queue=other))
    lanes.delay(lane_of(lanes, A), until_ms=10)
    assert lanes.is_stalled(QUEUE, Epoch(1))
    assert not lanes.is_stalled(other, Epoch(1))
    lanes.offer(B, delivery(2, queue=other))
    assert lanes.is_stalled(QUEUE, Epoch(1)), "what is ready is of the other queue"


@pytest.mark.parametrize("call", ["finish", "delay"])
def test_a_lane_that_does_not_run_cannot_end_its_turn(call: str) -> None:
    lanes = lanes_with((A, 1))
    with pytest.raises(InvariantViolated, match="not running"):
        lanes.finish(lane_of(lanes, A)) if call == "finish" else lanes.delay(lane_of(lanes, A), 5)
    lane = start(lanes)
    lanes.finish(lane)
    with pytest.raises(InvariantViolated, match="not running"):
        lanes.finish(lane)


def test_a_look_at_a_lane_tells_its_head_and_what_waits_and_changes_nothing():
    lanes: KeyLanes[Delivery] = KeyLanes()
    assert lanes.look(LaneKey("k")) is None
    first, second = delivery(1), delivery(2)
    lanes.offer(LaneKey("k"), first)
    lanes.offer(LaneKey("k"), second)
    assert lanes.look(LaneKey("k")) == LaneSight(first, LaneStage.READY, 1, None)
    lanes.next_ready()
    assert lanes.look(LaneKey("k")) == LaneSight(first, LaneStage.RUNNING, 1, None)
    lanes.delay(lane_of(lanes, LaneKey("k")), 500)
    assert lanes.look(LaneKey("k")) == LaneSight(first, LaneStage.DELAYED, 1, 500)
    lanes.release_due(500)
    lanes.next_ready()
    lanes.finish(lane_of(lanes, LaneKey("k")))
    assert lanes.look(LaneKey("k")) == LaneSight(second, LaneStage.READY, 0, None)


def test_a_lane_is_held_up_until_it_has_another_head_and_tells_once_of_what_waits() -> None:
    lanes = lanes_with((A, 1), (A, 2), (A, 3))
    lane = start(lanes)
    assert lanes.delay(lane, 10)
    assert lanes.hold_up(lane) == [delivery(2), delivery(3)]
    assert lanes.hold_up(lane) == []
    assert lanes.offer(A, delivery(4))
    lanes.release_due(10)
    start(lanes)
    assert lanes.offer(A, delivery(5))
    lanes.finish(lane)
    assert not lanes.offer(A, delivery(6))


def test_a_lane_is_held_up_no_more_when_its_head_was_taken_back_or_another_one_goes_first() -> None:
    lanes = lanes_with((A, 1))
    lanes.offer(A, delivery(2, epoch=2))
    lane = start(lanes)
    lanes.delay(lane, 10)
    lanes.hold_up(lane)
    lanes.return_unstarted(QUEUE, Epoch(1))
    assert not lanes.offer(A, delivery(3, epoch=2))
    lane = start(lanes)
    assert lanes.hold_up(lane) == [delivery(3, epoch=2)]
    assert lanes.bring_forward(lane, lambda each: each.delivery_id == 3)
    assert not lanes.offer(A, delivery(4, epoch=2))


def test_of_several_delayed_lanes_a_look_tells_each_its_own_time() -> None:
    lanes = lanes_with((A, 1), (B, 2))
    for until_ms in (500, 300):
        lanes.delay(start(lanes), until_ms)
    times = [sight.retry_at_ms for each in (A, B) if (sight := lanes.look(each)) is not None]
    assert times == [500, 300]


def test_what_is_held_is_all_that_is_here_in_the_order_of_each_key() -> None:
    """At the end of a member each of these ends without an outcome; one that is missing would never end."""
    lanes = lanes_with((A, 1), (B, 2), (A, 3), (C, 4), (A, 5))
    start(lanes)
    lanes.delay(start(lanes), 10)
    assert lanes.held() == [delivery(each) for each in (1, 3, 5, 2, 4)]


def test_what_is_taken_at_the_end_is_all_of_it_and_nothing_is_left_to_be_taken_again() -> None:
    lanes = lanes_with((A, 1), (B, 2), (A, 3), (C, 4))
    lanes.hold_up(start(lanes))
    lanes.delay(start(lanes), 10)
    assert lanes.take_all() == [delivery(each) for each in (1, 3, 2, 4)]
    assert lanes.held() == lanes.return_unstarted(delivery(1).queue, delivery(1).epoch) == []
    assert (lanes.count, lanes.next_ready(), lanes.next_delayed_ms()) == (0, None, None)
    lanes.offer(A, delivery(5))
    assert start(lanes).head == delivery(5)
    assert not lanes.offer(A, delivery(6)), "the key is not held up any more"


def test_a_recall_means_what_runs_of_its_handle_and_marks_nothing_that_waits() -> None:
    lanes = lanes_with((A, 1))
    lanes.offer(B, delivery(2, epoch=2))
    lanes.offer(C, delivery(3))
    lanes.offer(C, delivery(4, epoch=2))
    running, other = start(lanes), start(lanes)
    lanes.recall(QUEUE, Epoch(1))
    assert not lanes.delay(running, until_ms=5)
    assert lanes.delay(other, until_ms=5)
    assert lanes.return_unstarted(QUEUE, Epoch(1)) == [delivery(3)]
    # Of another handle, and behind one that had not started.
    assert turn_of(lanes) == (C, delivery(4, epoch=2), 1)
    assert lanes.delay(lane_of(lanes, C), until_ms=5)
