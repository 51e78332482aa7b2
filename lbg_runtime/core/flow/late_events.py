"""For a flow machine: events of handles that are gone, which are noted and change nothing."""

from lbg_runtime.core.flow.commands import Note
from lbg_runtime.core.flow.events import (
    DeliveriesHeldUp,
    FlowEvent,
    FlowRequest,
    HandlingFinished,
    HandlingStalled,
    MachineEvent,
    MessageReceived,
    SettlementsReached,
)
from lbg_runtime.core.flow.in_flight import InFlight
from lbg_runtime.core.flow.table import name_of
from lbg_runtime.model.errors import InvariantViolated
from lbg_runtime.model.ids import Epoch


def late_note(event: MachineEvent, epoch: Epoch, in_flight: InFlight, *, has_handle: bool) -> Note | None:
    """The note for an event that is too late; None for one that must be acted on.

    `epoch` is that of the newest handle, which is gone too unless `has_handle`. Answers a delivery that outlived its
    handle. Raises `InvariantViolated` for an epoch that has not begun, and for a second answer in an old one.
    """
    if isinstance(event, FlowRequest):
        return None
    event_epoch = event.delivery.epoch if isinstance(event, MessageReceived) else event.epoch
    if event_epoch > epoch:
        raise InvariantViolated(f"an event of epoch {event_epoch}, the newest bind is {epoch}")
    if isinstance(event, HandlingFinished):
        # Deliveries are remembered one by one, so that a second answer is detected in any epoch.
        if not in_flight.has_outlived(event_epoch, event.delivery_id):
            if event_epoch != epoch:
                # A delivery of the newest handle may have the same number, and must not be settled for this one.
                text = f"delivery {event.delivery_id} of epoch {event_epoch} was answered and is not in flight"
                raise InvariantViolated(text)
            return None
        in_flight.answer_outlived(event_epoch, event.delivery_id)
        name = "settlement_fenced" if event.outcome else "handling_abandoned"
        return Note(name, {"epoch": event_epoch, "delivery_id": event.delivery_id})
    is_of_handle = isinstance(event, FlowEvent | DeliveriesHeldUp | HandlingStalled | SettlementsReached)
    if event_epoch == epoch and (has_handle or not is_of_handle):
        return None
    return Note(f"{name_of(type(event))}_late", {"epoch": epoch})
