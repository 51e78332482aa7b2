"""The states of a flow and every move between them, as data.

The flow machine checks each of its steps against this table; the table test and docs/flow-machine.md are made from it.
"""

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

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


class FlowState(Enum):
    """The state of a flow. A flow that the broker feeds is ACTIVE or DRAINING; the member's role is not part of it."""

    # States are looked up for every event, and the hash of Enum is computed from the name, in Python.
    __hash__ = object.__hash__

    UNBOUND = "unbound"
    """There is no handle. The flow waits until it is time to bind, or until it is wanted on the queue; or it has
    stopped for good."""
    BINDING = "binding"
    STANDBY = "standby"
    """Bound, with its intake closed; the broker does not feed this flow."""
    ACTIVE = "active"
    """Bound; the broker feeds this flow."""
    DRAINING = "draining"
    """Being given up: it waits for what is in flight on this handle."""
    UNBINDING = "unbinding"
    """Nothing is in flight; the handle is being unbound."""


class EventKind(Enum):
    """The rows of the table: one per event class, and the deadline."""

    __hash__ = object.__hash__

    MESSAGE_RECEIVED = "message_received"
    FLOW_ACTIVE = "flow_active"
    FLOW_INACTIVE = "flow_inactive"
    FLOW_DOWN = "flow_down"
    BIND_SUCCEEDED = "bind_succeeded"
    BIND_REFUSED = "bind_refused"
    UNBIND_FINISHED = "unbind_finished"
    HANDLING_FINISHED = "handling_finished"
    DELIVERIES_HELD_UP = "deliveries_held_up"
    HANDLING_STALLED = "handling_stalled"
    STOP_REQUESTED = "stop_requested"
    PLACE_CHANGED = "place_changed"
    HAND_BACK_REQUESTED = "hand_back_requested"
    STEP_ASIDE_REQUESTED = "step_aside_requested"
    STEP_ASIDE_CANCELLED = "step_aside_cancelled"
    STRIPING_LEARNED = "striping_learned"
    SETTLEMENTS_REACHED = "settlements_reached"
    DEADLINE = "deadline"


KIND_OF_EVENT: Mapping[type[MachineEvent], EventKind] = MappingProxyType(
    {
        MessageReceived: EventKind.MESSAGE_RECEIVED,
        FlowActive: EventKind.FLOW_ACTIVE,
        FlowInactive: EventKind.FLOW_INACTIVE,
        FlowDown: EventKind.FLOW_DOWN,
        BindSucceeded: EventKind.BIND_SUCCEEDED,
        BindRefused: EventKind.BIND_REFUSED,
        UnbindFinished: EventKind.UNBIND_FINISHED,
        HandlingFinished: EventKind.HANDLING_FINISHED,
        DeliveriesHeldUp: EventKind.DELIVERIES_HELD_UP,
        HandlingStalled: EventKind.HANDLING_STALLED,
        StopRequested: EventKind.STOP_REQUESTED,
        PlaceChanged: EventKind.PLACE_CHANGED,
        HandBackRequested: EventKind.HAND_BACK_REQUESTED,
        StepAsideRequested: EventKind.STEP_ASIDE_REQUESTED,
        StepAsideCancelled: EventKind.STEP_ASIDE_CANCELLED,
        StripingLearned: EventKind.STRIPING_LEARNED,
        SettlementsReached: EventKind.SETTLEMENTS_REACHED,
    }
)

_UNBOUND, _BINDING, _STANDBY = FlowState.UNBOUND, FlowState.BINDING, FlowState.STANDBY
_ACTIVE, _DRAINING, _UNBINDING = FlowState.ACTIVE, FlowState.DRAINING, FlowState.UNBINDING

TRANSITIONS: Mapping[FlowState, Mapping[EventKind, frozenset[FlowState]]] = MappingProxyType(
    {
        _UNBOUND: {
            EventKind.DEADLINE: frozenset({_BINDING}),
            EventKind.STOP_REQUESTED: frozenset({_UNBOUND}),
            EventKind.PLACE_CHANGED: frozenset({_UNBOUND}),
            EventKind.HAND_BACK_REQUESTED: frozenset({_UNBOUND}),
            EventKind.STEP_ASIDE_REQUESTED: frozenset({_UNBOUND}),
            EventKind.STEP_ASIDE_CANCELLED: frozenset({_UNBOUND}),
            EventKind.STRIPING_LEARNED: frozenset({_UNBOUND}),
        },
        # Events of the flow that come before the answer to its bind are kept, and handled right after it.
        _BINDING: {
            EventKind.MESSAGE_RECEIVED: frozenset({_BINDING}),
            EventKind.FLOW_ACTIVE: frozenset({_BINDING}),
            EventKind.FLOW_INACTIVE: frozenset({_BINDING}),
            EventKind.FLOW_DOWN: frozenset({_BINDING}),
            EventKind.BIND_SUCCEEDED: frozenset({_STANDBY, _UNBINDING}),
            EventKind.BIND_REFUSED: frozenset({_UNBOUND}),
            EventKind.STOP_REQUESTED: frozenset({_BINDING}),
            EventKind.PLACE_CHANGED: frozenset({_BINDING}),
            EventKind.HAND_BACK_REQUESTED: frozenset({_BINDING}),
            EventKind.STEP_ASIDE_REQUESTED: frozenset({_BINDING}),
            EventKind.STEP_ASIDE_CANCELLED: frozenset({_BINDING}),
            EventKind.STRIPING_LEARNED: frozenset({_BINDING}),
        },
        _STANDBY: {
            EventKind.MESSAGE_RECEIVED: frozenset({_ACTIVE}),
            EventKind.FLOW_ACTIVE: frozenset({_ACTIVE, _UNBINDING}),
            EventKind.FLOW_INACTIVE: frozenset({_STANDBY}),
            EventKind.FLOW_DOWN: frozenset({_UNBOUND}),
            EventKind.STOP_REQUESTED: frozenset({_UNBINDING}),
            EventKind.PLACE_CHANGED: frozenset({_STANDBY, _UNBINDING}),
            EventKind.HAND_BACK_REQUESTED: frozenset({_STANDBY}),
            EventKind.STEP_ASIDE_REQUESTED: frozenset({_STANDBY}),
            EventKind.STEP_ASIDE_CANCELLED: frozenset({_STANDBY}),
            EventKind.STRIPING_LEARNED: frozenset({_STANDBY}),
        },
        _ACTIVE: {
            EventKind.MESSAGE_RECEIVED: frozenset({_ACTIVE}),
            EventKind.FLOW_ACTIVE: frozenset({_ACTIVE}),
            EventKind.FLOW_INACTIVE: frozenset({_DRAINING, _UNBINDING}),
            EventKind.FLOW_DOWN: frozenset({_UNBOUND}),
            EventKind.HANDLING_FINISHED: frozenset({_ACTIVE, _DRAINING, _UNBINDING}),
            EventKind.DELIVERIES_HELD_UP: frozenset({_ACTIVE}),
            EventKind.HANDLING_STALLED: frozenset({_ACTIVE}),
            EventKind.STOP_REQUESTED: frozenset({_DRAINING, _UNBINDING}),
            EventKind.DEADLINE: frozenset({_DRAINING, _UNBINDING}),
            EventKind.PLACE_CHANGED: frozenset({_ACTIVE}),
            EventKind.HAND_BACK_REQUESTED: frozenset({_DRAINING, _UNBINDING}),
            EventKind.STEP_ASIDE_REQUESTED: frozenset({_ACTIVE}),
            EventKind.STEP_ASIDE_CANCELLED: frozenset({_ACTIVE}),
            EventKind.STRIPING_LEARNED: frozenset({_ACTIVE}),
            EventKind.SETTLEMENTS_REACHED: frozenset({_ACTIVE}),
        },
        _DRAINING: {
            EventKind.MESSAGE_RECEIVED: frozenset({_DRAINING}),
            EventKind.FLOW_ACTIVE: frozenset({_DRAINING}),
            EventKind.FLOW_INACTIVE: frozenset({_DRAINING, _UNBINDING}),
            EventKind.FLOW_DOWN: frozenset({_UNBOUND}),
            EventKind.HANDLING_FINISHED: frozenset({_DRAINING, _UNBINDING}),
            EventKind.DELIVERIES_HELD_UP: frozenset({_DRAINING}),
            EventKind.HANDLING_STALLED: frozenset({_DRAINING}),
            EventKind.STOP_REQUESTED: frozenset({_DRAINING}),
            EventKind.DEADLINE: frozenset({_ACTIVE, _DRAINING, _UNBINDING}),
            EventKind.PLACE_CHANGED: frozenset({_DRAINING}),
            EventKind.HAND_BACK_REQUESTED: frozenset({_DRAINING}),
            EventKind.STEP_ASIDE_REQUESTED: frozenset({_DRAINING}),
            EventKind.STEP_ASIDE_CANCELLED: frozenset({_DRAINING}),
            EventKind.STRIPING_LEARNED: frozenset({_DRAINING}),
            EventKind.SETTLEMENTS_REACHED: frozenset({_DRAINING}),
        },
        _UNBINDING: {
            EventKind.MESSAGE_RECEIVED: frozenset({_UNBINDING}),
            EventKind.FLOW_ACTIVE: frozenset({_UNBINDING}),
            EventKind.FLOW_INACTIVE: frozenset({_UNBINDING}),
            EventKind.FLOW_DOWN: frozenset({_UNBINDING}),
            EventKind.DELIVERIES_HELD_UP: frozenset({_UNBINDING}),
            EventKind.HANDLING_STALLED: frozenset({_UNBINDING}),
            EventKind.UNBIND_FINISHED: frozenset({_UNBOUND}),
            EventKind.STOP_REQUESTED: frozenset({_UNBINDING}),
            EventKind.PLACE_CHANGED: frozenset({_UNBINDING}),
            EventKind.HAND_BACK_REQUESTED: frozenset({_UNBINDING}),
            EventKind.STEP_ASIDE_REQUESTED: frozenset({_UNBINDING}),
            EventKind.STEP_ASIDE_CANCELLED: frozenset({_UNBINDING}),
            EventKind.STRIPING_LEARNED: frozenset({_UNBINDING}),
            EventKind.SETTLEMENTS_REACHED: frozenset({_UNBINDING}),
        },
    }
)
"""An event kind that a state does not list cannot happen there in the current epoch."""
