"""The fast receive path: our own callback takes native messages, and one wake-up of the loop serves all that gather.

It involves no thread and no message object of the client's Python layer. Between the callback, on the client's network
thread, and its turn on the loop, where it is read and freed at once, a message is only an address. If it could be
compiled, the callback is the one in C (_intake.c), which gathers the messages of all flows, and tells the loop by a
pipe that there are some (gathering.py). Otherwise it is written in Python, and each message comes through the inbox.

**Keeping pace.** The runtime decides how much is in flight, by closing the intake. But a closed window is expensive:
for every second message in transit by then the client sends a frame, and each settlement made after 511 newer messages
have come takes a frame of its own (docs/protocol.md). So if the loop is busy, the network thread waits for it here, in
the callback, before either happens: what the thread has not read is not acknowledged, so the broker sends no more. This
delays nobody, as everything that the session could report meanwhile goes to the same loop. Only if something blocks the
loop is the window closed, until the loop moves again; after that it stays closed if the runtime wants it closed.
"""

from collections.abc import Iterable
from ctypes import byref, c_void_p
from typing import Any

from lbg_runtime.model.ids import DeliveryId
from lbg_runtime.transport.solace.fast import compiled
from lbg_runtime.transport.solace.fast.calls import Accept, FastCalls
from lbg_runtime.transport.solace.fast.gathering import Gathering
from lbg_runtime.transport.solace.fast.reader import ReadMessage
from lbg_runtime.transport.solace.inbound import UnreadableMessage
from lbg_runtime.transport.solace.inbox import Inbox
from lbg_runtime.transport.solace.library import SOLCLIENT_OK, PersistentReceiver
from lbg_runtime.transport.solace.receive_path import NOT_TAKEN, TAKEN, PathOwner

PATIENCE_S = 0.25
"""The longest wait of the network thread for the loop; far less than the broker's keep-alive timeout."""

FLUSH_EVERY = 128
"""After so many settlements, those that the client has batched are sent."""


class FastPath:
    """A `ReceivePath` for the clients that `check` knows.

    Messages and flow events come on one thread and in one order. There is no lock: the flag that the window is closed
    is set by the network thread alone and cleared by the loop alone.
    """

    # As in `FlowRunner`: with a thousand queues, little of this is in the CPU caches when a message comes.
    __slots__ = (
        "_accept",
        "_calls",
        "_gathering",
        "_handle",
        "_inbox",
        "_is_broken",
        "_is_stopped",
        "_is_wanted",
        "_owner",
        "_read",
        "_settled",
        "_user",
    )

    def __init__(
        self, calls: FastCalls, read: ReadMessage, inbox: Inbox, owner: PathOwner, gathering: Gathering | None = None
    ) -> None:
        """`gathering`: the inbox's, if the callback is the one in C."""
        self._gathering = gathering
        self._user = 0
        self._calls = calls
        self._read = read
        self._inbox = inbox
        self._owner = owner
        self._handle: Any = None
        self._accept: Accept | None = None
        self._is_wanted = False
        """Whether the runtime wants messages."""
        self._is_stopped = False
        """Whether the window is closed because the loop is blocked."""
        self._is_broken = False
        """Whether a message was not shown, so that none after it may be."""
        self._settled = 0

    # -- on a control thread

    def attach(self, receiver: Any) -> None:
        """See `ReceivePath.attach`."""
        self._handle = receiver.flow_p
        self._accept = self._calls.accept_of(receiver.flow_p)
        # The receiver keeps it alive for as long as C may call it.
        receiver._flow_msg_callback_func_routine = PersistentReceiver.msg_callback_func_type(self._callback(receiver))

    def begin(self, receiver: Any) -> None:
        """See `ReceivePath.begin`: the callback is there already."""

    # -- on any thread

    def end(self) -> None:
        """See `ReceivePath.end`."""
        # `_moves_again` may still be called on the loop, and must not touch the flow then, as its session may be freed
        # on another thread at that moment.
        self._is_wanted = False
        if self._gathering is not None:
            self._gathering.remove(self._user, self)

    # -- on the client's network thread

    def seal(self) -> None:
        """See `ReceivePath.seal`."""
        if self._gathering is not None:
            self._gathering.seal()

    def _callback(self, receiver: Any) -> Any:
        """The callback for the client, or its address."""
        if self._gathering is None:
            return self._python_callback()
        # The client hands the receiver's address to the callback with each message.
        self._user = id(receiver)
        self._gathering.add(self._user, self)
        return compiled.CALLBACK

    def _python_callback(self) -> Any:
        post, take, drop = self._inbox.post, self._take, self._drop
        is_pinned = False

        def on_message(_flow: Any, message: int, _user: Any) -> int:
            nonlocal is_pinned
            answer = NOT_TAKEN
            try:
                if not is_pinned:
                    # When C calls, the interpreter makes a state for this thread, and discards it when the call
                    # returns, at many times the cost of everything else here. From now on it finds the state in use,
                    # and keeps it.
                    self._calls.pin()
                    is_pinned = True
                # Before `post`: if that fails, the inbox may have the message all the same, and the client must not
                # free it.
                answer = TAKEN
                has_room = post(take, message, drop)
                if not has_room and not self._is_stopped:
                    self._wait()
            except Exception as error:  # noqa: BLE001 - only C is above, which would simply go on
                # A message that is not taken is not shown again on this handle, but its successors would be.
                self.broken(error)
            return answer

        return on_message

    def _wait(self) -> None:
        if not self._inbox.wait_for_room(PATIENCE_S):
            self.loop_is_blocked()

    def loop_is_blocked(self) -> None:
        """Close the window until the loop moves again."""
        if not self._is_stopped:
            # In this order: a loop that moves just now either sees the flag, or has opened the window before this.
            self._is_stopped = True
            self._calls.stop(self._handle)
            self._inbox.post(self._moves_again, None)

    def broken(self, error: BaseException) -> None:
        """A message could not be taken, or is lost: end the flow. Called on any thread."""
        self._is_broken = True
        self._inbox.post(self._owner.give_up, f"a message could not be taken: {error!r}")

    # -- on the loop's thread

    def accept(self, delivery_id: DeliveryId) -> bool:
        """See `ReceivePath.accept`."""
        if self._accept is None or self._accept(delivery_id) != SOLCLIENT_OK:
            return False
        self._settled += 1
        if not self._settled % FLUSH_EVERY and self._is_wanted and not self._is_stopped:
            # To start a flow that is started sends what is batched.
            self._start()
        return True

    def set_intake(self, *, is_open: bool) -> None:
        """See `ReceivePath.set_intake`."""
        self._is_wanted = is_open
        # A closed window is closed once more: the client may have bound the handle again and lost the first request.
        if is_open and not self._is_stopped:
            self._start()
        else:
            self._calls.stop(self._handle)

    def _start(self) -> None:
        self._calls.start(self._handle)
        if self._is_stopped:
            # Meanwhile the network thread has closed the window, perhaps before it was opened here.
            self._calls.stop(self._handle)

    def _moves_again(self, _: None) -> None:
        if self._is_wanted:
            self._calls.start(self._handle)
        # In this order: while the flag is set, the network thread does not close the window.
        self._is_stopped = False
        if self._gathering is not None:
            # If this path was told meanwhile that the loop is blocked, that had no effect, and it would not be told
            # again without this look.
            self._gathering.look()

    def _take(self, message: int) -> None:
        self.take_each((message,))

    def take_each(self, messages: Iterable[int]) -> None:
        """Read these messages and hand them to the flow, in this order."""
        if self._is_broken:
            self.drop_each(messages)
            return
        rest = messages
        is_whole = False
        try:
            owner, read = self._owner, self._read
            queue, epoch, arrived = owner.queue, owner.epoch, owner.arrived
            rest = iter(messages)
            for message in rest:
                arrived(read(message, queue, epoch))
            is_whole = True
        except UnreadableMessage as error:
            # Skipping it would break the order of its key, so the queue stops at it, loudly.
            owner.refuse(error)
            self._is_broken = is_whole = True
            self.drop_each(rest)
        finally:
            if not is_whole:
                self._is_broken = True
                try:
                    self._owner.give_up("a message could not be read")
                finally:
                    self.drop_each(rest)

    def _drop(self, message: int) -> None:
        self._calls.free(byref(c_void_p(message)))

    def drop_each(self, messages: Iterable[int]) -> None:
        """Free these messages unread. Called on any thread."""
        for message in messages:
            self._drop(message)
