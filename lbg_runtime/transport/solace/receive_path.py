"""How the messages of a flow handle come in: what the two ways of doing it have in common."""

from collections.abc import Callable
from typing import Any, Protocol

from lbg_runtime.model.ids import DeliveryId, Epoch, QueueName
from lbg_runtime.model.message import Delivery
from lbg_runtime.transport.solace.inbox import Inbox


class PathOwner(Protocol):
    """The flow handle, as its receive path sees it; `arrived` and `give_up` are called on the thread of the loop."""

    @property
    def queue(self) -> QueueName:
        """Where it is bound."""
        ...

    @property
    def epoch(self) -> Epoch:
        """Which handle it is."""
        ...

    def arrived(self, delivery: Delivery) -> None:
        """Take a message, in the order in which the client received them."""
        ...

    def give_up(self, reason: str) -> None:
        """End the handle: a message of it can be neither handed over nor skipped."""
        ...


class ReceivePath(Protocol):
    """Made for one flow handle. `attach` and `begin` run on control threads; the rest on the loop's, or as it says."""

    def attach(self, receiver: Any) -> None:
        """Prepare the client's receiver before it is started."""
        ...

    def begin(self, receiver: Any) -> None:
        """Start taking messages from the started receiver, whose window is closed; raises the client's errors."""
        ...

    def end(self) -> None:
        """On any thread, when the client calls back no more: free what it has left here."""
        ...

    def seal(self) -> None:
        """On the client's network thread, before an event of the flow is posted: what came before it stays before it,
        where the path can tell."""
        ...

    def accept(self, delivery_id: DeliveryId) -> bool:
        """Settle a delivery as accepted; False when the client did not take that."""
        ...

    def open_window(self) -> None:
        """Ask for messages: for the first time, again, or once more after the client has bound the handle anew."""
        ...

    def close_window(self) -> None:
        """Ask for no more messages until `open_window`. Where that has been done already, it flushes settlements."""
        ...


MakePath = Callable[[Inbox, PathOwner], ReceivePath]
"""Makes the receive path of one handle; its messages come through the inbox."""
