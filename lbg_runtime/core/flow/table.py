"""The states of a flow and every move between them, as data.

The flow machine checks each of its steps against this table; the table test and docs/flow-machine.md are made from it.
"""

import re
from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import get_args

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


class Deadline:
    """Stands in the table for `FlowMachine.on_deadline`, beside the classes of events."""


EventKind = type[MachineEvent] | type[Deadline]

EVENT_KINDS: tuple[EventKind, ...] = (*get_args(MachineEvent), Deadline)
"""The rows of the table."""


def name_of(kind: EventKind) -> str:
    """The name of a row, in documents, notes and errors: `flow_active`."""
    return re.sub(r"\B(?=[A-Z])", "_", kind.__name__).lower()


_UNBOUND, _BINDING, _STANDBY = FlowState.UNBOUND, FlowState.BINDING, FlowState.STANDBY
_ACTIVE, _DRAINING, _UNBINDING = FlowState.ACTIVE, FlowState.DRAINING, FlowState.UNBINDING

TRANSITIONS: Mapping[FlowState, Mapping[EventKind, frozenset[FlowState]]] = MappingProxyType(
    {
        _UNBOUND: {
            Deadline: frozenset({_BINDING}),
            StopRequested: frozenset({_UNBOUND}),
            PlaceChanged: frozenset({_UNBOUND}),
            HandBackRequested: frozenset({_UNBOUND}),
            StepAsideRequested: frozenset({_UNBOUND}),
            StepAsideCancelled: frozenset({_UNBOUND}),
            StripingLearned: frozenset({_UNBOUND}),
        },
        # Events of the flow that come before the answer to its bind are kept, and handled right after it.
        _BINDING: {
            MessageReceived: frozenset({_BINDING}),
            FlowActive: frozenset({_BINDING}),
            FlowInactive: frozenset({_BINDING}),
            FlowDown: frozenset({_BINDING}),
            BindSucceeded: frozenset({_STANDBY, _UNBINDING}),
            BindRefused: frozenset({_UNBOUND}),
            StopRequested: frozenset({_BINDING}),
            PlaceChanged: frozenset({_BINDING}),
            HandBackRequested: frozenset({_BINDING}),
            StepAsideRequested: frozenset({_BINDING}),
            StepAsideCancelled: frozenset({_BINDING}),
            StripingLearned: frozenset({_BINDING}),
        },
        _STANDBY: {
            MessageReceived: frozenset({_ACTIVE}),
            FlowActive: frozenset({_ACTIVE, _UNBINDING}),
            FlowInactive: frozenset({_STANDBY}),
            FlowDown: frozenset({_UNBOUND}),
            StopRequested: frozenset({_UNBINDING}),
            PlaceChanged: frozenset({_STANDBY, _UNBINDING}),
            HandBackRequested: frozenset({_STANDBY}),
            StepAsideRequested: frozenset({_STANDBY}),
            StepAsideCancelled: frozenset({_STANDBY}),
            StripingLearned: frozenset({_STANDBY}),
        },
        _ACTIVE: {
            MessageReceived: frozenset({_ACTIVE}),
            FlowActive: frozenset({_ACTIVE}),
            FlowInactive: frozenset({_DRAINING, _UNBINDING}),
            FlowDown: frozenset({_UNBOUND}),
            HandlingFinished: frozenset({_ACTIVE, _DRAINING, _UNBINDING}),
            DeliveriesHeldUp: frozenset({_ACTIVE}),
            HandlingStalled: frozenset({_ACTIVE}),
            StopRequested: frozenset({_DRAINING, _UNBINDING}),
            Deadline: frozenset({_DRAINING, _UNBINDING}),
            PlaceChanged: frozenset({_ACTIVE}),
            HandBackRequested: frozenset({_DRAINING, _UNBINDING}),
            StepAsideRequested: frozenset({_ACTIVE}),
            StepAsideCancelled: frozenset({_ACTIVE}),
            StripingLearned: frozenset({_ACTIVE}),
            SettlementsReached: frozenset({_ACTIVE}),
        },
        _DRAINING: {
            MessageReceived: frozenset({_DRAINING}),
            FlowActive: frozenset({_DRAINING}),
            FlowInactive: frozenset({_DRAINING, _UNBINDING}),
            FlowDown: frozenset({_UNBOUND}),
            HandlingFinished: frozenset({_DRAINING, _UNBINDING}),
            DeliveriesHeldUp: frozenset({_DRAINING}),
            HandlingStalled: frozenset({_DRAINING}),
            StopRequested: frozenset({_DRAINING}),
            Deadline: frozenset({_ACTIVE, _DRAINING, _UNBINDING}),
            PlaceChanged: frozenset({_DRAINING}),
            HandBackRequested: frozenset({_DRAINING}),
            StepAsideRequested: frozenset({_DRAINING}),
            StepAsideCancelled: frozenset({_DRAINING}),
            StripingLearned: frozenset({_DRAINING}),
            SettlementsReached: frozenset({_DRAINING}),
        },
        _UNBINDING: {
            MessageReceived: frozenset({_UNBINDING}),
            FlowActive: frozenset({_UNBINDING}),
            FlowInactive: frozenset({_UNBINDING}),
            FlowDown: frozenset({_UNBINDING}),
            DeliveriesHeldUp: frozenset({_UNBINDING}),
            HandlingStalled: frozenset({_UNBINDING}),
            UnbindFinished: frozenset({_UNBOUND}),
            StopRequested: frozenset({_UNBINDING}),
            PlaceChanged: frozenset({_UNBINDING}),
            HandBackRequested: frozenset({_UNBINDING}),
            StepAsideRequested: frozenset({_UNBINDING}),
            StepAsideCancelled: frozenset({_UNBINDING}),
            StripingLearned: frozenset({_UNBINDING}),
            SettlementsReached: frozenset({_UNBINDING}),
        },
    }
)
"""An event kind that a state does not list cannot happen there in the current epoch."""
