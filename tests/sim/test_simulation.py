"""Random runs of members, broker and network keep the laws: a few of each kind; `lbg simulate` runs thousands."""

from collections import Counter
from dataclasses import replace

import pytest

from lbg_runtime.sim.chance import SeededChance
from lbg_runtime.sim.control_noise import RequestKind
from lbg_runtime.sim.facts import Facts
from lbg_runtime.sim.figures import Duplicates
from lbg_runtime.sim.settings import FaultKind, draw_settings
from lbg_runtime.sim.simulation import SimResult, simulate

QUICK_SEEDS = 50
LANES = 132
"""The one seed of the first 150 in which lanes that end with their bind break a law."""


@pytest.fixture(scope="module")
def results() -> list[SimResult]:
    # Without the histories, which are long and which no test here reads.
    return [replace(simulate(seed), facts=Facts(())) for seed in (*range(QUICK_SEEDS), LANES)]


def test_every_law_holds_in_every_run(results: list[SimResult]) -> None:
    broken = {result.seed: result.violations[0] for result in results if result.violations}
    assert not broken, "lbg simulate --rebind-mode cycle --seeds 1 --first SEED --history shows a run"


def test_the_runs_meet_every_fault_and_are_not_idle(results: list[SimResult]) -> None:
    faults: Counter[FaultKind] = sum((result.faults for result in results), Counter())
    assert set(faults) == set(FaultKind)
    assert all(count > QUICK_SEEDS / 2 for count in faults.values())
    assert all(result.published == result.settings.messages * result.settings.publishers for result in results)
    assert sum(result.duplicates.after_loss for result in results) > QUICK_SEEDS
    requests: Counter[RequestKind] = sum((result.requests for result in results), Counter())
    assert all(requests[kind] > QUICK_SEEDS for kind in RequestKind)


def test_graceful_moves_handle_nothing_twice() -> None:
    """But for what had failed when its queue was handed over, and was tried again by the next owner."""
    moves = 0
    for seed in range(25):
        drawn = draw_settings(SeededChance(seed))
        calm = replace(
            drawn,
            rebind=replace(drawn.rebind, drain_timeout_ms=10_000),
            handlers=replace(drawn.handlers, slow_share=0.05, fail_share=0.1, poison_share=0.02, hang_share=0.0),
            faults=(FaultKind.STOP, FaultKind.JOIN, FaultKind.ROLLING_RESTART, FaultKind.CUT_PUBLISHER),
        )
        result = simulate(seed, calm)
        succeeded = replace(result.duplicates, unfinished=0)
        assert (result.seed, result.violations, succeeded) == (seed, (), Duplicates())
        moves += result.faults[FaultKind.STOP] + result.faults[FaultKind.ROLLING_RESTART]
    assert moves > 60


def test_hand_backs_and_other_requests_handle_nothing_twice_however_long_a_handler_takes() -> None:
    moves = 0
    for seed in range(30):
        drawn = draw_settings(SeededChance(seed))
        calm = replace(
            drawn,
            planned_members=3,
            first_members=3,
            # A cycle gives up what takes too long, a hand-back does not: only what has failed by its time-out.
            rebind=replace(drawn.rebind, interval_ms=600_000, jitter=0.0, drain_timeout_ms=300),
            handlers=replace(drawn.handlers, slow_share=0.1, fail_share=0.0, poison_share=0.0, hang_share=0.0),
            faults=(FaultKind.CUT_PUBLISHER,),
            request_gap_ms=100,
        )
        result = simulate(seed, calm)
        assert (result.seed, result.violations, result.duplicates) == (seed, (), Duplicates())
        moves += result.requests[RequestKind.MOVE]
    assert moves > 60 * 10


def test_every_queue_comes_home_when_its_primary_runs() -> None:
    for seed in range(20):
        drawn = draw_settings(SeededChance(seed))
        settings = replace(
            drawn,
            queue_count=6,
            hash_count=12,
            planned_members=3,
            first_members=1,
            rebind=replace(drawn.rebind, interval_ms=500, drain_timeout_ms=1_000),
            handlers=replace(drawn.handlers, slow_share=0.0, hang_share=0.0),
            faults=(FaultKind.JOIN,),
            request_gap_ms=None,
            fault_gap_ms=1_000,
            horizon_ms=20_000,
        )
        result = simulate(seed, settings)
        homes = [owner.split("#")[0] if owner else None for owner in result.owners]
        assert (result.seed, result.violations, homes) == (seed, (), ["m0", "m1", "m2", "m0", "m1", "m2"])


def test_a_seed_always_gives_the_same_run() -> None:
    run = simulate(11)
    assert simulate(11) == run
    assert simulate(12).history != run.history


def test_a_simulation_that_runs_in_circles_does_not_put_it_down_to_the_machines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lbg_runtime.sim.schedule.MOST_CALLS", 2)
    laws = {violation.law for violation in simulate(0).violations}
    assert "simulated_time_goes_on" in laws
    assert "machines_keep_their_invariants" not in laws
