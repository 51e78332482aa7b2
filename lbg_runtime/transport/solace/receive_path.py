"""The protocols between a flow handle and its receive path, by which its messages come in; there are two such paths."""

from collections.abc import Callable
from typing import Any, Protocol

from lbg_runtime.model.ids import DeliveryId, Epoch, QueueName
from lbg_runtime.model.message import Delivery
from lbg_runtime.transport.solace.inbound import UnreadableMessage
from lbg_runtime.transport.solace.inbox import Inbox

NOT_TAKEN, TAKEN = 0, 1
"""The answers of a message callback to the client's library: they say who frees the message from then on."""


class PathOwner(Protocol):
    """The flow handle as its receive path sees it. All methods are called on the loop's thread."""

    @property
    def queue(self) -> QueueName:
        """The queue it is bound to."""
        ...

    @property
    def epoch(self) -> Epoch:
        """The epoch of the handle."""
        ...

    def arrived(self, delivery: Delivery) -> None:
        """Take a message, in the order in which the client received them."""
        ...

    def refuse(self, error: UnreadableMessage) -> None:
        """End the handle at this message, once what arrived before it is settled. Nothing arrives after it."""
        ...

    def give_up(self, reason: str) -> None:
        """End the handle: one of its messages can be neither handed over nor skipped."""
        ...


class ReceivePath(Protocol):
    """Brings in the messages of one flow handle. `attach` and `begin` are called on control threads, the others on the
    loop's thread unless they say otherwise.
    """

    def attach(self, receiver: Any) -> None:
        """Prepare the client's receiver before it is started."""
        ...

    def begin(self, receiver: Any) -> None:
        """Start taking messages from the started receiver, whose window is closed; raises the client's errors."""
        ...

    def end(self) -> None:
        """Free what the client has left here. Idempotent; called on any thread. What callbacks still bring, until the
        flow or its session is freed, is dropped, and the library is not called any more."""
        ...

    def seal(self) -> None:
        """If the path can: keep messages that came before an event of the flow before it, and later ones after it.

        Called on the client's network thread, just before the event is posted and just after.
        """
        ...

    def accept(self, delivery_id: DeliveryId) -> bool:
        """Settle a delivery as accepted; False if the client did not take the settlement."""
        ...

    def set_intake(self, *, is_open: bool) -> None:
        """Ask for messages, or for no more. If it was so before, this flushes settlements; and it repeats the request,
        for a client that has bound the handle again meanwhile."""
        ...


MakePath = Callable[[Inbox, PathOwner], ReceivePath]
"""Makes the receive path of one handle; its messages come to the inbox's loop."""
