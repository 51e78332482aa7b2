"""What a stay at a parking queue may do, for every order in which things can happen to it."""

from itertools import product

import pytest

from lbg_runtime.core.parking.stay_state import HELD, OUT_OF_REACH, STAYING, STEPS, StayEvent, StayState

LET_GO, WITHDRAWN = StayEvent.LET_GO, StayEvent.WITHDRAWN
LOST, FED = StayEvent.LOST, StayEvent.FED


def after(history: tuple[StayEvent, ...]) -> StayState:
    state = StayState.OWNING
    for event in history:
        state = STEPS.get((state, event), state)
    return state


def fed_again(history: tuple[StayEvent, ...]) -> bool:
    return LOST in history and FED in history[history.index(LOST) :]


@pytest.mark.parametrize("length", range(7))
def test_a_state_says_what_has_happened(length: int) -> None:
    for history in product((LET_GO, WITHDRAWN, LOST, FED), repeat=length):
        state = after(history)
        assert (state is StayState.OWNING) == (not {LET_GO, WITHDRAWN, LOST} & set(history)), history
        assert (state in HELD) == (LOST not in history), history
        assert (state in OUT_OF_REACH) == (LOST in history and not fed_again(history)), history
        assert (state in STAYING) == (LET_GO not in history and not fed_again(history)), history
        assert STEPS[state, StayEvent.UNBOUND] is StayState.ENDED


def test_a_stay_that_has_ended_remains_so() -> None:
    assert all(STEPS.get((StayState.ENDED, event), StayState.ENDED) is StayState.ENDED for event in StayEvent)
