"""The gate keeps its laws whatever happens around it, and one that is broken on purpose is found out."""

import random
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import settings

from lbg_runtime.core.restripe.gate import StripeGate
from lbg_runtime.model.group import GroupShape
from tests.core.restripe.broken_gates import (
    BelievesNoFinish,
    DropsInsteadOfKeeping,
    EndsAtTheFinish,
    ForgetsTheMarkers,
    HandlesWhatLiesBeforeTheMarker,
    HandlesWhatLiesBehindTheMarker,
    LetsGoAtTheMarker,
    RemembersWhatItOnlyOrdered,
    SettlesThePlanAtOnce,
    SettlesThePlanLast,
    StopsAtARenewedPlan,
    TellsAtOnce,
    WaitsAtEveryFinish,
    WaitsForNobody,
)
from tests.core.restripe.gate_world import KEYS, NONE, QUEUES, GateLaws

SEEDS = range(250)
STEPS = 150

TestGateLaws = GateLaws.TestCase
TestGateLaws.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


def live(laws: GateLaws, chance: random.Random) -> None:
    """What Hypothesis takes too long to hit upon: many steps, of which most bring something on."""
    death_share, repeat_share = chance.choice((0.0, 0.02, 0.05, 0.1)), chance.choice((0.01, 0.1))
    most_busy = chance.choice((0, 3))
    busy = lagging = NONE
    for _ in range(STEPS):
        queue, key, count = chance.choice(QUEUES), chance.choice(KEYS), chance.randint(1, 4)
        if chance.random() < 0.1:
            busy = frozenset(chance.sample(KEYS, chance.randint(0, most_busy)))
            lagging = frozenset(chance.sample(QUEUES, chance.randint(0, most_busy and 1)))
        doings: list[Callable[[], object]] = [
            partial(laws.publish, key),
            laws.conduct,
            partial(laws.go_on, 1, busy, lagging),
            chance.choice(
                (
                    partial(laws.deliver, queue, count),
                    partial(laws.start_handler, queue, key),
                    partial(laws.end_handler, queue, key),
                    partial(laws.take_settlements, queue, count),
                    partial(laws.hear_echoes, queue),
                    partial(laws.talk, queue),
                )
            ),
        ]
        if laws.plan is not None and chance.random() < repeat_share:
            doings = [laws.conduct_again, partial(laws.renew, 0)]
        if chance.random() < death_share:
            doings = [partial(laws.lose_handle, queue, count - 1), partial(laws.kill, queue, count - 1)]
        chance.choice(doings)()
        laws.nothing_is_handled_twice_where_nothing_dies()
        laws.what_is_kept_is_counted()


def law_broken_in(seed: int, make_gate: Callable[[int, GroupShape, str], StripeGate]) -> str | None:
    """What a life of two gates breaks first."""
    chance = random.Random(seed)
    laws = GateLaws(make_gate)
    laws.cap = chance.choice((1, 2, 4, 50))
    laws.most = (1 + 3 * (seed % 2)) * laws.cap
    try:
        live(laws, chance)
        laws.teardown()
    except AssertionError as broken:
        return str(broken).splitlines()[0]
    return None


def test_the_laws_hold_in_many_lives() -> None:
    broken = {seed: law for seed in SEEDS if (law := law_broken_in(seed, StripeGate)) is not None}
    assert broken == {}


ORDER = "first handlings are in order"
ONE_QUEUE = "every message has one queue"
SETTLED = "the broker has taken all settlements of the old queue's part"
STOPS = "no queue stops"
END = "everything is settled in the end"


@pytest.mark.parametrize(
    ("mutant", "law"),
    [
        (TellsAtOnce, SETTLED),
        (SettlesThePlanAtOnce, STOPS),
        (SettlesThePlanAtOnce, ONE_QUEUE),
        (SettlesThePlanLast, STOPS),
        (StopsAtARenewedPlan, STOPS),
        (HandlesWhatLiesBehindTheMarker, ONE_QUEUE),
        (HandlesWhatLiesBeforeTheMarker, ONE_QUEUE),
        (WaitsForNobody, SETTLED),
        (BelievesNoFinish, END),
        (DropsInsteadOfKeeping, ORDER),
        (DropsInsteadOfKeeping, "nothing is lost"),
        (LetsGoAtTheMarker, SETTLED),
        (ForgetsTheMarkers, ORDER),
        (ForgetsTheMarkers, ONE_QUEUE),
        (EndsAtTheFinish, ORDER),
        (WaitsAtEveryFinish, END),
        (RemembersWhatItOnlyOrdered, END),
    ],
)
def test_a_broken_gate_is_found_out(mutant: type[StripeGate], law: str) -> None:
    assert any(law_broken_in(seed, mutant) == law for seed in SEEDS)
