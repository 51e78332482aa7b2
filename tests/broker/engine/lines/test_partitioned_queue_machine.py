"""A partitioned queue under any sequence of calls: the order of every key, one holder per key, nothing lost.

Clients behave as the official library: a handle that comes back tells the last id it received and still settles what
it had; one that was restarted binds anew.
"""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lbg_runtime.broker.engine.answers import SettledRange
from lbg_runtime.broker.engine.changes import Change, Changes
from lbg_runtime.broker.engine.effects import ClientId, Deliver, Effect, FlowId, Published, one_by_one
from lbg_runtime.broker.engine.engine import Engine
from lbg_runtime.broker.engine.settings import AccessType, QueueSettings
from lbg_runtime.model.ids import DeliveryId, QueueName
from lbg_runtime.model.outcome import Outcome
from tests.broker.deadlines import call_due

QUEUE = QueueName("orders")
KEYS = tuple("abcdef")
DELAY_MS, HANDOFF_MS = 100, 40


@dataclass(eq=False)
class Handle:
    """A receiver in a client's program."""

    name: str
    client: ClientId
    flow: FlowId | None = None
    last_id: int = 0
    held: dict[int, tuple[str, int]] = field(default_factory=dict)
    """By delivery id, what the application has and did not settle."""


class PartitionedQueueMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0
        self.lives = 0
        self.log: list[Change] = []
        self.begin_life()
        self.engine.create_queue(
            "default",
            QUEUE,
            QueueSettings(
                AccessType.NON_EXCLUSIVE,
                partition_count=3,
                partition_rebalance_delay_ms=DELAY_MS,
                partition_max_handoff_ms=HANDOFF_MS,
                max_unacked_per_flow=6,
            ),
        )
        self.engine.add_queue_subscription("default", QUEUE, ">")
        self.open_publisher("")
        self.published = 0
        self.numbers = dict.fromkeys(KEYS, 0)
        self.unsettled: dict[str, dict[int, FlowId | None]] = {key: {} for key in KEYS}
        """Of each key, what is in the queue, and which bound flow has it as the broker sees it."""
        self.handles: list[Handle] = []
        self.flows: dict[FlowId, Handle] = {}
        self.count = 0

    def begin_life(self) -> None:
        self.lives += 1
        self.changes = Changes()
        self.engine = Engine(str(self.lives), self.changes)
        self.engine.surroundings.timetable.now = lambda: self.now_ms
        self.engine.surroundings.key_of = lambda message: message.content[0]  # type: ignore[index]  # pairs

    def open_publisher(self, name: str) -> None:
        publisher, _ = self.engine.connect("default", "user", "", "publisher")
        opened = self.engine.open_publisher(publisher, name)
        self.publisher, self.publisher_name = opened.flow, opened.name

    # -- what the broker does

    @rule()
    def die(self) -> None:
        """The broker is killed and started again; which partition was whose is forgotten, who holds what is not."""
        self.log += self.changes.take()
        for handle in self.bound():
            handle.flow = None
        self.flows.clear()
        self.begin_life()
        self.engine.restore(self.log)
        self.open_publisher(self.publisher_name)
        self.refresh_holders()

    def carry_out(self, effects: list[Effect]) -> None:
        for effect in one_by_one(effects):
            assert isinstance(effect, Deliver)
            self.check_delivery(effect)

    def check_delivery(self, deliver: Deliver) -> None:
        handle = self.flows[deliver.flow]
        key, number = deliver.message.content  # type: ignore[misc]  # pairs
        assert number in self.unsettled[key], "settled and sent again"
        for earlier, holder in self.unsettled[key].items():
            if earlier < number:
                assert holder == deliver.flow, "an earlier one of its key waits, or is with someone else"
        assert deliver.delivery_id > handle.last_id
        handle.last_id = deliver.delivery_id
        handle.held[deliver.delivery_id] = (key, number)
        self.unsettled[key][number] = deliver.flow

    def refresh_holders(self) -> None:
        """Ask the engine who holds what: hand-offs take messages back without a word to anybody."""
        for numbers in self.unsettled.values():
            for number in numbers:
                numbers[number] = None
        queue = self.engine._registry.vpn("default").queue(QUEUE)
        for flow in queue.flows:
            for _, message in flow.unsettled:
                key, number = message.message.content
                self.unsettled[key][number] = flow.id

    # -- what clients do

    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=5))
    def publish(self, keys: list[str]) -> None:
        for key in keys:
            self.published += 1
            self.numbers[key] += 1
            self.unsettled[key][self.numbers[key]] = None
            message = Published("orders", (key, self.numbers[key]), 1)
            self.carry_out(self.engine.publish(self.publisher, self.published, message))

    @rule()
    def join(self) -> None:
        if len(self.handles) < 5:
            self.count += 1
            name = f"client-{self.count}"
            handle = Handle(name, self.engine.connect("default", "user", "", name)[0])
            self.handles.append(handle)
            self.bind(handle, None)

    def bind(self, handle: Handle, last_received_id: int | None) -> None:
        last = None if last_received_id is None else DeliveryId(last_received_id)
        handle.flow = self.engine.bind(handle.client, QUEUE, last_received_id=last)[0].flow
        self.flows[handle.flow] = handle
        self.refresh_holders()
        self.carry_out(self.engine.open_window(handle.flow, DeliveryId(handle.last_id), 255))

    def bound(self) -> list[Handle]:
        return [handle for handle in self.handles if handle.flow is not None]

    @precondition(lambda self: self.bound())
    @rule(data=st.data(), window=st.sampled_from((0, 1, 255, 255)))
    def open_window(self, data: st.DataObject, window: int) -> None:
        handle = data.draw(st.sampled_from(self.bound()))
        assert handle.flow is not None
        self.carry_out(self.engine.open_window(handle.flow, DeliveryId(handle.last_id), window))

    @precondition(lambda self: any(handle.held for handle in self.bound()))
    @rule(data=st.data(), outcome=st.sampled_from((*[Outcome.ACCEPTED] * 3, Outcome.FAILED)))
    def settle(self, data: st.DataObject, outcome: Outcome) -> None:
        """In the order of the key, as the laws of the runtime have it."""
        handle = data.draw(st.sampled_from([handle for handle in self.bound() if handle.held]))
        firsts = {key: min(number for k, number in handle.held.values() if k == key) for key, _ in handle.held.values()}
        ids = [delivery_id for delivery_id, (key, number) in handle.held.items() if firsts[key] == number]
        self.end(handle, data.draw(st.sampled_from(ids)), outcome)

    def end(self, handle: Handle, delivery_id: int, outcome: Outcome) -> None:
        key, number = handle.held.pop(delivery_id)
        before = self.engine.queue_depth("default", QUEUE)
        settled = SettledRange(DeliveryId(delivery_id), DeliveryId(delivery_id), outcome)
        assert handle.flow is not None
        effects = self.engine.settle(handle.flow, [settled])
        if self.engine.queue_depth("default", QUEUE) < before:
            assert self.unsettled[key][number] == handle.flow, "someone else's"
            assert not any(earlier < number for earlier in self.unsettled[key]), "not the first of its key (L3)"
            del self.unsettled[key][number]
        # What failed, or waits for a partition, is with nobody before it is sent again.
        self.refresh_before(effects)

    def refresh_before(self, effects: list[Effect]) -> None:
        """As `refresh_holders`, and what these effects send is with nobody yet."""
        self.refresh_holders()
        for effect in one_by_one(effects):
            assert isinstance(effect, Deliver)
            key, number = effect.message.content  # type: ignore[misc]  # pairs
            self.unsettled[key][number] = None
        self.carry_out(effects)

    @precondition(lambda self: self.bound())
    @rule(data=st.data(), arrived=st.booleans())
    def lose_connection(self, data: st.DataObject, arrived: bool) -> None:
        handle = data.draw(st.sampled_from(self.bound()))
        assert handle.flow is not None
        del self.flows[handle.flow]
        handle.flow = None
        if not arrived and handle.held:
            # The last delivery was lost on the way.
            last = max(handle.held)
            if last == handle.last_id:
                del handle.held[last]
                handle.last_id = max(handle.held, default=handle.last_id - 1)
        self.refresh_before(self.engine.disconnect(handle.client))

    @precondition(lambda self: len(self.bound()) < len(self.handles))
    @rule(data=st.data(), restarted=st.booleans())
    def come_back(self, data: st.DataObject, restarted: bool) -> None:
        handle = data.draw(st.sampled_from([handle for handle in self.handles if handle.flow is None]))
        handle.client = self.engine.connect("default", "user", "", handle.name)[0]
        if restarted:
            handle.held.clear()
            handle.last_id = 0
        self.bind(handle, None if restarted else handle.last_id)

    @precondition(lambda self: self.bound())
    @rule(data=st.data())
    def unbind(self, data: st.DataObject) -> None:
        handle = data.draw(st.sampled_from(self.bound()))
        assert handle.flow is not None
        del self.flows[handle.flow]
        self.handles.remove(handle)
        self.refresh_before(self.engine.unbind(handle.flow))

    @rule(passed_ms=st.integers(1, 80))
    def pass_time(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        self.refresh_before(call_due(self.engine.surroundings.timetable))

    # -- what must be true

    @invariant()
    def nothing_is_lost(self) -> None:
        assert self.engine.queue_depth("default", QUEUE) == sum(map(len, self.unsettled.values()))

    @invariant()
    def a_deadline_is_set_while_something_waits_for_it(self) -> None:
        status = self.engine.queue_status("default", QUEUE)
        if any(partition.state.value in ("paused", "unbound") for partition in status.partitions):
            assert self.engine.surroundings.timetable.next_ms is not None

    def teardown(self) -> None:
        """Everybody leaves but one: it gets all that is left, each key in its order."""
        for handle in self.bound():
            assert handle.flow is not None
            del self.flows[handle.flow]
            self.refresh_before(self.engine.unbind(handle.flow))
        reader = Handle("reader", self.engine.connect("default", "user", "", "reader")[0])
        self.handles = [reader]
        self.bind(reader, None)
        for _ in range(3):
            self.pass_time(DELAY_MS)
        for _ in range(self.published):
            if reader.held:
                self.end(reader, next(iter(reader.held)), Outcome.ACCEPTED)
        assert self.engine.queue_depth("default", QUEUE) == 0


TestPartitionedQueueMachine = PartitionedQueueMachine.TestCase
TestPartitionedQueueMachine.settings = settings(max_examples=25, stateful_step_count=50, deadline=None)
