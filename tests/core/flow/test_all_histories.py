"""All histories of small queues: whatever may happen, at whatever moment, breaks no law and ends well.

A few are part of the tests; run as a script, it tries each pair of mishaps and requests with one member, and each alone
with two, which takes minutes.
"""

from itertools import combinations_with_replacement

import pytest

from lbg_runtime.core.flow.commands import Command, Settle
from lbg_runtime.core.flow.in_flight import InFlight
from lbg_runtime.core.flow.machine import FlowMachine
from lbg_runtime.core.flow.release import Release
from lbg_runtime.core.lanes import KeyLanes, Lane
from lbg_runtime.model.message import Delivery
from lbg_runtime.model.outcome import Outcome
from tests.core.flow.small_parts import ATTEMPT_ENDS, CYCLING, HOME, REQUESTS, STANDBY, Setup
from tests.core.flow.small_queue import SmallQueue
from tests.core.flow.small_twins import mark, twin_queue
from tests.core.histories import Histories, tell_of


def histories_of(setup: Setup) -> Histories[SmallQueue]:
    """All of them, from the moment at which the members are bound."""
    return Histories(_bound(setup), twin_queue, mark, "tick")


def _bound(setup: Setup) -> SmallQueue:
    """The queue with its members bound, before the first message is sent."""
    queue = SmallQueue(setup)
    messages, queue.spool = queue.spool, []
    while steps := queue.regular_steps():
        queue.take(steps[0])
    queue.spool = messages
    return queue


@pytest.mark.parametrize(
    ("setup", "fewest"),
    [
        (Setup("aa", ("fail", "give back")), 300),
        (Setup("aab", ("hang",)), 250),
        (Setup("aa", ("cut",)), 500),
        (Setup("a", ("cut", "fail")), 150),
        (Setup("aa", ("end flow",)), 400),
        (Setup("a", ("end flow", "fail")), 150),
        (Setup("a", ("end flow", "refuse")), 50),
        (Setup("a", ("end flow", "be unwanted", "be home")), 1_000),
        (Setup("aa", ("stop feeding",), events_overtake=True), 400),
        (Setup("aa", ("suspend", "give back")), 600),
        (Setup("a", ("suspend", "stop", "hang")), 800),
        (Setup("ab", ("hand back", "hang")), 1_200),
        (Setup("a", ("fail",), (CYCLING,)), 250),
        (Setup("a", ("step aside", "cut")), 500),
        (Setup("aa", ("fail for good", "hand back")), 1_200),
        (Setup("ab", ("fail for good", "stop")), 1_200),
        (Setup("a", ("fail for good",), (CYCLING, HOME)), 300),
        (Setup("a", ("hand back", "fail"), (HOME, STANDBY)), 500),
        (Setup("a", ("cut",), (HOME, STANDBY)), 400),
    ],
    ids=lambda value: "+".join((value.keys, *value.may_happen)) if isinstance(value, Setup) else str(value),
)
def test_every_history_keeps_the_laws_and_ends_well(setup: Setup, fewest: int) -> None:
    histories = histories_of(setup)
    assert histories.problem == ""
    assert len(histories) > fewest, "there were more states: what has become impossible?"


def _delay_what_was_recalled(lanes: KeyLanes[Delivery], lane: Lane[Delivery], until_ms: int) -> bool:
    lane.is_recalled = False
    return DELAY(lanes, lane, until_ms)


def _settle_at_once(machine: FlowMachine, delivery: Delivery) -> list[Command]:
    return [*DISPATCH(machine, delivery), Settle(machine.epoch, delivery.delivery_id, Outcome.ACCEPTED)]


DELAY, DISPATCH = KeyLanes.delay, FlowMachine._dispatch


@pytest.mark.parametrize(
    ("owner", "name", "broken", "may_happen", "problem"),
    [
        (KeyLanes, "delay", _delay_what_was_recalled, ("cut", "fail"), "is started after activity was lost"),
        (FlowMachine, "_return_unstarted", lambda _: [], ("end flow",), "is started after activity was lost"),
        (FlowMachine, "_dispatch", _settle_at_once, (), "where [] is due"),
        (Release, "is_drained", lambda *_: True, ("hand back",), "while something of it is in flight"),
        (InFlight, "__len__", lambda _: 0, ("hand back",), "count as in flight"),
        (FlowMachine, "_open_intake", lambda _: [], (), "nothing goes on"),
    ],
    ids=["delay", "return", "settle", "drain", "count", "intake"],
)
def test_a_broken_rule_is_noticed(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, broken: object, may_happen: tuple[str, ...], problem: str
) -> None:
    monkeypatch.setattr(owner, name, broken)
    assert problem in histories_of(Setup("ab", may_happen)).problem


def test_marks_know_all_that_changes_in_a_machine() -> None:
    """A field that is new here belongs into `mark`, unless it never changes or follows from the others."""
    machine = SmallQueue(Setup("a")).members[0].machine
    plan, in_flight = machine._plan, machine._in_flight
    names = {"queue", "state", "epoch", "_settings", "_plan", "_in_flight", "_early", "_release", "_gate"}
    assert set(vars(machine)) == names
    names = {"place", "bind_at_ms", "give_way_at_ms", "is_leaving", "failed_binds", "_settings", "_random"}
    assert set(vars(plan)) == names | {"_not_before_ms", "_bound_at_ms", "_aside_until_ms"}
    names = {"_cap", "_most", "_room", "_excused", "_current", "_outlived", "_intake_open"}
    assert set(vars(in_flight)) == names
    assert set(Release.__slots__) == {"cause", "phase", "drain_until_ms", "quiet_at_ms", "move_id", "look_at_ms"}
    assert set(Lane.__slots__) == {"attempt", "head", "is_recalled", "key", "rest", "stage"}
    assert set(KeyLanes.__slots__) == {"_lanes", "ready", "_delayed", "_delay_count", "_held_up", "max_waiting"}


def _try_everything() -> None:
    mishaps = [*sorted(ATTEMPT_ENDS), *REQUESTS, "cut", "end flow", "refuse", "stop feeding", "suspend"]
    for pair in combinations_with_replacement(mishaps, 2):
        for events_overtake in (False, True):
            setup = Setup("aa", pair, events_overtake=events_overtake)
            tell_of(setup, histories_of(setup))
    # Two that give way to each other have too many histories with a mishap.
    calm = Setup("a", (), (CYCLING, CYCLING))
    tell_of(calm, histories_of(calm))
    for mishap in mishaps:
        for places in ((HOME, STANDBY), (HOME, CYCLING)):
            setup = Setup("a", (mishap,), places)
            tell_of(setup, histories_of(setup))


if __name__ == "__main__":
    _try_everything()
