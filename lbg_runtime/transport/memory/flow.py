"""One flow handle of a memory transport. Window, held settlements and re-bind behave as in the official client."""

import asyncio
from dataclasses import replace
from enum import Enum

from lbg_runtime.broker.engine.answers import SettledRange
from lbg_runtime.broker.engine.effects import ActivityChanged, Deliver, FlowId, Published
from lbg_runtime.core.flow.events import FlowActive, FlowDown, FlowInactive, MessageReceived
from lbg_runtime.model.errors import InvariantViolated
from lbg_runtime.model.ids import DeliveryId, Epoch, QueueName
from lbg_runtime.model.message import Delivery, Message
from lbg_runtime.model.outcome import Outcome
from lbg_runtime.transport.base import FlowSink
from lbg_runtime.transport.memory.broker import MemoryBroker

WINDOW = 255
"""How many messages may be in transit at the same time, as the official client advertises."""


class HandleState(Enum):
    BOUND = "bound"
    AWAY = "away"
    """The connection is lost and will come back; settlements are held."""
    DEAD = "dead"
    """Given up, ended by the broker, or its transport is closed."""


def message_of(spooled: Published) -> Message:
    """Return the message that a memory transport put into the engine."""
    if not isinstance(spooled.content, Message):
        raise InvariantViolated(f"a memory broker carries messages of the model, not {type(spooled.content).__name__}")
    return spooled.content


class MemoryFlow:
    """A `BoundFlow`. Made and driven by its `MemoryTransport`, owned by one flow runner."""

    def __init__(
        self, broker: MemoryBroker, queue: QueueName, epoch: Epoch, sink: FlowSink, ack_delay_s: float
    ) -> None:
        self.queue = queue
        self.state = HandleState.AWAY
        self.partition_group: int | None = None
        """The group that the broker announced, again with each bind; None if the queue has no partitions."""
        self.flow_id: FlowId | None = None
        """The broker's flow behind the handle; a new one after each reconnect, None while there is none."""
        self.last_received_id: DeliveryId | None = None
        """What a re-bind tells the broker: the newest delivery that this handle has shown."""
        self._engine = broker.engine
        self._post = broker.post
        self._epoch = epoch
        self._sink = sink
        self._ack_delay_s = ack_delay_s
        self._active = False
        self._intake_open = False
        self._held: list[SettledRange] = []
        self._ack_timer: asyncio.TimerHandle | None = None

    # -- for the flow runner

    def settle(self, delivery_id: DeliveryId, outcome: Outcome) -> None:
        if self.state is HandleState.DEAD:
            return
        self._held.append(SettledRange(delivery_id, delivery_id, outcome))
        # Acceptances are batched, as the client does; any other outcome is sent at once, after them.
        if self._ack_delay_s == 0 or outcome is not Outcome.ACCEPTED:
            self.flush()
        elif self._ack_timer is None:
            self._ack_timer = asyncio.get_running_loop().call_later(self._ack_delay_s, self.flush)

    def stop_intake(self) -> None:
        self._intake_open = False
        self._advertise_window()

    def start_intake(self) -> None:
        self._intake_open = True
        self._advertise_window()

    def flush(self) -> None:
        self._disarm()
        if self.flow_id is not None and self._held:
            held, self._held = self._held, []
            self._post(self._engine.settle(self.flow_id, held))

    async def unbind(self) -> bool:
        """See `BoundFlow.unbind`. It has no suspension point, so a cancellation cannot cut it short."""
        self.flush()
        flow_id = self.flow_id
        self.die()
        # The broker may have ended the flow, with the news still on its way.
        if flow_id is None or not self._engine.is_bound(flow_id):
            return False
        self._post(self._engine.unbind(flow_id))
        return True

    # -- for the transport

    def bound(self, flow_id: FlowId) -> None:
        """The broker bound the handle, for the first time or again: send the held settlements, open the window."""
        self.state = HandleState.BOUND
        self.flow_id = flow_id
        self.flush()
        self._advertise_window()

    def take(self, effect: Deliver | ActivityChanged) -> None:
        """The broker sent something on this flow."""
        if self.state is not HandleState.BOUND:
            return
        if isinstance(effect, ActivityChanged):
            self._active = effect.active
            self._sink(FlowActive(self._epoch) if effect.active else FlowInactive(self._epoch))
            return
        message = message_of(effect.message)
        if effect.first_property is not None:
            message = replace(message, properties={**message.properties, effect.first_property: True})
        self.last_received_id = effect.delivery_id
        self._advertise_window()
        # The loop's clock is the monotonic one, or a test's virtual one; both ends of a duration come from it.
        now_ns = int(asyncio.get_running_loop().time() * 1e9)
        delivery = Delivery(self.queue, self._epoch, effect.delivery_id, message, effect.redelivered, now_ns)
        self._sink(MessageReceived(delivery))

    def away(self) -> None:
        """The connection is lost; the handle lives on and holds its settlements."""
        if self.state is not HandleState.BOUND:
            return
        self.state = HandleState.AWAY
        self.flow_id = None
        self._disarm()
        if self._active:
            self._active = False
            self._sink(FlowInactive(self._epoch))

    def end(self, reason: str) -> None:
        """The broker ended the flow, or refused to bind it again."""
        if self.state is not HandleState.DEAD:
            self.die()
            self._sink(FlowDown(self._epoch, reason))

    def die(self) -> None:
        """Forget everything; the sink is not called again."""
        self.state = HandleState.DEAD
        self.flow_id = None
        self._held.clear()
        self._disarm()

    def _disarm(self) -> None:
        if self._ack_timer is not None:
            self._ack_timer.cancel()
            self._ack_timer = None

    def _advertise_window(self) -> None:
        if self.flow_id is not None:
            window = WINDOW if self._intake_open else 0
            received_up_to = self.last_received_id if self.last_received_id is not None else DeliveryId(0)
            self._post(self._engine.open_window(self.flow_id, received_up_to, window))
