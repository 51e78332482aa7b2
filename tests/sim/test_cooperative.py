"""Random runs of members that talk to each other keep the laws, and come to rest; `lbg simulate` runs thousands."""

from collections import Counter
from dataclasses import dataclass, replace

import pytest

from lbg_runtime.config.rebind_mode import RebindMode
from lbg_runtime.sim.campaign import Scope, run_seed
from lbg_runtime.sim.chance import SeededChance
from lbg_runtime.sim.facts import Facts
from lbg_runtime.sim.figures import Duplicates, hops
from lbg_runtime.sim.settings import FaultKind, draw_settings
from lbg_runtime.sim.simulation import SimResult, simulate
from tests.sim.old_seeds import as_before, run_old_seed

QUICK_SEEDS = 14
LARGE_SEEDS = range(3, 7)
SCOPE = Scope(RebindMode.COOPERATIVE)
LARGE = Scope(RebindMode.COOPERATIVE, members=5, queues=12)


@dataclass(frozen=True)
class Played:
    """A run without its history, which is long, and what is counted in that."""

    result: SimResult
    hand_backs: int
    passed: int


def play(scope: Scope, seed: int) -> Played:
    result = run_seed(scope, seed)
    return Played(replace(result, facts=Facts(())), len(result.facts.hand_backs), hops(result.facts))


@pytest.fixture(scope="module")
def larger() -> list[Played]:
    return [play(LARGE, seed) for seed in LARGE_SEEDS]


@pytest.fixture(scope="module")
def results(larger: list[Played]) -> list[SimResult]:
    quick = [replace(run_seed(SCOPE, seed), facts=Facts(())) for seed in range(QUICK_SEEDS)]
    return [*quick, *(played.result for played in larger)]


def test_every_law_holds_in_every_run(results: list[SimResult]) -> None:
    broken = {result.seed: result.violations[0] for result in results if result.violations}
    assert not broken, "lbg simulate --rebind-mode cooperative --seeds 1 --first SEED --history shows a run"


def test_larger_groups_hand_queues_over_and_pass_standbys_by(larger: list[Played]) -> None:
    assert sum(played.hand_backs for played in larger) > 40
    assert sum(played.passed for played in larger) > 5


def test_the_runs_meet_every_fault_and_are_not_idle(results: list[SimResult]) -> None:
    faults: Counter[FaultKind] = sum((result.faults for result in results), Counter())
    assert set(faults) == set(FaultKind)
    assert all(count > QUICK_SEEDS / 2 for count in faults.values())
    assert all(result.published == result.settings.messages * result.settings.publishers for result in results)


def test_joins_leaves_and_cut_topics_handle_nothing_twice() -> None:
    """But for what had failed when its queue was handed over, and was tried again by the next owner."""
    moves = 0
    for seed in range(16):
        drawn = draw_settings(SeededChance(seed), RebindMode.COOPERATIVE)
        calm = replace(
            drawn,
            planned_members=4,
            first_members=2,
            rebind=replace(drawn.rebind, drain_timeout_ms=20_000),
            handlers=replace(drawn.handlers, slow_share=0.05, fail_share=0.1, poison_share=0.02, hang_share=0.0),
            faults=(
                FaultKind.STOP,
                FaultKind.JOIN,
                FaultKind.LEAVE,
                FaultKind.ROLLING_RESTART,
                FaultKind.DEPLOY,
                FaultKind.CUT_CONTROL,
                FaultKind.CUT_PUBLISHER,
            ),
        )
        result = simulate(seed, calm)
        succeeded = replace(result.duplicates, unfinished=0)
        assert (result.seed, result.violations, succeeded) == (seed, (), Duplicates())
        moves += result.faults[FaultKind.STOP] + result.faults[FaultKind.LEAVE] + result.faults[FaultKind.DEPLOY]
    assert moves > 60


@pytest.mark.parametrize("seed", [11, 93, 105])
def test_a_drain_timeout_below_the_quiet_gap_lets_queues_go(seed: int) -> None:
    """Every hand-back was given up at its timeout, before the quiet gap could end, and offered again, for ever: the
    queues of a joiner stayed where they were."""
    settings = as_before(draw_settings(SeededChance(seed).fork("settings"), RebindMode.COOPERATIVE))
    quick = replace(
        settings,
        rebind=replace(settings.rebind, drain_timeout_ms=0, quiet_gap_ms=60),
        control=replace(settings.control, looks_ms_per_thousand=0),
    )
    assert simulate(seed, quick).violations == ()


@pytest.mark.parametrize("seed", [100503, 100817, 103205, 103885])
def test_between_two_looks_at_its_flows_a_member_says_nothing_untrue_of_them(seed: int) -> None:
    """It took a queue as a standby that it was no longer, and offered one that it had lost and had again since."""
    assert run_old_seed(SCOPE, seed).violations == ()


def test_a_seed_always_gives_the_same_run() -> None:
    run = run_seed(SCOPE, 11)
    assert run_seed(SCOPE, 11) == run
    assert run_seed(SCOPE, 12).history != run.history
