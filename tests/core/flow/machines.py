"""Flow machines for tests, and what is handed to them."""

import random
from collections.abc import Iterable
from dataclasses import replace

from lbg_runtime.core.flow.commands import Bind, Command, Note, Settle
from lbg_runtime.core.flow.events import (
    BindSucceeded,
    DeliveriesHeldUp,
    FlowActive,
    FlowDown,
    FlowInactive,
    HandBackRequested,
    HandlingFinished,
    MessageReceived,
    PlaceChanged,
    StepAsideRequested,
    StopRequested,
    UnbindFinished,
)
from lbg_runtime.core.flow.machine import FlowMachine
from lbg_runtime.core.flow.table import FlowState
from lbg_runtime.core.roles import Place
from lbg_runtime.model.ids import DeliveryId, Epoch, QueueName
from lbg_runtime.model.message import Delivery, Message
from lbg_runtime.model.outcome import Outcome
from tests.core.rebind import REBIND

QUEUE = QueueName("orders/0")
HOME = Place(0, gives_way=True)
CYCLING = Place(1, gives_way=True)
STANDBY = Place(1, gives_way=False)
UNWANTED = Place(None, gives_way=False)
MESSAGE = Message("lbg/0/orders", b"")


def new_machine(place: Place = CYCLING, max_in_flight: int = 4, max_held: int | None = None) -> FlowMachine:
    return FlowMachine(QUEUE, place, REBIND, max_in_flight, random.Random(1), now_ms=0, max_held=max_held)


def delivery(number: int, epoch: int = 1) -> Delivery:
    return Delivery(QUEUE, Epoch(epoch), DeliveryId(number), MESSAGE, redelivered=False, received_at_ns=0)


def received(number: int, epoch: int = 1) -> MessageReceived:
    return MessageReceived(delivery(number, epoch))


def finished(number: int, outcome: Outcome | None = Outcome.ACCEPTED, epoch: int = 1) -> HandlingFinished:
    return HandlingFinished(Epoch(epoch), DeliveryId(number), outcome)


def held_up(*numbers: int, epoch: int = 1) -> DeliveriesHeldUp:
    return DeliveriesHeldUp(Epoch(epoch), tuple(map(DeliveryId, numbers)))


def settle(number: int, epoch: int = 1) -> Settle:
    return Settle(Epoch(epoch), DeliveryId(number), Outcome.ACCEPTED)


def bound(machine: FlowMachine, now_ms: int = 0) -> FlowMachine:
    assert [type(command) for command in machine.on_deadline(now_ms)] == [Bind]
    machine.handle(BindSucceeded(machine.epoch), now_ms)
    return machine


def active(machine: FlowMachine, now_ms: int = 0) -> FlowMachine:
    bound(machine, now_ms).handle(FlowActive(machine.epoch), now_ms)
    return machine


def busy(place: Place = CYCLING) -> FlowMachine:
    """Active, with delivery 1 in flight."""
    machine = active(new_machine(place))
    machine.handle(received(1), 1)
    return machine


def without_notes(commands: Iterable[Command]) -> list[Command]:
    return [command for command in commands if not isinstance(command, Note)]


def notes(commands: Iterable[Command]) -> list[str]:
    return [command.name for command in commands if isinstance(command, Note)]


def unbound_since(now_ms: int, machine: FlowMachine) -> FlowMachine:
    """Unwanted, and unbound from this time on."""
    bound(machine).handle(PlaceChanged(UNWANTED), now_ms)
    machine.handle(UnbindFinished(machine.epoch), now_ms)
    return machine


def machines_in(state: FlowState) -> list[FlowMachine]:
    """Machines in a state, by every way into it that makes a difference, delivery 1 in flight where one can be."""
    match state:
        case FlowState.UNBOUND:
            lost = active(new_machine())
            lost.handle(FlowDown(Epoch(1), "gone"), 1)
            return [new_machine(), lost, new_machine(UNWANTED)]
        case FlowState.BINDING:
            stopping = new_machine()
            stopping.on_deadline(0)
            stopping.handle(StopRequested(), 0)
            unwanted = new_machine()
            unwanted.on_deadline(0)
            unwanted.handle(PlaceChanged(UNWANTED), 0)
            machine = new_machine()
            machine.on_deadline(0)
            return [machine, stopping, unwanted]
        case FlowState.STANDBY:
            stepping_aside = bound(new_machine())
            stepping_aside.handle(StepAsideRequested(60_000), 0)
            return [bound(new_machine()), stepping_aside]
        case FlowState.ACTIVE:
            busy, abandoned = active(new_machine()), active(new_machine())
            busy.handle(received(1), 1)
            abandoned.handle(received(1), 1)
            abandoned.handle(received(2), 1)
            # With no quiet gap an idle flow needs no draining.
            hasty = FlowMachine(QUEUE, CYCLING, replace(REBIND, quiet_gap_ms=0), 4, random.Random(1), 0)
            return [busy, abandoned, active(new_machine()), active(hasty)]
        case FlowState.DRAINING:
            machines = machines_in(FlowState.ACTIVE)[:3]
            for machine in machines:
                machine.on_deadline(30_000)
            waiting = machines_in(FlowState.ACTIVE)[0]
            waiting.handle(FlowInactive(Epoch(1)), 30_000)
            handing_back = machines_in(FlowState.ACTIVE)[0]
            handing_back.handle(HandBackRequested("m"), 30_000)
            # Its next deadline is the end of its time; that of the other is a look.
            no_time = replace(REBIND, drain_timeout_ms=0)
            short_of_time = active(FlowMachine(QUEUE, CYCLING, no_time, 4, random.Random(1), 0))
            short_of_time.handle(received(1), 1)
            short_of_time.handle(HandBackRequested("m"), 30_000)
            return [*machines, waiting, handing_back, short_of_time]
        case FlowState.UNBINDING:
            machine = active(new_machine())
            machine.handle(FlowInactive(Epoch(1)), 1)
            return [machine]
