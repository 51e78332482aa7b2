"""How far the next message of a key has got, for whoever asks: where a lane runs, there need be no handler at work."""

from lbg_runtime.core.lanes import Lane, LaneSight, LaneStage
from lbg_runtime.runtime.runners.handling import Handling


def stage_of(lane: Lane[Handling] | LaneSight[Handling]) -> LaneStage:
    """The stage of a lane. One that runs is READY while its message waits for its batch, or for an application that is
    away, and DELAYED while it is published to another queue."""
    if lane.stage is not LaneStage.RUNNING:
        return lane.stage
    if lane.head.end_report is not None:
        return LaneStage.DELAYED
    return LaneStage.READY if lane.head.route.attempts.is_put_off(lane.head) else LaneStage.RUNNING
