"""Any sequence of calls, checked against a model of the engine and of its clients."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from lbg_runtime.broker.engine.answers import SettledRange
from lbg_runtime.broker.engine.effects import ClientEnded, Deliver, Published, one_by_one
from lbg_runtime.model.errors import BrokerRefusal
from lbg_runtime.model.ids import DeliveryId, QueueName
from lbg_runtime.model.outcome import Outcome
from tests.broker.deadlines import call_due
from tests.broker.engine.engine_model import (
    CLIENT_NAMES,
    LIFE_MS,
    QUEUES,
    QUOTA_BYTES,
    TOPICS,
    EngineModel,
    Handle,
    Spooled,
)

WINDOWS = st.sampled_from((255, 255, 3, 1, 0, 0))


class EngineMachine(EngineModel, RuleBasedStateMachine):
    def __init__(self) -> None:
        EngineModel.__init__(self)
        RuleBasedStateMachine.__init__(self)

    @initialize()
    def begin(self) -> None:
        self.set_up()

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
            self.refused.add(self.last_number)
            return
        effects = self.engine.publish(self.publisher, self.last_number, message)
        for queue in queues:
            spooled = self.spools[queue][self.last_number] = Spooled(self.last_number, size)
            if self.respects_lives and self.last_number % 3 == 0:
                spooled.ends_ms = self.now_ms + LIFE_MS
        self.carry_out(effects)

    @rule()
    def publish_again(self) -> None:
        message = Published("both", "again", 1)
        if self.last_number in self.refused:
            with pytest.raises(BrokerRefusal, match="503 Spool Over Quota"):
                self.engine.publish(self.publisher, self.last_number, message)
        elif self.last_number:
            assert self.engine.publish(self.publisher, self.last_number, message) == []

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

    @rule(name=st.sampled_from(CLIENT_NAMES), other=st.sampled_from(CLIENT_NAMES))
    def take_another_name(self, name: str, other: str) -> None:
        if name not in self.connections:
            return
        if other != name and other in self.connections:
            with pytest.raises(BrokerRefusal, match="400 Client Name Already In Use"):
                self.engine.rename(self.connections[name], other)
            return
        self.engine.rename(self.connections[name], other)
        self.connections[other] = self.connections.pop(name)
        for handle in self.flows.values():
            if handle.client_name == name:
                handle.client_name = other

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

    @invariant()
    def accounts(self) -> None:
        self.nothing_is_lost_and_accounts_are_exact()

    @invariant()
    def progress(self) -> None:
        self.whatever_can_be_sent_has_been_sent()

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
                delivered = [effect for effect in one_by_one(effects) if isinstance(effect, Deliver)]
                numbers += [effect.message.content for effect in delivered]
                last = delivered[-1].delivery_id
                effects = self.engine.settle(bound.flow, [SettledRange(DeliveryId(0), last, Outcome.ACCEPTED)])
            assert numbers == [number for number, message in spool.items() if message.ends_ms > self.now_ms]


TestEngineMachine = EngineMachine.TestCase
TestEngineMachine.settings = settings(max_examples=90, stateful_step_count=80, deadline=None)


class MortalMachine(EngineMachine):
    """The same where lives of messages end, at any time in the life of their holders."""

    respects_lives = True

    @rule(ms=st.sampled_from((LIFE_MS // 2, LIFE_MS)))
    def pass_time(self, ms: int) -> None:
        self.now_ms += ms
        for queue in QUEUES:
            self.end_lives(queue)
        self.carry_out(call_due(self.engine.surroundings.timetable))


TestMortalMachine = MortalMachine.TestCase
TestMortalMachine.settings = settings(max_examples=60, stateful_step_count=80, deadline=None)
