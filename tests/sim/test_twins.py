"""Two processes with one member id: one of them is left with the queues, and nothing is lost or out of order meanwhile.

The mutants override private methods, because they stand for edits of what they replace.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest

from lbg_runtime.config.rebind_mode import RebindMode
from lbg_runtime.core.group.control_messages import ControlMessage
from lbg_runtime.core.group.control_plane import ControlInput, ControlOutput, ControlPlaneMachine, Superseded
from lbg_runtime.core.group.membership import MembershipMachine
from lbg_runtime.core.group.membership_events import MembershipCommand
from lbg_runtime.core.group.rebalance_events import RebalanceEvent
from lbg_runtime.sim import control
from lbg_runtime.sim.campaign import Scope, run_seed
from lbg_runtime.sim.chance import SeededChance
from lbg_runtime.sim.control_laws import only_twins_stand_aside
from lbg_runtime.sim.facts import Facts
from lbg_runtime.sim.history import (
    FlowFed,
    Happening,
    Life,
    LifeEnded,
    LifeStarted,
    StoodAside,
    TwinStarted,
)
from lbg_runtime.sim.settings import FaultKind, SimSettings, draw_faults, draw_settings
from lbg_runtime.sim.simulation import SimResult, simulate

SEEDS = 6
MOST_SEEDS = 12


def doubled(seed: int, mode: RebindMode = RebindMode.COOPERATIVE) -> SimSettings:
    """Members that would live for ever in peace, if it were not for their twins."""
    drawn = draw_settings(SeededChance(seed).fork("settings"), mode, members=3, queues=4)
    return replace(
        drawn,
        first_members=3,
        restripe_to=(),
        request_gap_ms=None,
        rebind=replace(drawn.rebind, drain_timeout_ms=1_000),
        handlers=replace(drawn.handlers, slow_share=0.0, hang_share=0.0),
        faults=(FaultKind.TWIN,),
        fault_gap_ms=3_000,
        horizon_ms=8_000,
    )


@pytest.fixture(scope="module")
def results() -> list[SimResult]:
    return [simulate(seed, doubled(seed)) for seed in range(SEEDS)]


def only(kind: type[Happening], result: SimResult) -> list[Happening]:
    return [each for each in result.history if isinstance(each, kind)]


def test_twins_come_and_whoever_has_the_older_life_stands_aside(results: list[SimResult]) -> None:
    assert {result.seed: result.violations[0] for result in results if result.violations} == {}
    firsts = twins = 0
    for result in results:
        facts = result.facts
        twins += sum(life in facts.twins for life in facts.aside)
        firsts += sum(life not in facts.twins for life in facts.aside)
    assert sum(len(only(TwinStarted, result)) for result in results) > 2 * SEEDS
    assert min(firsts, twins) > SEEDS / 4, "either may be the one that counts"


def test_a_group_is_settled_while_who_stands_aside_is_still_there(results: list[SimResult]) -> None:
    """The law asks that every queue is fed, and so only of those that take part; here it is seen to have had others."""
    bystanders = 0
    for result in results:
        facts = result.facts
        assert facts.calm is not None
        began, calm = facts.calm
        ended = {life for life, (position, _) in facts.life_ends.items() if position < began}
        bystanders += len(facts.aside.keys() - ended)
        assert not facts.aside.keys() & {life for life, _ in calm.homes}
    assert bystanders > SEEDS / 2


def test_processes_that_share_a_client_name_throw_each_other_out() -> None:
    """They never hear each other, as one of them is always away: nobody stands aside until an operator ends it."""
    most = 0
    for seed in range(MOST_SEEDS):
        alone = replace(doubled(seed), planned_members=1, first_members=1)
        result = simulate(seed, alone)
        assert (seed, result.violations) == (seed, ())
        lives: list[Life] = []
        for fed in only(FlowFed, result):
            assert isinstance(fed, FlowFed)
            if lives[-1:] != [fed.handle.life]:
                lives.append(fed.handle.life)
        most = max(most, sum(one == again for one, again in zip(lives, lives[2:], strict=False)))
    assert most > 5


@pytest.mark.parametrize("part", range(2))
def test_members_that_only_count_stand_both_in_one_place(part: int) -> None:
    seeds = range(part, 24, 2)
    results = [simulate(seed, doubled(seed, RebindMode.CYCLE)) for seed in seeds]
    assert {result.seed: result.violations[0] for result in results if result.violations} == {}
    fed_both = 0
    for result in results:
        twins = result.facts.twins
        fed = {each.handle.life for each in only(FlowFed, result) if isinstance(each, FlowFed)}
        fed_both += sum(life in fed and other in fed for life, other in twins.items())
    assert fed_both > len(seeds) / 2


@pytest.mark.parametrize(
    ("seed", "numbers"),
    [
        # Something was due in the older life's rebalancing when it stood aside, and stayed due: it span.
        (132, (61, 62)),
        (149, (0, 2, 5)),
        # Its drains took no time and were given up; it asked again at once, for ever.
        (299, (3, 4, 5, 6)),
        # The same, and nobody saw that a drain had been given up: it was never asked again, and kept its queues.
        (365, (5,)),
    ],
)
def test_who_stands_aside_gives_its_queues_up_in_peace(seed: int, numbers: tuple[int, ...]) -> None:
    drawn = draw_settings(SeededChance(seed).fork("settings"), RebindMode.COOPERATIVE)
    settings = replace(drawn, control=replace(drawn.control, last_words_arrive=False))
    plan = draw_faults(settings, SeededChance(seed).fork("plan"))
    result = simulate(seed, settings, faults=tuple(fault for fault in plan if fault.number in numbers))
    assert any(isinstance(each, StoodAside) for each in result.history)
    assert result.violations == ()


def test_the_only_member_stands_aside_for_a_twin_that_was_gone_before_it_could_hear_it() -> None:
    """It hung while its twin spoke and was killed, and hears of it when it goes on: it ends itself and is started
    again, or the re-striping would wait for an owner of the queue for ever."""
    result = run_seed(Scope(RebindMode.COOPERATIVE), 500980, (2, 3))
    [aside] = only(StoodAside, result)
    [twin] = only(TwinStarted, result)
    assert isinstance(aside, StoodAside)
    assert isinstance(twin, TwinStarted)
    facts = result.facts
    assert twin.twin_of == aside.life
    assert facts.life_ends[twin.life][0] < facts.aside[aside.life]
    assert result.violations == ()


# -- what the laws find out


class NeverStandsAside(MembershipMachine):
    """Another process with its id is no news."""

    def _hear(self, message: ControlMessage, now_ms: int) -> list[MembershipCommand]:
        return [] if message.header.member == self.identity.member else super()._hear(message, now_ms)


class StandsAsideAndKeepsItsQueues(ControlPlaneMachine):
    """It says nothing more, and has what it had."""

    def _give_everything(self, *_: int) -> list[ControlOutput]:
        return []


class StandsAsideForEver(ControlPlaneMachine):
    """Also for one that has gone."""

    def take(self, inputs: Iterable[ControlInput], now_ms: int) -> list[ControlOutput]:
        return [output for output in super().take(inputs, now_ms) if not isinstance(output, Superseded)]


class StandsAsideAndGoesOn(ControlPlaneMachine):
    """It is not in the group, and moves queues."""

    def _tell_rebalance(self, event: RebalanceEvent, now_ms: int) -> Sequence[ControlOutput]:
        return self.rebalance.handle(event, now_ms)


@pytest.mark.parametrize(
    ("part", "mutant", "law", "first"),
    [
        ("MembershipMachine", NeverStandsAside, "one_process_is_the_member", 0),
        ("ControlPlaneMachine", StandsAsideAndKeepsItsQueues, "calm_groups_are_settled", 1),
        ("ControlPlaneMachine", StandsAsideForEver, "one_process_is_the_member", 4),
        ("ControlPlaneMachine", StandsAsideAndGoesOn, "who_stands_aside_is_out", 2),
    ],
)
def test_a_broken_stand_aside_is_found_out(
    part: str, mutant: type[object], law: str, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, part, mutant)
    runs = (simulate(seed, doubled(seed)) for seed in range(first, first + MOST_SEEDS))
    assert any(violation.law == law for result in runs for violation in result.violations)


def test_standing_aside_for_a_process_that_was_over_before_is_found_out() -> None:
    first, second = Life("m0#1"), Life("m0#2")
    history: list[Happening] = [
        LifeStarted(0, first),
        LifeEnded(10, first, killed=True),
        LifeStarted(20, second),
        StoodAside(30, second),
    ]
    [_breach] = only_twins_stand_aside(Facts(history))
    history[1:3] = [LifeStarted(20, second), LifeEnded(25, first, killed=True)]
    assert list(only_twins_stand_aside(Facts(history))) == []
