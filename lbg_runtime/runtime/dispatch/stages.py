"""Tells whoever asks about a key how far its next message has got. A lane may be running without a running handler."""

from lbg_runtime.core.lanes import Lane, LaneSight, LaneStage
from lbg_runtime.runtime.runners.handling import Handling


def stage_of(lane: Lane[Handling] | LaneSight[Handling]) -> LaneStage:
    """The stage of a lane, as told to others. If the lane is running, that is READY while its message waits for its
    batch or for an application that is away, and DELAYED while the message is moved to another queue."""
    if lane.stage is not LaneStage.RUNNING:
        return lane.stage
    if lane.head.end_report is not None:
        return LaneStage.DELAYED
    return LaneStage.READY if lane.head.route.attempts.is_put_off(lane.head) else LaneStage.RUNNING
