"""Readings of members to tell of."""

from lbg_runtime.metrics.durations import Durations
from lbg_runtime.metrics.reading import (
    KeysReading,
    LanesReading,
    MemberReading,
    MetersReading,
    ParkingReading,
    QueueReading,
    RestripingReading,
    TroublesReading,
)
from lbg_runtime.model.ids import GroupName, MemberId


def member_reading(queue_count: int = 2, *, member: str = "a", restriping: RestripingReading | None = None):
    """Of a member to which every queue is fed; on each 3 messages are in flight, and 7 times its index were handled."""
    handling = Durations()
    for duration_ms in (1, 4, 60_000):
        handling.count(duration_ms * 1_000_000)
    nothing = Durations().read()
    return MemberReading(
        group=GroupName("orders"),
        member=MemberId(member),
        has_started=True,
        is_ready=True,
        queues=tuple(QueueReading(index, 7 * index, 3, True) for index in range(queue_count)),
        queue_states={"active": queue_count},
        lanes=LanesReading(5, 2, 4),
        troubles=TroublesReading(8, 9, 10, 11, 1, 12, 14),
        meters=MetersReading(
            1, 2, 3, 4, handling.read(), nothing, nothing, nothing, {("taken", "elected"): 6, ("given", "handback"): 1}
        ),
        group_members={"active": 2, "suspect": 1},
        disregarded={"malformed": 13, "old_life": 0},
        restriping=restriping,
        keys=KeysReading(),
        parking=ParkingReading(),
        sidecar=None,
    )
