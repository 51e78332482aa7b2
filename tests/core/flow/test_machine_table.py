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
    HandlingFinished,
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
from lbg_runtime.core.flow.table import TRANSITIONS, Deadline, EventKind, FlowState, name_of
from lbg_runtime.core.restripe.striping import Striping
from lbg_runtime.model.errors import InvariantViolated
from lbg_runtime.model.ids import DeliveryId, Epoch
from tests.core.flow.machines import HOME, UNWANTED, finished, machines_in, notes, received

EVENTS: list[MachineEvent] = [
    received(7),
    FlowActive(Epoch(1)),
    FlowInactive(Epoch(1)),
    FlowDown(Epoch(1), "gone"),
    BindSucceeded(Epoch(1)),
    BindRefused(Epoch(1), "no", permanent=False),
    UnbindFinished(Epoch(1)),
    finished(1),
    finished(1, None),
    DeliveriesHeldUp(Epoch(1), (DeliveryId(1),)),
    HandlingStalled(Epoch(1)),
    StopRequested(),
    PlaceChanged(HOME),
    PlaceChanged(UNWANTED),
    HandBackRequested("m"),
    StepAsideRequested(60_000),
    StepAsideCancelled(),
    StripingLearned(Striping(1, 4, 8)),
    SettlementsReached(Epoch(1), 1),
]


@pytest.mark.parametrize("state", FlowState)
def test_every_event_in_every_state_does_what_the_table_says_and_nothing_else(state: FlowState) -> None:
    reached: dict[EventKind, set[FlowState]] = {kind: set() for kind in TRANSITIONS[state]}
    for event in EVENTS:
        kind = type(event)
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
            nothing_to_answer = kind is HandlingFinished and machine.in_flight == 0
            if kind in TRANSITIONS[state] and not nothing_to_answer:
                machine.handle(event, 30_001)
                reached[kind].add(machine.state)
            elif machine.epoch == 1 and state is FlowState.UNBOUND and is_flow_event:
                assert notes(machine.handle(event, 30_001)) == [f"{name_of(kind)}_late"]
                assert machine.state is state
            else:
                with pytest.raises(InvariantViolated):
                    machine.handle(event, 30_001)
    for machine in machines_in(state):
        if machine.deadline_ms is not None:
            machine.on_deadline(machine.deadline_ms)
            reached[Deadline].add(machine.state)
    assert reached == {kind: set(states) for kind, states in TRANSITIONS[state].items()}
