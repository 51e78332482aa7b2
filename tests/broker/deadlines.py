"""What a front end does when the next deadline of a broker has come."""

from lbg_runtime.broker.engine.effects import Effect
from lbg_runtime.broker.engine.timetable import Timetable


def call_due(timetable: Timetable) -> list[Effect]:
    """Call every part whose time has come."""
    return [effect for part in timetable.due() for effect in part.on_deadline()]
