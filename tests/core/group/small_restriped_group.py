"""A small group that is brought to another number of queues while its members come, go, and move queues.

As `SmallGroup`, with queues that hold the records of a re-striping, with the gates that read them, and with a conductor
that hears whatever a member says. What lies in a queue is shown to each handle that is fed.
"""

from dataclasses import replace

from lbg_runtime.core.flow.commands import Bind, Command, ProbeSettlements, Settle, StartIntake, TellStripes, Unbind
from lbg_runtime.core.flow.events import BindRefused, FlowDown, MessageReceived, StopRequested
from lbg_runtime.core.flow.machine import FlowMachine
from lbg_runtime.core.group import membership_events as events
from lbg_runtime.core.group.control_messages import Heartbeat, Life, ReportedFlow
from lbg_runtime.core.group.control_plane import ControlOutput, FlowsAdded, ProbeAsked, QueuesAdded
from lbg_runtime.core.group.rebalance import AWAY
from lbg_runtime.core.group.rebalance_events import Say
from lbg_runtime.core.restripe.conductor import (
    Conductor,
    CreateQueue,
    DeleteQueue,
    Done,
    Publish,
    Sight,
    Subscribe,
    Unsubscribe,
)
from lbg_runtime.core.restripe.gate import StripeGate
from lbg_runtime.core.restripe.layout import SeenQueues
from lbg_runtime.core.restripe.records import StripePlan, StripeRecord, encode_record, record_prefix
from lbg_runtime.core.restripe.striping import StripingBook
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.ids import DeliveryId, GroupName, MemberId, QueueName
from lbg_runtime.model.message import Delivery
from tests.core.group.small_group import FLOWS, ONLY, SHARDS, Letter, Member, SmallGroup, pins

CONTROL_TOPIC = "c"
SHAPE = GroupShape(GroupName("orders"), "h", SHARDS, SHARDS)
LOOK_EVERY_MS = 2


def index_of(queue: QueueName) -> int:
    return int(queue.split("/")[1])


class StripedMember(Member):
    """One whose flows have gates."""

    def flow(self, queue: QueueName, now_ms: int) -> FlowMachine:
        gate = StripeGate(index_of(queue), SHAPE, record_prefix(CONTROL_TOPIC))
        return FlowMachine(queue, AWAY, FLOWS, 4, self.chance, now_ms, gate, max_held=100)


class RestripedGroup(SmallGroup):
    """The world."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__([SHAPE.queue_name(index) for index in range(before)])
        self.after = after
        self.configured = before
        """How many queues the settings say of a member that starts."""
        shape = replace(SHAPE, queue_count=before)
        self.topics = {index: frozenset(shape.subscriptions(index)) for index in range(before)}
        self.lies: dict[QueueName, list[tuple[DeliveryId, StripeRecord, str]]] = {queue: [] for queue in self.queues}
        self.record_count = 0
        self.shown: dict[QueueName, tuple[MemberId, DeliveryId]] = {}
        """To whom a queue sends, and what it has sent last."""
        self.acks: dict[tuple[MemberId, QueueName], list[DeliveryId]] = {}
        """Settlements that wait for a connection."""
        self.conductor: Conductor | None = None
        self.book = StripingBook(1, SHARDS)
        self.fed: dict[MemberId, frozenset[int]] = {}
        self.look_at_ms: int | None = None
        self.generation = 5

    def restripe(self) -> None:
        self._conduct_by(StripePlan(self.generation, self.configured, self.after, "s"))
        self.look_at_ms = self.now_ms + 1

    def _conduct_by(self, plan: StripePlan) -> None:
        self.conductor = Conductor(replace(SHAPE, queue_count=plan.from_count), plan, CONTROL_TOPIC)
        self.book.trust(plan)

    def replace_conductor(self, ticks: int) -> None:
        """It dies, with all that it has heard and done; the same command is given again."""
        seen = SeenQueues(SHAPE, CONTROL_TOPIC, dict(self.topics))
        under_way = seen.plan_under_way()
        self.book, self.fed = StripingBook(1, SHARDS), {}
        if under_way is None and seen.layout() == self.after:
            self._conclude()
            return
        self.generation += 1
        plan = under_way or StripePlan(self.generation, self.configured, self.after, "s")
        self._conduct_by(plan)
        self.look_at_ms = self.now_ms + ticks

    def kill(self, name: MemberId) -> None:
        self.acks = {key: acks for key, acks in self.acks.items() if key[0] != name}
        super().kill(name)

    def _member(self, name: MemberId, life: Life) -> Member:
        return StripedMember(name, life, self._names(self.configured), self.now_ms)

    def _names(self, count: int) -> list[QueueName]:
        return [SHAPE.queue_name(index) for index in range(count)]

    # -- the conductor

    def _moments(self) -> list[int]:
        return [*super()._moments(), *([self.look_at_ms] if self.look_at_ms is not None else [])]

    def step(self) -> None:
        super().step()
        if self.conductor is not None and self.look_at_ms is not None and self.now_ms >= self.look_at_ms:
            self.look_at_ms = self.now_ms + LOOK_EVERY_MS
            if not self.members:
                return  # It would publish again and again, for nobody.
            self._conduct(self.conductor)

    def _conduct(self, conductor: Conductor) -> None:
        owned = frozenset[int]().union(*self.fed.values())
        sight = Sight(self.topics, {}, owned, self.book.now if self.fed else None)
        depths = {each: len(self.lies[SHAPE.queue_name(each)]) for each in conductor.queues_to_measure(sight)}
        step = conductor.next_step(replace(sight, depths=depths))
        match step:
            case CreateQueue(index):
                self.topics[index], queue = frozenset(), SHAPE.queue_name(index)
                self.lines[queue], self.lies[queue] = [], []
                self.queues.append(queue)
            case Subscribe(index, topic):
                self.topics[index] |= {topic}
            case Unsubscribe(index, topic):
                self.topics[index] -= {topic}
            case Publish(record):
                self.record_count += 1
                for index in [index for index, topics in self.topics.items() if conductor.topic in topics]:
                    entry = DeliveryId(10 + self.record_count), record, conductor.topic
                    self.lies[SHAPE.queue_name(index)].append(entry)
                    self._show(SHAPE.queue_name(index))
            case DeleteQueue(index):
                queue = SHAPE.queue_name(index)
                if self.lines[queue] or self.lies[queue]:
                    return
                del self.topics[index], self.lines[queue], self.lies[queue]
                self.queues.remove(queue)
            case Done():
                self._conclude()
                return
        conductor.did(step)

    def _conclude(self) -> None:
        SeenQueues(SHAPE, CONTROL_TOPIC, self.topics).ensure_layout(self.after)
        self.conductor, self.look_at_ms, self.configured = None, None, self.after

    # -- queues and handles

    def _feed_first(self, queue: QueueName) -> None:
        self.shown.pop(queue, None)
        super()._feed_first(queue)

    def _bind(self, name: MemberId, queue: QueueName) -> None:
        if queue not in self.lines:
            self._send(Letter(0, None, name, FlowDown(self.members[name].flows[queue].epoch, "deleted"), queue))
            return
        super()._bind(name, queue)
        for delivery_id in self.acks.pop((name, queue), []):
            self._settle(queue, delivery_id)

    def _unbind(self, name: MemberId, queue: QueueName) -> None:
        if self.shown.get(queue, ("", 0))[0] == name:
            del self.shown[queue]
        if queue in self.lines:
            super()._unbind(name, queue)

    def _show(self, queue: QueueName) -> None:
        if queue not in self.shown:
            return
        name, last = self.shown[queue]
        flow = self.members[name].flows[queue]
        for delivery_id, record, topic in self.lies[queue]:
            if delivery_id > last:
                delivery = Delivery(queue, flow.epoch, delivery_id, encode_record(record, topic), False, 0)
                self._send(Letter(0, None, name, MessageReceived(delivery), queue))
                self.shown[queue] = name, delivery_id

    def _settle(self, queue: QueueName, delivery_id: DeliveryId) -> None:
        self.lies[queue] = [each for each in self.lies[queue] if each[0] != delivery_id]

    def _obey(self, member: Member, flow: FlowMachine, commands: list[Command]) -> None:
        name, queue = member.name, flow.queue
        for command in commands:
            if isinstance(command, Bind) and queue not in self.lines:
                refused = BindRefused(command.epoch, "no such queue", permanent=True)
                self._send(Letter(0, None, name, refused, queue))
                continue
            super()._obey(member, flow, [command])
            match command:
                case StartIntake() if self.lines.get(queue, [])[:1] == [name]:
                    if queue not in self.shown:
                        self.shown[queue] = name, ONLY
                    self._show(queue)
                case Unbind():
                    self.acks.pop((name, queue), None)
                case Settle(_, delivery_id) if member.away_until_ms:
                    self.acks.setdefault((name, queue), []).append(delivery_id)
                case Settle(_, delivery_id) if name in self.lines.get(queue, []):
                    self._settle(queue, delivery_id)
                case ProbeSettlements(epoch, number):
                    member.heard.append(ProbeAsked(queue, epoch, number))
                case TellStripes(news):
                    member.heard.append(events.StripesTold(index_of(queue), news))
                case _:
                    pass

    def _carry_out(self, member: Member, outputs: list[ControlOutput]) -> None:
        super()._carry_out(member, outputs)
        for output in outputs:
            match output:
                case QueuesAdded(total):
                    added = [queue for queue in self._names(total) if queue not in member.flows]
                    flows = {queue: member.flow(queue, self.now_ms) for queue in added}
                    member.flows |= flows
                    member.told |= {queue: [StopRequested()] if member.is_leaving else [] for queue in added}
                    if added:
                        member.heard.append(FlowsAdded(list(flows.values()), pins(self._names(total))))
                case Say(Heartbeat() as heartbeat) if not member.away_until_ms:
                    self.book.hear(heartbeat.striping)
                    flows_of = heartbeat.flows.items()
                    fed = [index_of(queue) for queue, flow in flows_of if flow.state is ReportedFlow.ACTIVE]
                    self.fed[member.name] = frozenset(fed)
                case _:
                    pass

    def unrest(self) -> list[str]:
        if not self.members:
            return []
        found = super().unrest()
        for name, member in self.members.items():
            now = member.control.membership.striping.now
            if now.target is not None or now.queue_count != self.after:
                found.append(f"{name} knows {now}")
        return [*found, *([] if self.conductor is None else ["conducted"]), *[q for q, lie in self.lies.items() if lie]]
