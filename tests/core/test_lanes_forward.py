"""A delivery of a lane that is let go first."""

from dataclasses import dataclass

import pytest

from lbg_runtime.core.lanes import KeyLanes
from lbg_runtime.model.errors import InvariantViolated
from lbg_runtime.model.ids import Epoch, QueueName

QUEUE, EPOCH = QueueName("q"), Epoch(1)


@dataclass(frozen=True)
class Item:
    """Something of one flow handle."""

    name: str
    queue: QueueName = QUEUE
    epoch: Epoch = EPOCH


def lanes_with(*names: str) -> KeyLanes[Item]:
    lanes: KeyLanes[Item] = KeyLanes()
    for name in names:
        lanes.offer("k", Item(name))
    return lanes


def drained(lanes: KeyLanes[Item]) -> list[tuple[str, int]]:
    """Names in the order of their turns, and the attempt of each."""
    found = []
    while (lane := lanes.next_ready()) is not None:
        found.append((lane.head.name, lane.attempt))
        lanes.finish(lane)
    return found


def test_the_first_that_is_meant_takes_the_turn_and_the_others_keep_their_order() -> None:
    lanes = lanes_with("a", "b", "x", "c", "y")
    lane = lanes.next_ready()
    assert lane is not None
    assert lanes.bring_forward(lane, lambda item: item.name in "xy")
    assert (lane.head.name, lane.attempt, lanes.running, lanes.waiting) == ("x", 1, 1, 4)
    lanes.finish(lane)
    assert drained(lanes) == [("a", 1), ("b", 1), ("c", 1), ("y", 1)]


def test_what_is_brought_forward_has_all_its_attempts() -> None:
    lanes = lanes_with("a", "x")
    lane = lanes.next_ready()
    assert lane is not None
    lanes.delay(lane, 10)
    lanes.release_due(10)
    assert lanes.next_ready() is lane
    assert lane.attempt == 2
    assert lanes.bring_forward(lane, lambda item: item.name == "x")
    assert lane.attempt == 1


def test_nothing_is_changed_where_none_is_meant_or_there_is_no_other() -> None:
    for lanes in (lanes_with("a", "b"), lanes_with("a")):
        lane = lanes.next_ready()
        assert lane is not None
        assert not lanes.bring_forward(lane, lambda item: item.name in "xa")
        assert lane.head.name == "a"


def test_a_head_that_was_taken_back_gives_way_to_nobody() -> None:
    lanes = lanes_with("a")
    lanes.offer("k", Item("x", epoch=Epoch(2)))
    lane = lanes.next_ready()
    assert lane is not None
    lanes.return_unstarted(QUEUE, EPOCH)
    assert not lanes.bring_forward(lane, lambda item: item.name == "x")


def test_only_the_lane_whose_turn_it_is() -> None:
    lanes = lanes_with("a", "x")
    lane = lanes.find("k")
    assert lane is not None
    with pytest.raises(InvariantViolated):
        lanes.bring_forward(lane, lambda item: item.name == "x")
