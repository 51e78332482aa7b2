"""Groups that are re-striped in mid-run keep the laws; gates and conductors that are broken on purpose do not.

The mutants override private methods, because they stand for edits of what they replace.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import count, islice
from types import SimpleNamespace
from typing import cast

import pytest

from lbg_runtime.broker.engine.effects import FlowId
from lbg_runtime.config.rebind_mode import RebindMode
from lbg_runtime.core.group.membership_timing import MembershipTiming
from lbg_runtime.core.restripe.conductor import Conductor, Publish, ShardMove, Sight, Step, Subscribe, Unsubscribe
from lbg_runtime.core.restripe.gate import StripeGate
from lbg_runtime.core.restripe.records import ShardMarker
from lbg_runtime.model.ids import DeliveryId, Epoch, QueueName
from lbg_runtime.sim import restriper, world
from lbg_runtime.sim.campaign import Scope, run_seed
from lbg_runtime.sim.chance import SeededChance
from lbg_runtime.sim.facts import Facts
from lbg_runtime.sim.history import (
    CopySettled,
    Delivered,
    Dispatched,
    Handle,
    HandlingStarted,
    Life,
    SpoolSeen,
    Stamp,
)
from lbg_runtime.sim.laws import moved_keys_wait
from lbg_runtime.sim.link import Stream
from lbg_runtime.sim.parts import Parts
from lbg_runtime.sim.schedule import Call
from lbg_runtime.sim.settings import Fault, FaultKind, SimSettings, draw_settings
from lbg_runtime.sim.simulation import simulate
from tests.core.restripe.broken_gates import (
    DropsInsteadOfKeeping,
    ForgetsTheMarkers,
    HandlesWhatLiesBeforeTheMarker,
    HandlesWhatLiesBehindTheMarker,
    LetsGoAtTheMarker,
    SettlesThePlanAtOnce,
    TellsAtOnce,
    WaitsForNobody,
)
from tests.sim.old_seeds import as_before
from tests.sim.test_cooperative import QUICK_SEEDS

MakeSettings = Callable[[int], SimSettings]

SCOPE = Scope(RebindMode.COOPERATIVE)
RESTRIPED_SEEDS = 10
PARTS = 2
MOST_SEEDS = 12


def restriped_seeds(wanted: int) -> list[int]:
    """The first seeds whose groups are re-striped, of those that test_cooperative.py does not run as well."""
    seeds = count(QUICK_SEEDS)
    settings = ((seed, draw_settings(SeededChance(seed).fork("settings"), RebindMode.COOPERATIVE)) for seed in seeds)
    return list(islice((seed for seed, drawn in settings if drawn.restripe_to), wanted))


@pytest.mark.parametrize("part", range(PARTS))
def test_every_law_holds_in_every_run_with_re_stripings(part: int) -> None:
    seeds = restriped_seeds(RESTRIPED_SEEDS)[part::PARTS]
    broken, copies = {}, 0
    for seed in seeds:
        result = run_seed(SCOPE, seed)
        copies += sum(isinstance(happening, CopySettled) for happening in result.history)
        if result.violations:
            broken[seed] = result.violations[0]
    assert not broken, "lbg simulate --rebind-mode cooperative --seeds 1 --first SEED --history shows a run"
    assert copies > len(seeds), "messages move, and not only queues"


def test_messages_that_lag_behind_what_the_flow_and_the_control_topic_say_break_no_law() -> None:
    for seed in restriped_seeds(6):
        drawn = draw_settings(SeededChance(seed).fork("settings"), RebindMode.COOPERATIVE)
        assert (seed, simulate(seed, replace(drawn, message_lag_ms=40)).violations) == (seed, ())


def test_control_messages_that_overtake_acknowledgements_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The condition in docs/restripe.md is needed: otherwise a shard has left before the broker has its settlements."""

    def send_at_once(stream: Stream, call: Call) -> None:
        stream._arrive(stream._schedule.now_ms, call)

    drawn = replace(
        draw_settings(SeededChance(18).fork("settings"), RebindMode.COOPERATIVE), message_lag_ms=0, heeds_stops=False
    )
    assert simulate(18, drawn).violations == ()
    monkeypatch.setattr(Stream, "send_with_last", send_at_once)
    assert {violation.law for violation in simulate(18, drawn).violations} == {"moved_keys_wait"}


@pytest.mark.parametrize("seed", [3, 15, 23, 26, 40, 55, 385, 1767, 3165, 3594, 3732, 26444])
def test_runs_that_once_broke_a_law_keep_them_all(seed: int) -> None:
    drawn = as_before(draw_settings(SeededChance(seed).fork("settings"), RebindMode.COOPERATIVE))
    # As they were then: members looked at their flows after every change.
    result = simulate(seed, replace(drawn, control=replace(drawn.control, looks_ms_per_thousand=0)))
    assert result.settings.restripe_to
    assert result.violations == ()


def test_members_that_did_not_hear_of_the_end_hear_of_it_again() -> None:
    """All who had read it died when they had told who conducts, and nobody else; the queue could not be deleted."""
    drawn = draw_settings(SeededChance(7763).fork("settings"), RebindMode.COOPERATIVE)
    restarts = [Fault(number, at_ms, FaultKind.ROLLING_RESTART) for number, at_ms in enumerate((177, 900))]
    result = simulate(7763, drawn, faults=(*restarts, Fault(2, 1795, FaultKind.CUT_CONTROL)))
    assert result.settings.restripe_to
    assert result.violations == ()


def busy(seed: int) -> SimSettings:
    """Publishers go on while a group with few queues has more, then one, then more; members die meanwhile."""
    drawn = draw_settings(SeededChance(seed).fork("settings"), RebindMode.COOPERATIVE, members=3, queues=2)
    return replace(
        drawn,
        hash_count=6,
        restripe_to=(4, 1, 3),
        restriper_kill_share=0.05,
        publishers=1,
        keys=8,
        messages=300,
        publish_gap_ms=40,
        unconfirmed=10,
        control=replace(
            drawn.control,
            membership=MembershipTiming(heartbeat_ms=100, settle_ms=0),
            loss_share=0.0,
            looks_ms_per_thousand=0,
        ),
        faults=(FaultKind.KILL, FaultKind.DISCONNECT, FaultKind.STOP, FaultKind.END_FLOW, FaultKind.PAUSE),
        fault_gap_ms=500,
        horizon_ms=6_000,
    )


def backlogged(seed: int) -> SimSettings:
    """As `busy`, but messages of a key come nearly as fast as they are handled: at its marker, several are in flight.
    There, 10 of the first 30 seeds find what lets go at the marker; of `busy`, 3."""
    drawn = busy(seed)
    return replace(
        drawn,
        keys=4,
        max_in_flight=32,
        runners=16,
        window=50,
        handlers=replace(drawn.handlers, longest_ms=120, slow_share=0.0, poison_share=0.0, hang_share=0.0),
    )


def mortal(seed: int) -> SimSettings:
    """Settlements take a second to leave, handlers take long, and members are killed all the time."""
    drawn = busy(seed)
    return replace(
        drawn,
        restriper_kill_share=0.0,
        keys=4,
        ack_timer_ms=1_000,
        keep_alive_ms=10,
        longest_delay_ms=1,
        max_in_flight=8,
        runners=16,
        window=50,
        rebind=replace(drawn.rebind, drain_timeout_ms=3_000),
        handlers=replace(
            drawn.handlers, longest_ms=60, slow_share=0.0, fail_share=0.0, poison_share=0.0, hang_share=0.0
        ),
        faults=(FaultKind.KILL,),
        fault_gap_ms=400,
    )


@pytest.fixture
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue that stops does so for good, and nothing is learned from waiting five minutes for it."""
    monkeypatch.setattr(world, "QUIET_MS", 20_000)


def is_found_out(parts: Parts, run: MakeSettings, law: str, first: int) -> bool:
    """Whether a run breaks the law, of the few from one on that is known to, and takes little time."""
    for seed in range(first, first + MOST_SEEDS):
        if any(violation.law == law for violation in simulate(seed, run(seed), parts).violations):
            return True
    return False


@pytest.mark.usefixtures("little_patience")
@pytest.mark.parametrize(
    ("mutant", "run", "law", "first"),
    [
        (TellsAtOnce, mortal, "processes_overlap_only_when_cut_off", 20),
        (TellsAtOnce, busy, "moved_keys_wait", 214),
        (SettlesThePlanAtOnce, busy, "run_ends", 7),
        (HandlesWhatLiesBehindTheMarker, busy, "duplicates_are_excused", 214),
        (HandlesWhatLiesBehindTheMarker, busy, "processes_overlap_only_when_cut_off", 287),
        (HandlesWhatLiesBeforeTheMarker, busy, "duplicates_are_excused", 203),
        (WaitsForNobody, busy, "first_handlings_are_in_order", 214),
        (DropsInsteadOfKeeping, busy, "nothing_is_lost", 214),
        (DropsInsteadOfKeeping, busy, "settled_messages_are_a_prefix", 7),
        (LetsGoAtTheMarker, backlogged, "first_handlings_are_in_order", 2),
        (ForgetsTheMarkers, busy, "nothing_is_lost", 7),
    ],
)
def test_a_broken_gate_is_found_out(mutant: type[StripeGate], run: MakeSettings, law: str, first: int) -> None:
    assert is_found_out(Parts(make_gate=mutant), run, law, first)


class MarksBeforeItSubscribes(Conductor):
    """What is published in between lies behind the marker in the old queue, and nowhere else."""

    def _go_on(self, move: ShardMove, sight: Sight) -> Step:
        step = super()._go_on(move, sight)
        if isinstance(step, Subscribe):
            marker = ShardMarker(self.plan.generation, move.shard)
            return step if marker in self._published else Publish(marker)
        return step


class UnsubscribesAtTheMarker(Conductor):
    """The finish then comes before the old queues are done."""

    def _go_on(self, move: ShardMove, sight: Sight) -> Step:
        if ShardMarker(self.plan.generation, move.shard) in self._published:
            return Unsubscribe(move.old, move.topic)
        return super()._go_on(move, sight)


class SubscribesBeforeThePlan(Conductor):
    """Copies lie in the new queue before anything says that they are copies."""

    def _prepare(self, sight: Sight) -> Step | None:
        step = super()._prepare(sight)
        if isinstance(step, Publish):
            for move in self.moves:
                if move.topic not in sight.subscriptions[move.new]:
                    return Subscribe(move.new, move.topic)
        return step


@pytest.mark.parametrize(
    ("mutant", "law", "first"),
    [
        (MarksBeforeItSubscribes, "nothing_is_lost", 203),
        (UnsubscribesAtTheMarker, "first_handlings_are_in_order", 214),
        (SubscribesBeforeThePlan, "duplicates_are_excused", 214),
    ],
)
def test_a_broken_conductor_is_found_out(
    mutant: type[Conductor], law: str, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restriper, "Conductor", mutant)
    assert is_found_out(Parts(), busy, law, first)


def test_the_runs_that_find_them_out_break_nothing_by_themselves() -> None:
    for run, seed in [*((busy, seed) for seed in (7, 203, 214, 287)), (backlogged, 2), (mortal, 20)]:
        assert (seed, simulate(seed, run(seed)).violations) == (seed, ())


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param((), id="nothing was settled there"),
        pytest.param((SpoolSeen(0, QueueName("old"), ()),), id="it came after the last settlement"),
        pytest.param((SpoolSeen(0, QueueName("old"), (Stamp("p", "k", 1),)),), id="it was seen there"),
    ],
)
def test_what_lies_in_the_old_queue_is_known_whether_or_not_anything_was_settled_there(
    seen: tuple[SpoolSeen, ...],
) -> None:
    first, second = Stamp("p", "k", 1), Stamp("p", "k", 2)
    life = Life("m#1")
    old, new = (Handle(life, QueueName(name), Epoch(1)) for name in ("old", "new"))
    history = (
        *seen,
        Delivered(0, QueueName("old"), FlowId(1), old, DeliveryId(1), first, False),
        Dispatched(1, old, DeliveryId(1), first),
        HandlingStarted(2, new, DeliveryId(9), second, 1),
    )
    [_breach] = moved_keys_wait(cast(Facts, SimpleNamespace(history=history)))
