"""Decides the next step of a re-striping, from what the broker and the members say now.

The conductor keeps no notes: the subscriptions of the queues say how far it has got, and every step may be done twice.
So if a conductor dies, another one looks, and goes on. There must never be two at once; its shell sees to that by its
client name (runtime/restripe/restriper.py).

The order of the steps, and why: first, every queue of both layouts is subscribed to the topic of the records, the queue
with index 0 before all others, so that what is under way is on record from the first step on. The plan is in all
queues before the first subscription of a shard is added, so that no copy of a message comes before it. A marker is
published when both queues have the subscription; the old one loses it when its owner is done with everything before the
marker; and the finish comes when no queue has a subscription of the old layout left, so nothing of an old shard can be
behind it. When every queue has reached the finish, those that are not needed get no more records; when they are empty,
the end is published, which lets the members leave them, and then they are deleted. The topic's subscriptions are
removed last, index 0 after all others.

Members drop a plan that is older than what they know. If they know a newer one, and no shard has begun to move, the
plan gets a newer generation: its new topic replaces the old one, with both subscribed for a while, and a conductor that
looks then goes on with the newest.

A plan that leads from a number of queues to the same number moves nothing: it tells that number to members that go by
another one.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace

from lbg_runtime.core.restripe.records import (
    ShardMarker,
    StripeEnd,
    StripeFinish,
    StripePlan,
    StripeRecord,
    plan_of_topic,
    record_topic,
)
from lbg_runtime.core.restripe.striping import Striping
from lbg_runtime.model.errors import UserError
from lbg_runtime.model.group import GroupShape

MAX_BACKLOG = 1_000
"""Limit on the messages in a queue that a shard leaves, not counting records; above it, the shard's messages would wait
too long in the new one."""


LOOKS_PER_RECORD = 100
"""A record that members do not report as read is published again after this many looks; a second one does nothing."""

MOST_NAMED = 3
"""How many queues a `Wait` names at most."""


@dataclass(frozen=True, slots=True)
class CreateQueue:
    """Create the queue, without a subscription."""

    index: int


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Add a subscription to the queue; done when it has taken effect."""

    index: int
    topic: str


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """Remove a subscription from the queue; done when that has taken effect."""

    index: int
    topic: str


@dataclass(frozen=True, slots=True)
class Publish:
    """Publish the record on the re-striping's topic; done when the broker has confirmed it."""

    record: StripeRecord


@dataclass(frozen=True, slots=True)
class DeleteQueue:
    """Delete the queue once it is empty and nobody is bound to it; until then, look again."""

    index: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Look again soon: somebody else has to act first."""

    for_what: str


@dataclass(frozen=True, slots=True)
class Done:
    """The group has the new number of queues, and nothing is left of the old one."""


Step = CreateQueue | Subscribe | Unsubscribe | Publish | DeleteQueue | Wait | Done


@dataclass(frozen=True, slots=True)
class Sight:
    """The present state of the queues and what members report."""

    subscriptions: Mapping[int, frozenset[str]]
    """The subscriptions of the existing queues, by index. Those beyond both layouts may be somebody else's: nothing is
    done to them, and nobody waits for them."""
    depths: Mapping[int, int]
    """Messages, including unsettled ones, in the queues that `Conductor.queues_to_measure` names; others are not
    looked at."""
    owned: Set[int]
    """Indexes of queues that some member reports as fed to it."""
    striping: Striping | None
    """The newest that members report; None if nobody has reported anything yet."""


@dataclass(frozen=True, slots=True)
class ShardMove:
    """The way of a shard that changes its queue."""

    shard: int
    topic: str
    """The shard's subscription."""
    old: int
    """Index of the queue that it leaves."""
    new: int
    """Index of the queue that it goes to."""

    def has_begun(self, sight: Sight) -> bool:
        """Whether the new queue gets its messages."""
        return self.topic in sight.subscriptions.get(self.new, frozenset())

    def is_done(self, sight: Sight) -> bool:
        """Whether only the new queue gets its messages."""
        # A queue that is no longer needed may be gone.
        return self.has_begun(sight) and self.topic not in sight.subscriptions.get(self.old, frozenset())


@dataclass(slots=True)
class Conductor:
    """One run of a re-striping's conductor. Its shell asks for `next_step`, takes it, and reports it with `did`."""

    shape: GroupShape
    """The old layout."""
    plan: StripePlan
    control_topic: str
    _published: set[StripeRecord] = field(default_factory=set)
    _waited_for: StripeRecord | None = None
    _looks: int = 0
    """How often we have looked for the effect of `_waited_for`."""
    moves: tuple[ShardMove, ...] = field(init=False)
    """In their order. Made once, as there are many; a newer plan has the same."""

    def __post_init__(self) -> None:
        plan, topic = self.plan, self.shape.subscription
        shards = plan.moving(self.shape.hash_count)
        self.moves = tuple(
            ShardMove(shard, topic(shard), plan.old_index(shard), plan.new_index(shard)) for shard in shards
        )

    @property
    def topic(self) -> str:
        """The topic of this re-striping's records."""
        return record_topic(self.control_topic, self.plan)

    def did(self, step: Step) -> None:
        """Record that a step is done."""
        if isinstance(step, Publish):
            self._published.add(step.record)

    def next_step(self, sight: Sight) -> Step:
        """What to do now; this may replace `plan` by a newer one.

        Raises `UserError` if the queues are as no step leaves them, or members drop the plan in mid-move.
        """
        if sight.striping is not None and sight.striping.generation > self.plan.generation:
            self._renew(sight.striping.generation, sight)
        move = self._next_move(sight)
        if move is not None:
            return self._prepare(sight) or self._go_on(move, sight)
        if not self.moves and not self._is_over(sight) and (step := self._prepare(sight)) is not None:
            return step
        return self._finish(sight)

    def queues_to_measure(self, sight: Sight) -> list[int]:
        """Indexes of the queues whose depths `next_step` needs, given the rest of this `Sight`.

        As few as possible: each costs a request, in every step.
        """
        move = self._next_move(sight)
        if move is not None:
            is_needed = move.old in sight.subscriptions and self._is_known(sight) and not move.has_begun(sight)
            return [move.old] if is_needed else []
        needless = self._needless(sight)
        is_told = any(self.topic in sight.subscriptions[index] for index in needless)
        return [] if is_told or self._is_over(sight) else needless

    def moved_count(self, sight: Sight) -> int:
        """How many of `moves` are done."""
        return sum(move.is_done(sight) for move in self.moves)

    # -- the parts

    def _next_move(self, sight: Sight) -> ShardMove | None:
        """The move that is under way or, if none is, comes next; None if all are done."""
        return next((move for move in self.moves if not move.is_done(sight)), None)

    def _renew(self, known: int, sight: Sight) -> None:
        """Renew the plan so that no member takes it for old. Refused once a shard may have its marker, which belongs to
        its plan, or once a queue may have the finish, if nothing moves."""
        plan = self.plan
        is_informed = all(self.topic in sight.subscriptions.get(index, ()) for index in range(plan.queue_total))
        if any(move.has_begun(sight) for move in self.moves) or (is_informed and not self.moves):
            raise UserError(
                "--queues",
                f"{plan.to_count}, but it is too late to replace plan generation {plan.generation}, which "
                f"members ignore because they know generation {known}",
                "all members stopped before any is started again, then the same command",
            )
        # The secret may stay: proofs name the generation.
        self.plan = replace(plan, generation=known + 1)
        if plan_of_topic(self.control_topic, self.topic) is None:
            raise UserError("--queues", f"members that know of a re-striping of generation {known}", "a smaller number")

    def _prepare(self, sight: Sight) -> Step | None:
        indexes = range(self.plan.queue_total)
        for index in indexes:
            if index not in sight.subscriptions:
                if index < self.plan.from_count:
                    raise UserError(self.shape.queue_name(index), "no such queue", "a queue of the group")
                return CreateQueue(index)
            if self.topic not in sight.subscriptions[index]:
                return Subscribe(index, self.topic)
        # This comes before the plan is in any queue, so that no queue has an older one behind it.
        for index in indexes:
            others = sight.subscriptions[index] - {self.topic}
            if older := [topic for topic in others if plan_of_topic(self.control_topic, topic) is not None]:
                return Unsubscribe(index, min(older))
        if not self._is_known(sight):
            return self._once(self.plan, "the plan", sight)
        # If nothing moves, members that do not know the number may have to be told by the finish, published again.
        if self.moves and (unowned := [index for index in indexes if index not in sight.owned]):
            return Wait(f"an owner of queue {self.shape.queue_name(unowned[0])}")
        return None

    def _is_known(self, sight: Sight) -> bool:
        return sight.striping is not None and sight.striping.generation == self.plan.generation

    def _go_on(self, move: ShardMove, sight: Sight) -> Step:
        shard, topic, old, new = move.shard, move.topic, move.old, move.new
        if topic not in sight.subscriptions[old]:
            found = f"neither {self.shape.queue_name(old)} nor {self.shape.queue_name(new)} subscribes to it"
            raise UserError(topic, found, "one of the two")
        if topic not in sight.subscriptions[new]:
            # Records stay until the finish, so waiting for them would never end.
            if sight.depths[old] > MAX_BACKLOG + self._record_count(old, sight):
                return Wait(
                    f"queue {self.shape.queue_name(old)} to have fewer than {MAX_BACKLOG} messages besides records"
                )
            return Subscribe(new, topic)
        if sight.striping is not None and shard in sight.striping.left:
            return Unsubscribe(old, topic)
        marker = ShardMarker(self.plan.generation, shard)
        if marker not in self._published:
            return Publish(marker)
        return Wait(f"shard {shard} to be handled up to its marker in queue {self.shape.queue_name(old)}")

    def _record_count(self, index: int, sight: Sight) -> int:
        """How many records of moves that are over lie in the queue, unsettled: the plan, and the markers of its
        shards."""
        return 1 + sum(move.is_done(sight) for move in self.moves if index in (move.old, move.new))

    def _finish(self, sight: Sight) -> Step:
        plan = self.plan
        informed = {index for index, topics in sight.subscriptions.items() if self.topic in topics}
        needless = self._needless(sight)
        # Another conductor may have begun to clean up.
        if informed.issuperset(range(plan.to_count)):
            if informed.issuperset(range(plan.queue_total)) and (unfinished := self._unfinished(sight)):
                finish = StripeFinish(plan.generation, plan.from_count, plan.to_count)
                return self._once(finish, f"the finish in {self._named(unfinished)}", sight)
            if still_informed := informed.intersection(needless):
                return Unsubscribe(max(still_informed), self.topic)
            if not self._is_over(sight):
                if full := [index for index in needless if sight.depths[index]]:
                    return Wait(f"queue {self.shape.queue_name(full[0])} to be empty")
                return self._once(StripeEnd(plan.generation, plan.to_count), "the end", sight)
        if needless:
            return self._delete(needless[-1])
        return Unsubscribe(max(informed), self.topic) if informed else Done()

    def _needless(self, sight: Sight) -> list[int]:
        # What is beyond both layouts is not the group's, whatever its name says.
        return [index for index in range(self.plan.to_count, self.plan.from_count) if index in sight.subscriptions]

    def _delete(self, index: int) -> Step:
        end = StripeEnd(self.plan.generation, self.plan.to_count)
        if self._waited_for == end and self._looks >= LOOKS_PER_RECORD:
            # Members still bind the queue. The one that read the end and told us may have died before it told them.
            self._looks = 0
            return Publish(end)
        self._looks = self._looks + 1 if self._waited_for == end else 0
        self._waited_for = end
        return DeleteQueue(index)

    def _unfinished(self, sight: Sight) -> list[int]:
        """Indexes of the queues that no member reports as finished."""
        finished = sight.striping.finished if sight.striping is not None and self._is_known(sight) else frozenset()
        return [] if self._is_over(sight) else [each for each in range(self.plan.queue_total) if each not in finished]

    def _named(self, indexes: list[int]) -> str:
        """The queues in one line, however many there are."""
        shown = ", ".join(self.shape.queue_name(index) for index in indexes[:MOST_NAMED])
        more = len(indexes) - MOST_NAMED
        return f"{shown} and {more} more" if more > 0 else shown

    def _is_over(self, sight: Sight) -> bool:
        return sight.striping is not None and self._is_known(sight) and sight.striping.target is None

    def _once(self, record: StripeRecord, name: str, sight: Sight) -> Step:
        # An earlier conductor may have published it, and it may be over.
        if sight.striping is None:
            return Wait("the members to say how far they are")
        if record in self._published and record == self._waited_for and self._looks < LOOKS_PER_RECORD:
            self._looks += 1
            return Wait(f"the members to read {name}")
        # Publish again if the only member that knew of it died before it told anybody.
        self._waited_for, self._looks = record, 0
        return Publish(record)
