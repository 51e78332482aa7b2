"""The broker's front end in the simulation: the real engine behind links instead of sockets."""

from collections.abc import Callable
from dataclasses import dataclass

from lbg_runtime.broker.engine.answers import BoundQueue, SettledRange
from lbg_runtime.broker.engine.effects import (
    ActivityChanged,
    ClientEnded,
    ClientId,
    Deliver,
    DeliverDirect,
    Effect,
    FlowEnded,
    FlowId,
    Published,
    SingleEffect,
    one_by_one,
)
from lbg_runtime.broker.engine.engine import DEFAULT_VPN, Engine
from lbg_runtime.broker.engine.settings import QueueSettings
from lbg_runtime.model.errors import InvariantViolated
from lbg_runtime.model.group import GroupShape, queue_index
from lbg_runtime.model.ids import DeliveryId, QueueName
from lbg_runtime.model.message import Message
from lbg_runtime.sim.history import Delivered, FlowClosed, FlowFed, Handle, Happening, Life, SpoolSeen, Stamp
from lbg_runtime.sim.link import Link
from lbg_runtime.sim.schedule import Call, Schedule

CONTROL_TOPIC = "lbg-control/orders"

EffectSink = Callable[[SingleEffect], None]


@dataclass(slots=True)
class _Connection:
    link: Link
    sink: EffectSink
    lost: Call
    flows: dict[FlowId, Handle]


class SimBroker:
    """Methods run when a frame arrives at the broker; answers and effects go down the link of the client concerned."""

    def __init__(self, schedule: Schedule, history: list[Happening], shape: GroupShape) -> None:
        self.shape = shape
        self._schedule = schedule
        self._history = history
        self._engine = Engine()
        self.configured_count = shape.queue_count
        """The queue count in the settings of a member that starts now."""
        for index in range(shape.queue_count):
            self.create_queue(index)
            for subscription in shape.subscriptions(index):
                self.subscribe(index, subscription)
        self._connections: dict[ClientId, _Connection] = {}
        self._down_until_ms = 0
        self._browser, _ = self._engine.connect(DEFAULT_VPN, "", "", "browser")
        self._record_count = 0
        self._record_flow: FlowId | None = None

    # -- frames from clients

    def connect(
        self, link: Link, client_name: str, sink: EffectSink, lost: Call, answer: Callable[[ClientId], None]
    ) -> None:
        """Log a client in; from then on, at the client, `sink` takes what the broker sends, `lost` its end."""
        if self._schedule.now_ms < self._down_until_ms:
            link.close(lost)
            return
        client, effects = self._engine.connect(DEFAULT_VPN, "", "", client_name)
        # The flows of an older connection with that name end before anything else happens.
        for effect in effects:
            if isinstance(effect, ClientEnded):
                self._close_connection(effect.client)
        self._connections[client] = _Connection(link, sink, lost, {})
        link.down.send(lambda: answer(client))
        self._carry_out(effects)

    def bind(
        self,
        client: ClientId,
        handle: Handle,
        last_received: DeliveryId | None,
        answer: Callable[[BoundQueue | None], None],
    ) -> None:
        """Bind a flow for a handle, at first or again after a reconnect; answers None if there is no such queue."""
        connection = self._connections.get(client)
        if connection is None:
            return
        if handle.queue not in self._engine.queue_names(DEFAULT_VPN):
            connection.link.down.send(lambda: answer(None))
            return
        bound, effects = self._engine.bind(client, handle.queue, last_received_id=last_received)
        connection.flows[bound.flow] = handle
        if bound.active:
            self._history.append(FlowFed(self._schedule.now_ms, handle.queue, bound.flow, handle))
        connection.link.down.send(lambda: answer(bound))
        self._carry_out(effects)

    def unbind(self, client: ClientId, flow: FlowId, answer: Callable[[], None]) -> None:
        """End a flow at its client's request."""
        connection = self._connections.get(client)
        if connection is None:
            return
        handle = connection.flows.pop(flow, None)
        if handle is not None:
            self._history.append(FlowClosed(self._schedule.now_ms, handle.queue, flow, cut_ms=None))
        effects = self._engine.unbind(flow)
        connection.link.down.send(answer)
        self._carry_out(effects)

    def open_window(self, flow: FlowId, received_up_to: DeliveryId, window: int) -> None:
        """A transport acknowledgement."""
        self._carry_out(self._engine.open_window(flow, received_up_to, window))

    def settle(self, queue: QueueName, flow: FlowId, ranges: list[SettledRange]) -> None:
        """Application acknowledgements."""
        depth_before = self._engine.queue_depth(DEFAULT_VPN, queue)
        effects = self._engine.settle(flow, ranges)
        if self._engine.queue_depth(DEFAULT_VPN, queue) != depth_before:
            self._look_into(queue)
        self._carry_out(effects)

    def open_publisher(self, client: ClientId, name: str, answer: Callable[[FlowId, str, int], None]) -> None:
        """Open or resume a publisher flow."""
        connection = self._connections.get(client)
        if connection is None:
            return
        opened = self._engine.open_publisher(client, name)
        connection.link.down.send(lambda: answer(opened.flow, opened.name, opened.last_answered_id))

    def publish(
        self, client: ClientId, flow: FlowId, message_id: int, topic: str, stamp: Stamp, answer: Callable[[], None]
    ) -> None:
        """Spool a message and confirm it."""
        connection = self._connections.get(client)
        if connection is None:
            return
        effects = self._engine.publish(flow, message_id, Published(topic, stamp, size_bytes=1))
        connection.link.down.send(answer)
        self._carry_out(effects)

    # -- what an administrator does

    def queue_indexes(self) -> list[int]:
        """Indexes of the group's existing queues."""
        found = (queue_index(self.shape.name, queue) for queue in self._engine.queue_names(DEFAULT_VPN))
        return sorted(index for index in found if index is not None)

    def subscriptions(self) -> dict[int, frozenset[str]]:
        """Subscriptions of the group's existing queues, by index."""
        queues = {index: self.shape.queue_name(index) for index in self.queue_indexes()}
        return {
            index: frozenset(self._engine.queue_subscriptions(DEFAULT_VPN, queue)) for index, queue in queues.items()
        }

    def depth(self, index: int) -> int:
        """Messages in a queue, including those delivered but unsettled."""
        return self._engine.queue_depth(DEFAULT_VPN, self.shape.queue_name(index))

    def create_queue(self, index: int) -> None:
        """Create a queue of the group, without a subscription."""
        self._engine.create_queue(DEFAULT_VPN, self.shape.queue_name(index), QueueSettings())

    def subscribe(self, index: int, topic: str) -> None:
        """Put what is published on the topic from now on into the queue."""
        self._engine.add_queue_subscription(DEFAULT_VPN, self.shape.queue_name(index), topic)

    def unsubscribe(self, index: int, topic: str) -> None:
        """Stop putting what is published on the topic into the queue."""
        self._engine.remove_queue_subscription(DEFAULT_VPN, self.shape.queue_name(index), topic)

    def delete_queue(self, index: int) -> None:
        """Delete a queue; does nothing while it holds messages or somebody is bound to it."""
        queue = self.shape.queue_name(index)
        if not self.depth(index) and not self._engine.queue_flows(DEFAULT_VPN, queue):
            self._engine.delete_queue(DEFAULT_VPN, queue)

    def publish_record(self, record: Message) -> None:
        """Spool a record of a re-striping in all queues that subscribe to its topic."""
        if self._record_flow is None:
            client, _ = self._engine.connect(DEFAULT_VPN, "", "", "restriper")
            self._record_flow = self._engine.open_publisher(client, "").flow
        self._record_count += 1
        published = Published(record.topic, record, size_bytes=1)
        self._carry_out(self._engine.publish(self._record_flow, self._record_count, published))

    # -- what the broker does or notices by itself

    def notice_loss(self, client: ClientId) -> None:
        """The connection of a client is gone; does nothing if that has been noticed before."""
        if client in self._connections:
            self._close_connection(client)
            self._carry_out(self._engine.disconnect(client))

    def go_down(self, until_ms: int) -> None:
        """Let nobody in until then; the caller breaks the existing connections."""
        self._down_until_ms = max(self._down_until_ms, until_ms)

    def end_flow(self, client: ClientId, flow: FlowId) -> None:
        """End one flow permanently, as an operator does who shuts a queue for a moment."""
        connection = self._connections.get(client)
        handle = connection.flows.pop(flow, None) if connection else None
        if handle is None:
            return
        now_ms = self._schedule.now_ms
        # If the connection is broken already, that is what its member lost.
        cut_ms = now_ms if connection is None or connection.link.cut_ms is None else connection.link.cut_ms
        self._history.append(FlowClosed(now_ms, handle.queue, flow, cut_ms))
        self._carry_out([FlowEnded(client, flow, "Queue Shutdown"), *self._engine.unbind(flow)])

    def owner_of(self, queue: QueueName) -> Life | None:
        """The life whose flow the queue feeds now."""
        fed = self._engine.queue_status(DEFAULT_VPN, queue).active_flow
        flows = {flow: handle for each in self._connections.values() for flow, handle in each.flows.items()}
        return flows[fed].life if fed is not None else None

    def is_empty(self) -> bool:
        """Whether nothing is spooled anywhere."""
        return not any(self._engine.queue_depth(DEFAULT_VPN, queue) for queue in self._engine.queue_names(DEFAULT_VPN))

    # -- parts

    def _close_connection(self, client: ClientId) -> None:
        connection = self._connections.pop(client)
        connection.link.close(connection.lost)
        for flow, handle in connection.flows.items():
            self._history.append(FlowClosed(self._schedule.now_ms, handle.queue, flow, connection.link.cut_ms))

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in one_by_one(effects):
            connection = self._connections.get(effect.client)
            if connection is None:
                continue
            if isinstance(effect, Deliver) and isinstance(effect.message.content, Stamp):
                self._record_delivery(connection, effect)
            if isinstance(effect, ActivityChanged) and effect.active:
                handle = connection.flows[effect.flow]
                self._history.append(FlowFed(self._schedule.now_ms, handle.queue, effect.flow, handle))
            if not isinstance(effect, ClientEnded | DeliverDirect):
                self._send(connection, effect)

    def _send(self, connection: _Connection, effect: Deliver | ActivityChanged | FlowEnded) -> None:
        connection.link.down.send(lambda: connection.sink(effect))

    def _record_delivery(self, connection: _Connection, effect: Deliver) -> None:
        handle = connection.flows[effect.flow]
        self._history.append(
            Delivered(
                self._schedule.now_ms,
                handle.queue,
                effect.flow,
                handle,
                effect.delivery_id,
                stamp_of(effect.message),
                effect.redelivered,
            )
        )

    def _look_into(self, queue: QueueName) -> None:
        """Browse a queue, so that the laws see what is actually left in it."""
        bound, _ = self._engine.bind(self._browser, queue, browser=True)
        shown = list(one_by_one(self._engine.open_window(bound.flow, DeliveryId(0), 1_000_000)))
        self._engine.unbind(bound.flow)
        own = [effect for effect in shown if isinstance(effect, Deliver) and effect.flow == bound.flow]
        if len(own) != len(shown):
            raise InvariantViolated("browsing a queue made something else happen")
        self._history.append(SpoolSeen(self._schedule.now_ms, queue, tuple(stamps_of(own))))


def stamps_of(shown: list[Deliver]) -> list[Stamp]:
    """The stamps of all messages that are not records of a re-striping."""
    return [each.message.content for each in shown if isinstance(each.message.content, Stamp)]


def message_of(published: Published) -> Message:
    """A message of this simulation as a client shows it."""
    if isinstance(published.content, Message):
        return published.content
    stamp = stamp_of(published)
    return Message(published.topic, b"", message_id=f"{stamp.publisher} {stamp.key} {stamp.sequence}")


def stamp_of(message: Published) -> Stamp:
    """The content of a message of this simulation."""
    if not isinstance(message.content, Stamp):
        raise InvariantViolated(f"a foreign message: {message.content!r}")
    return message.content
