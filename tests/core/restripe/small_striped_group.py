"""The queues, handles and members of a small group that is re-striped; what becomes of its messages is checked.

The gates and books are the real ones. Members bind and leave queues when they are told to, and their lanes handle a key
in order.
"""

from lbg_runtime.core.flow.commands import Note
from lbg_runtime.core.restripe.gate import Drop, GateOrder, Pass, Probe, StripeGate
from lbg_runtime.core.restripe.records import StripeRecord, encode_record
from lbg_runtime.core.restripe.striping import StripingBook, StripingReport
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.ids import DeliveryId, GroupName
from lbg_runtime.model.message import Message
from tests.core.histories import Breach, twin
from tests.core.restripe.small_stripe_parts import (
    PREFIX,
    Entry,
    Fate,
    Handle,
    Item,
    Member,
    Settled,
    Setup,
    Stage,
    handle_twin,
    member_twin,
)


class StripedGroup:
    """Raises `Breach` when a promise of docs/restripe.md is broken."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.shape = GroupShape(GroupName("o"), "h", setup.shards, setup.counts[0])
        self.queues: dict[int, tuple[Entry, ...]] = dict.fromkeys(range(setup.counts[0]), ())
        self.topics = {index: frozenset(self.shape.subscriptions(index)) for index in self.queues}
        """What each queue subscribes to."""
        self.bound_count = self.spooled_count = self.planned_count = 0
        self.published = dict.fromkeys(setup.messages, 0)
        """How many of a key's messages."""
        self.fates: dict[tuple[str, int], Fate] = {}
        self.is_disturbed = False
        """Whether settlements may have been lost."""
        self.own: set[object] = set()
        """Parts that are not shared with the state before."""
        self._begin()

    def _begin(self) -> None:
        setup = self.setup
        self.members = [Member(setup.counts[0], setup.shards, setup.known[who]) for who in range(setup.members)]
        self.handles: dict[int, Handle] = {}
        """By queue, of its owner."""
        for queue in self.queues:
            self._bind(queue, queue % setup.members)

    # -- the broker

    def _spool(self, content: tuple[str, int] | StripeRecord, topic: str) -> None:
        self.spooled_count += 1
        queues = [index for index, topics in self.topics.items() if topic in topics]
        if not queues:
            raise Breach(f"{content} is published past all queues")
        if isinstance(content, tuple):
            message = Message(self.shape.hashed_topic(int(content[0][0]), content[0]), b"%d" % content[1])
        else:
            message = encode_record(content, topic)
        entry = Entry(DeliveryId(self.spooled_count), content, message)
        for index in queues:
            self.queues[index] = (*self.queues[index], entry)

    def _bind(self, queue: int, who: int) -> None:
        self.bound_count += 1
        self.handles[queue] = Handle(who, self.bound_count)
        self.own.add(queue)
        member = self._member(who)
        gate = member.gates.setdefault(queue, StripeGate(queue, self.shape, PREFIX))
        gate.start_handle()
        gate.learn(member.book.now)

    def _unbind(self, queue: int) -> None:
        handle = self.handles.pop(queue)
        lanes = self._member(handle.owner).lanes
        for key, lane in lanes.items():
            lanes[key] = lane[:1] + tuple(each for each in lane[1:] if each.handle != handle.number)

    def _take_all(self, queue: int) -> None:
        while self.handles[queue].line:
            self._settle(queue)

    def _is_alive(self, item: Item) -> bool:
        return item.queue in self.handles and self.handles[item.queue].number == item.handle

    # -- the members

    def _member(self, who: int) -> Member:
        if -1 - who not in self.own:
            self.own.add(-1 - who)
            self.members[who] = member_twin(self.members[who])
        return self.members[who]

    def _handle(self, queue: int) -> Handle:
        if queue not in self.own:
            self.own.add(queue)
            self.handles[queue] = handle_twin(self.handles[queue])
        return self.handles[queue]

    def _obey(self, queue: int, orders: list[GateOrder]) -> None:
        handle = self._handle(queue)
        member, is_news = self._member(handle.owner), False
        for order in orders:
            match order:
                case Pass(delivery):
                    self._dispatch(queue, delivery.delivery_id, delivery.message.topic)
                case Drop(delivery_id):
                    handle.line = (*handle.line, Settled(delivery_id, is_handled=False))
                case Probe():
                    handle.line = (*handle.line, order)
                case Note(name):
                    if name == "restripe_record_kept":
                        raise Breach(f"queue {queue} stops: {order}")
                case _:
                    is_news |= member.book.see(order, queue)
        if is_news:
            self._spread(handle.owner)

    def _spread(self, who: int) -> None:
        for queue in [queue for queue, handle in self.handles.items() if handle.owner == who]:
            self._obey(queue, self._member(who).gates[queue].learn(self._member(who).book.now))

    def _spread_report(self, report: StripingReport, by: int, not_to: int | None = None) -> None:
        for who, listener in enumerate(self.members):
            if who not in (by, not_to) and not listener.is_away and would_learn(listener.book, report):
                self._member(who).book.hear(report)
                self._spread(who)

    def _dispatch(self, queue: int, delivery_id: DeliveryId, topic: str) -> None:
        handle = self._handle(queue)
        handle.in_flight.add(delivery_id, topic)
        [(key, number)] = [each.content for each in self.queues[queue] if each.id == delivery_id]
        lanes = self._member(handle.owner).lanes
        lanes[key] = (*lanes.get(key, ()), Item(queue, handle.number, delivery_id, number))
        if len(lanes[key]) == 1:
            self._start(handle.owner, key)

    def _start(self, who: int, key: str) -> None:
        """A handler begins; what is promised of its message holds."""
        item = self.members[who].lanes[key][0]
        message = (key, item.number)
        fate = self.fates.get(message)
        if fate is not None and (fate.stage is Stage.SETTLED or not self.is_disturbed):
            raise Breach(f"{message} is handled again, from queue {item.queue}")
        for number in range(1, item.number):
            before = self.fates.get((key, number))
            if before is None or before.stage is Stage.STARTED:
                raise Breach(f"{message} is handled before {number}")
            if before.stage is not Stage.SETTLED and before.queue != item.queue:
                raise Breach(f"{message} is handled from queue {item.queue}, {number} is not settled in {before.queue}")
        for other, member in enumerate(self.members):
            if other != who and any(self._is_alive(each) for each in member.lanes.get(key, ())[:1]):
                raise Breach(f"{message} is handled while {other} handles its key")
        self.fates[message] = Fate(item.queue, Stage.STARTED if fate is None else fate.stage)


def would_learn(book: StripingBook, report: StripingReport) -> bool:
    """Whether the report says anything new."""
    return book.now != report.striping and twin(book).hear(report)
