"""What a conductor's own steps leave is told from what others have left, whoever looks whenever."""

import re
from itertools import product

import pytest

from lbg_runtime.core.restripe.conductor import Done, Subscribe, Wait
from lbg_runtime.core.restripe.layout import SeenQueues
from lbg_runtime.core.restripe.records import StripeEnd, StripePlan, record_topic
from lbg_runtime.model.errors import QueueUnfit, UserError
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.ids import GroupName
from tests.core.restripe.conductor_world import CONTROL_TOPIC, GENERATION, HASH_COUNT, MOST_STEPS, Group, conduct
from tests.core.restripe.test_conductor import WAYS

COUNTS = range(1, HASH_COUNT + 1)


def shape_of(count: int, hash_count: int = HASH_COUNT) -> GroupShape:
    return GroupShape(GroupName("orders"), "lbg", hash_count, count)


def laid_out(count: int, hash_count: int = HASH_COUNT) -> dict[int, frozenset[str]]:
    shape = shape_of(count, hash_count)
    return {index: frozenset(shape.subscriptions(index)) for index in range(count)}


def seen_as(subscriptions: dict[int, frozenset[str]]) -> SeenQueues:
    return SeenQueues(shape_of(1), CONTROL_TOPIC, subscriptions)


def with_topic(subscriptions: dict[int, frozenset[str]], plan: StripePlan, *indexes: int) -> dict[int, frozenset[str]]:
    topic = record_topic(CONTROL_TOPIC, plan)
    return {index: topics | {topic} if index in indexes else topics for index, topics in subscriptions.items()}


@pytest.mark.parametrize(("from_count", "to_count"), WAYS)
def test_a_plan_of_which_a_queue_may_hold_a_record_is_gone_on_with(from_count: int, to_count: int) -> None:
    group = Group(from_count, to_count)
    conductor = group.conductor()
    has_ended = False
    for _ in range(MOST_STEPS):
        seen = group.seen()
        seen.ensure_on_the_way(group.plan)
        begun = seen.has_begun(group.plan)
        if group.journal or (group.said is not None and group.said.target is not None and not has_ended):
            assert begun, "nobody else could end it"
        if begun:
            for count in COUNTS:
                assert not seen.leftover_plans(count)
        elif seen.plans() and seen.is_unmoved(group.plan):
            assert not seen.leftover_plans(to_count), "the same command goes on with it"
            assert seen.leftover_plans(from_count) == {group.plan}
        step = conductor.next_step(group.sight())
        if isinstance(step, Done):
            break
        if isinstance(step, Wait):
            group.look()
            continue
        group.do(step)
        conductor.did(step)
        has_ended = has_ended or group.published(StripeEnd)
    group.seen().ensure_layout(to_count)
    assert group.seen().layout() == to_count


def test_a_late_topic_of_another_plan_is_a_leftover_on_whatever_layout_it_falls() -> None:
    few_and_many = (1, 2, 3, 4, 7, 12, HASH_COUNT)
    for from_count, to_count, present in product(few_and_many, repeat=3):
        if from_count == to_count:
            continue
        plan = StripePlan(GENERATION, from_count, to_count, "s3cr3t")
        seen = with_topic(laid_out(present), plan, 0)
        assert not seen_as(seen).has_begun(plan)
        for wanted in few_and_many:
            expected = set() if (present, wanted) == (from_count, to_count) else {plan}
            assert seen_as(seen).leftover_plans(wanted) == expected


def test_a_plan_that_is_renewed_has_begun_by_its_older_name() -> None:
    old, new = (StripePlan(generation, 2, 3, "s3cr3t") for generation in (7, 9))
    seen = with_topic(with_topic({**laid_out(2), 2: frozenset()}, old, 0, 1, 2), new, 0)
    assert seen_as(seen).has_begun(new)
    assert not seen_as(seen).leftover_plans(2)


def test_of_a_plan_whose_needless_queues_are_gone_only_topics_are_left_whatever_else_exists() -> None:
    plan = StripePlan(GENERATION, 4, 2, "s3cr3t")
    seen = with_topic({**laid_out(2), 3: frozenset(), 4: frozenset({"invoices/>"})}, plan, 0, 1)
    assert seen_as(seen).has_begun(plan)
    late = with_topic({**laid_out(2), 3: frozenset()}, plan, 0)
    assert not seen_as(late).has_begun(plan), "it cleans up the topic of queue 0 after all others"
    del seen[3]
    assert not seen_as(seen).has_begun(plan)
    assert seen_as(seen).leftover_plans(2) == {plan}


@pytest.mark.parametrize("to_count", [4, 1])
def test_of_two_plans_the_one_that_began_stays(to_count: int) -> None:
    begun, late = StripePlan(9, 2, 3, "s3cr3t"), StripePlan(7, 2, to_count, "other")
    seen = with_topic(with_topic({**laid_out(2), 2: frozenset()}, begun, 0, 1, 2), late, 0)
    for wanted in (1, 2, 3, 4):
        assert seen_as(seen).leftover_plans(wanted) == {late}


@pytest.mark.parametrize("topic", [">", "*/>", "l*/1/>", "*/*/new", "lbg/*/>", "!lbg/1/>", "!*/1/>", "!>"])
def test_a_subscription_that_brings_a_queue_more_than_its_shards_or_less_is_no_layout(topic: str) -> None:
    """With a wildcard a message lies in two queues; an exception would lose those of a shard that comes there."""
    seen = laid_out(4)
    seen[2] |= {topic}
    with pytest.raises(UserError, match=f"orders/2: subscription {re.escape(topic)}; "):
        seen_as(seen).layout()
    for refuse in (
        lambda: seen_as(seen).ensure_layout(4),
        lambda: seen_as(seen).ensure_on_the_way(StripePlan(GENERATION, 4, 6, "s3cr3t")),
    ):
        with pytest.raises(UserError, match=f"orders/2: subscription {re.escape(topic)}; "):
            refuse()


def test_a_group_of_which_no_queue_has_a_shard_has_no_layout() -> None:
    for seen in ({}, {0: frozenset({"invoices/>"})}):
        with pytest.raises(UserError, match="0 queues of orders with shards; expected queues of the group"):
            seen_as(seen).layout()
    plan = StripePlan(GENERATION, 4, 6, "s3cr3t")
    assert seen_as(with_topic({0: frozenset()}, plan, 0)).leftover_plans(6) == {plan}


def test_subscriptions_that_bring_nothing_of_the_group_are_no_concern_of_it() -> None:
    seen = {**laid_out(4), 4: frozenset({">", "!lbg/1/>"})}
    seen[2] |= {"lbg", "*", "lbg-news/>", "b*/1/>", "!news/>"}
    seen_as(seen).ensure_layout(4)
    assert seen_as(seen).layout() == 4


class TestWhatNoStepLeaves:
    plan = StripePlan(GENERATION, 4, 6, "s3cr3t")

    def ensure(self, seen: dict[int, frozenset[str]]) -> None:
        seen_as(seen).ensure_on_the_way(self.plan)

    def test_the_layout_of_others(self) -> None:
        with pytest.raises(UserError, match=r"lbg/6/>: .* by orders/6, .*: taken from orders/6 and added to orders/0;"):
            self.ensure(laid_out(8))

    def test_a_shard_in_no_queue(self) -> None:
        seen = laid_out(4)
        seen[0] -= {"lbg/4/>"}
        with pytest.raises(
            UserError, match=r"lbg/4/>: no queue.* publishers stopped.* by hand: added to orders/4; then"
        ):
            self.ensure(seen)
        with pytest.raises(
            UserError, match=r"lost; expected at once, and with group\.queue_count 4: `lbg group apply`"
        ):
            seen_as(seen).ensure_layout(4)

    def test_a_shard_in_a_third_queue(self) -> None:
        seen = laid_out(4)
        seen[1] |= {"lbg/4/>"}
        with pytest.raises(
            UserError, match=r"lbg/4/>: .* by orders/0 and orders/1, .* by hand: taken from orders/1; then"
        ):
            self.ensure(seen)
        with pytest.raises(UserError, match="lbg/4/>: subscribed to by orders/0 and orders/1; expected by orders/0 al"):
            seen_as(seen).ensure_layout(4)

    def test_two_shards_on_the_move(self) -> None:
        seen = {**laid_out(4), 4: frozenset({"lbg/4/>"}), 5: frozenset()}
        self.ensure(seen)
        seen[5] |= {"lbg/5/>"}
        with pytest.raises(UserError, match=r"lbg/5/>: .* as lbg/4/> is by two; .* by hand: taken from orders/1; then"):
            self.ensure(seen)

    @pytest.mark.parametrize("begun_with", [1, 3, 4, 8])
    def test_what_it_says_leads_to_the_end(self, begun_with: int) -> None:
        """Wherever it stands, a shard that has lost its queue is added to the new one, while nobody publishes."""
        group = Group(4, 6, hash_count=12)
        steps = conduct(group, group.conductor())
        while sum("lbg/" in step.topic for step in group.steps if isinstance(step, Subscribe)) < begun_with:
            next(steps)
        for topics in group.queues.values():
            topics.discard("lbg/7/>")
        with pytest.raises(UserError, match=r"lbg/7/>: .* by hand: added to orders/1; then"):
            group.seen().ensure_on_the_way(group.plan)
        group.queues[1].add("lbg/7/>")
        group.seen().ensure_on_the_way(group.plan)
        list(conduct(group, group.conductor()))

    def test_what_is_no_shard(self) -> None:
        seen = laid_out(4)
        seen[3] |= {"lbg/99/>"}
        with pytest.raises(UserError, match="orders/3: subscription lbg/99/>"):
            self.ensure(seen)


class TestQueuesThatAreAdded:
    PLAN = StripePlan(GENERATION, 2, 4, "s3cr3t")

    def there(self, index: int, *topics: str) -> dict[int, frozenset[str]]:
        return {**laid_out(2), index: frozenset(topics)}

    @pytest.mark.parametrize(
        "topics",
        [(), (record_topic(CONTROL_TOPIC, PLAN),), (record_topic(CONTROL_TOPIC, StripePlan(3, 2, 5, "s")),)],
    )
    def test_one_that_an_earlier_plan_left_is_taken(self, topics: tuple[str, ...]) -> None:
        seen_as(self.there(3, *topics)).ensure_unclaimed(self.PLAN)

    @pytest.mark.parametrize("index", [2, 3])
    def test_one_that_attracts_anything_else_is_refused(self, index: int) -> None:
        there = self.there(index, record_topic(CONTROL_TOPIC, self.PLAN), "invoices/>")
        with pytest.raises(QueueUnfit, match=f"orders/{index} has subscription invoices/>; expected none") as refused:
            seen_as(there).ensure_unclaimed(self.PLAN)
        assert refused.value.queue == f"orders/{index}"

    def test_what_is_beyond_the_new_layout_is_left_alone(self) -> None:
        seen_as(self.there(4, "invoices/>")).ensure_unclaimed(self.PLAN)


class TestWhatIsUnderWay:
    @pytest.mark.parametrize("topics", [[], ["lbg/0/>"], ["lbg-control/orders", "lbg-control/bills/restripe/7/2/3/s"]])
    def test_nothing(self, topics: list[str]) -> None:
        assert seen_as({0: frozenset(topics)}).plan_under_way() is None

    def test_what_a_single_queue_tells_of(self) -> None:
        plan = StripePlan(7, 2, 3, "s")
        subscriptions = {0: frozenset({"lbg/0/>", record_topic(CONTROL_TOPIC, plan)}), 1: frozenset({"lbg/1/>"})}
        assert seen_as(subscriptions).plan_under_way() == plan

    def test_of_a_plan_that_is_being_renewed_the_newest(self) -> None:
        plans = [StripePlan(generation, 2, 3, "s") for generation in (10, 9, 8)]
        subscriptions = {index: frozenset({record_topic(CONTROL_TOPIC, plan)}) for index, plan in enumerate(plans)}
        assert seen_as(subscriptions).plan_under_way() == plans[0]

    def test_two_at_once_are_refused(self) -> None:
        plans = StripePlan(8, 3, 1, "other"), StripePlan(7, 2, 3, "s")
        subscriptions = {index: frozenset({record_topic(CONTROL_TOPIC, plan)}) for index, plan in enumerate(plans)}
        with pytest.raises(UserError, match="re-stripings 2 to 3 and 3 to 1 at once"):
            seen_as(subscriptions).plan_under_way()
