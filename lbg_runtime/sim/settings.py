"""What a simulated run is made of. Drawn from the seed, so that thousands of seeds visit many corners at once."""

from dataclasses import dataclass
from enum import Enum

from lbg_runtime.core.rebind import RebindSettings
from lbg_runtime.sim.chance import SeededChance


class FaultKind(Enum):
    """What can happen to a run."""

    KILL = "kill"
    """SIGKILL of a member, started again later."""
    STOP = "stop"
    """A graceful stop of a member, started again later."""
    JOIN = "join"
    """A planned member that is not running is started."""
    PAUSE = "pause"
    """A member's process stands still; the broker gives it up when that lasts longer than the keep-alive."""
    DISCONNECT = "disconnect"
    """A member's connection breaks; broker and member notice at different times, others take over meanwhile."""
    END_FLOW = "end_flow"
    """The broker ends one flow of a member for good."""
    SLOW = "slow"
    """Handlers of a member become slow for a while."""
    ROLLING_RESTART = "rolling_restart"
    """All members are stopped and started, one after the other."""
    CUT_PUBLISHER = "cut_publisher"
    """A publisher's connection breaks."""


@dataclass(frozen=True, slots=True)
class HandlerSettings:
    """How the handlers of a run behave; shares are probabilities per try, of `poison` per message."""

    longest_ms: int
    slow_share: float
    slow_ms: int
    fail_share: float
    poison_share: float
    """Fails at every try, and is rejected in the end."""
    hang_share: float
    """Ends only at its timeout, or when it is cancelled."""
    timeout_ms: int
    attempts: int
    retry_ms: int


@dataclass(frozen=True, slots=True)
class SimSettings:
    """One run."""

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
    activity_lag_ms: int
    """How late a client reports activity, on a thread of its own, behind the messages."""
    bind_lag_ms: int
    """How late a client reports that a bind is done, behind what the flow reports."""
    rebind: RebindSettings
    handlers: HandlerSettings
    faults: tuple[FaultKind, ...]
    fault_gap_ms: int
    """Longest time between two faults."""
    request_gap_ms: int | None
    """Longest time between two requests of a control plane; None where there is none, and places are static."""
    horizon_ms: int
    """Faults and requests end here; what was published must then come to an end too."""


def draw_settings(chance: SeededChance) -> SimSettings:
    """The settings of a seed."""
    queue_count = chance.between(1, 5)
    planned = chance.between(1, 4)
    slow_run = chance.happens(0.3)
    drain_timeout_ms = chance.pick((0, 100, 1_000, 3_000))
    longest_ms = chance.pick((1, 20, 60))
    attempts, retry_ms = 3, chance.pick((0, 20, 300))
    # Tries start anew with every delivery. Poison whose tries do not fit into a drain would go from hand to hand for
    # ever, at the pace of this simulation's rebind cycles.
    poison_ends = attempts * (longest_ms + retry_ms) < drain_timeout_ms and not slow_run
    return SimSettings(
        queue_count=queue_count,
        hash_count=queue_count * chance.between(1, 4),
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
        activity_lag_ms=chance.pick((0, 0, 10)),
        bind_lag_ms=chance.pick((0, 0, 10)),
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
        faults=tuple(kind for kind in FaultKind if chance.happens(0.5)),
        fault_gap_ms=chance.pick((200, 1_000, 4_000)),
        request_gap_ms=chance.fork("requests").pick((None, 50, 300, 1_500)),
        horizon_ms=chance.pick((2_000, 6_000, 12_000)),
    )
