"""Every event in every state does what the table of the flow machine says."""

import pytest

from lbg_runtime.core.flow.events import (
    BindRefused,
    BindSucceeded,
    DeliveriesHeldUp,
    FlowActive,
    FlowDown,
    FlowInactive,
    HandBackRequested,
    HandlingStalled,
    MachineEvent,
    MessageReceived,
    PlaceChanged,
    SettlementsReached,
    StepAsideCancelled,
    StepAsideRequested,
    StopRequested,
    StripingLearned,
    UnbindFinished,
)
from lbg_runtime.core.flow.table import TRANSITIONS, EventKind, FlowState
from lbg_runtime.core.restripe.striping import Striping
from lbg_runtime.model.errors import InvariantViolated
from lbg_runtime.model.ids import DeliveryId, Epoch
from tests.core.flow.machines import HOME, UNWANTED, finished, machines_in, notes, received

EVENTS: list[tuple[EventKind, MachineEvent]] = [
    (EventKind.MESSAGE_RECEIVED, received(7)),
    (EventKind.FLOW_ACTIVE, FlowActive(Epoch(1))),
    (EventKind.FLOW_INACTIVE, FlowInactive(Epoch(1))),
    (EventKind.FLOW_DOWN, FlowDown(Epoch(1), "gone")),
    (EventKind.BIND_SUCCEEDED, BindSucceeded(Epoch(1))),
    (EventKind.BIND_REFUSED, BindRefused(Epoch(1), "no", permanent=False)),
    (EventKind.UNBIND_FINISHED, UnbindFinished(Epoch(1))),
    (EventKind.HANDLING_FINISHED, finished(1)),
    (EventKind.HANDLING_FINISHED, finished(1, None)),
    (EventKind.DELIVERIES_HELD_UP, DeliveriesHeldUp(Epoch(1), (DeliveryId(1),))),
    (EventKind.HANDLING_STALLED, HandlingStalled(Epoch(1))),
    (EventKind.STOP_REQUESTED, StopRequested()),
    (EventKind.PLACE_CHANGED, PlaceChanged(HOME)),
    (EventKind.PLACE_CHANGED, PlaceChanged(UNWANTED)),
    (EventKind.HAND_BACK_REQUESTED, HandBackRequested("m")),
    (EventKind.STEP_ASIDE_REQUESTED, StepAsideRequested(60_000)),
    (EventKind.STEP_ASIDE_CANCELLED, StepAsideCancelled()),
    (EventKind.STRIPING_LEARNED, StripingLearned(Striping(1, 4, 8))),
    (EventKind.SETTLEMENTS_REACHED, SettlementsReached(Epoch(1), 1)),
]


@pytest.mark.parametrize("state", FlowState)
def test_every_event_in_every_state_does_what_the_table_says_and_nothing_else(state: FlowState) -> None:
    reached: dict[EventKind, set[FlowState]] = {kind: set() for kind in TRANSITIONS[state]}
    for kind, event in EVENTS:
        for machine in machines_in(state):
            assert machine.state is state
            is_flow_event = isinstance(
                event,
                MessageReceived
                | FlowActive
                | FlowInactive
                | FlowDown
                | DeliveriesHeldUp
                | HandlingStalled
                | SettlementsReached,
            )
            nothing_to_answer = kind is EventKind.HANDLING_FINISHED and machine.in_flight == 0
            if kind in TRANSITIONS[state] and not nothing_to_answer:
                machine.handle(event, 30_001)
                reached[kind].add(machine.state)
            elif machine.epoch == 1 and state is FlowState.UNBOUND and is_flow_event:
                assert notes(machine.handle(event, 30_001)) == [f"{kind.value}_late"]
                assert machine.state is state
            else:
                with pytest.raises(InvariantViolated):
                    machine.handle(event, 30_001)
    for machine in machines_in(state):
        if machine.deadline_ms is not None:
            machine.on_deadline(machine.deadline_ms)
            reached[EventKind.DEADLINE].add(machine.state)
    assert reached == {kind: set(states) for kind, states in TRANSITIONS[state].items()}
