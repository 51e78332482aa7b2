"""How the messages of a flow handle come in: what the two ways of doing it have in common."""

from collections.abc import Callable
from typing import Any, Protocol

from lbg_runtime.model.ids import DeliveryId, Epoch, QueueName
from lbg_runtime.model.message import Delivery
from lbg_runtime.transport.solace.inbound import UnreadableMessage
from lbg_runtime.transport.solace.inbox import Inbox


class PathOwner(Protocol):
    """The flow handle as its receive path sees it. What is told of messages is told on the loop's thread."""

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
    """Made for one flow handle. `attach` and `begin` run on control threads, the rest on the loop's unless they say
    otherwise.
    """

    def attach(self, receiver: Any) -> None:
        """Prepare the client's receiver before it is started."""
        ...

    def begin(self, receiver: Any) -> None:
        """Start taking messages from the started receiver, whose window is closed; raises the client's errors."""
        ...

    def end(self) -> None:
        """Free what the client has left here. Called on any thread. What callbacks still bring, until the flow or its
        session is freed, is dropped."""
        ...

    def seal(self) -> None:
        """Keep what came before an event of the flow ahead of it and what comes later behind it, if the path can tell.

        Called on the client's network thread, before the event is posted and after that.
        """
        ...

    def accept(self, delivery_id: DeliveryId) -> bool:
        """Settle a delivery as accepted; False if the client did not take the settlement."""
        ...

    def set_intake(self, *, is_open: bool) -> None:
        """Ask for messages, or for no more. As it was before, this flushes settlements; and it says it once more to a
        client that has bound the handle again."""
        ...


MakePath = Callable[[Inbox, PathOwner], ReceivePath]
"""Makes the receive path of one handle, whose messages come to the loop of the inbox."""
