"""Any sequence of calls, checked against a model that knows of each message only where it is and who had it last.

The model plays the clients too, as the official library behaves: a handle drops ids that it has seen, tells the last
one when it is bound again after a broken connection, and what was on the way then is lost. One machine is one class,
hence the length of this file.
"""

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from lbg_runtime.broker.engine.effects import (
    ActivityChanged,
    ClientEnded,
    ClientId,
    Deliver,
    Effect,
    FlowEnded,
    FlowId,
    Published,
)
from lbg_runtime.broker.engine.engine import AccessType, Engine, QueueSettings, SettledRange
from lbg_runtime.model.errors import BrokerRefusal
from lbg_runtime.model.ids import DeliveryId, QueueName
from lbg_runtime.model.outcome import Outcome

MAX_UNACKED = 4
QUOTA_BYTES = 30
CLIENT_NAMES = ("ann", "bob")
QUEUES = {QueueName("line"): AccessType.EXCLUSIVE, QueueName("ring"): AccessType.NON_EXCLUSIVE}
TOPICS = {"both": ("line", "ring"), "line/only": ("line",), "none": ()}
WINDOWS = st.sampled_from((255, 255, 3, 1, 0, 0))


@dataclass(eq=False)
class Handle:
    """A receiver in a client's program; lives through broken connections."""

    client_name: str
    queue: QueueName
    flow: FlowId | None = None
    last_received: int = 0
    last_sent: int = 0
    """On the present flow."""
    acknowledged: int = 0
    window: int = 0
    under_way: list[Deliver] = field(default_factory=list)
    """Sent and not received yet."""
    unacknowledged_ids: list[int] = field(default_factory=list)
    """Sent and not acknowledged by the transport."""
    held: list[int] = field(default_factory=list)
    """Ids that the application has and did not settle."""


@dataclass(eq=False)
class Spooled:
    """One message in one queue."""

    number: int
    size: int
    holder: Handle | None = None
    claimed_by: Handle | None = None
    last_id: int = 0
    was_delivered: bool = False


class EngineMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.engine = Engine()
        self.spools: dict[QueueName, dict[int, Spooled]] = {name: {} for name in QUEUES}
        self.lines: dict[QueueName, list[Handle]] = {name: [] for name in QUEUES}
        self.connections: dict[str, ClientId] = {}
        self.handles: list[Handle] = []
        self.flows: dict[FlowId, Handle] = {}
        self.settled: set[tuple[QueueName, int]] = set()
        self.last_number = 0
        self.last_id = 0

    @initialize()
    def set_up(self) -> None:
        for name, access_type in QUEUES.items():
            self.engine.create_queue(
                "default",
                name,
                QueueSettings(access_type, max_unacked_per_flow=MAX_UNACKED, quota_bytes=QUOTA_BYTES, max_bind_count=4),
            )
        for topic, queues in TOPICS.items():
            for queue in queues:
                self.engine.add_queue_subscription("default", QueueName(queue), topic)
        publisher, _ = self.engine.connect("default", "user", "", "publisher")
        self.publisher = self.engine.open_publisher(publisher, "").flow

    # -- publishing

    @rule(topic=st.sampled_from(sorted(TOPICS)), sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4))
    def publish_some(self, topic: str, sizes: list[int]) -> None:
        for size in sizes:
            self.publish(topic, size)

    def publish(self, topic: str, size: int) -> None:
        self.last_number += 1
        message = Published(topic, self.last_number, size)
        queues = [QueueName(queue) for queue in TOPICS[topic]]
        over_quota = any(sum(m.size for m in self.spools[queue].values()) + size > QUOTA_BYTES for queue in queues)
        if over_quota:
            with pytest.raises(BrokerRefusal, match="503 Spool Over Quota"):
                self.engine.publish(self.publisher, self.last_number, message)
            return
        effects = self.engine.publish(self.publisher, self.last_number, message)
        for queue in queues:
            self.spools[queue][self.last_number] = Spooled(self.last_number, size)
        self.carry_out(effects)

    @rule()
    def publish_again(self) -> None:
        if self.last_number:
            assert self.engine.publish(self.publisher, self.last_number, Published("both", "again", 1)) == []

    # -- connections and handles

    @rule(name=st.sampled_from(CLIENT_NAMES), keep_lost=st.booleans())
    def reconnect(self, name: str, keep_lost: bool) -> None:
        """As the library does, all handles again; also while the broker takes the old connection for a living one."""
        self.connect(name)
        for handle in [h for h in self.handles if h.flow is None and h.client_name == name]:
            if not keep_lost:
                self.bind_again(handle)
                if handle.flow is not None:
                    self.move_window(handle, 255, 0)

    def connect(self, name: str) -> None:
        older = self.connections.get(name)
        client, effects = self.engine.connect("default", "user", "", name)
        if older is not None:
            assert effects[0] == ClientEnded(older, "Client Name Taken Over")
            effects = effects[1:]
            self.lose_flows(name, effects)
        assert older is not None or effects == []
        self.connections[name] = client

    @rule(data=st.data())
    def disconnect(self, data: st.DataObject) -> None:
        if not self.connections:
            return
        name = data.draw(st.sampled_from(sorted(self.connections)))
        client = self.connections.pop(name)
        self.lose_flows(name, self.engine.disconnect(client))
        assert self.engine.disconnect(client) == []

    @rule(name=st.sampled_from(CLIENT_NAMES), queue=st.sampled_from(sorted(QUEUES)), window=WINDOWS)
    def bind_new_handle(self, name: str, queue: QueueName, window: int) -> None:
        if name not in self.connections:
            self.connect(name)
        if len(self.lines[queue]) == 4:
            with pytest.raises(BrokerRefusal, match="503 Max clients exceeded for queue"):
                self.engine.bind(self.connections[name], queue)
            return
        handle = Handle(name, queue)
        self.bind(handle, None)
        for lost in [h for h in self.handles if h.flow is None and (h.client_name, h.queue) == (name, queue)]:
            self.give_up(lost)
        self.move_window(handle, window, 0)

    @rule(data=st.data())
    def bind_handle_again(self, data: st.DataObject) -> None:
        lost = [h for h in self.handles if h.flow is None and h.client_name in self.connections]
        if not lost:
            return
        self.bind_again(data.draw(st.sampled_from(lost)))

    def bind_again(self, handle: Handle) -> None:
        if len(self.lines[handle.queue]) == 4:
            return
        self.handles.remove(handle)
        for message in self.spools[handle.queue].values():
            if message.claimed_by is handle and message.last_id > handle.last_received:
                message.claimed_by = None
        self.bind(handle, DeliveryId(handle.last_received))

    def bind(self, handle: Handle, last_received: DeliveryId | None) -> None:
        bound, effects = self.engine.bind(
            self.connections[handle.client_name], handle.queue, last_received_id=last_received
        )
        assert effects == []
        handle.flow = bound.flow
        handle.last_sent = handle.window = 0
        handle.acknowledged = handle.last_received
        self.flows[bound.flow] = handle
        self.handles.append(handle)
        self.lines[handle.queue].append(handle)
        assert bound.active == self.is_fed(handle)
        if bound.active:
            self.take_over(handle)

    @rule(data=st.data())
    def unbind(self, data: st.DataObject) -> None:
        if not self.flows:
            return
        handle = self.flows[data.draw(st.sampled_from(sorted(self.flows)))]
        flow = handle.flow
        assert flow is not None
        was_fed = self.leave(handle)
        effects = self.engine.unbind(flow)
        self.give_up(handle)
        self.check_election(handle.queue, was_fed, effects)
        self.carry_out(effects)
        assert self.engine.unbind(flow) == []

    # -- what clients do with their flows

    @rule(data=st.data(), window=WINDOWS, lag=st.integers(0, 3))
    def open_window(self, data: st.DataObject, window: int, lag: int) -> None:
        if self.flows:
            self.move_window(self.flows[data.draw(st.sampled_from(sorted(self.flows)))], window, lag)

    def move_window(self, handle: Handle, window: int, lag: int) -> None:
        received = [id_ for id_ in handle.unacknowledged_ids if id_ <= handle.last_received]
        received = received[: max(0, len(received) - lag)]
        if received:
            handle.acknowledged = received[-1]
            handle.unacknowledged_ids = handle.unacknowledged_ids[len(received) :]
        handle.window = window
        assert handle.flow is not None
        self.carry_out(self.engine.open_window(handle.flow, DeliveryId(handle.acknowledged), window))

    @rule(data=st.data(), count=st.sampled_from((255, 255, 1, 2)))
    def receive(self, data: st.DataObject, count: int) -> None:
        receivers = [handle for handle in self.flows.values() if handle.under_way]
        if not receivers:
            return
        handle = data.draw(st.sampled_from(receivers))
        for deliver in handle.under_way[:count]:
            assert deliver.delivery_id > handle.last_received, "the library would drop it"
            handle.last_received = deliver.delivery_id
            handle.held.append(deliver.delivery_id)
        handle.under_way = handle.under_way[count:]

    @rule(data=st.data(), outcome=st.sampled_from(Outcome))
    def settle_some(self, data: st.DataObject, outcome: Outcome) -> None:
        if not (holders := self.holders()):
            return
        handle = data.draw(st.sampled_from(holders))
        ids = data.draw(st.lists(st.sampled_from(handle.held), min_size=1, max_size=4, unique=True))
        self.settle(handle, [(id_, id_, outcome) for id_ in ids], ids)

    @rule(data=st.data(), bottom=st.sampled_from((0, 1)))
    def settle_everything_up_to(self, data: st.DataObject, bottom: int) -> None:
        if not (holders := self.holders()):
            return
        handle = data.draw(st.sampled_from(holders))
        top = data.draw(st.sampled_from(handle.held))
        self.settle(handle, [(bottom, top, Outcome.ACCEPTED)], [id_ for id_ in handle.held if id_ <= top])

    @rule(data=st.data())
    def lose_a_settlement(self, data: st.DataObject) -> None:
        """The application settled, and the acknowledgement died with the connection or the library."""
        if not (holders := self.holders()):
            return
        handle = data.draw(st.sampled_from(holders))
        handle.held.remove(data.draw(st.sampled_from(handle.held)))

    @rule(data=st.data(), first=st.integers(0, 50), width=st.integers(0, 3))
    def settle_ids_of_anyone(self, data: st.DataObject, first: int, width: int) -> None:
        """A confused client: only what it had last counts."""
        if not self.flows:
            return
        handle = self.flows[data.draw(st.sampled_from(sorted(self.flows)))]
        ids = range(first, first + width + 1)
        self.settle(handle, [(first, first + width, Outcome.REJECTED)], [id_ for id_ in handle.held if id_ in ids])

    def holders(self) -> list[Handle]:
        return [handle for handle in self.flows.values() if handle.held]

    def settle(self, handle: Handle, ranges: list[tuple[int, int, Outcome]], ids: list[int]) -> None:
        handle.held = [id_ for id_ in handle.held if id_ not in ids]
        for first, last, outcome in ranges:
            for message in list(self.spools[handle.queue].values()):
                if not first <= message.last_id <= last or handle not in (message.holder, message.claimed_by):
                    continue
                message.holder = message.claimed_by = None
                if outcome is not Outcome.FAILED:
                    del self.spools[handle.queue][message.number]
                    self.settled.add((handle.queue, message.number))
        assert handle.flow is not None
        self.carry_out(
            self.engine.settle(handle.flow, [SettledRange(DeliveryId(a), DeliveryId(b), o) for a, b, o in ranges])
        )

    # -- the model

    def is_fed(self, handle: Handle) -> bool:
        return QUEUES[handle.queue] is AccessType.NON_EXCLUSIVE or self.lines[handle.queue][0] is handle

    def unacked(self, handle: Handle) -> int:
        return sum(m.holder is handle for m in self.spools[handle.queue].values())

    def has_room(self, handle: Handle) -> bool:
        return len(handle.unacknowledged_ids) < handle.window and self.unacked(handle) < MAX_UNACKED

    def waiting(self, queue: QueueName) -> list[Spooled]:
        return [m for m in self.spools[queue].values() if m.holder is None]

    def take_over(self, handle: Handle) -> None:
        for message in self.spools[handle.queue].values():
            if message.claimed_by is handle:
                message.claimed_by, message.holder = None, handle

    def leave(self, handle: Handle) -> bool:
        """Take a handle's flow away; what it held waits for it to come back. Answers whether it was fed."""
        assert handle.flow is not None
        was_fed = self.is_fed(handle)
        self.lines[handle.queue].remove(handle)
        del self.flows[handle.flow]
        handle.flow = None
        handle.under_way.clear()
        handle.unacknowledged_ids.clear()
        for message in self.spools[handle.queue].values():
            if message.holder is handle:
                message.holder, message.claimed_by = None, handle
        return was_fed

    def give_up(self, handle: Handle) -> None:
        self.handles.remove(handle)
        for message in self.spools[handle.queue].values():
            if message.claimed_by is handle:
                message.claimed_by = None

    def lose_flows(self, name: str, effects: list[Effect]) -> None:
        lost = [handle for handle in self.flows.values() if handle.client_name == name]
        was_fed = dict.fromkeys(QUEUES, False)
        for handle in lost:
            was_fed[handle.queue] |= self.leave(handle)
        for queue in QUEUES:
            self.check_election(queue, was_fed[queue], effects)
        self.carry_out(effects)

    def check_election(self, queue: QueueName, was_fed: bool, effects: list[Effect]) -> None:
        """The next in line is told, once, before it gets anything; nobody else is told anything."""
        changes = [e for e in effects if isinstance(e, ActivityChanged) and self.flows[e.flow].queue == queue]
        line = self.lines[queue]
        if not was_fed or not line or QUEUES[queue] is AccessType.NON_EXCLUSIVE:
            assert changes == []
            return
        first = line[0]
        assert first.flow is not None
        assert changes == [ActivityChanged(self.connections[first.client_name], first.flow, active=True)]
        own = [e for e in effects if isinstance(e, ActivityChanged | Deliver) and e.flow == first.flow]
        assert own[0] == changes[0]
        self.take_over(first)

    def carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            assert not isinstance(effect, FlowEnded | ClientEnded)
            if isinstance(effect, Deliver):
                self.check_delivery(effect)

    def check_delivery(self, deliver: Deliver) -> None:
        handle = self.flows[deliver.flow]
        number = deliver.message.content
        assert isinstance(number, int)
        assert deliver.client == self.connections[handle.client_name]
        assert (handle.queue, number) not in self.settled, "settled and delivered again"
        waiting = self.waiting(handle.queue)
        assert waiting[0].number == number, "out of order, or held by someone"
        message = waiting[0]
        assert self.is_fed(handle)
        assert self.has_room(handle)
        assert deliver.delivery_id > self.last_id
        assert deliver.previous_id == handle.last_sent
        assert deliver.redelivered == message.was_delivered
        self.last_id = handle.last_sent = message.last_id = deliver.delivery_id
        message.was_delivered = True
        if message.claimed_by is not None:
            for other in self.spools[handle.queue].values():
                if other is not message and other.claimed_by is message.claimed_by:
                    other.claimed_by = None
        message.holder, message.claimed_by = handle, None
        handle.under_way.append(deliver)
        handle.unacknowledged_ids.append(deliver.delivery_id)

    @invariant()
    def nothing_is_lost_and_accounts_are_exact(self) -> None:
        for queue, spool in self.spools.items():
            if queue not in self.engine.queue_names("default"):
                continue
            status = self.engine.queue_status("default", queue)
            assert status.depth == len(spool)
            assert status.spooled_bytes == sum(m.size for m in spool.values())
            assert status.unacked_count == len(spool) - len(self.waiting(queue))
            assert [f.flow for f in status.flows] == [h.flow for h in self.lines[queue]]
            assert [f.unacked_count for f in status.flows] == [self.unacked(h) for h in self.lines[queue]]
            assert [f.active for f in status.flows] == [self.is_fed(h) for h in self.lines[queue]]

    @invariant()
    def whatever_can_be_sent_has_been_sent(self) -> None:
        for queue, line in self.lines.items():
            if self.waiting(queue):
                assert not any(self.is_fed(handle) and self.has_room(handle) for handle in line)

    def teardown(self) -> None:
        """Everybody leaves: what nobody settled comes again to whoever reads, all of it, in order."""
        for name, client in tuple(self.connections.items()):
            del self.connections[name]
            self.lose_flows(name, self.engine.disconnect(client))
        if not self.engine.queue_names("default"):
            return
        reader, _ = self.engine.connect("default", "user", "", "reader")
        for queue, spool in self.spools.items():
            bound, _ = self.engine.bind(reader, queue)
            numbers: list[object] = []
            effects = self.engine.open_window(bound.flow, DeliveryId(0), 255)
            while effects:
                delivered = [effect for effect in effects if isinstance(effect, Deliver)]
                numbers += [effect.message.content for effect in delivered]
                last = delivered[-1].delivery_id
                effects = self.engine.settle(bound.flow, [SettledRange(DeliveryId(0), last, Outcome.ACCEPTED)])
            assert numbers == list(spool)


TestEngineMachine = EngineMachine.TestCase
TestEngineMachine.settings = settings(max_examples=300, stateful_step_count=80, deadline=None)
