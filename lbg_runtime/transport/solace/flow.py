"""One flow handle on the client: a persistent receiver that is started, and at last terminated, on a control thread."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from enum import Enum
from typing import TYPE_CHECKING, Any

import structlog

from lbg_runtime.core.flow.events import FlowActive, FlowDown, FlowInactive, MessageReceived
from lbg_runtime.model.errors import BindFailed
from lbg_runtime.model.ids import DeliveryId, Epoch, QueueName
from lbg_runtime.model.message import Delivery
from lbg_runtime.model.outcome import Outcome
from lbg_runtime.transport.base import FlowSink
from lbg_runtime.transport.solace import native
from lbg_runtime.transport.solace.errors import bind_failed, subcode_and_reason
from lbg_runtime.transport.solace.inbound import UnreadableMessage
from lbg_runtime.transport.solace.inbox import Inbox
from lbg_runtime.transport.solace.library import CLIENT_ERRORS, IncompleteMessageDeliveryError, Queue
from lbg_runtime.transport.solace.native import NativeFlowEvent
from lbg_runtime.transport.solace.receive_path import MakePath
from lbg_runtime.transport.solace.threads import ControlThreads
from lbg_runtime.transport.to_the_end import wait_to_the_end

if TYPE_CHECKING:
    from lbg_runtime.transport.solace.session import SolaceSession

_log = structlog.get_logger(__name__)


BIND_PATIENCE_S = 10.0
"""How long the client waits for the broker's answer to a bind."""

ACK_DELAY_S = 0.5
"""The longest time after which a settlement leaves: this bounds what is handled again after a crash. The client's own
timer does not: with several flows it was seen to hold settlements for more than two seconds (docs/protocol.md).
"""


OBSTACLE_PATIENCE_S = 60.0
"""How long a handle that has come to an unreadable message lives on, so that what arrived before it can be settled."""


END_AGAIN_S = 1.0
"""If there was no memory to unbind a handle that was given up, this is the time until it is tried again."""


class GhostFlow(BindFailed):
    """The broker may have bound a flow that the client has no handle for: the broker feeds it, and nobody reads.

    Only the end of the session ends it.
    """


class HandleState(Enum):
    """The state of a flow handle; only the loop's thread reads it."""

    BINDING = "binding"
    """The sink may already be called, but the caller of `bind` has no handle yet."""
    BOUND = "bound"
    DEAD = "dead"
    """Given up, ended by the broker, or its transport is closed: the sink is not called again."""


# Looked up once: before Python 3.12, accessing an enum member costs as much as calling a function.
_BOUND, _DEAD, _ACCEPTED = HandleState.BOUND, HandleState.DEAD, Outcome.ACCEPTED


class SolaceFlow:
    """A `BoundFlow`. Made by `SolaceTransport`, owned by one flow runner.

    `start` and `terminate` block and run on control threads, everything else on the loop's thread. What the client
    reports on its own threads comes through the inbox: flow events directly from its network thread, messages by way of
    the receive path.
    """

    # As in `FlowRunner`: with a thousand queues, little of this is in the CPU caches when a message comes.
    __slots__ = (
        "_end_reason",
        "_ending",
        "_flush_timer",
        "_heard_in",
        "_inbox",
        "_intake_open",
        "_obstacle",
        "_path",
        "_receiver",
        "_sent_in",
        "_session",
        "_sink",
        "_state",
        "_threads",
        "_unsettled",
        "_was_ended",
        "_window",
        "epoch",
        "queue",
    )

    def __init__(
        self,
        inbox: Inbox,
        threads: ControlThreads,
        queue: QueueName,
        epoch: Epoch,
        sink: FlowSink,
        make_path: MakePath,
        heard_in: Callable[[], Awaitable[int | None]],
        window: int,
    ) -> None:
        """`heard_in` returns the connection in which the broker has read everything that was sent there by now, or
        None.

        `window`: see `SolaceSettings.flow_window`.
        """
        self.queue = queue
        self.epoch = epoch
        self._inbox = inbox
        self._threads = threads
        self._sink = sink
        self._heard_in = heard_in
        self._window = window
        self._path = make_path(inbox, self)
        self._state = HandleState.BINDING
        self._intake_open = False
        self._flush_timer: asyncio.TimerHandle | None = None
        self._unsettled: set[DeliveryId] = set()
        """What has arrived and is not settled. When it is empty, a handle that has come to an unreadable message
        ends."""
        self._obstacle: str | None = None
        """What is wrong with the unreadable message at which the handle ends; None if there is none."""
        self._end_reason = ""
        self._was_ended = False
        """Whether the broker has ended it, with news that came only when it was being given up already."""
        self._ending: asyncio.Future[None] | None = None
        self._session: SolaceSession | None = None
        self._sent_in: int | None = None
        """The connection in which its unbind was sent, after its settlements."""
        self._receiver: Any = None

    # -- on a control thread

    def start(self, session: "SolaceSession") -> None:
        """Bind; raises `BindFailed`, leaving nothing behind, or `GhostFlow`."""
        self._session = session
        try:
            with session.calls.one():
                answer = self._bind(session)
        except CLIENT_ERRORS as error:
            # The session is over, or the connection was lost as soon as the flow was bound.
            self.terminate()
            raise bind_failed(self.queue, error) from error
        # As a rule the answer is there by now; but a reconnect may have woken the client up too early.
        if not answer.bound.wait(BIND_PATIENCE_S):
            self.terminate()
            raise GhostFlow(self.queue, "the broker's answer to the bind was lost")

    def _bind(self, session: "SolaceSession") -> native.BindAnswer:
        receiver = (
            session.service.create_persistent_message_receiver_builder()
            .with_message_client_acknowledgement()
            .build(Queue.durable_exclusive_queue(self.queue))
        )
        self._path.attach(receiver)
        native.set_window(receiver, self._window)
        native.keep_window_closed(receiver)
        answer = native.watch_events(receiver, self._post_event)
        session.hold(receiver)
        try:
            receiver.start()
        except CLIENT_ERRORS as error:
            native.forget_failed(receiver)
            is_ghost = native.is_bound_without_handle(error)
            # The news of a refusal may still be on its way to the receiver.
            reason = error if is_ghost else answer.reason_of(error)
            session.let_go(receiver)
            self._path.end()
            if is_ghost:
                raise GhostFlow(self.queue, "the client lost the flow while it was bound") from error
            raise bind_failed(self.queue, reason) from error
        self._receiver = receiver
        try:
            self._path.begin(receiver)
        except RuntimeError as error:
            # The client may start a thread for the receiver, which the system may refuse.
            self.terminate()
            raise BindFailed(self.queue, str(error)) from error
        return answer

    def terminate(self) -> None:
        """Flush settlements and unbind. Messages that the client has not handed over are delivered again, flagged.

        If the session is over, the flow ends with that.
        """
        receiver, self._receiver = self._receiver, None
        if receiver is None or self._session is None:
            return
        try:
            with self._session.calls.one():
                try:
                    with suppress(*CLIENT_ERRORS):
                        self._sent_in = self._session.connection()
                    receiver.terminate(grace_period=0)
                finally:
                    # If the client's `terminate` gave up half-way, the library would bind the flow again after an
                    # outage, and take messages.
                    native.destroy(self._session.service, receiver)
        except IncompleteMessageDeliveryError:
            pass
        except (*CLIENT_ERRORS, RuntimeError) as error:
            # A `RuntimeError` comes from a thread that the client could not start, now or when it began to receive.
            _log.info("unbind_failed", queue=self.queue, epoch=self.epoch, reason=subcode_and_reason(error)[1])
        self._session.let_go(receiver)
        self._path.end()

    # -- on the client's network thread

    def _post_event(self, event: NativeFlowEvent, text: str) -> None:
        self._path.seal()
        self._inbox.post(self._event_happened, (event, text))
        # Once more: a thread that is about to take what has gathered may not have seen the event.
        self._path.seal()

    # -- for the flow runner

    def settle(self, delivery_id: DeliveryId, outcome: Outcome) -> None:
        """See `BoundFlow.settle`. Any outcome but ACCEPTED gives the handle up.

        The client could be asked to support the other outcomes. But then it sends rejections ahead of acceptances, and
        after an outage does not repeat acceptances that were lost (docs/protocol.md): the settled messages would not be
        a prefix.
        """
        if self._state is not _BOUND:
            return
        if outcome is not _ACCEPTED:
            self.give_up(f"this transport cannot settle {delivery_id} as {outcome.value} in order")
        elif not self._path.accept(delivery_id):
            # If a settlement were lost on a live handle, its message would neither be shown again nor removed.
            self.give_up(f"the client did not take the settlement of {delivery_id}")
        else:
            self._unsettled.discard(delivery_id)
            if self._obstacle is not None:
                self._end_at_obstacle()
            if self._flush_timer is None and self._state is _BOUND:
                self._flush_timer = asyncio.get_running_loop().call_later(ACK_DELAY_S, self._flush_settled)

    def stop_intake(self) -> None:
        self._intake_open = False
        self._apply_intake()

    def start_intake(self) -> None:
        self._intake_open = True
        self._apply_intake()

    def flush(self) -> None:
        """See `BoundFlow.flush`. To open an open intake, or close a closed one, sends what the client has batched."""
        self._apply_intake()

    def _flush_settled(self) -> None:
        self._flush_timer = None
        self._apply_intake()

    async def unbind(self) -> bool:
        """See `BoundFlow.unbind`. The client does not wait for the broker's answer, so this asks for one.

        An answer in a later connection would say nothing: what was sent before may be lost with its connection.
        """
        was_live = self.is_live
        self._die()
        if was_live:
            self._ending = self._threads.begin(self.terminate)
        if self._ending is not None:
            await wait_to_the_end(self._ending)
        if not was_live or self._sent_in is None:
            return False
        return await self._heard_in() == self._sent_in and not self._was_ended

    # -- for the transport

    @property
    def is_live(self) -> bool:
        """Whether the sink may still be called."""
        return self._state is not HandleState.DEAD

    def handed_over(self) -> None:
        """Called when the caller of `bind` gets the handle; raises `BindFailed` if it has died meanwhile."""
        if self._state is HandleState.DEAD:
            raise BindFailed(self.queue, self._end_reason)
        self._state = HandleState.BOUND

    async def discard(self) -> None:
        """Unbind a flow that nobody will get, leaving nothing behind."""
        self._die()
        await self._threads.run(self.terminate)

    def session_ended(self, reason: str) -> None:
        """The session has ended, and the native flow with it."""
        self._receiver = None
        self._end(reason)

    def silence(self) -> None:
        """The transport is closed, or the bind failed: report nothing more."""
        self._receiver = None
        self._die()
        self._end_reason = "the transport was closed"

    # -- through the inbox

    def arrived(self, delivery: Delivery) -> None:
        """See `PathOwner.arrived`."""
        if self._state is not _DEAD:
            self._unsettled.add(delivery.delivery_id)
            self._sink(MessageReceived(delivery))

    def refuse(self, error: UnreadableMessage) -> None:
        """See `PathOwner.refuse`.

        So for the next handle, the message is the first of the queue, and what was before it is handled once. The
        handle does not wait longer than `OBSTACLE_PATIENCE_S`, as the message may have left the queue meanwhile.
        """
        if self._state is _DEAD:
            return
        ids = {"queue": self.queue, "epoch": self.epoch, "delivery_id": error.delivery_id}
        _log.error("message_unreadable", **ids, unsettled=len(self._unsettled), reason=error.reason)
        self._obstacle = str(error)
        # Nothing after this message may be shown on this handle, so nothing more is asked for.
        self._apply_intake()
        self._end_at_obstacle()
        # Last, as the timer may fail when memory runs out. If it did and nothing were left to be settled, nothing would
        # end the handle.
        if self.is_live:
            asyncio.get_running_loop().call_later(OBSTACLE_PATIENCE_S, self.give_up, self._obstacle)

    def _end_at_obstacle(self) -> None:
        if self._obstacle is not None and not self._unsettled:
            self.give_up(self._obstacle)

    def _event_happened(self, happened: tuple[NativeFlowEvent, str]) -> None:
        event, text = happened
        if self._state is HandleState.DEAD:
            self._was_ended |= event in (NativeFlowEvent.DOWN, NativeFlowEvent.REBIND_REFUSED)
            return
        match event:
            case NativeFlowEvent.ACTIVE:
                self._sink(FlowActive(self.epoch))
            case NativeFlowEvent.INACTIVE:
                self._sink(FlowInactive(self.epoch))
            case NativeFlowEvent.REBOUND:
                # The library binds with the window of before the outage; what was requested during it is lost.
                self._apply_intake()
            case NativeFlowEvent.DOWN | NativeFlowEvent.REBIND_REFUSED:
                self.give_up(text)

    def _apply_intake(self) -> None:
        if self._state is HandleState.BOUND:
            self._path.set_intake(is_open=self._intake_open and self._obstacle is None)

    def give_up(self, reason: str) -> None:
        """End the handle, which cannot be used any more: report its end, and unbind what is left of it."""
        # What is left in the client is freed in the background; a caller that must be sure awaits `unbind`.
        if self._state is not HandleState.DEAD:
            try:
                self._begin_ending()
            finally:
                self._end(reason)

    def _begin_ending(self) -> None:
        try:
            self._ending = self._threads.begin(self.terminate)
        except MemoryError:
            # Tried again, as the broker may feed it until it has ended, and nobody reads.
            asyncio.get_running_loop().call_later(END_AGAIN_S, self._end_again)

    def _end_again(self) -> None:
        # Without a receiver, the transport is closed, or has replaced its session.
        if self._receiver is not None:
            self._begin_ending()

    def _die(self) -> None:
        self._state = HandleState.DEAD
        if self._flush_timer is not None:
            self._flush_timer.cancel()
        # At once: the session may be freed as soon as the flow is unbound, or before, and the loop, which may have to
        # open a window again, must not touch it. Without memory for this, it is done when the flow is unbound.
        with suppress(MemoryError):
            self._path.end()

    def _end(self, reason: str) -> None:
        state = self._state
        self._die()
        self._end_reason = reason
        # Before the caller has the handle, `bind` fails instead.
        if state is HandleState.BOUND:
            _log.warning("flow_ended", queue=self.queue, epoch=self.epoch, reason=reason)
            self._sink(FlowDown(self.epoch, reason))
