from lbg_runtime.broker.engine.effects import ClientId, FlowId
from lbg_runtime.broker.engine.flow import ConsumerFlow
from lbg_runtime.broker.engine.lines.bind_line import BindLine, ExclusiveLine, RoundRobinLine
from lbg_runtime.model.ids import DeliveryId


def joined(line: BindLine, number: int, window: int = 10) -> ConsumerFlow:
    flow = ConsumerFlow(FlowId(number), ClientId(1), "ann", 10, DeliveryId(0))
    flow.window.move(DeliveryId(0), window)
    line.join(flow)
    line.room_made(flow)
    return flow


def test_exclusive_line_feeds_the_first_only_even_if_it_has_no_room():
    line = ExclusiveLine()
    first, second = joined(line, 1, window=0), joined(line, 2)

    assert (line.is_fed(first), line.is_fed(second), line.next_with_room()) == (True, False, None)
    line.leave(first)
    assert line.next_with_room() is second
    line.leave(second)
    assert line.next_with_room() is None


def test_round_robin_line_feeds_in_turn_and_leaves_out_who_has_no_room():
    line = RoundRobinLine()
    first, second, third = joined(line, 1), joined(line, 2, window=0), joined(line, 3)

    assert [line.next_with_room() for _ in range(3)] == [first, third, first]
    second.window.move(DeliveryId(0), 1)
    line.room_made(second)
    assert [line.next_with_room() for _ in range(3)] == [third, first, second]
    line.leave(third)
    assert line.next_with_room() is first


def test_round_robin_line_counts_a_flow_once_however_often_room_is_made():
    line = RoundRobinLine()
    first, second = joined(line, 1), joined(line, 2)
    line.room_made(first)

    assert [line.next_with_room() for _ in range(3)] == [first, second, first]
    first.window.move(DeliveryId(0), 0)
    second.window.move(DeliveryId(0), 0)
    assert line.next_with_room() is None


def test_a_line_says_whether_one_flow_gets_all_that_it_has_room_for():
    exclusive, round_robin = ExclusiveLine(), RoundRobinLine()
    for number in (1, 2):
        joined(exclusive, number)
    first, second = joined(round_robin, 1), joined(round_robin, 2)
    assert (exclusive.feeds_one, round_robin.feeds_one) == (True, False)

    first.window.move(DeliveryId(0), 0)
    assert [round_robin.next_with_room() for _ in range(2)] == [second, second]
    assert round_robin.feeds_one
