"""While shards move from queue to queue: which deliveries of a flow may be handled, which wait, which are dropped.

One gate per flow machine, between its deliveries and the lanes. While its group is re-striped, a queue's stream has a
plan, then a marker per shard that moves, then a finish (core/restripe/records.py). For a shard that leaves the queue,
everything before its marker is handled as always; everything after it has a copy in the new queue and is dropped. For a
shard that comes, everything before the marker has a copy in the old queue and is dropped; everything after it is kept,
unsettled, until the old queue's owner has handled everything before the marker and the broker knows it.

Records are settled last of all: the queue is the journal. A new handle is shown the plan and the markers again, before
anything that was not settled, and comes to the same decisions; nothing is remembered from handle to handle. Records are
settled after the finish, when nothing before it is left: markers first, then plan, then finish. Settlements take effect
in order (transport/base.py), so whatever prefix of them a crash leaves, the remaining records still say enough.

So neither the settings nor what others have told the member matter here: as long as no plan was seen on a handle, the
queue handles everything that comes. Before the plan there are no copies yet, and if the plan has been settled,
everything before the finish was settled earlier. After a record that cannot be read, or that makes no sense, nothing
more is handled on that handle: the queue stops, loudly.
"""

from collections import defaultdict
from dataclasses import dataclass
from enum import Enum
from typing import assert_never

from lbg_runtime.core.flow.commands import Note
from lbg_runtime.core.flow.in_flight import InFlight
from lbg_runtime.core.restripe.news import PlanReached, ShardLeft, StripesEnded, StripesFinished, StripesNews
from lbg_runtime.core.restripe.records import (
    ShardMarker,
    StripeEnd,
    StripeFinish,
    StripePlan,
    StripeRecord,
    decode_record,
    plan_with_prefix,
)
from lbg_runtime.core.restripe.striping import Striping
from lbg_runtime.model.errors import InvariantViolated, RestripeRecordRefused
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.ids import DeliveryId
from lbg_runtime.model.message import Delivery


@dataclass(frozen=True, slots=True)
class Pass:
    """The delivery may be handled."""

    delivery: Delivery


@dataclass(frozen=True, slots=True)
class Drop:
    """Settle the delivery as accepted: it is handled elsewhere, or is a record that has done its work."""

    delivery_id: DeliveryId


@dataclass(frozen=True, slots=True)
class Probe:
    """Find out when the broker has processed every settlement ordered so far; answered by `StripeGate.reached`."""

    number: int


GateOrder = Pass | Drop | Probe | StripesNews | Note


class _Verdict(Enum):
    HANDLE = "handle"
    DROP = "drop"
    KEEP = "keep"


class StripeGate:
    """Decides which deliveries pass, wait or are dropped.

    Owned by one flow machine, which carries out its orders in the order given.
    """

    def __init__(self, queue_index: int, shape: GroupShape, record_prefix: str) -> None:
        """The queue count of `shape` does not matter; plans have their own."""
        self._queue_index = queue_index
        self._shape = shape
        self._record_prefix = record_prefix
        self._striping = Striping(0, shape.queue_count)
        """The striping as the member knows it; its `left` and `finished` are proven."""
        self._done_generation = 0
        """Generation of the newest re-striping that has left nothing in the queue, as the broker has confirmed."""
        self._outdated_generation = 0
        """Generation of the last plan reported as outdated. Remembered, as its conductor publishes it again and
        again."""
        self._probe_count = 0
        self.start_handle()

    # -- one handle

    def start_handle(self) -> None:
        """A new handle is bound: everything unsettled comes again, starting with the first record."""
        self._plan: StripePlan | None = None
        self._plan_id = DeliveryId(0)
        self._markers: dict[int, DeliveryId] = {}
        self._finish: StripeFinish | None = None
        self._finish_id = DeliveryId(0)
        self._unfinished: dict[DeliveryId, int | None] = {}
        """The shards of the deliveries before the finish that are not settled."""
        self._closing: dict[int, set[DeliveryId]] = {}
        """For each shard that leaves, its deliveries that were in flight when its marker came and are unanswered."""
        self._gone: set[int] = set()
        """Shards that leave and have nothing left before their marker."""
        self._kept: defaultdict[int, list[Delivery]] = defaultdict(list)
        self._stuck: list[Delivery] = []
        """A record that cannot be read, or that makes no sense, and everything that came after it."""
        self.kept_count = 0
        """Messages that wait here. They count only for the `max_held` of the flow machine, so that other shards can
        overtake them. Records that wait do not count, as there may be more of them than a flow may have in flight; a
        record behind which the queue is stuck counts, and so does everything after it."""
        self._probes: dict[int, StripesNews] = {}
        self._ended_generation = 0
        """Generation of the re-striping whose records were settled on this handle."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing of a re-striping has been seen on this handle: everything but a record may be handled at
        once, and an answer changes nothing."""
        # A finish that finds no plan ends in the same call.
        return self._plan is None and not self._stuck

    @property
    def closing_shards(self) -> frozenset[int | None]:
        """Shards that leave as soon as their deliveries in flight are handled, and shards for whose deliveries the
        finish waits.

        None stands for topics of no shard.
        """
        return frozenset((*self._closing, *self._unfinished.values()))

    def lets_pass(self, topic: str) -> bool:
        """Whether a message on this topic may be handled at once, with nothing to remember about it."""
        return self._plan is None and not (self._stuck or topic.startswith(self._record_prefix))

    def is_record(self, topic: str) -> bool:
        """Whether a message on this topic is a record of a re-striping."""
        return topic.startswith(self._record_prefix)

    def take(self, delivery: Delivery, in_flight: InFlight) -> list[GateOrder]:
        """Pass, drop or keep the next delivery of the handle, and return the orders that follow."""
        if self._stuck:
            self._stick(delivery)
            return []
        topic = delivery.message.topic
        if self.is_record(topic):
            return self._take_record(delivery, in_flight)
        shard = self._shard_of(topic)
        if shard is None or (verdict := self._judge(shard)) is _Verdict.HANDLE:
            return [Pass(delivery)]
        if verdict is _Verdict.DROP:
            return [Drop(delivery.delivery_id)]
        self._kept[shard].append(delivery)
        self.kept_count += 1
        return []

    def answer(self, delivery_id: DeliveryId) -> list[GateOrder]:
        """A handled delivery is settled."""
        orders: list[GateOrder] = []
        self._unfinished.pop(delivery_id, None)
        for shard, ids in list(self._closing.items()):
            ids.discard(delivery_id)
            if not ids:
                orders += self._let_go(shard)
        return orders + self._end_if_finished()

    def learn(self, striping: Striping) -> list[GateOrder]:
        """The member knows more about the re-striping, from whatever source."""
        self._striping = striping
        return self._reconsider()

    def reached(self, number: int) -> list[GateOrder]:
        """The broker has processed everything settled before this probe of the current handle, or a later one."""
        news = [told for probe, told in self._probes.items() if probe <= number]
        self._probes = {probe: told for probe, told in self._probes.items() if probe > number}
        for told in news:
            if isinstance(told, StripesFinished):
                self._done_generation = told.generation
        return list(news)

    def _shard_of(self, topic: str) -> int | None:
        split = self._shape.split_topic(topic)
        return None if split is None else split[0]

    # -- records

    def _take_record(self, delivery: Delivery, in_flight: InFlight) -> list[GateOrder]:
        try:
            record = decode_record(delivery.message.payload)
        except RestripeRecordRefused as refusal:
            return self._keep_unread(delivery, str(refusal))
        if isinstance(record, StripeEnd):
            return [StripesEnded(record.generation, record.to_count), Drop(delivery.delivery_id)]
        if record.generation <= max(self._done_generation, self._ended_generation):
            return [*self._notes_on(record), Drop(delivery.delivery_id)]
        match record:
            case StripePlan():
                return self._take_plan(record, delivery)
            case ShardMarker():
                return self._take_marker(record, delivery, in_flight)
            case StripeFinish():
                return self._take_finish(record, delivery, in_flight)
            case _:
                assert_never(record)

    def _keep_unread(self, delivery: Delivery, reason: str) -> list[GateOrder]:
        # What it says about the messages after it is not known.
        self._stick(delivery)
        return [Note("restripe_record_kept", {"delivery_id": delivery.delivery_id, "reason": reason})]

    def _stick(self, delivery: Delivery) -> None:
        self._stuck.append(delivery)
        self.kept_count += 1

    def _take_plan(self, plan: StripePlan, delivery: Delivery) -> list[GateOrder]:
        orders: list[GateOrder] = []
        if self._plan is not None:
            if plan.generation == self._plan.generation:
                return [Drop(delivery.delivery_id)]
            if not self._renews(plan):
                return self._keep_unread(delivery, f"a second plan behind that of generation {self._plan.generation}")
            orders.append(Drop(self._plan_id))
        self._plan, self._plan_id = plan, delivery.delivery_id
        if plan.generation < self._striping.generation:
            # It is in the queue, so it counts here; the member would ignore it.
            return orders + self._notes_on(plan)
        return [*orders, PlanReached(plan)]

    def _renews(self, plan: StripePlan) -> bool:
        """Whether this is our plan under a newer generation. Before the first marker, both say the same about every
        message, so a conductor may replace a plan that members take for outdated."""
        old = self._plan
        return (
            old is not None
            and not self._markers
            and self._finish is None
            and (plan.from_count, plan.to_count) == (old.from_count, old.to_count)
            and plan.generation > old.generation
        )

    def _notes_on(self, record: StripeRecord) -> list[GateOrder]:
        """Report once that a plan is older than what is known: its conductor's clock is behind."""
        known = max(self._done_generation, self._ended_generation, self._striping.generation)
        is_older = isinstance(record, StripePlan) and record.generation < known
        if not is_older or record.generation == self._outdated_generation:
            return []
        self._outdated_generation = record.generation
        return [Note("restripe_plan_outdated", {"generation": record.generation, "known": known})]

    def _take_marker(self, marker: ShardMarker, delivery: Delivery, in_flight: InFlight) -> list[GateOrder]:
        plan, shard = self._plan, marker.shard
        if plan is None or marker.generation != plan.generation:
            return self._keep_unread(delivery, f"a marker of generation {marker.generation} without its plan")
        leaves, comes = plan.old_index(shard) == self._queue_index, plan.new_index(shard) == self._queue_index
        if leaves == comes or shard in self._markers or self._finish is not None:
            return [Drop(delivery.delivery_id)]
        self._markers[shard] = delivery.delivery_id
        if not leaves:
            return []
        self._closing[shard] = in_flight.where(lambda topic: self._shard_of(topic) == shard)
        return [] if self._closing[shard] else self._let_go(shard)

    def _let_go(self, shard: int) -> list[GateOrder]:
        """Nothing before the marker of a leaving shard is left to handle."""
        del self._closing[shard]
        self._gone.add(shard)
        return [*self._reconsider(), self._probe(ShardLeft(self._markers_plan(), shard))]

    def _take_finish(self, finish: StripeFinish, delivery: Delivery, in_flight: InFlight) -> list[GateOrder]:
        if self._finish is not None:
            return [Drop(delivery.delivery_id)]
        if self._plan is not None and self._plan.generation != finish.generation:
            return self._keep_unread(delivery, f"a finish of generation {finish.generation} without its plan")
        self._finish, self._finish_id = finish, delivery.delivery_id
        orders: list[GateOrder] = []
        if self._plan is not None:
            self._unfinished = {each: self._shard_of(topic) for each, topic in in_flight.topics().items()}
            for shard, waiting in self._kept.items():
                self._unfinished |= dict.fromkeys((each.delivery_id for each in waiting), shard)
        elif (plan := plan_with_prefix(self._record_prefix, delivery.message.topic)) is not None:
            # The plan is settled, and everything before the first finish was settled earlier. So wait for nothing:
            # this finish may be a second copy, far behind the first and just before the plan of the next re-striping.
            # But other members may wait for news that only this queue has, and they believe only a member that knows
            # the plan.
            orders.append(PlanReached(plan))
        return orders + self._reconsider() + self._end_if_finished()

    def _end_if_finished(self) -> list[GateOrder]:
        if self._finish is None or self._unfinished:
            return []
        finish, self._finish = self._finish, None
        records = [*self._markers.values(), *([self._plan_id] if self._plan is not None else []), self._finish_id]
        self._plan = None
        self._markers.clear()
        self._gone.clear()
        self._ended_generation = finish.generation
        # Nothing is kept any more: the finish let shards that come pass, and what was kept of those that leave was
        # dropped.
        done = StripesFinished(finish.generation, finish.from_count, finish.to_count)
        return [*(Drop(record) for record in records), self._probe(done)]

    # -- whose turn a message is

    def _judge(self, shard: int) -> _Verdict:
        plan, index = self._plan, self._queue_index
        if plan is None or (leaves := plan.old_index(shard) == index) == (plan.new_index(shard) == index):
            return _Verdict.HANDLE
        if leaves:
            if shard in self._gone:
                return _Verdict.DROP
            return _Verdict.KEEP if shard in self._markers else _Verdict.HANDLE
        if self._finish is None:
            if shard not in self._markers:
                return _Verdict.DROP
            if not self._has_left(shard, plan):
                return _Verdict.KEEP
        return _Verdict.HANDLE

    def _has_left(self, shard: int, plan: StripePlan) -> bool:
        # A queue that has finished has settled its markers, so perhaps no member is left that can report its shards.
        known = self._striping
        return known.generation == plan.generation and (shard in known.left or plan.old_index(shard) in known.finished)

    def _reconsider(self) -> list[GateOrder]:
        orders: list[GateOrder] = []
        for shard in list(self._kept):
            verdict = self._judge(shard)
            if verdict is _Verdict.KEEP:
                continue
            released = self._kept.pop(shard)
            self.kept_count -= len(released)
            for delivery in released:
                if verdict is _Verdict.HANDLE:
                    orders.append(Pass(delivery))
                else:
                    self._unfinished.pop(delivery.delivery_id, None)
                    orders.append(Drop(delivery.delivery_id))
        return orders

    def _markers_plan(self) -> StripePlan:
        if self._plan is None:
            raise InvariantViolated("a marker without its plan was counted")
        return self._plan

    def _probe(self, told: StripesNews) -> Probe:
        self._probe_count += 1
        self._probes[self._probe_count] = told
        return Probe(self._probe_count)
