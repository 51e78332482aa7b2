"""The public receive path: the client's own queue and thread for each flow, its message objects read by its methods."""

from typing import Any

from lbg_runtime.model.ids import DeliveryId
from lbg_runtime.model.message import Delivery
from lbg_runtime.transport.solace import native
from lbg_runtime.transport.solace.inbound import UnreadableMessage, read_delivery
from lbg_runtime.transport.solace.inbox import Inbox
from lbg_runtime.transport.solace.library import MessageHandler
from lbg_runtime.transport.solace.receive_path import PathOwner


class PublicPath:
    """A `ReceivePath` that works with every client this project admits.

    Messages come by way of the client's dispatching thread, flow events directly from its network thread: an event can
    overtake messages, never the reverse.
    """

    def __init__(self, inbox: Inbox, owner: PathOwner) -> None:
        self._inbox = inbox
        self._owner = owner
        self._handle: Any = None

    def attach(self, receiver: Any) -> None:
        """See `ReceivePath.attach`."""
        self._handle = receiver.flow_p
        native.take_window_over(receiver)

    def begin(self, receiver: Any) -> None:
        """See `ReceivePath.begin`."""
        receiver.receive_async(_MessageListener(self._inbox, self._owner))

    def end(self) -> None:
        """See `ReceivePath.end`: there is nothing to free here."""

    def seal(self) -> None:
        """See `ReceivePath.seal`: this path cannot tell."""

    def accept(self, delivery_id: DeliveryId) -> bool:
        """See `ReceivePath.accept`."""
        return native.accept(self._handle, delivery_id)

    def open_window(self) -> None:
        """See `ReceivePath.open_window`."""
        native.open_window(self._handle)

    def close_window(self) -> None:
        """See `ReceivePath.close_window`."""
        native.close_window(self._handle)


class _MessageListener(MessageHandler):  # type: ignore[misc]  # the client's classes have no types
    """Only posts: the client joins this thread while it terminates, so waiting here could mean waiting for itself."""

    def __init__(self, inbox: Inbox, owner: PathOwner) -> None:
        self._inbox = inbox
        self._owner = owner

    def on_message(self, message: Any) -> None:
        owner = self._owner
        delivery: Delivery | None = None
        reason = "a message could not be read"
        try:
            delivery = read_delivery(owner.queue, owner.epoch, message)
        except UnreadableMessage as error:
            reason = str(error)
        finally:
            # Skipping it would break the order of its key, so the queue stops at it, loudly.
            if delivery is None:
                self._inbox.post(owner.give_up, reason)
            else:
                self._inbox.post(owner.arrived, delivery)
