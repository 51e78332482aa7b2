"""The states of a stay (a member's time as owner of a parking queue) and every move between them, as data.

A state says what the stay's handle is good for. It does not say whether all that is parked is known: that is `is_open`,
and what was known stays known when the handle is lost.
"""

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType


class StayState(Enum):
    """What a stay may do, and what it waits for. One that is no longer OWNING never is again, and starts nothing."""

    OWNING = "owning"
    """The queue is this member's: the parking queue is bound and read; then messages are parked and replayed."""
    WITHDRAWN = "withdrawn"
    """This member wants the queue given up, although the handle is fed: as OWNING, but nothing more is started."""
    LEAVING = "leaving"
    """The queue itself is being unbound. What runs is waited for and settled on this handle, then that is unbound."""
    LOST = "lost"
    """The handle is not fed, so the queue is to be given up. The handle is kept until it is bound again, or the queue's
    own handle goes."""
    CUT_OFF = "cut_off"
    """Lost, and the queue itself is being unbound. Only what runs is waited for: what is settled does not count yet."""
    BACK = "back"
    """The handle is bound again after it was lost, and what was settled has been sent once more. Another owner may be
    waiting, or may have had the queue meanwhile, so what arrives is not taken. What runs is waited for and settled,
    then the handle is unbound."""
    ENDED = "ended"
    """There is no handle, and will be none."""


class StayEvent(Enum):
    LET_GO = "let_go"
    """The queue itself is being unbound, or has a new handle."""
    WITHDRAWN = "withdrawn"
    """This member cannot go on with the parking queue."""
    LOST = "lost"
    """The handle is not fed any more, or is dead."""
    FED = "fed"
    """The handle is fed, for the first time or again."""
    UNBOUND = "unbound"
    """The handle is gone, or there never was one."""


STEPS: Mapping[tuple[StayState, StayEvent], StayState] = MappingProxyType(
    {
        (StayState.OWNING, StayEvent.LET_GO): StayState.LEAVING,
        (StayState.OWNING, StayEvent.WITHDRAWN): StayState.WITHDRAWN,
        (StayState.OWNING, StayEvent.LOST): StayState.LOST,
        (StayState.WITHDRAWN, StayEvent.LET_GO): StayState.LEAVING,
        (StayState.WITHDRAWN, StayEvent.LOST): StayState.LOST,
        (StayState.LEAVING, StayEvent.LOST): StayState.CUT_OFF,
        (StayState.LOST, StayEvent.LET_GO): StayState.CUT_OFF,
        (StayState.LOST, StayEvent.FED): StayState.BACK,
        (StayState.CUT_OFF, StayEvent.FED): StayState.BACK,
        **{(state, StayEvent.UNBOUND): StayState.ENDED for state in StayState},
    }
)
"""Any other event leaves the state as it is."""

HELD = frozenset({StayState.OWNING, StayState.WITHDRAWN, StayState.LEAVING})
"""The handle was never lost: what arrives continues what its ledger was shown, and what is settled counts."""

STAYING = frozenset({StayState.OWNING, StayState.WITHDRAWN, StayState.LOST})
"""The handle is kept until something happens."""

OUT_OF_REACH = frozenset({StayState.LOST, StayState.CUT_OFF})
"""What is settled counts only if the handle is bound again."""
