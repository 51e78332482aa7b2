"""The fast receive path: our own callback takes the native message, one wake-up of the loop serves all that gather.

No thread of the client and no message object of its Python layer has a part in it. A message is an address between the
callback, on the client's network thread, and its turn on the loop, where it is read and freed at once.

**Keeping pace.** How much is in flight is the runtime's business, and it says so by closing the intake. But a closed
window is expensive: for every second message that is under way by then the client sends a frame, and what is settled
after 511 newer messages have come takes a frame each (docs/protocol.md). So where the loop is busy the network thread
waits for it, here in the callback, before either happens: what it has not read it has not acknowledged, and the broker
sends no more. That holds up nobody, as all that the session could report meanwhile goes to the same loop. Only where
something blocks the loop is the window closed until it moves again; the runtime's wish to have it closed outlasts that.
"""

from ctypes import byref, c_uint64, c_void_p
from typing import Any

from lbg_runtime.model.ids import DeliveryId
from lbg_runtime.transport.solace.fast_calls import ACCEPTED, NOT_TAKEN, OK, TAKEN, FastCalls
from lbg_runtime.transport.solace.fast_reader import ReadMessage
from lbg_runtime.transport.solace.inbound import UnreadableMessage
from lbg_runtime.transport.solace.inbox import Inbox
from lbg_runtime.transport.solace.library import PersistentReceiver
from lbg_runtime.transport.solace.receive_path import PathOwner

PATIENCE_S = 0.25
"""How long the network thread waits for the loop at most; far less than the broker waits for a sign of life."""

FLUSH_EVERY = 128
"""Settlements after which those that the client has batched are sent."""


class FastPath:
    """A `ReceivePath` for the clients that `fast_check` knows.

    Messages and flow events come on one thread and in one order. There is no lock: the flag that the window is closed
    is set by the network thread alone and cleared by the loop alone.
    """

    def __init__(self, calls: FastCalls, read: ReadMessage, inbox: Inbox, owner: PathOwner) -> None:
        self._calls = calls
        self._read = read
        self._inbox = inbox
        self._owner = owner
        self._handle: Any = None
        self._is_wanted = False
        """The runtime wants messages."""
        self._is_stopped = False
        """The window is closed because the loop is blocked."""
        self._settled = 0
        self._delivery_id = c_uint64()

    # -- on a control thread

    def attach(self, receiver: Any) -> None:
        """See `ReceivePath.attach`."""
        self._handle = receiver.flow_p
        # The receiver keeps it for as long as C may call it.
        receiver._flow_msg_callback_func_routine = PersistentReceiver.msg_callback_func_type(self._callback())

    def begin(self, receiver: Any) -> None:
        """See `ReceivePath.begin`: the callback is there already."""

    # -- on the client's network thread

    def _callback(self) -> Any:
        post, take, drop = self._inbox.post, self._take, self._drop
        is_pinned = False

        def on_message(_flow: Any, message: int, _user: Any) -> int:
            nonlocal is_pinned
            answer = NOT_TAKEN
            try:
                if not is_pinned:
                    # The interpreter makes a state for this thread when C calls, and throws it away when the call
                    # returns, at many times the price of all the rest here; unless it is in use, as from now on.
                    self._calls.pin()
                    is_pinned = True
                has_room = post(take, message, drop)
                answer = TAKEN
                if not has_room and not self._is_stopped:
                    self._wait()
            except Exception as error:  # noqa: BLE001 - there is only C above, which would go on as if nothing was
                # What is not taken is not shown again on this handle, but its successors are.
                post(self._owner.give_up, f"a message could not be taken: {error!r}")
            return answer

        return on_message

    def _wait(self) -> None:
        if not self._inbox.wait_for_room(PATIENCE_S):
            self._calls.stop(self._handle)
            self._is_stopped = True
            self._inbox.post(self._moves_again, None)

    # -- on the loop's thread

    def accept(self, delivery_id: DeliveryId) -> bool:
        """See `ReceivePath.accept`."""
        self._delivery_id.value = delivery_id
        if self._calls.settle(self._handle, self._delivery_id, ACCEPTED) != OK:
            return False
        self._settled += 1
        if not self._settled % FLUSH_EVERY and self._is_wanted and not self._is_stopped:
            # To start what is started sends what is batched.
            self._calls.start(self._handle)
        return True

    def open_window(self) -> None:
        """See `ReceivePath.open_window`."""
        self._is_wanted = True
        # Closed again where it is: the client may have bound the handle anew, and the order may be lost.
        (self._calls.stop if self._is_stopped else self._calls.start)(self._handle)

    def close_window(self) -> None:
        """See `ReceivePath.close_window`."""
        self._is_wanted = False
        self._calls.stop(self._handle)

    def _moves_again(self, _: None) -> None:
        if self._is_wanted:
            self._calls.start(self._handle)
        # In this order: as long as the flag is set, the network thread does not close the window.
        self._is_stopped = False

    def _take(self, message: int) -> None:
        owner = self._owner
        delivery = None
        reason = "a message could not be read"
        try:
            delivery = self._read(message, owner.queue, owner.epoch)
        except UnreadableMessage as error:
            reason = str(error)
        finally:
            # To skip it would break the order of its key, so the queue stops at it, loudly.
            if delivery is None:
                owner.give_up(reason)
        if delivery is not None:
            owner.arrived(delivery)

    def _drop(self, message: int) -> None:
        self._calls.free(byref(c_void_p(message)))
