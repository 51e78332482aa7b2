"""The turns of several takers in one call of the loop."""

import asyncio
from contextvars import ContextVar

import pytest

from lbg_runtime.runtime.turns import Turns
from lbg_runtime.testing.virtual_time import VirtualTimeLoop


class _Taker:
    def __init__(self, name, log, turns, again=0, exits=None):
        self.name, self.log, self.turns, self.again, self.exits = name, log, turns, again, exits

    def take(self, now_ms):
        assert now_ms == round(asyncio.get_running_loop().time() * 1_000)
        self.log.append(("take", self.name))
        if self.exits == "take":
            raise SystemExit(self.name)

    def conclude(self):
        self.log.append(("conclude", self.name))
        if self.exits == "conclude":
            raise KeyboardInterrupt(self.name)
        if self.again:
            self.again -= 1
            self.turns.ask(self)

    def fail(self, error):
        self.log.append(("fail", self.name, str(error)))


async def test_all_batches_come_before_one_write_and_that_before_what_goes_behind():
    log = []
    turns = Turns(lambda: log.append("write"))
    for name in "ab":
        turns.ask(_Taker(name, log, turns))
    assert log == []
    await asyncio.sleep(0)
    assert log == [("take", "a"), ("take", "b"), "write", ("conclude", "a"), ("conclude", "b")]


async def test_who_asks_within_a_turn_has_another_one():
    log = []
    turns = Turns(lambda: log.append("write"))
    turns.ask(_Taker("a", log, turns, again=1))
    await asyncio.sleep(0)
    assert log.count("write") == 1
    await asyncio.sleep(0)
    assert log == [("take", "a"), "write", ("conclude", "a")] * 2


async def test_a_turn_sees_nothing_of_whatever_asks_for_it():
    """A handler that publishes, say, has log fields and spans of its own."""
    field, seen = ContextVar("field", default="none"), []
    log, turns = [], Turns(lambda: seen.append(field.get()))
    field.set("of a handler")
    turns.ask(_Taker("a", log, turns))
    await asyncio.sleep(0)
    assert seen == ["none"]


async def test_what_cannot_be_recorded_is_not_settled():
    log = []

    def write():
        raise OSError("disk full")

    turns = Turns(write)
    for name in "ab":
        turns.ask(_Taker(name, log, turns))
    await asyncio.sleep(0)
    assert log == [("take", "a"), ("take", "b"), ("fail", "a", "disk full"), ("fail", "b", "disk full")]


@pytest.mark.parametrize("exits", ["take", "conclude"])
def test_an_exit_out_of_a_turn_goes_through_the_loop_behind_the_turns_of_the_others(exits):
    """A signal's function may exit anywhere. The loop is run on for the member to leave: each flow needs its turn."""
    log = []

    async def run():
        turns = Turns(lambda: log.append("write"))
        turns.ask(_Taker("a", log, turns, exits=exits))
        turns.ask(_Taker("b", log, turns, exits=exits))
        turns.ask(_Taker("c", log, turns))
        await asyncio.sleep(0)

    with (
        pytest.raises((SystemExit, KeyboardInterrupt), match="a"),
        asyncio.Runner(loop_factory=VirtualTimeLoop) as runner,
    ):
        runner.run(run())
    assert log == [*(("take", name) for name in "abc"), "write", *(("conclude", name) for name in "abc")]


def test_an_interrupt_of_the_write_leaves_nothing_to_be_settled_and_goes_through_the_loop():
    log = []

    def write():
        raise KeyboardInterrupt("now")

    async def run():
        turns = Turns(write)
        turns.ask(_Taker("a", log, turns))
        await asyncio.sleep(0)

    with pytest.raises(KeyboardInterrupt, match="now"), asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(run())
    assert log == [("take", "a"), ("fail", "a", "now")]
