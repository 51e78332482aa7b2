"""Event loops that hang while the client's threads live: what was settled leaves, and the queues go to others."""

from collections import Counter
from dataclasses import replace

import pytest

from lbg_runtime.config.rebind_mode import RebindMode
from lbg_runtime.sim.chance import SeededChance
from lbg_runtime.sim.history import FlowClosed, FlowFed, LifeEnded, LoopHung
from lbg_runtime.sim.process import Process
from lbg_runtime.sim.settings import FaultKind, SimSettings, draw_settings
from lbg_runtime.sim.simulation import SimResult, simulate

SEEDS = 10


def hanging(seed: int, mode: RebindMode = RebindMode.COOPERATIVE) -> SimSettings:
    """Nothing else happens, and settlements leave late."""
    drawn = draw_settings(SeededChance(seed).fork("settings"), mode, members=3, queues=4)
    return replace(
        drawn,
        messages=80,
        ack_timer_ms=200,
        restripe_to=(),
        request_gap_ms=None,
        rebind=replace(drawn.rebind, drain_timeout_ms=1_000),
        handlers=replace(drawn.handlers, slow_share=0.0, hang_share=0.0),
        faults=(FaultKind.HANG,),
        fault_gap_ms=1_000,
        horizon_ms=6_000,
    )


@pytest.fixture(scope="module")
def results() -> list[SimResult]:
    return [simulate(seed, hanging(seed)) for seed in range(SEEDS)]


def hangs_of(result: SimResult) -> list[tuple[LoopHung, bool]]:
    """Each hang, and whether the process died of it."""
    ends = {each.life: each for each in result.history if isinstance(each, LifeEnded)}
    hangs = [each for each in result.history if isinstance(each, LoopHung)]
    return [(hang, ends[hang.life].killed and ends[hang.life].at_ms == hang.until_ms) for hang in hangs]


def test_most_hangs_end_the_process_and_some_end_in_time(results: list[SimResult]) -> None:
    assert {result.seed: result.violations[0] for result in results if result.violations} == {}
    kinds = Counter((hang.keeps_settlements, killed) for result in results for hang, killed in hangs_of(result))
    assert len(kinds) == 4
    assert sum(kinds.values()) > 3 * SEEDS
    assert kinds[False, True] + kinds[True, True] > SEEDS


def test_the_broker_leaves_a_hanging_member_its_queues_until_it_ends(results: list[SimResult]) -> None:
    handed_on = 0
    for result in results:
        closed = [each for each in result.history if isinstance(each, FlowClosed)]
        fed = [each for each in result.history if isinstance(each, FlowFed)]
        for hang, killed in hangs_of(result):
            if not killed:
                continue
            own = {each.flow for each in fed if each.handle.life == hang.life and each.at_ms < hang.at_ms}
            # An unbind may have been on its way.
            slack_ms = 2 * result.settings.longest_delay_ms
            held = [each for each in closed if each.flow in own and each.at_ms > hang.at_ms + slack_ms]
            assert all(each.at_ms >= hang.until_ms for each in held)
            handed_on += sum(
                any(later.queue == each.queue and later.at_ms >= each.at_ms for later in fed) for each in held
            )
    assert handed_on > SEEDS


def test_what_was_settled_before_a_hang_leaves_while_it_lasts(results: list[SimResult]) -> None:
    """Else it would come again; the law excuses that only where the run says that the client keeps it."""
    late = 0
    for result in results:
        facts = result.facts
        until_ms = {hang.life: hang.until_ms for hang, killed in hangs_of(result) if killed}
        hung_ms = {hang.life: hang.at_ms for hang, killed in hangs_of(result) if killed and not hang.keeps_settlements}
        for delivery in facts.deliveries.values():
            life = delivery.record.handle.life
            if life in hung_ms and delivery.settles:
                settled_ms = delivery.settles[0][1].at_ms
                leaves_ms = settled_ms + result.settings.ack_timer_ms
                late += hung_ms[life] < leaves_ms < until_ms[life]
    assert late > SEEDS


def test_a_client_whose_timer_hangs_with_the_loop_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang_wholly(process: Process, until_ms: int | None, *, keeps_settlements: bool) -> None:
        hang(process, until_ms, keeps_settlements=True)

    hang = Process.hang
    monkeypatch.setattr(Process, "hang", hang_wholly)
    broken = {violation.law for seed in range(8) for violation in simulate(seed, hanging(seed)).violations}
    assert broken == {"duplicates_are_excused"}


@pytest.mark.parametrize("seed", range(4))
def test_members_that_only_count_bear_hangs_too(seed: int) -> None:
    result = simulate(seed, hanging(seed, RebindMode.CYCLE))
    assert result.violations == ()
    assert result.faults[FaultKind.HANG] > 1
