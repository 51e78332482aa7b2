"""The public receive path: the client's own queue and thread for each flow, its message objects read one by one."""

from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

from lbg_runtime.model.ids import DeliveryId
from lbg_runtime.model.message import Delivery
from lbg_runtime.transport.solace import native
from lbg_runtime.transport.solace.inbound import UnreadableMessage, read_delivery
from lbg_runtime.transport.solace.inbox import Inbox
from lbg_runtime.transport.solace.library import InboundMessage, MessageHandler
from lbg_runtime.transport.solace.receive_path import NOT_TAKEN, TAKEN, PathOwner
from lbg_runtime.transport.solace.trace_context import TraceContexts


class PublicPath:
    """A `ReceivePath` that works with every client this project admits.

    Messages come by way of the client's dispatching thread, flow events directly from its network thread: an event can
    overtake messages, never the reverse.
    """

    def __init__(self, inbox: Inbox, owner: PathOwner, traces: TraceContexts | None = None) -> None:
        """`traces`: None if nobody wants the vendor's trace context."""
        self._inbox = inbox
        self._owner = owner
        self._traces = traces
        self._handle: Any = None
        self._is_broken = False
        """Whether a message was not shown, so that none after it may be. Set on either thread of the client, and never
        cleared."""

    def attach(self, receiver: Any) -> None:
        self._handle = receiver.flow_p
        native.take_window_over(receiver)
        # The receiver keeps it alive for as long as C may call it.
        receiver._flow_msg_callback_func_routine = receiver.msg_callback_func_type(self._callback(receiver))

    def begin(self, receiver: Any) -> None:
        receiver.receive_async(_MessageListener(self._take))

    def end(self) -> None:
        """See `ReceivePath.end`: there is nothing to free here."""

    def seal(self) -> None:
        """See `ReceivePath.seal`: this path cannot tell."""

    def accept(self, delivery_id: DeliveryId) -> bool:
        return native.accept(self._handle, delivery_id)

    def set_intake(self, *, is_open: bool) -> None:
        native.set_intake(self._handle, is_open=is_open)

    # -- on the client's network thread

    def _callback(self, receiver: Any) -> Any:
        """The client's own callback, with two differences: a message that it cannot take ends the flow, where C would
        skip the message; and fewer messages are such (`_PlainMessage`), the same as on the fast path.
        """
        part = type(receiver)._flow_message_receive_callback_routine
        lenient = FunctionType(part.__code__, {**part.__globals__, "_InboundMessage": _PlainMessage}, part.__name__)
        take = MethodType(lenient, receiver)

        def on_message(flow: Any, message: int, user: Any) -> int:
            if self._is_broken:
                return NOT_TAKEN
            try:
                answer: int = take(flow, message, user)
            except Exception as error:  # noqa: BLE001 - only C is above, which would go on with the next message
                self._is_broken = True
                self._inbox.post(self._owner.give_up, f"a message could not be taken: {error!r}")
                # The client's object of the message, even half made, frees it.
                return TAKEN
            return answer

        return on_message

    # -- on the client's dispatching thread

    def _take(self, message: Any) -> None:
        if self._is_broken:
            return
        owner = self._owner
        delivery: Delivery | None = None
        unreadable: UnreadableMessage | None = None
        try:
            delivery = read_delivery(owner.queue, owner.epoch, message, self._traces)
        except UnreadableMessage as error:
            unreadable = error
        finally:
            # Skipping it would break the order of its key, so the queue stops at it, loudly.
            if delivery is not None:
                self._inbox.post(owner.arrived, delivery)
            else:
                self._is_broken = True
                if unreadable is not None:
                    self._inbox.post(owner.refuse, unreadable)
                else:
                    self._inbox.post(owner.give_up, "a message could not be read")


class _PlainMessage(InboundMessage):  # type: ignore[misc]  # the client's classes have no types
    """The client's object of a message, without the text of HTTP headers, which nobody here reads.

    To make that text raises if such a header is not UTF-8. If another version of the client makes it elsewhere, such a
    message ends the flow.
    """

    def _Message__process_rest_interoperability(self, _: Any) -> None:  # noqa: N802 - the client's private name
        return


class _MessageListener(MessageHandler):  # type: ignore[misc]  # the client's classes have no types
    """Only posts: the client joins this thread while it terminates, so to wait here could be a deadlock."""

    def __init__(self, take: Callable[[Any], None]) -> None:
        self._take = take

    def on_message(self, message: Any) -> None:
        self._take(message)
