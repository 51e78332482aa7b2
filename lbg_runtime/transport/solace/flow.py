"""One flow handle on the client: a persistent receiver, from its start on a control thread to its termination there."""

import asyncio
from enum import Enum
from typing import Any

import structlog

from lbg_runtime.core.events import FlowActive, FlowDown, FlowInactive, MessageReceived
from lbg_runtime.model.ids import DeliveryId, Epoch, QueueName
from lbg_runtime.model.message import Delivery
from lbg_runtime.model.outcome import Outcome
from lbg_runtime.transport.base import FlowSink
from lbg_runtime.transport.solace import native
from lbg_runtime.transport.solace.errors import bind_failed, subcode_and_reason
from lbg_runtime.transport.solace.inbound import Arrival, UnreadableMessage, read_delivery
from lbg_runtime.transport.solace.inbox import Inbox
from lbg_runtime.transport.solace.library import (
    CLIENT_ERRORS,
    ClientOutcome,
    IncompleteMessageDeliveryError,
    MessageHandler,
    PubSubPlusClientError,
    Queue,
    ReceiverState,
    ReceiverStateChangeListener,
    TerminationNotificationListener,
)
from lbg_runtime.transport.solace.threads import ControlThreads

_log = structlog.get_logger(__name__)


class HandleState(Enum):
    """Where a flow handle stands; only the loop's thread looks at it."""

    LIVE = "live"
    DEAD = "dead"
    """Given up, ended by the broker, or its transport is closed: the sink is not called again."""


class SolaceFlow:
    """A `BoundFlow`. Made by `SolaceTransport`, owned by one flow runner.

    `start` and `terminate` block and run on control threads, everything else on the thread of the loop. What the threads
    of the client report comes through the inbox.
    """

    def __init__(self, inbox: Inbox, threads: ControlThreads, queue: QueueName, epoch: Epoch, sink: FlowSink) -> None:
        self.inbox = inbox
        """Where the listeners post."""
        self._queue = queue
        self._state = HandleState.LIVE
        self._threads = threads
        self._epoch = epoch
        self._sink = sink
        self._receiver: Any = None
        self._ending: asyncio.Future[None] | None = None

    # -- on a control thread

    def start(self, service: Any) -> None:
        """Bind; raises `BindFailed` and then leaves nothing behind."""
        receiver = (
            service.create_persistent_message_receiver_builder()
            .with_message_client_acknowledgement()
            .with_required_message_outcome_support(ClientOutcome.FAILED, ClientOutcome.REJECTED)
            .with_activation_passivation_support(_ActivityListener(self))
            .build(Queue.durable_exclusive_queue(self._queue))
        )
        native.take_window_over(receiver)
        receiver.set_termination_notification_listener(_TerminationListener(self))
        try:
            receiver.start()
        except CLIENT_ERRORS as error:
            native.forget_failed(receiver)
            raise bind_failed(self._queue, error) from error
        self._receiver = receiver
        try:
            receiver.receive_async(_MessageListener(self))
        except CLIENT_ERRORS as error:
            # The connection went between the two calls.
            self.terminate()
            raise bind_failed(self._queue, error) from error

    def terminate(self) -> None:
        """Flush settlements and unbind. Messages that the client has not handed over come again, flagged."""
        receiver, self._receiver = self._receiver, None
        if receiver is None:
            return
        try:
            receiver.terminate(grace_period=0)
        except IncompleteMessageDeliveryError:
            pass
        except PubSubPlusClientError as error:
            # Stopping fails where there is no connection. The receiver must go all the same, or the library would
            # bind it again by itself and take messages that nobody handles.
            _log.info("receiver_destroyed", queue=self._queue, epoch=self._epoch, reason=subcode_and_reason(error)[1])
            native.destroy(receiver)

    # -- for the flow runner

    def settle(self, delivery_id: DeliveryId, outcome: Outcome) -> None:
        """See `BoundFlow.settle`."""
        if self.is_live and not native.settle(self._receiver, delivery_id, outcome):
            # A settlement that got lost on a live handle would leave its message neither shown again nor removed.
            self._give_up(f"settlement of {delivery_id} was not taken")

    def stop_intake(self) -> None:
        """See `BoundFlow.stop_intake`."""
        if self.is_live:
            native.close_window(self._receiver)

    def start_intake(self) -> None:
        """See `BoundFlow.start_intake`."""
        if self.is_live:
            native.open_window(self._receiver)

    async def unbind(self) -> None:
        """See `BoundFlow.unbind`."""
        self._state = HandleState.DEAD
        await self._threads.run(self.terminate)

    # -- on the loop, through the inbox

    def arrived(self, arrival: Arrival) -> None:
        """The client handed a message over."""
        if self.is_live:
            self._sink(
                MessageReceived(
                    Delivery(
                        self._queue,
                        self._epoch,
                        arrival.delivery_id,
                        arrival.message,
                        arrival.redelivered,
                        arrival.received_at_ns,
                    )
                )
            )

    def unreadable(self, reason: str) -> None:
        """A message cannot be shown. To skip it would break the order of its key, so the queue stops here, loudly."""
        self._give_up(reason)

    def activity_changed(self, active: bool) -> None:
        """The broker feeds this flow now, or no longer."""
        if self.is_live:
            self._sink(FlowActive(self._epoch) if active else FlowInactive(self._epoch))

    def went_down(self, reason: str) -> None:
        """The broker ended the flow, or its session is gone for good."""
        if self.is_live:
            self._state = HandleState.DEAD
            self._sink(FlowDown(self._epoch, reason))

    def silence(self) -> None:
        """The transport is closed: report nothing more."""
        self._state = HandleState.DEAD

    @property
    def is_live(self) -> bool:
        """Whether the sink may still be called."""
        return self._state is HandleState.LIVE

    def _give_up(self, reason: str) -> None:
        if self.is_live:
            _log.error("flow_given_up", queue=self._queue, epoch=self._epoch, reason=reason)
            # Not awaited: the control threads are, when the transport closes.
            self._ending = self._threads.begin(self.terminate)
            self.went_down(reason)


# The client's classes have no types, hence the ignored subclassing below. The listeners do nothing but post: the client
# joins their threads while it terminates, so anything that waits there could wait for itself.


class _MessageListener(MessageHandler):  # type: ignore[misc]
    def __init__(self, flow: SolaceFlow) -> None:
        self._flow = flow

    def on_message(self, message: Any) -> None:
        try:
            arrival = read_delivery(message)
        except UnreadableMessage as error:
            self._flow.inbox.post(self._flow.unreadable, str(error))
        else:
            self._flow.inbox.post(self._flow.arrived, arrival)


class _ActivityListener(ReceiverStateChangeListener):  # type: ignore[misc]
    def __init__(self, flow: SolaceFlow) -> None:
        self._flow = flow

    def on_change(self, _old_state: Any, new_state: Any, _time_stamp: float) -> None:
        self._flow.inbox.post(self._flow.activity_changed, new_state is ReceiverState.ACTIVE)


class _TerminationListener(TerminationNotificationListener):  # type: ignore[misc]
    def __init__(self, flow: SolaceFlow) -> None:
        self._flow = flow

    def on_termination(self, event: Any) -> None:
        self._flow.inbox.post(self._flow.went_down, subcode_and_reason(event.cause)[1])
