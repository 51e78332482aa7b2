"""A run with the shipped delays, for the figures: the same story for both modes.

All planned members but one run; the last joins; one leaves in good order; one is killed and starts again. Nothing else
happens, and the control topic loses nothing, so that the way of moving queues is measured, not its luck.
"""

from dataclasses import dataclass

from lbg_runtime.config.rebind_mode import RebindMode
from lbg_runtime.core.flow.rebind import RebindSettings
from lbg_runtime.core.group.control_plane import LOOKS_MS_PER_THOUSAND
from lbg_runtime.core.group.membership_timing import MembershipTiming
from lbg_runtime.core.group.rebalance_settings import RebalanceSettings
from lbg_runtime.sim.chance import SeededChance
from lbg_runtime.sim.figures import Duplicates, hops, owner_changes, servings, time_to_own_ms
from lbg_runtime.sim.settings import ControlSettings, Fault, FaultKind, HandlerSettings, SimSettings
from lbg_runtime.sim.simulation import simulate
from lbg_runtime.sim.violation import Violation

STEADY_FROM_MS = 60_000
JOIN_MS = 120_000
LEAVE_MS = 200_000
KILL_MS = 260_000
END_MS = 330_000

DRAIN_TIMEOUT_MS = 30_000


@dataclass(frozen=True, slots=True)
class StoryFigures:
    time_to_own_ms: int | None
    """From the start of the joining member until it finally owned its share."""
    join_changes: int
    """Owner changes from the join until somebody leaves."""
    steady_changes: int
    """Owner changes in the minute before the join."""
    move_pauses_ms: tuple[int, ...]
    """Pauses of queues that were given up in good order."""
    loss_pauses_ms: tuple[int, ...]
    """Pauses of queues whose owner was killed."""
    hops: int
    duplicates: Duplicates
    violations: tuple[Violation, ...]


def tell_story(seed: int, mode: RebindMode, members: int, queues: int) -> StoryFigures:
    """Run the story of a seed. `members` at least 3: one joins, one leaves, one dies."""
    chance = SeededChance(seed).fork("story")
    settings = story_settings(mode, members, queues)
    # Rebind cycles have no fixed phase relative to the story.
    join_ms = JOIN_MS + chance.between(0, 10_000)
    plan = (
        Fault(0, join_ms, FaultKind.JOIN, members - 1),
        Fault(1, LEAVE_MS + chance.between(0, 10_000), FaultKind.LEAVE, 0),
        Fault(2, KILL_MS + chance.between(0, 10_000), FaultKind.KILL, 1),
    )
    result = simulate(seed, settings, faults=plan)
    found = servings(result.history)
    told = [serving for serving in found if STEADY_FROM_MS <= serving.at_ms < END_MS and serving.pause_ms is not None]
    return StoryFigures(
        time_to_own_ms=time_to_own_ms(found, f"m{members - 1}", join_ms, LEAVE_MS),
        join_changes=owner_changes(found, join_ms, LEAVE_MS),
        steady_changes=owner_changes(found, STEADY_FROM_MS, JOIN_MS),
        move_pauses_ms=tuple(each.pause_ms for each in told if not each.after_loss and each.pause_ms is not None),
        loss_pauses_ms=tuple(each.pause_ms for each in told if each.after_loss and each.pause_ms is not None),
        hops=hops(result.facts),
        duplicates=result.duplicates,
        violations=result.violations,
    )


def story_settings(mode: RebindMode, members: int, queues: int) -> SimSettings:
    """Shipped delays; a network of 1 ms and handlers of up to 20 ms, so that the delays stand out."""
    return SimSettings(
        mode=mode,
        queue_count=queues,
        hash_count=queues,
        planned_members=members,
        first_members=members - 1,
        publishers=2,
        keys=4 * queues,
        messages=END_MS // 60,
        publish_gap_ms=119,
        unconfirmed=50,
        max_in_flight=32,
        runners=16,
        window=50,
        ack_timer_ms=1_000,
        longest_delay_ms=1,
        keep_alive_ms=3_000,
        heeds_stops=True,
        activity_lag_ms=0,
        bind_lag_ms=0,
        message_lag_ms=0,
        longest_drift_permille=1,
        rebind=RebindSettings(
            interval_ms=30_000,
            jitter=1.0,
            drain_timeout_ms=DRAIN_TIMEOUT_MS,
            bind_backoff_min_ms=200,
            bind_backoff_max_ms=10_000,
            quiet_gap_ms=50,
            rank_delay_ms=100,
        ),
        control=ControlSettings(
            MembershipTiming(),
            RebalanceSettings(step_aside_ms=DRAIN_TIMEOUT_MS + 5_000),
            loss_share=0.0,
            repeat_share=0.0,
            longest_delay_ms=2,
            overtakes=False,
            looks_ms_per_thousand=LOOKS_MS_PER_THOUSAND,
        ),
        handlers=HandlerSettings(
            longest_ms=20,
            slow_share=0.0,
            slow_ms=0,
            fail_share=0.0,
            poison_share=0.0,
            hang_share=0.0,
            timeout_ms=30_000,
            attempts=3,
            retry_ms=0,
        ),
        faults=(),
        fault_gap_ms=1,
        request_gap_ms=None,
        restripe_to=(),
        restriper_kill_share=0.0,
        horizon_ms=END_MS,
    )
