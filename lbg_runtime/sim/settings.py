"""The parameters of a simulated run, drawn from the seed, so that thousands of seeds visit many corners at once."""

from dataclasses import dataclass
from enum import Enum

from lbg_runtime.config.rebind_mode import RebindMode
from lbg_runtime.core.flow.rebind import RebindSettings
from lbg_runtime.core.group.membership_timing import MembershipTiming
from lbg_runtime.core.group.rebalance_settings import RebalanceSettings
from lbg_runtime.sim.chance import SeededChance


class FaultKind(Enum):
    """What can happen to a run. Add new ones at the end, or seeds will mean different runs."""

    KILL = "kill"
    """SIGKILL of a member, started again later."""
    STOP = "stop"
    """A graceful stop of a member, started again later."""
    JOIN = "join"
    """A planned member that is not running is started."""
    PAUSE = "pause"
    """A member's process stands still; the broker gives it up if that lasts longer than the keep-alive."""
    DISCONNECT = "disconnect"
    """A member's connection breaks; broker and member notice at different times, and others take over meanwhile."""
    END_FLOW = "end_flow"
    """The broker ends one flow of a member permanently."""
    SLOW = "slow"
    """Handlers of a member become slow for a while."""
    ROLLING_RESTART = "rolling_restart"
    """All members are stopped and started, one after the other."""
    CUT_PUBLISHER = "cut_publisher"
    """A publisher's connection breaks."""
    LEAVE = "leave"
    """A graceful stop of a member, which stays away until it joins."""
    BLOCK = "block"
    """A member's event loop stands still while its connection lives: the broker does not give it up."""
    BROKER_RESTART = "broker_restart"
    """The broker and every connection are down for a while; the broker keeps what it spooled."""
    DEPLOY = "deploy"
    """All members are stopped at once, and each starts again when it has ended."""
    CUT_CONTROL = "cut_control"
    """Some members and the others do not hear each other on the control topic, or only one way."""
    HANG = "hang"
    """A member's event loop hangs while the client's threads answer the broker: the watchdog ends the process, which is
    started again later; or the loop goes on just in time."""
    TWIN = "twin"
    """A second process is started with the id of a live member."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that happens to a run, at a predetermined time."""

    number: int
    """Its name in a replay, and the source of its own chance: removing others does not change it."""
    at_ms: int
    kind: FaultKind
    member: int | None = None
    """The member it strikes; None for any that lives then, drawn by its own chance."""


@dataclass(frozen=True, slots=True)
class ControlSettings:
    """The control plane of members that talk to each other, and the topic that they use."""

    membership: MembershipTiming
    rebalance: RebalanceSettings
    loss_share: float
    """Share of all messages to one listener that are lost, until faults end."""
    repeat_share: float
    longest_delay_ms: int
    """Of one message to one listener."""
    overtakes: bool
    """Whether a later message of one sender may come before an earlier one, which no single connection allows."""
    looks_ms_per_thousand: int
    """Per thousand of a member's flows, see `ControlPlaneMachine`; more than shipped, as there are few queues."""
    last_words_arrive: bool = False
    """Whether what a process said just before its end is heard, as it is in reality: its goodbye, or its last beat.
    Drawn only with the newest faults: older runs are without it."""


@dataclass(frozen=True, slots=True)
class HandlerSettings:
    """How the handlers of a run behave; shares are probabilities per attempt, that of `poison` per message."""

    longest_ms: int
    slow_share: float
    slow_ms: int
    fail_share: float
    poison_share: float
    """Fails at every attempt, and is rejected in the end."""
    hang_share: float
    """Ends only at its time-out, or when it is cancelled."""
    timeout_ms: int
    attempts: int
    retry_ms: int


@dataclass(frozen=True, slots=True)
class SimSettings:
    """One run."""

    mode: RebindMode
    queue_count: int
    hash_count: int
    planned_members: int
    first_members: int
    """Members that start with the run."""
    publishers: int
    keys: int
    messages: int
    """Per publisher."""
    publish_gap_ms: int
    """Longest time between two messages of a publisher."""
    unconfirmed: int
    """Most messages that a publisher has under way."""
    max_in_flight: int
    runners: int
    window: int
    ack_timer_ms: int
    longest_delay_ms: int
    """Of one frame, one way."""
    keep_alive_ms: int
    """Longest time until a broken connection is noticed at either end."""
    heeds_stops: bool
    """Whether a member gives its handles up after a pause of its process that is longer than half of that."""
    activity_lag_ms: int
    """How late a client reports activity, on its own thread, after the messages."""
    bind_lag_ms: int
    """How late a client reports that a bind is done, after what the flow reports."""
    message_lag_ms: int
    """How late a client hands messages over, on the thread of its public path, after what the flow reports."""
    longest_drift_permille: int
    """How far a member's clock is ahead or behind after a second, in ms."""
    rebind: RebindSettings
    control: ControlSettings
    """Used by cooperative members."""
    handlers: HandlerSettings
    faults: tuple[FaultKind, ...]
    fault_gap_ms: int
    """Longest time between two faults."""
    request_gap_ms: int | None
    """Longest time between two requests of a control plane; None if there is none, and places are static."""
    restripe_to: tuple[int, ...]
    """Queue counts that the group is brought to, one after another, in mid-run; cooperative members only."""
    restriper_kill_share: float
    """Share of the steps of a re-striping at which its conductor dies."""
    horizon_ms: int
    """Faults and requests end here; after that, everything published must come to an end too."""


def draw_settings(
    chance: SeededChance, mode: RebindMode = RebindMode.CYCLE, members: int | None = None, queues: int | None = None
) -> SimSettings:
    """The settings of a seed; the two modes differ only in how queues move."""
    queue_count = chance.between(1, 5) if queues is None else queues
    planned = chance.between(1, 4) if members is None else members
    slow_run = chance.happens(0.3)
    drain_timeout_ms = chance.pick((0, 100, 1_000, 3_000))
    longest_ms = chance.pick((1, 20, 60))
    attempts, retry_ms = 3, chance.pick((0, 20, 300))
    # Attempts start over with every delivery. Poison whose attempts do not fit into a drain would go from member to
    # member forever, at the pace of this simulation's rebind cycles.
    poison_ends = attempts * (longest_ms + retry_ms) < drain_timeout_ms and not slow_run
    more, newest = chance.fork("more faults"), chance.fork("newest faults")
    newest_faults = tuple(kind for kind in _NEWEST_FAULTS if newest.happens(0.5))
    last_words = bool(newest_faults) and newest.happens(0.7)
    hash_count = queue_count * chance.between(1, 4)
    stripes = chance.fork("restripe")
    is_restriped = mode is RebindMode.COOPERATIVE and stripes.happens(0.5)
    targets = _draw_targets(stripes, queue_count, hash_count) if is_restriped else ()
    return SimSettings(
        mode=mode,
        queue_count=queue_count,
        hash_count=hash_count,
        planned_members=planned,
        first_members=chance.between(1, planned),
        publishers=chance.between(1, 2),
        keys=chance.between(1, 10),
        messages=chance.between(20, 90),
        publish_gap_ms=chance.pick((5, 40, 150)),
        unconfirmed=chance.pick((1, 10, 50)),
        max_in_flight=chance.pick((1, 2, 4, 8, 32)),
        runners=chance.pick((1, 2, 4, 16)),
        window=chance.pick((1, 3, 8, 50)),
        ack_timer_ms=chance.pick((20, 200, 1_000)),
        longest_delay_ms=chance.pick((1, 5, 30)),
        keep_alive_ms=chance.pick((10, 500, 3_000)),
        heeds_stops=chance.fork("stops").happens(0.5),
        activity_lag_ms=chance.pick((0, 0, 10)),
        bind_lag_ms=chance.pick((0, 0, 10)),
        message_lag_ms=chance.fork("message lag").pick((0, 0, 10, 40)),
        rebind=RebindSettings(
            interval_ms=chance.pick((300, 1_000, 4_000)),
            jitter=chance.pick((0.0, 0.5, 1.0)),
            drain_timeout_ms=drain_timeout_ms,
            bind_backoff_min_ms=50,
            bind_backoff_max_ms=1_000,
            # Two one-way delays: what was under way when intake stopped has then arrived.
            quiet_gap_ms=chance.pick((0, 2, 60)),
            rank_delay_ms=chance.fork("rank delay").pick((1, 30, 100)),
        ),
        handlers=HandlerSettings(
            longest_ms=longest_ms,
            slow_share=chance.pick((0.0, 0.05, 0.3)) if slow_run else 0.0,
            slow_ms=chance.pick((300, 2_000)),
            fail_share=chance.pick((0.0, 0.0, 0.1, 0.3)),
            poison_share=chance.pick((0.0, 0.03)) if poison_ends else 0.0,
            hang_share=chance.pick((0.0, 0.0, 0.02)),
            timeout_ms=chance.pick((500, 3_000)),
            attempts=attempts,
            retry_ms=retry_ms,
        ),
        longest_drift_permille=chance.fork("drift").pick((0, 1, 100)),
        control=_draw_control(chance.fork("control"), drain_timeout_ms, last_words_arrive=last_words),
        faults=(
            *(kind for kind in _OLDER_FAULTS if (more if kind in _MORE_FAULTS else chance).happens(0.5)),
            *newest_faults,
        ),
        fault_gap_ms=chance.pick((200, 1_000, 4_000)),
        request_gap_ms=chance.fork("requests").pick((None, 50, 300, 1_500)) if mode is RebindMode.CYCLE else None,
        restripe_to=targets,
        restriper_kill_share=stripes.pick((0.0, 0.05, 0.3)),
        horizon_ms=chance.pick((2_000, 6_000, 12_000)),
    )


def draw_faults(settings: SimSettings, chance: SeededChance) -> tuple[Fault, ...]:
    """The faults of a run, in order of time."""
    faults: list[Fault] = []
    at_ms = chance.between(1, settings.fault_gap_ms)
    while settings.faults and at_ms < settings.horizon_ms:
        faults.append(Fault(len(faults), at_ms, chance.pick(settings.faults)))
        at_ms += chance.between(1, settings.fault_gap_ms)
    return tuple(faults)


_MORE_FAULTS = frozenset(
    {FaultKind.LEAVE, FaultKind.BLOCK, FaultKind.BROKER_RESTART, FaultKind.DEPLOY, FaultKind.CUT_CONTROL}
)

# Each batch of faults added later is drawn from its own fork: a seed without them is the same run as before, and so is
# every seed whose settings leave them out.
_NEWEST_FAULTS = (FaultKind.HANG, FaultKind.TWIN)
_OLDER_FAULTS = tuple(kind for kind in FaultKind if kind not in _NEWEST_FAULTS)


def _draw_targets(chance: SeededChance, queue_count: int, hash_count: int) -> tuple[int, ...]:
    """One to three queue counts, each different from the one before."""
    targets = [queue_count]
    for _ in range(chance.between(1, 3)):
        target = chance.between(1, min(hash_count, 8))
        if target != targets[-1]:
            targets.append(target)
    return tuple(targets[1:])


def _draw_control(chance: SeededChance, drain_timeout_ms: int, *, last_words_arrive: bool) -> ControlSettings:
    """About a tenth of the shipped delays, so that much happens in little time."""
    heartbeat_ms = chance.pick((100, 200, 400))
    return ControlSettings(
        membership=MembershipTiming(
            heartbeat_ms=heartbeat_ms, settle_ms=chance.pick((0, heartbeat_ms, 2 * heartbeat_ms))
        ),
        rebalance=RebalanceSettings(
            standbys=chance.pick((0, 1, 2, None)),
            min_tenure_ms=chance.pick((0, 300, 1_500)),
            max_moves=chance.pick((1, 2, 4)),
            answer_timeout_ms=chance.pick((100, 300)),
            step_aside_ms=drain_timeout_ms + 500,
            backoff_min_ms=100,
            backoff_max_ms=1_000,
        ),
        loss_share=chance.pick((0.0, 0.0, 0.02, 0.2)),
        repeat_share=chance.pick((0.0, 0.05, 0.3)),
        longest_delay_ms=chance.pick((1, 10, 60)),
        overtakes=chance.happens(0.5),
        looks_ms_per_thousand=chance.fork("looks").pick((0, 2_000, 20_000)),
        last_words_arrive=last_words_arrive,
    )
