"""Where the shards are, by the queues' subscriptions: in a layout, on the way of a plan, or where no step leaves them.

Read by the conductor before it begins or continues. A re-striping may be broken off at any point, and a request of its
conductor may reach the broker late, when others have moved on. The queues then look as if a plan were under way. To
continue it would tell the members things that are not true, so a plan is continued only if the shards are where its own
steps leave them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from lbg_runtime.core.restripe.records import StripePlan, plan_of_topic, record_topic
from lbg_runtime.model.errors import QueueUnfit, UserError
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.topic import level_matches


@dataclass(frozen=True, slots=True)
class SeenQueues:
    """The existing queues of a group, as whoever conducts a re-striping has seen and changed them."""

    shape: GroupShape
    """Its queue count does not matter: the subscriptions say how many queues the group has."""
    control_topic: str
    subscriptions: dict[int, frozenset[str]]
    """By index of the queue."""

    def layout(self) -> int:
        """How many queues the group has; raises `UserError` if the shards are in no layout."""
        with_shards = {index: _of_shards(self.shape, topics) for index, topics in self.subscriptions.items()}
        count = sum(map(bool, with_shards.values()))
        if not 0 < count <= self.shape.hash_count:
            raise UserError("group.name", f"{count} queues of {self.shape.name} with shards", "queues of the group")
        layout = replace(self.shape, queue_count=count)
        for index in range(count):
            found, expected = with_shards.get(index, frozenset()), frozenset(layout.subscriptions(index))
            if found != expected:
                odd = sorted(found ^ expected)[0]
                raise UserError(
                    layout.queue_name(index),
                    f"{'no ' if odd in expected else ''}subscription {odd}",
                    f"what it has as one of {count} queues; `lbg group plan` says what to do",
                )
        return count

    def ensure_layout(self, queue_count: int) -> None:
        """Raise `UserError` unless every shard is in its queue of so many, and in no other."""
        as_set = f"with group.queue_count {queue_count}"
        for shard, indexes in self._holders().items():
            home, topic = shard % queue_count, self.shape.subscription(shard)
            if not indexes:
                found = "no queue subscribes to it, and what is published there is lost"
                raise UserError(topic, found, f"at once, and {as_set}: `lbg group apply`")
            if indexes != {home}:
                raise UserError(
                    topic,
                    f"subscribed to by {self._names(indexes)}",
                    f"by {self.shape.queue_name(home)} alone; {as_set}, `lbg group plan` says what to do",
                )

    def ensure_on_the_way(self, plan: StripePlan) -> None:
        """Raise `UserError` if a shard is where no step of this plan leaves it.

        The advice in the error is right however far the plan has got. Publishers are stopped and everything is handled,
        so a shard may go straight to its new queue as if it had moved; the finish comes before anything new does, and
        cuts off everything that the old queue had.
        """
        moving = ""
        for shard, indexes in self._holders().items():
            topic, new = self.shape.subscription(shard), plan.new_index(shard)
            if not indexes:
                found = "no queue subscribes to it, and what is published there is lost"
                raise UserError(topic, found, _by_hand(f"added to {self.shape.queue_name(new)}"))
            found = (
                f"subscribed to by {self._names(indexes)}, on the way from {plan.from_count} to {plan.to_count} queues"
            )
            if odd := indexes - {plan.old_index(shard), new}:
                added = f" and added to {self.shape.queue_name(new)}" if odd == indexes else ""
                raise UserError(topic, found, _by_hand(f"taken from {self._names(odd)}{added}"))
            if len(indexes) > 1:
                if moving:
                    expected = _by_hand(f"taken from {self._names(indexes - {new})}")
                    raise UserError(topic, f"{found}, as {moving} is by two", f"one at a time; {expected}")
                moving = topic

    def leftover_plans(self, queue_count: int) -> frozenset[StripePlan]:
        """Plans of which no queue holds a record, and which do not lead from the present layout to so many queues.

        The topics of their records are all that is left of them, and may be removed from the queues.
        """
        plans = self.plans()
        kept = {plan for plan in plans if self.has_begun(plan)}
        # A plan in mid-move has begun, whatever somebody has done to its topic.
        kept = kept or {plan for plan in plans if self._is_in_mid_move(plan)}
        if not kept:
            # Repeating the same command continues what it had barely begun.
            kept = {plan for plan in plans if plan.to_count == queue_count and self.is_unmoved(plan)}
        return frozenset(plans - kept)

    def has_begun(self, plan: StripePlan) -> bool:
        """Whether a record of the plan may be in a queue, by this name or another: then the plan must be completed."""
        for name in self.plans():
            # A plan that is being renewed has two names, and may have begun under the older one.
            if (name.from_count, name.to_count) != (plan.from_count, plan.to_count):
                continue
            informed = self._informed(name)
            # A plan is published when all its queues have the topic. They lose it after the finish, when all records
            # but the end are settled; the end comes before the first queue is deleted, and after the last one only the
            # topics are left.
            is_cleaning_up = (
                any(index in self.subscriptions for index in range(plan.to_count, plan.from_count))
                and informed.issuperset(range(plan.to_count))
                and _is_layout(self._holders(), plan.to_count)
            )
            if informed.issuperset(range(plan.queue_total)) or is_cleaning_up:
                return True
        return False

    def ensure_informed(self, plan: StripePlan) -> None:
        """Raise `UserError` if shards are moving and a queue without the topic of the records has missed markers."""
        if not self._is_in_mid_move(plan) or self.has_begun(plan):
            return
        lacking = frozenset(range(plan.queue_total)) - self._informed(plan)
        found = f"no subscription for the records of the re-striping from {plan.from_count} to {plan.to_count} queues"
        raise UserError(self._names(lacking), found, _by_hand("the one that the plan's other queues have is added"))

    def ensure_unclaimed(self, plan: StripePlan) -> None:
        """Raise `QueueUnfit` if a queue that the plan adds to the group attracts somebody else's messages already.

        For a plan that has not begun: until then such a queue has at most topics of records.
        """
        for index in range(plan.from_count, plan.to_count):
            for topic in sorted(self.subscriptions.get(index, ())):
                if plan_of_topic(self.control_topic, topic) is None:
                    expected = "none in a queue that the group takes over"
                    raise QueueUnfit(self.shape.queue_name(index), f"subscription {topic}", expected)

    def plans(self) -> set[StripePlan]:
        """All plans named by the subscriptions of any queue."""
        topics = {topic for of_queue in self.subscriptions.values() for topic in of_queue}
        return {plan for topic in topics if (plan := plan_of_topic(self.control_topic, topic)) is not None}

    def plan_under_way(self) -> StripePlan | None:
        """The newest plan of the re-striping that the queues' subscriptions name. Raises `UserError` if they name two
        re-stripings."""
        in_order = sorted(self.plans(), key=lambda plan: plan.generation)
        if len({(plan.from_count, plan.to_count) for plan in in_order}) > 1:
            named = " and ".join(f"{plan.from_count} to {plan.to_count}" for plan in in_order)
            expected = "one, which `lbg group restripe` can end"
            raise UserError(self.control_topic, f"re-stripings {named} at once", expected)
        return in_order[-1] if in_order else None

    def is_unmoved(self, plan: StripePlan) -> bool:
        """Whether every shard is only in its old queue."""
        return _is_layout(self._holders(), plan.from_count)

    def _informed(self, plan: StripePlan) -> frozenset[int]:
        """The indexes of the queues that get the records of the plan."""
        topic = record_topic(self.control_topic, plan)
        return frozenset(index for index, topics in self.subscriptions.items() if topic in topics)

    def _is_in_mid_move(self, plan: StripePlan) -> bool:
        holders = self._holders()
        # A whole layout, of however many queues, may be on the way of many plans.
        if _is_layout(holders, len(frozenset[int]().union(*holders.values())) or 1):
            return False
        try:
            self.ensure_on_the_way(plan)
        except UserError:
            return False
        return True

    def _holders(self) -> dict[int, frozenset[int]]:
        """The indexes of the queues that subscribe to each shard; raises `UserError` for a topic that is no shard's."""
        found: dict[int, set[int]] = {shard: set() for shard in range(self.shape.hash_count)}
        shards = {self.shape.subscription(shard): shard for shard in found}
        for index, topics in self.subscriptions.items():
            for topic in sorted(_of_shards(self.shape, topics)):
                if topic not in shards:
                    expected = "nothing of the group's but whole shards"
                    raise UserError(self.shape.queue_name(index), f"subscription {topic}", expected)
                found[shards[topic]].add(index)
        return {shard: frozenset(indexes) for shard, indexes in found.items()}

    def _names(self, indexes: frozenset[int]) -> str:
        return " and ".join(self.shape.queue_name(index) for index in sorted(indexes))


def ensure_target(plan: StripePlan, queue_count: int) -> None:
    """Raise `UserError` unless the plan leads to this number of queues."""
    if plan.to_count != queue_count:
        raise UserError(
            "--queues",
            f"{queue_count}, while the group is brought from {plan.from_count} to {plan.to_count} queues",
            f"{plan.to_count}, to end that first",
        )


def _by_hand(what: str) -> str:
    return (
        f"publishers stopped until all is handled, then by hand: {what}; then the same command, and publishers again "
        "when it has ended"
    )


def _is_layout(holders: Mapping[int, frozenset[int]], queue_count: int) -> bool:
    return all(indexes == {shard % queue_count} for shard, indexes in holders.items())


def _of_shards(shape: GroupShape, topics: frozenset[str]) -> frozenset[str]:
    """The topics that attract messages of the group by its hash prefix. If there are any, also those that attract them
    by a wildcard in the first level, or keep them away as an exception. A queue without any is unused, or somebody
    else's."""

    def is_one(topic: str) -> bool:
        first, *below = topic.removeprefix("!").split("/")
        return level_matches(first, shape.hash_prefix) if below else first == ">"

    own = frozenset(topic for topic in topics if topic.startswith(f"{shape.hash_prefix}/"))
    return own.union(filter(is_one, topics - own)) if own else own
