"""What is known of each message: only where it is and who had it last; and what the engine must do, given that.

The model plays the clients too, as the official library behaves: a handle drops ids that it has seen, tells the last
one when it is bound again after a broken connection, and what was on the way then is lost.
"""

from dataclasses import dataclass, field
from math import inf

from lbg_runtime.broker.engine.effects import (
    ActivityChanged,
    ClientEnded,
    ClientId,
    Deliver,
    Effect,
    FlowEnded,
    FlowId,
    one_by_one,
)
from lbg_runtime.broker.engine.engine import Engine
from lbg_runtime.broker.engine.settings import AccessType, QueueSettings
from lbg_runtime.broker.engine.traits import Traits
from lbg_runtime.model.ids import QueueName

MAX_UNACKED = 4
QUOTA_BYTES = 30
LIFE_MS = 100
"""Of every third message, where the queues respect lives."""
CLIENT_NAMES = ("ann", "bob")
QUEUES = {QueueName("line"): AccessType.EXCLUSIVE, QueueName("ring"): AccessType.NON_EXCLUSIVE}
TOPICS = {"both": ("line", "ring"), "line/only": ("line",), "none": ()}


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
    ends_ms: float = inf


class EngineModel:
    """An engine, and what must be true of it."""

    respects_lives = False

    def __init__(self) -> None:
        self.engine = Engine()
        self.now_ms = 0
        self.engine.surroundings.timetable.now = lambda: self.now_ms
        self.engine.surroundings.traits_of = lambda m: Traits(
            time_to_live_ms=LIFE_MS if isinstance(m.content, int) and m.content % 3 == 0 else 0
        )
        self.spools: dict[QueueName, dict[int, Spooled]] = {name: {} for name in QUEUES}
        self.lines: dict[QueueName, list[Handle]] = {name: [] for name in QUEUES}
        self.connections: dict[str, ClientId] = {}
        self.handles: list[Handle] = []
        self.flows: dict[FlowId, Handle] = {}
        self.settled: set[tuple[QueueName, int]] = set()
        self.last_number = 0
        self.refused: set[int] = set()
        self.last_id = 0

    def set_up(self) -> None:
        for name, access_type in QUEUES.items():
            self.engine.create_queue(
                "default",
                name,
                QueueSettings(
                    access_type,
                    max_unacked_per_flow=MAX_UNACKED,
                    quota_bytes=QUOTA_BYTES,
                    max_bind_count=4,
                    respect_time_to_live=self.respects_lives,
                ),
            )
        for topic, queues in TOPICS.items():
            for queue in queues:
                self.engine.add_queue_subscription("default", QueueName(queue), topic)
        publisher, _ = self.engine.connect("default", "user", "", "publisher")
        self.publisher = self.engine.open_publisher(publisher, "").flow

    def is_fed(self, handle: Handle) -> bool:
        return QUEUES[handle.queue] is AccessType.NON_EXCLUSIVE or self.lines[handle.queue][0] is handle

    def unacked(self, handle: Handle) -> int:
        return sum(m.holder is handle for m in self.spools[handle.queue].values())

    def has_room(self, handle: Handle) -> bool:
        return len(handle.unacknowledged_ids) < handle.window and self.unacked(handle) < MAX_UNACKED

    def waiting(self, queue: QueueName) -> list[Spooled]:
        return [m for m in self.spools[queue].values() if m.holder is None]

    def end_lives(self, queue: QueueName) -> None:
        """Those that are over, of messages that nobody holds."""
        for message in self.waiting(queue):
            if message.ends_ms <= self.now_ms:
                del self.spools[queue][message.number]
                self.settled.add((queue, message.number))

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
        own = [e for e in one_by_one(effects) if isinstance(e, ActivityChanged | Deliver) and e.flow == first.flow]
        assert own[0] == changes[0]
        self.take_over(first)

    def carry_out(self, effects: list[Effect]) -> None:
        for effect in one_by_one(effects):
            assert not isinstance(effect, FlowEnded | ClientEnded)
            if isinstance(effect, Deliver):
                self.check_delivery(effect)
        for queue, line in self.lines.items():
            if any(self.is_fed(handle) and self.has_room(handle) for handle in line):
                # What came back overdue is looked at again when somebody would get it.
                self.end_lives(queue)

    def check_delivery(self, deliver: Deliver) -> None:
        handle = self.flows[deliver.flow]
        number = deliver.message.content
        assert isinstance(number, int)
        assert deliver.client == self.connections[handle.client_name]
        assert (handle.queue, number) not in self.settled, "settled and delivered again"
        waiting = self.waiting(handle.queue)
        while waiting[0].number != number and waiting[0].ends_ms <= self.now_ms:
            overdue = waiting.pop(0).number
            del self.spools[handle.queue][overdue]
            self.settled.add((handle.queue, overdue))
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

    def whatever_can_be_sent_has_been_sent(self) -> None:
        for queue, line in self.lines.items():
            if self.waiting(queue):
                assert not any(self.is_fed(handle) and self.has_room(handle) for handle in line)
