"""Where the shards are, by the queues' subscriptions: in a layout, on the way of a plan, or as no step leaves them.

A re-striping may be broken off at any point, and a request of its conductor may arrive late, when others have moved on
in the meantime. What the queues then have looks like a plan under way. Continuing it would tell the members things that
are not true, so a plan is continued only if the shards are as its own steps leave them.
"""

from collections.abc import Mapping
from dataclasses import replace

from lbg_runtime.core.restripe.records import StripePlan, plan_of_topic, record_topic
from lbg_runtime.model.errors import QueueUnfit, UserError
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.topic import level_matches

Subscriptions = Mapping[int, frozenset[str]]
"""The subscriptions of the group's existing queues, by index."""


def layout_of(shape: GroupShape, subscriptions: Subscriptions) -> int:
    """How many queues the group has, whatever the settings say; raises `UserError` if the shards are in no layout."""
    with_shards = {index: _of_shards(shape, topics) for index, topics in subscriptions.items()}
    count = sum(map(bool, with_shards.values()))
    if not 0 < count <= shape.hash_count:
        raise UserError("group.name", f"{count} queues of {shape.name} with shards", "queues of the group")
    layout = replace(shape, queue_count=count)
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


def ensure_layout(shape: GroupShape, subscriptions: Subscriptions) -> None:
    """Raise `UserError` unless every shard is in its queue of `shape` and in no other."""
    as_set = f"with group.queue_count {shape.queue_count}"
    for shard, indexes in _holders(shape, subscriptions).items():
        home, topic = shape.queue_index_of_shard(shard), shape.subscription(shard)
        if not indexes:
            found = "no queue subscribes to it, and what is published there is lost"
            raise UserError(topic, found, f"at once, and {as_set}: `lbg group apply`")
        if indexes != {home}:
            raise UserError(
                topic,
                f"subscribed to by {_names(shape, indexes)}",
                f"by {shape.queue_name(home)} alone; {as_set}, `lbg group plan` says what to do",
            )


def ensure_target(plan: StripePlan, queue_count: int) -> None:
    """Raise `UserError` unless the plan leads to this number of queues."""
    if plan.to_count != queue_count:
        raise UserError(
            "--queues",
            f"{queue_count}, while the group is brought from {plan.from_count} to {plan.to_count} queues",
            f"{plan.to_count}, to end that first",
        )


def ensure_on_the_way(plan: StripePlan, shape: GroupShape, subscriptions: Subscriptions) -> None:
    """Raise `UserError` if a shard is where no step of this plan leaves it.

    The advice in the error is right however far the plan has got: with nothing on its way, a shard is in its new queue
    as if it had moved, and the finish, after which more may come, cuts off everything that the old queue had.
    """
    moving = ""
    for shard, indexes in _holders(shape, subscriptions).items():
        topic, new = shape.subscription(shard), plan.goes_to(shard)
        if not indexes:
            found = "no queue subscribes to it, and what is published there is lost"
            raise UserError(topic, found, _by_hand(f"added to {shape.queue_name(new)}"))
        found = (
            f"subscribed to by {_names(shape, indexes)}, on the way from {plan.from_count} to {plan.to_count} queues"
        )
        if odd := indexes - {plan.leaves(shard), new}:
            added = f" and added to {shape.queue_name(new)}" if odd == indexes else ""
            raise UserError(topic, found, _by_hand(f"taken from {_names(shape, odd)}{added}"))
        if len(indexes) > 1:
            if moving:
                expected = _by_hand(f"taken from {_names(shape, indexes - {new})}")
                raise UserError(topic, f"{found}, as {moving} is by two", f"one at a time; {expected}")
            moving = topic


def _by_hand(what: str) -> str:
    return (
        f"publishers stopped until all is handled, then by hand: {what}; then the same command, and publishers again "
        "when it has ended"
    )


def leftover_plans(
    shape: GroupShape, subscriptions: Subscriptions, control_topic: str, queue_count: int
) -> frozenset[StripePlan]:
    """Plans of which no queue holds a record, and which do not lead from the present layout to `queue_count` queues.

    The topics of their records are all that is left of them, and may be removed from the queues.
    """
    plans = plans_on(subscriptions, control_topic)
    kept = {plan for plan in plans if has_begun(plan, shape, subscriptions, control_topic)}
    # A plan in mid-move has begun, whatever somebody has done to its topic.
    kept = kept or {plan for plan in plans if _is_in_mid_move(plan, shape, subscriptions)}
    if not kept:
        # Repeating the same command continues what it had barely begun.
        kept = {plan for plan in plans if plan.to_count == queue_count and is_unmoved(plan, shape, subscriptions)}
    return frozenset(plans - kept)


def has_begun(plan: StripePlan, shape: GroupShape, subscriptions: Subscriptions, control_topic: str) -> bool:
    """Whether a record of the plan may be in a queue, by this name or another: then the plan must be completed."""
    for name in plans_on(subscriptions, control_topic):
        # A plan that is being renewed has two names, and may have begun under the older one.
        if (name.from_count, name.to_count) != (plan.from_count, plan.to_count):
            continue
        topic = record_topic(control_topic, name)
        informed = {index for index, topics in subscriptions.items() if topic in topics}
        # A plan is published when all its queues have the topic. They lose it after the finish, when all records but
        # the end are settled; the end comes before the first queue is deleted, and after the last one only the topics
        # are left.
        is_cleaning_up = (
            any(index in subscriptions for index in range(plan.to_count, plan.from_count))
            and informed.issuperset(range(plan.to_count))
            and _is_layout(_holders(shape, subscriptions), plan.to_count)
        )
        if informed.issuperset(range(plan.queue_total)) or is_cleaning_up:
            return True
    return False


def ensure_informed(plan: StripePlan, shape: GroupShape, subscriptions: Subscriptions, control_topic: str) -> None:
    """Raise `UserError` if shards are moving and a queue lacks the topic of the records, so that it missed markers."""
    if not _is_in_mid_move(plan, shape, subscriptions) or has_begun(plan, shape, subscriptions, control_topic):
        return
    topic = record_topic(control_topic, plan)
    lacking = frozenset(index for index in range(plan.queue_total) if topic not in subscriptions.get(index, ()))
    found = f"no subscription for the records of the re-striping from {plan.from_count} to {plan.to_count} queues"
    raise UserError(_names(shape, lacking), found, _by_hand("the one that the plan's other queues have is added"))


def ensure_unclaimed(plan: StripePlan, shape: GroupShape, subscriptions: Subscriptions, control_topic: str) -> None:
    """Raise `QueueUnfit` if a queue that the plan adds to the group attracts somebody else's messages already.

    For a plan that has not begun: until then such a queue has at most topics of records.
    """
    for index in range(plan.from_count, plan.to_count):
        for topic in sorted(subscriptions.get(index, ())):
            if plan_of_topic(control_topic, topic) is None:
                expected = "none in a queue that the group takes over"
                raise QueueUnfit(shape.queue_name(index), f"subscription {topic}", expected)


def _is_in_mid_move(plan: StripePlan, shape: GroupShape, subscriptions: Subscriptions) -> bool:
    holders = _holders(shape, subscriptions)
    # A whole layout, of however many queues, may be on the way of many plans.
    if _is_layout(holders, len(frozenset[int]().union(*holders.values())) or 1):
        return False
    try:
        ensure_on_the_way(plan, shape, subscriptions)
    except UserError:
        return False
    return True


def plans_on(subscriptions: Subscriptions, control_topic: str) -> set[StripePlan]:
    """All plans named by the subscriptions of any queue."""
    topics = {topic for of_queue in subscriptions.values() for topic in of_queue}
    return {plan for topic in topics if (plan := plan_of_topic(control_topic, topic)) is not None}


def plan_under_way(subscriptions: Subscriptions, control_topic: str) -> StripePlan | None:
    """The newest plan of the re-striping that the queues' subscriptions name. Raises `UserError` if they name two
    re-stripings."""
    in_order = sorted(plans_on(subscriptions, control_topic), key=lambda plan: plan.generation)
    if len({(plan.from_count, plan.to_count) for plan in in_order}) > 1:
        named = " and ".join(f"{plan.from_count} to {plan.to_count}" for plan in in_order)
        raise UserError(control_topic, f"re-stripings {named} at once", "one, which `lbg group restripe` can end")
    return in_order[-1] if in_order else None


def is_unmoved(plan: StripePlan, shape: GroupShape, subscriptions: Subscriptions) -> bool:
    """Whether every shard is only in its old queue."""
    return _is_layout(_holders(shape, subscriptions), plan.from_count)


def _is_layout(holders: Mapping[int, frozenset[int]], queue_count: int) -> bool:
    return all(indexes == {shard % queue_count} for shard, indexes in holders.items())


def _holders(shape: GroupShape, subscriptions: Subscriptions) -> dict[int, frozenset[int]]:
    """The indexes of the queues that subscribe to each shard; raises `UserError` for a topic that is no shard's."""
    found: dict[int, set[int]] = {shard: set() for shard in range(shape.hash_count)}
    shards = {shape.subscription(shard): shard for shard in found}
    for index, topics in subscriptions.items():
        for topic in sorted(_of_shards(shape, topics)):
            if topic not in shards:
                expected = "nothing of the group's but whole shards"
                raise UserError(shape.queue_name(index), f"subscription {topic}", expected)
            found[shards[topic]].add(index)
    return {shard: frozenset(indexes) for shard, indexes in found.items()}


def _of_shards(shape: GroupShape, topics: frozenset[str]) -> frozenset[str]:
    """Those that attract messages of the group; and in a queue that has any, those that do so by a wildcard in the
    first level, or keep some away as an exception. A queue without any is not used, or somebody else's."""

    def is_one(topic: str) -> bool:
        first, *below = topic.removeprefix("!").split("/")
        return level_matches(first, shape.hash_prefix) if below else first == ">"

    own = frozenset(topic for topic in topics if topic.startswith(f"{shape.hash_prefix}/"))
    return own.union(filter(is_one, topics - own)) if own else own


def _names(shape: GroupShape, indexes: frozenset[int]) -> str:
    return " and ".join(shape.queue_name(index) for index in sorted(indexes))
