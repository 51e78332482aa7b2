"""Turns of batches: as many at once as there are, the lines one after another."""

from types import SimpleNamespace

from lbg_runtime.model.ids import Epoch, QueueName
from lbg_runtime.runtime.runners.batch_turns import BatchTurns


class _Line:
    def __init__(self, name, due, log):
        self.name, self.due, self.log = name, due, log

    def is_due(self):
        return self.due > 0

    def begin(self):
        self.due -= 1
        self.log.append(self.name)


def test_lines_take_turns_as_they_get_free():
    log, turns = [], BatchTurns(2)
    turns.ask(_Line("a", 4, log))
    assert log == ["a", "a"]
    line = _Line("b", 2, log)
    turns.ask(line)
    turns.ask(line)
    for _ in range(4):
        turns.end()
    assert log == ["a", "a", "a", "b", "a", "b"]


def test_a_line_that_is_not_due_any_more_takes_no_turn():
    log, turns = [], BatchTurns(1)
    turns.ask(_Line("a", 1, log))
    gone, last = _Line("b", 1, log), _Line("c", 1, log)
    turns.ask(gone)
    turns.ask(last)
    gone.due = 0
    turns.end()
    assert log == ["a", "c"]
    gone.due = 1
    turns.ask(gone)
    turns.end()
    assert log == ["a", "c", "b"]


def test_a_line_that_had_no_other_batch_when_it_began_one_comes_behind_those_that_have_asked_since():
    log, turns = [], BatchTurns(1)
    first, second = _Line("a", 1, log), _Line("b", 1, log)
    turns.ask(first)
    turns.ask(second)
    first.due = 1
    turns.ask(first)
    turns.end()
    turns.end()
    assert log == ["a", "b", "a"]


def test_what_is_of_a_shard_that_is_to_leave_waits_for_no_others_on_that_handle_and_as_long_as_it_is():
    turns, queue = BatchTurns(1), QueueName("orders/0")

    def in_a_hurry():
        places = [(epoch, shard) for epoch in (1, 2) for shard in (3, 4, None)]
        return [
            place for place in places if turns.is_leaving(SimpleNamespace(queue=queue, epoch=place[0], shard=place[1]))
        ]

    turns.move(queue, Epoch(1), frozenset({4}))
    assert in_a_hurry() == [(1, 4)]
    turns.leave(queue, Epoch(2))
    assert in_a_hurry() == [(1, 4), (2, 3), (2, 4), (2, None)]
    turns.stay(queue)
    turns.move(queue, Epoch(1), frozenset())
    assert in_a_hurry() == []
    assert not turns.any_leave
