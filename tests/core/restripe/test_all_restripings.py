"""All histories of small groups that are re-striped: whatever may happen, at whatever moment, nothing is lost or
overtaken, and the re-striping comes to its end.

More is searched with other values of `Setup`; with no step `at_once`, and one mishap, it takes a minute or two.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest

from lbg_runtime.core.restripe.conductor import Conductor, Done, Publish, Sight, Step
from lbg_runtime.core.restripe.gate import StripeGate
from lbg_runtime.core.restripe.records import ShardMarker
from lbg_runtime.core.restripe.striping import NOTHING, StripingBook, StripingReport
from tests.core.histories import Histories
from tests.core.restripe import broken_gates, small_striped_group
from tests.core.restripe.small_late_stripes import LateStripes
from tests.core.restripe.small_stripe_parts import Setup, mark
from tests.core.restripe.small_stripes import SmallStripes

PROMPT = ("deliver", "settle", "echo")
"""Nothing is late between broker and member."""
OPEN = (*PROMPT, "say", "bind")
"""Nor between members."""
LED = (*OPEN, "conduct")
"""Nor at the conductor. Messages come at any moment even so, or all would be over before the first."""


def histories_of(setup: Setup) -> Histories[SmallStripes]:
    """All of them, from the moment at which the command begins."""
    return Histories(SmallStripes(setup), SmallStripes.twin, mark, "at last")


def late_histories_of(setup: Setup) -> Histories[LateStripes]:
    """The same, with late requests."""
    return Histories(LateStripes(setup), LateStripes.twin, LateStripes.mark, "at last")


@pytest.mark.parametrize(
    ("setup", "fewest"),
    [
        (Setup((1, 2), ("1a", "1a"), at_once=OPEN), 650),
        (Setup((2, 1), ("1a", "1b"), at_once=LED), 950),
        (Setup((2, 3), ("2a", "2a"), shards=3, at_once=OPEN), 850),
        (Setup((1, 2), ("1a",), ("kill",), members=1, at_once=OPEN), 1300),
        (Setup((2, 1), ("1a",), ("kill",), at_once=LED), 1300),
        (Setup((2, 1), ("1a",), ("lose the handle",), at_once=LED), 1400),
        (Setup((1, 2), ("1a",), ("move",), at_once=LED), 1200),
        (Setup((1, 2), ("1a",), ("lose a report",), at_once=OPEN), 450),
        (Setup((1, 2), ("1a",), ("keep a report",), at_once=LED), 1000),
        (Setup((1, 2), ("1a",), ("kill the conductor",), at_once=LED), 1100),
        (Setup((1, 2, 1), ("1a",), members=1, at_once=OPEN), 400),
        (Setup((1, 2), ("1a",), ("cut off",), known=(0, 9), at_once=LED), 3900),
        (Setup((1, 2), ("1a",), ("lose patience",), at_once=OPEN), 700),
    ],
    ids=lambda value: "+".join((*map(str, value.counts), *value.may_happen)) if isinstance(value, Setup) else "",
)
def test_every_history_keeps_what_is_promised_and_ends_well(setup: Setup, fewest: int) -> None:
    histories = histories_of(setup)
    assert histories.problem == ""
    assert len(histories) > fewest, "there were more states: what has become impossible?"


@pytest.mark.parametrize(
    ("setup", "fewest"),
    [
        (Setup((1, 2), ("1a",), ("die late",), at_once=LED), 800),
        (Setup((2, 1), ("1a",), ("die late", "die late"), at_once=LED), 1500),
        (Setup((1, 2, 1), ("1a",), ("die late",), at_once=LED), 2000),
        (Setup((2, 1), (), ("die late", "kill", "kill"), members=1, at_once=LED), 2400),
    ],
    ids=lambda value: "+".join((*map(str, value.counts), *value.may_happen)) if isinstance(value, Setup) else "",
)
def test_a_request_of_a_conductor_that_has_died_may_come_late(setup: Setup, fewest: int) -> None:
    histories = late_histories_of(setup)
    assert histories.problem == ""
    assert len(histories) > fewest, "there were more states: what has become impossible?"


def _look_away(group: LateStripes) -> None:
    group.is_to_look = False


@pytest.mark.parametrize(
    ("name", "broken", "setup", "problem"),
    [
        ("_has_to_wait", lambda *_: False, Setup((1, 2, 1), ("1a",), ("die late",), at_once=LED), "no queue subscr"),
        ("_look", _look_away, Setup((2, 1), (), ("die late", "kill", "kill"), members=1, at_once=LED), "goes on"),
    ],
)
def test_a_conductor_that_disregards_late_requests_is_noticed(
    monkeypatch: pytest.MonkeyPatch, name: str, broken: Callable[..., object], setup: Setup, problem: str
) -> None:
    monkeypatch.setattr(LateStripes, name, broken)
    assert problem in late_histories_of(setup).problem


def _mark_before_the_copies(conductor: Conductor, sight: Sight) -> Step | None:
    step = PREPARE(conductor, sight)
    marker = ShardMarker(conductor.plan.generation, conductor.moves[0].shard)
    return Publish(marker) if step is None and marker not in conductor._published else step


def _tell_nothing_finished(book: StripingBook) -> StripingReport:
    book.now, before = replace(book.now, finished=NOTHING), book.now
    report, book.now = REPORT(book), before
    return report


def _remind_nobody(conductor: Conductor, sight: Sight) -> Step:
    return NEXT_STEP(conductor, sight) if conductor.moves else Done()


NEXT_STEP, PREPARE, REPORT = Conductor.next_step, Conductor._prepare, StripingBook.report
GROWTH, SHRINKAGE = Setup((1, 2), ("1a", "1a"), at_once=OPEN), Setup((2, 1), ("1a", "1a"), at_once=OPEN)
WITH_A_DEATH = replace(GROWTH, keys=("1a",), may_happen=("kill",), members=1)
WITH_AN_ABSENCE = Setup((1, 2), ("1a",), ("cut off",), known=(0, 9), at_once=LED)


@pytest.mark.parametrize(
    ("mutant", "setup", "problem"),
    [
        (broken_gates.TellsAtOnce, replace(GROWTH, at_once=("deliver", "say", "bind")), "is not settled in"),
        (broken_gates.SettlesThePlanAtOnce, WITH_A_DEATH, "nothing goes on"),
        (broken_gates.SettlesThePlanLast, WITH_A_DEATH, "stops"),
        (broken_gates.HandlesWhatLiesBehindTheMarker, GROWTH, "is handled again"),
        (broken_gates.HandlesWhatLiesBeforeTheMarker, GROWTH, "is handled again"),
        (broken_gates.WaitsForNobody, GROWTH, "is handled before"),
        (broken_gates.WaitsForNobody, replace(GROWTH, at_once=LED), "is handled before"),
        (broken_gates.DropsInsteadOfKeeping, GROWTH, "is lost"),
        (broken_gates.LetsGoAtTheMarker, GROWTH, "is handled before"),
        (broken_gates.ForgetsTheMarkers, WITH_A_DEATH, "nothing goes on"),
        (broken_gates.EndsAtTheFinish, WITH_A_DEATH, "is lost"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_broken_gate_is_noticed(
    monkeypatch: pytest.MonkeyPatch, mutant: type[StripeGate], setup: Setup, problem: str
) -> None:
    monkeypatch.setattr(small_striped_group, "StripeGate", mutant)
    assert problem in histories_of(setup).problem


@pytest.mark.parametrize(
    ("owner", "name", "broken", "setup", "problem"),
    [
        (Conductor, "_prepare", _mark_before_the_copies, GROWTH, "is lost"),
        (Conductor, "_renew", lambda *_: None, replace(GROWTH, known=(0, 9)), "nothing goes on"),
        (Conductor, "_unfinished", lambda *_: [], SHRINKAGE, "nothing goes on"),
        (Conductor, "next_step", _remind_nobody, WITH_AN_ABSENCE, "nothing goes on"),
        (StripingBook, "_proves", lambda *_: False, GROWTH, "nothing goes on"),
        (StripingBook, "report", _tell_nothing_finished, GROWTH, "nothing goes on"),
        (StripingBook, "_see_left", lambda *_: False, GROWTH, "nothing goes on"),
    ],
)
def test_a_broken_rule_is_noticed(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, broken: Callable[..., object], setup: Setup, problem: str
) -> None:
    monkeypatch.setattr(owner, name, broken)
    assert problem in histories_of(setup).problem
