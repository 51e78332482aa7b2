"""Each rule of the gate; streams of any shape, with crashes, are in test_gate_laws.py."""

import pytest

from lbg_runtime.core.restripe.gate import StripeGate
from lbg_runtime.core.restripe.news import PlanReached, ShardLeft, StripesEnded, StripesFinished, facts_of
from lbg_runtime.core.restripe.records import StripeEnd, StripeFinish, StripePlan
from tests.core.restripe.gate_shell import (
    COMING,
    CONTROL_TOPIC,
    FINISH,
    FINISHED,
    GENERATION,
    LEAVING,
    LEFT,
    OTHER_LEAVING,
    PLAN,
    PREFIX,
    QUEUE_INDEX,
    SHAPE,
    STAYING,
    Queue,
    marker,
)


@pytest.fixture
def queue() -> Queue:
    return Queue.with_plan()


class TestWithoutAPlan:
    @pytest.mark.parametrize("content", [*range(6), "orders/new", "lbg/6/beyond", "lbg/02/no", CONTROL_TOPIC])
    def test_all_that_comes_is_the_queues_own(self, content: int | str) -> None:
        assert Queue().get(1, content) == ["pass 1"]

    def test_what_the_member_was_told_does_not_matter(self) -> None:
        queue = Queue()
        assert queue.learn(LEAVING, COMING) == []
        assert [queue.get(number, shard) for number, shard in ((1, LEAVING), (2, COMING))] == [["pass 1"], ["pass 2"]]

    def test_messages_of_other_topics_are_handled_whatever_goes_on(self, queue: Queue) -> None:
        queue.get(2, marker(LEAVING))
        assert queue.get(3, "orders/new") == ["pass 3"]


class TestAShardThatLeaves:
    def test_what_lies_before_the_marker_is_handled(self, queue: Queue) -> None:
        assert queue.get(2, LEAVING) == ["pass 2"]

    def test_with_nothing_in_flight_it_has_left_at_its_marker(self, queue: Queue) -> None:
        queue.get(2, LEAVING)
        queue.done(2)
        assert queue.get(3, marker(LEAVING)) == ["probe 1"]
        assert queue.reached(1) == [LEFT]

    def test_what_is_in_flight_at_the_marker_is_settled_first(self, queue: Queue) -> None:
        queue.get(2, LEAVING)
        queue.get(3, LEAVING)
        assert queue.get(4, marker(LEAVING)) == []
        assert queue.done(3) == []
        assert queue.done(2) == ["probe 1"]
        assert queue.reached(1) == [LEFT]

    def test_what_was_in_flight_before_the_plan_counts_too(self) -> None:
        queue = Queue()
        queue.get(1, LEAVING)
        queue.get(2, PLAN)
        assert queue.get(3, marker(LEAVING)) == []
        assert queue.done(1) == ["probe 1"]

    def test_what_is_in_flight_of_other_shards_does_not_hold_it(self, queue: Queue) -> None:
        queue.get(2, STAYING)
        queue.get(3, OTHER_LEAVING)
        queue.get(4, "orders/new")
        assert queue.get(5, marker(LEAVING)) == ["probe 1"]

    def test_what_lies_behind_the_marker_is_kept_until_it_has_left_and_then_dropped(self, queue: Queue) -> None:
        queue.get(2, LEAVING)
        queue.get(3, marker(LEAVING))
        assert (queue.get(4, LEAVING), queue.get(5, LEAVING), queue.gate.kept_count) == ([], [], 2)
        assert queue.done(2) == ["drop 4", "drop 5", "probe 1"]
        assert queue.gate.kept_count == 0
        assert queue.get(6, LEAVING) == ["drop 6"]

    def test_it_is_dropped_at_once_where_it_has_left(self, queue: Queue) -> None:
        queue.get(2, marker(LEAVING))
        assert queue.get(3, LEAVING) == ["drop 3"]

    def test_that_others_say_it_has_left_changes_nothing(self, queue: Queue) -> None:
        queue.get(2, LEAVING)
        queue.get(3, marker(LEAVING))
        queue.get(4, LEAVING)
        assert queue.learn(LEAVING) == []
        assert queue.done(2) == ["drop 4", "probe 1"]

    def test_another_shard_goes_on_meanwhile(self, queue: Queue) -> None:
        queue.get(2, LEAVING)
        queue.get(3, marker(LEAVING))
        assert queue.get(4, OTHER_LEAVING) == ["pass 4"]
        assert queue.get(5, marker(OTHER_LEAVING)) == []
        assert queue.done(4) == ["probe 1"]
        assert queue.done(2) == ["probe 2"]
        assert queue.reached(2) == [ShardLeft(PLAN, OTHER_LEAVING), LEFT], "a later echo answers the earlier probe too"


class TestAShardThatComes:
    @pytest.mark.parametrize("has_left", [False, True])
    def test_what_lies_before_the_marker_is_dropped(self, queue: Queue, has_left: bool) -> None:
        if has_left:
            queue.learn(COMING)
        assert queue.get(2, COMING) == ["drop 2"]

    def test_what_lies_behind_the_marker_waits_until_it_has_left_its_old_queue(self, queue: Queue) -> None:
        assert queue.get(2, marker(COMING)) == []
        assert (queue.get(3, COMING), queue.get(4, COMING), queue.gate.kept_count) == ([], [], 2)
        assert queue.learn() == []
        assert queue.learn(LEAVING) == []
        assert queue.learn(COMING) == ["pass 3", "pass 4"]
        assert (queue.get(5, COMING), queue.gate.kept_count) == (["pass 5"], 0)

    def test_it_does_not_wait_where_that_is_known_before_the_marker(self, queue: Queue) -> None:
        queue.learn(COMING)
        queue.get(2, marker(COMING))
        assert queue.get(3, COMING) == ["pass 3"]

    def test_it_has_left_a_queue_that_has_finished(self, queue: Queue) -> None:
        """All markers of the old queue are settled then: nobody may be left who can tell of this one shard."""
        queue.get(2, marker(COMING))
        queue.get(3, COMING)
        assert queue.learn(finished=[0, 2]) == []
        assert queue.learn(finished=[1], generation=GENERATION - 1) == []
        assert queue.learn(finished=[1]) == ["pass 3"], "queue 1 had it"

    def test_what_is_known_before_the_plan_counts(self) -> None:
        queue = Queue()
        queue.learn(COMING)
        queue.get(1, PLAN)
        queue.get(2, marker(COMING))
        assert queue.get(3, COMING) == ["pass 3"]

    def test_what_has_left_in_another_generation_counts_for_nothing(self, queue: Queue) -> None:
        queue.get(2, marker(COMING))
        queue.get(3, COMING)
        assert queue.learn(COMING, generation=GENERATION - 1) == []
        assert queue.learn(COMING, generation=GENERATION + 1) == []
        assert queue.learn(COMING) == ["pass 3"]

    def test_its_marker_is_no_news(self, queue: Queue) -> None:
        queue.get(2, marker(COMING))
        assert queue.reached(99) == []


class TestOtherShards:
    @pytest.mark.parametrize("shard", [STAYING, 1, 5])
    def test_a_shard_that_neither_leaves_nor_comes_is_handled_before_and_behind_everything(
        self, queue: Queue, shard: int
    ) -> None:
        """Also one that this queue has no business with: somebody has subscribed it by hand, and it is handled."""
        assert queue.get(2, shard) == ["pass 2"]
        assert queue.get(3, marker(shard)) == ["drop 3"]
        assert queue.get(4, shard) == ["pass 4"]

    def test_the_marker_of_a_shard_that_the_group_does_not_have_does_no_harm(self, queue: Queue) -> None:
        assert queue.get(2, marker(7)) == ["drop 2"]
        queue.get(3, marker(60_004))
        assert queue.get(4, FINISH)[:2] == ["drop 3", "drop 1"]


class TestTheFinish:
    def test_the_records_are_settled_behind_it_in_the_order_markers_plan_finish(self, queue: Queue) -> None:
        queue.get(2, marker(LEAVING))
        queue.get(3, marker(COMING))
        assert queue.get(4, FINISH) == ["drop 2", "drop 3", "drop 1", "drop 4", "probe 2"]
        assert queue.reached(2) == [LEFT, FINISHED]

    def test_everything_before_it_is_settled_first_of_whatever_shard_or_topic(self, queue: Queue) -> None:
        queue.get(2, marker(LEAVING))
        queue.get(3, STAYING)
        queue.get(4, "orders/new")
        assert queue.get(5, FINISH) == []
        assert queue.done(4) == []
        assert queue.done(3) == ["drop 2", "drop 1", "drop 5", "probe 2"]

    def test_shards_are_closing_as_long_as_something_before_it_is_not_settled(self, queue: Queue) -> None:
        """Nothing of them waits for others meanwhile."""
        queue.get(2, marker(COMING))
        for number, content in enumerate((STAYING, STAYING, OTHER_LEAVING, "orders/new", COMING), 3):
            queue.get(number, content)
        assert queue.gate.closing_shards == set()
        queue.get(8, FINISH)
        queue.get(9, LEAVING)
        assert queue.gate.closing_shards == {STAYING, OTHER_LEAVING, None, COMING}
        for number in (3, 5, 6):
            queue.done(number)
        assert queue.gate.closing_shards == {STAYING, COMING}
        for number in (7, 4):
            queue.done(number)
        assert queue.gate.closing_shards == set()

    def test_what_comes_behind_it_is_handled_and_not_waited_for(self, queue: Queue) -> None:
        queue.get(2, marker(COMING))
        queue.get(3, STAYING)
        queue.get(4, FINISH)
        assert [queue.get(number, shard) for number, shard in ((5, COMING), (6, STAYING), (7, LEAVING))] == [
            ["pass 5"],
            ["pass 6"],
            ["pass 7"],
        ]
        assert queue.done(6) == []
        assert queue.done(3) == ["drop 2", "drop 1", "drop 4", "probe 1"]

    def test_it_says_that_every_shard_has_left(self, queue: Queue) -> None:
        """No shard is kept in its old queue's subscriptions then, so this member is just the last to hear of it."""
        queue.get(2, marker(COMING))
        queue.get(3, COMING)
        assert queue.get(4, FINISH) == ["pass 3"]
        assert queue.done(3) == ["drop 2", "drop 1", "drop 4", "probe 1"]

    def test_what_is_dropped_at_it_is_not_waited_for(self, queue: Queue) -> None:
        queue.get(2, LEAVING)
        queue.get(3, marker(LEAVING))
        queue.get(4, LEAVING)
        assert queue.get(5, FINISH) == []
        assert queue.done(2) == ["drop 4", "probe 1", "drop 3", "drop 1", "drop 5", "probe 2"]
        assert queue.reached(1) == [LEFT]
        assert queue.reached(2) == [FINISHED]

    def test_with_its_plan_settled_it_waits_for_nothing_and_names_the_plan(self) -> None:
        """All before the first finish was settled before the plan was. Others may wait for what this queue says, and
        believe only who knows the plan."""
        queue = Queue()
        queue.get(1, STAYING)
        assert queue.get(2, FINISH) == [PlanReached(PLAN), "drop 2", "probe 1"]
        assert queue.reached(1) == [FINISHED]

    def test_one_that_was_published_again_does_not_disturb_the_next_re_striping(self) -> None:
        """It waited for what was in flight, took the next plan for its own and settled it, and ate its markers: copies
        were then handled out of both queues, and the queue stopped at the next marker."""
        queue = Queue()
        queue.get(1, STAYING)
        queue.get(2, FINISH)
        back = StripePlan(GENERATION + 1, 3, 2, "other")
        assert queue.get(3, back) == [PlanReached(back)]
        assert queue.get(4, LEAVING) == ["drop 4"], "it comes now"
        assert queue.get(5, marker(LEAVING, GENERATION + 1)) == []
        assert queue.done(1) == []
        assert queue.get(6, LEAVING) == []
        assert queue.learn(LEAVING, generation=GENERATION + 1) == ["pass 6"]

    def test_behind_it_the_queue_is_as_it_was(self, queue: Queue) -> None:
        queue.get(2, marker(COMING))
        queue.get(3, FINISH)
        assert [queue.get(number, number - 10) for number in range(10, 16)] == [
            [f"pass {number}"] for number in range(10, 16)
        ]

    def test_the_next_re_striping_begins_on_the_same_handle(self, queue: Queue) -> None:
        queue.get(2, marker(COMING))
        queue.get(3, FINISH)
        back = StripePlan(GENERATION + 1, 3, 2, "other")
        assert queue.get(4, back) == [PlanReached(back)]
        assert queue.get(5, COMING) == ["pass 5"]
        assert queue.get(6, marker(COMING, GENERATION + 1)) == []
        assert queue.done(5) == ["probe 2"]
        assert queue.reached(2) == [FINISHED, ShardLeft(back, COMING)]
        assert queue.get(7, LEAVING) == ["drop 7"], "the shards that left before come now"

    def test_a_shard_that_has_left_and_come_back_is_handled_until_its_next_marker(self, queue: Queue) -> None:
        """It is the same handle, and what lies before that marker is in no other queue."""
        queue.get(2, marker(LEAVING))
        queue.get(3, FINISH)
        queue.get(4, StripePlan(GENERATION + 1, 3, 2, "other"))
        queue.get(5, marker(LEAVING, GENERATION + 1))
        queue.get(6, StripeFinish(GENERATION + 1, 3, 2))
        queue.get(7, StripePlan(GENERATION + 2, 2, 3, "third"))
        assert queue.get(8, LEAVING) == ["pass 8"]

    def test_the_end_is_told_and_settled_at_once(self, queue: Queue) -> None:
        assert Queue().get(1, StripeEnd(GENERATION, 3)) == [StripesEnded(GENERATION, 3), "drop 1"]
        queue.get(2, STAYING)
        assert queue.get(3, StripeEnd(GENERATION, 3)) == [StripesEnded(GENERATION, 3), "drop 3"]


class TestAPlanUnderANewerName:
    """Who conducts found members who took the first one for old."""

    NEWER = StripePlan(GENERATION + 5, 2, 3, "other")

    def test_it_takes_the_place_of_the_old_one(self, queue: Queue) -> None:
        queue.get(2, LEAVING)
        assert queue.get(3, self.NEWER) == ["drop 1", PlanReached(self.NEWER)]
        assert queue.get(4, COMING) == ["drop 4"]
        assert queue.get(5, marker(LEAVING, GENERATION + 5)) == []
        assert queue.done(2) == ["probe 1"]
        assert queue.reached(1) == [ShardLeft(self.NEWER, LEAVING)]

    def test_a_new_handle_comes_to_the_same(self, queue: Queue) -> None:
        queue.get(2, self.NEWER)
        queue.next_handle()
        assert queue.get(1, PLAN) == [PlanReached(PLAN)]
        assert queue.get(2, self.NEWER) == ["drop 1", PlanReached(self.NEWER)]
        queue.next_handle()
        assert queue.get(2, self.NEWER) == [PlanReached(self.NEWER)]

    @pytest.mark.parametrize(
        "second",
        [
            StripePlan(GENERATION + 5, 2, 4, "other"),
            StripePlan(GENERATION + 5, 3, 2, "other"),
            StripePlan(6, 2, 3, "s"),
        ],
        ids=["to another number", "the other way", "older"],
    )
    def test_any_other_second_plan_stops_the_queue(self, queue: Queue, second: StripePlan) -> None:
        assert queue.get(2, second) == ["restripe_record_kept"]
        assert queue.get(3, STAYING) == []

    def test_behind_a_finish_that_is_waited_for_it_stops_the_queue(self, queue: Queue) -> None:
        queue.get(2, STAYING)
        queue.get(3, FINISH)
        assert queue.get(4, self.NEWER) == ["restripe_record_kept"]
        assert queue.get(5, STAYING) == []

    @pytest.mark.parametrize("shard", [LEAVING, COMING])
    def test_behind_a_marker_it_stops_the_queue(self, queue: Queue, shard: int) -> None:
        queue.get(2, marker(shard))
        assert queue.get(3, self.NEWER) == ["restripe_record_kept"]
        assert queue.get(4, STAYING) == []


class TestAPlanThatIsOlderThanWhatIsKnown:
    OLDER = StripePlan(GENERATION - 1, 3, 2, "other")

    def test_it_is_dropped_and_told_once(self, queue: Queue) -> None:
        queue.get(2, FINISH)
        assert queue.get(3, self.OLDER) == ["restripe_plan_outdated", "drop 3"]
        assert queue.get(4, self.OLDER) == ["drop 4"]
        assert queue.get(5, PLAN) == ["drop 5"], "which is not older"

    def test_it_counts_in_a_queue_that_had_none_and_is_told(self) -> None:
        """The queue is what decides; but the member goes by the newer one, and so does its journal."""
        queue = Queue()
        queue.learn()
        assert queue.get(1, self.OLDER) == ["restripe_plan_outdated"]
        assert queue.get(2, LEAVING) == ["drop 2"]

    def test_it_takes_the_place_of_a_still_older_one_which_is_settled(self) -> None:
        queue = Queue()
        queue.learn()
        queue.get(1, StripePlan(GENERATION - 2, 3, 2, "other"))
        assert queue.get(2, self.OLDER) == ["drop 1", "restripe_plan_outdated"]


def test_records_of_another_group_are_messages_like_any_other() -> None:
    queue = Queue(StripeGate(QUEUE_INDEX, SHAPE, "lbg-control/bills/restripe/"))
    assert queue.get(1, PLAN) == ["pass 1"]
    assert PREFIX.startswith(CONTROL_TOPIC)


@pytest.mark.parametrize(
    ("news", "name"),
    [(PlanReached(PLAN), "planned"), (LEFT, "left"), (FINISHED, "finished"), (StripesEnded(GENERATION, 3), "ended")],
)
def test_news_have_facts_for_the_log_without_the_secret(
    news: PlanReached | ShardLeft | StripesFinished | StripesEnded, name: str
) -> None:
    facts = facts_of(news)
    assert (facts["news"], facts["generation"]) == (name, GENERATION)
    assert PLAN.secret not in facts.values()
