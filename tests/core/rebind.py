"""Delays of flow machines of which nothing is random."""

from lbg_runtime.core.flow.rebind import RebindSettings

REBIND = RebindSettings(
    interval_ms=30_000,
    jitter=0.0,
    drain_timeout_ms=5_000,
    bind_backoff_min_ms=100,
    bind_backoff_max_ms=5_000,
    quiet_gap_ms=20,
    rank_delay_ms=100,
)
