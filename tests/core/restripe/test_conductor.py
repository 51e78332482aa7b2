"""From wherever a re-striping stands, its conductor brings it to its end, and in the order that makes it safe.

Over 400 lines, as all of them share the one group whose steps are written out here.
"""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lbg_runtime.core.restripe.conductor import (
    LOOKS_PER_RECORD,
    MAX_BACKLOG,
    Conductor,
    CreateQueue,
    DeleteQueue,
    Done,
    Publish,
    Sight,
    Step,
    Subscribe,
    Unsubscribe,
    Wait,
)
from lbg_runtime.core.restripe.records import (
    ShardMarker,
    StripeEnd,
    StripeFinish,
    StripePlan,
    record_topic,
)
from lbg_runtime.core.restripe.striping import Striping
from lbg_runtime.model.errors import UserError
from tests.core.restripe.conductor_world import (
    CONTROL_TOPIC,
    GENERATION,
    HASH_COUNT,
    MESSAGES,
    MOST_STEPS,
    Group,
    at,
    conduct,
    measured,
)

WAYS = [(8, 12), (12, 6), (1, 5), (5, 1), (3, 4), (2, 1)]


@pytest.mark.parametrize(("from_count", "to_count"), WAYS)
class TestAllTheWay:
    def test_it_ends_with_the_new_layout(self, from_count: int, to_count: int) -> None:
        group = Group(from_count, to_count)
        conductor = group.conductor()
        steps = list(conduct(group, conductor))
        assert steps == group.steps
        assert len(steps) == len(set(steps)), "nothing is done twice where nobody dies"
        assert steps[0] == Subscribe(0, group.topic)
        assert steps[-1] == Unsubscribe(0, group.topic)
        assert conductor.next_step(group.sight()) == Done(), "and is done for good"

    def test_who_follows_at_any_point_ends_it(self, from_count: int, to_count: int) -> None:
        """Its predecessor died before the step, after it, or after it without having noted it."""
        whole = Group(from_count, to_count)
        for last in conduct(whole, whole.conductor()):
            for is_done in (False, True):
                group = whole.copied()
                if is_done:
                    group.do(last)
                list(conduct(group, group.conductor()))

    def test_who_follows_when_all_members_have_started_anew_ends_it(self, from_count: int, to_count: int) -> None:
        whole = Group(from_count, to_count)
        for _ in conduct(whole, whole.conductor()):
            group = whole.copied()
            group.forget()
            list(conduct(group, group.conductor()))

    def test_a_new_one_for_every_step_ends_it(self, from_count: int, to_count: int) -> None:
        """It has no notes, so it publishes some records again and again until the members have read them."""
        group = Group(from_count, to_count)
        for _ in range(MOST_STEPS):
            conductor = group.conductor()
            step = conductor.next_step(measured(group.sight(), conductor))
            if isinstance(step, Done):
                break
            if not isinstance(step, Wait):
                group.do(step)
            group.look()
        group.check_done()


@pytest.mark.parametrize(("from_count", "to_count"), WAYS)
def test_a_queue_beyond_both_layouts_is_left_alone_and_nobody_waits_for_it(from_count: int, to_count: int) -> None:
    """It may be somebody else's, and full; whoever follows at any point is to see that as well."""
    steps = conduct(alone := Group(from_count, to_count), alone.conductor())
    whole = Group(from_count, to_count)
    whole.foreign[whole.plan.queue_total] = {"invoices/>"}
    for step, expected in zip(conduct(whole, whole.conductor()), steps, strict=True):
        assert step == expected
        group = whole.copied()
        list(conduct(group, group.conductor()))
        assert group.foreign == {group.plan.queue_total: {"invoices/>"}}


def test_a_queue_beyond_both_layouts_that_has_the_topic_of_the_records_keeps_nobody_from_the_finish() -> None:
    group = Group(2, 3, hash_count=3)
    group.foreign[3] = {group.topic}
    conductor = at(group, Publish(StripeFinish(GENERATION, 2, 3)))
    assert conductor.next_step(measured(group.sight(), conductor)) == Wait(
        "the members to read the finish in orders/0, orders/1, orders/2"
    )


MISHAPS = ["none", "none", "none", "new conductor", "again", "look", "forget", "lost"]


@settings(deadline=None, max_examples=100)
@given(st.sampled_from(WAYS), st.lists(st.sampled_from(MISHAPS), max_size=150))
def test_it_ends_whoever_dies_whenever(way: tuple[int, int], mishaps: list[str]) -> None:
    group = Group(*way)
    conductor = group.conductor()
    for mishap in [*mishaps, *["none"] * MOST_STEPS]:
        match mishap:
            case "new conductor":
                conductor = group.conductor()
            case "look":
                group.look()
            case "forget":
                group.forget()
            case _:
                pass
        step = conductor.next_step(measured(group.sight(), conductor))
        if isinstance(step, Done):
            break
        if isinstance(step, Wait):
            group.look()
            continue
        if mishap != "lost":
            group.do(step)
        if mishap == "again":
            group.do(step)
        if mishap == "lost":
            conductor = group.conductor()
        else:
            conductor.did(step)
    group.check_done()


class TestTheSteps:
    def test_of_more_queues(self) -> None:
        group = Group(1, 2, hash_count=2)
        assert list(conduct(group, group.conductor())) == [
            Subscribe(0, group.topic),
            CreateQueue(1),
            Subscribe(1, group.topic),
            Publish(group.plan),
            Subscribe(1, "lbg/1/>"),
            Publish(ShardMarker(GENERATION, 1)),
            Unsubscribe(0, "lbg/1/>"),
            Publish(StripeFinish(GENERATION, 1, 2)),
            Publish(StripeEnd(GENERATION, 2)),
            Unsubscribe(1, group.topic),
            Unsubscribe(0, group.topic),
        ]

    def test_of_fewer_queues(self) -> None:
        group = Group(2, 1, hash_count=2)
        assert list(conduct(group, group.conductor())) == [
            Subscribe(0, group.topic),
            Subscribe(1, group.topic),
            Publish(group.plan),
            Subscribe(0, "lbg/1/>"),
            Publish(ShardMarker(GENERATION, 1)),
            Unsubscribe(1, "lbg/1/>"),
            Publish(StripeFinish(GENERATION, 2, 1)),
            Unsubscribe(1, group.topic),
            Publish(StripeEnd(GENERATION, 1)),
            DeleteQueue(1),
            Unsubscribe(0, group.topic),
        ]

    def test_the_end_is_published_again_while_a_queue_cannot_be_deleted(self) -> None:
        """Whoever had read it, and told who conducts, may have died before it told the members that live."""
        group = Group(2, 1, hash_count=2)
        conductor = at(group, Publish(StripeEnd(GENERATION, 1)))
        group.look()
        looks = [conductor.next_step(group.sight()) for _ in range(2 * LOOKS_PER_RECORD + 4)]
        assert set(looks) == {DeleteQueue(1), Publish(StripeEnd(GENERATION, 1))}
        assert looks.count(Publish(StripeEnd(GENERATION, 1))) == 2

    def test_so_it_is_by_who_follows_and_has_never_published_it(self) -> None:
        group = Group(2, 1, hash_count=2)
        at(group, Publish(StripeEnd(GENERATION, 1)))
        group.look()
        follower = group.conductor()
        looks = [follower.next_step(group.sight()) for _ in range(LOOKS_PER_RECORD + 2)]
        assert looks.count(Publish(StripeEnd(GENERATION, 1))) == 1

    def test_only_shards_that_change_their_queue_are_moved_one_after_the_other(self) -> None:
        group = Group(3, 4, hash_count=8)
        conductor = group.conductor()
        assert [move.shard for move in conductor.moves] == [3, 4, 5, 6, 7]
        assert conductor.moved_count(group.sight()) == 0
        moves = [step.topic for step in conduct(group, conductor) if isinstance(step, Unsubscribe)]
        assert moves[:5] == [f"lbg/{shard}/>" for shard in (3, 4, 5, 6, 7)]
        assert conductor.moved_count(group.sight()) == 5

    def test_who_reminds_members_publishes_the_finish_again_for_those_that_have_been_restarted_since(self) -> None:
        """They own only the queues that they know of, in which the plan may be settled."""
        group = Group(2, 2)
        conductor = at(group, Publish(StripeFinish(GENERATION, 2, 2)))
        sight = replace(group.sight(), owned={0}, striping=Striping(GENERATION, 2, 2, finished=frozenset({0})))
        looks = [conductor.next_step(sight) for _ in range(LOOKS_PER_RECORD + 2)]
        assert looks.count(Publish(StripeFinish(GENERATION, 2, 2))) == 1

    def test_a_plan_that_moves_nothing_is_renewed_as_long_as_it_cannot_have_been_published(self) -> None:
        group = Group(2, 2)
        conductor = at(group, Subscribe(0, group.topic))
        renewed = StripePlan(GENERATION + 3, 2, 2, "s3cr3t")
        sight = replace(group.sight(), striping=Striping(GENERATION + 2, 1))
        assert conductor.next_step(sight) == Subscribe(0, record_topic(CONTROL_TOPIC, renewed))

    def test_a_plan_that_moves_nothing_is_not_renewed_behind_a_finish_that_may_be_there(self) -> None:
        group = Group(2, 2)
        at(group, Publish(StripeFinish(GENERATION, 2, 2)))
        sight = replace(group.sight(), striping=Striping(GENERATION + 2, 1))
        with pytest.raises(UserError, match="all members stopped"):
            group.conductor().next_step(sight)

    def test_of_as_many_queues_as_there_are_moves_nothing_and_is_read_by_all_members(self) -> None:
        group = Group(2, 2)
        assert list(conduct(group, group.conductor())) == [
            Subscribe(0, group.topic),
            Subscribe(1, group.topic),
            Publish(group.plan),
            Publish(StripeFinish(GENERATION, 2, 2)),
            Publish(StripeEnd(GENERATION, 2)),
            Unsubscribe(1, group.topic),
            Unsubscribe(0, group.topic),
        ]


def waits_for(conductor: Conductor, sight: Sight) -> str:
    step = conductor.next_step(sight)
    assert isinstance(step, Wait)
    return step.for_what


class TestWaiting:
    @pytest.fixture
    def group(self) -> Group:
        return Group(2, 3, hash_count=6)

    def test_nothing_is_published_before_the_members_say_how_far_they_are(self, group: Group) -> None:
        conductor = at(group, Subscribe(2, group.topic))
        assert waits_for(conductor, group.sight()) == "the members to say how far they are"
        group.look()
        assert conductor.next_step(group.sight()) == Publish(group.plan)

    def test_a_plan_that_is_known_is_not_published_again(self, group: Group) -> None:
        at(group, Publish(group.plan))
        group.look()
        assert group.conductor().next_step(group.sight()) == Subscribe(2, "lbg/2/>")

    def test_a_record_that_nobody_says_to_have_read_is_published_again(self, group: Group) -> None:
        conductor = at(group, Publish(group.plan))
        for _ in range(LOOKS_PER_RECORD):
            assert waits_for(conductor, group.sight()) == "the members to read the plan"
        assert conductor.next_step(group.sight()) == Publish(group.plan)
        conductor.did(Publish(group.plan))
        assert waits_for(conductor, group.sight()) == "the members to read the plan"

    def test_a_publication_that_failed_is_repeated_at_once(self, group: Group) -> None:
        conductor = at(group, Subscribe(2, group.topic))
        group.look()
        assert [conductor.next_step(group.sight()) for _ in range(2)] == [Publish(group.plan)] * 2

    def test_every_queue_has_an_owner_before_a_shard_moves(self, group: Group) -> None:
        conductor = at(group, Publish(group.plan))
        group.look()
        sight = group.sight()
        assert waits_for(conductor, seen(sight, owned={0, 2})) == "an owner of queue orders/1"
        assert conductor.next_step(sight) == Subscribe(2, "lbg/2/>")

    def test_a_long_queue_is_worked_off_before_a_shard_leaves_it(self, group: Group) -> None:
        conductor = at(group, Publish(group.plan))
        group.look()
        sight = group.sight()
        plan_alone = 1
        full, nearly_full = ({**sight.depths, 0: MAX_BACKLOG + plan_alone + more} for more in (1, 0))
        expected = "queue orders/0 to have fewer than 1000 messages besides records"
        assert waits_for(conductor, seen(sight, full)) == expected
        assert conductor.next_step(seen(sight, nearly_full)) == Subscribe(2, "lbg/2/>")
        others = {**sight.depths, 1: MAX_BACKLOG + 1, 2: MAX_BACKLOG + 1}
        assert conductor.next_step(seen(sight, others)) == Subscribe(2, "lbg/2/>")

    def test_records_of_other_queues_make_no_room_for_a_backlog(self, group: Group) -> None:
        conductor = at(group, Unsubscribe(0, "lbg/2/>"))
        sight = group.sight()
        plan_alone = 1
        full, nearly_full = ({1: MAX_BACKLOG + plan_alone + more} for more in (1, 0))
        assert waits_for(conductor, seen(sight, full)).startswith("queue orders/1 to have fewer than 1000 messages")
        assert conductor.next_step(seen(sight, nearly_full)) == Subscribe(0, "lbg/3/>")

    @pytest.mark.parametrize(("from_count", "to_count"), WAYS)
    def test_records_that_stay_until_the_finish_are_no_backlog(
        self, from_count: int, to_count: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With as many markers in a queue as messages that are too many, it waited for them for ever."""
        monkeypatch.setattr("lbg_runtime.core.restripe.conductor.MAX_BACKLOG", MESSAGES)
        group = Group(from_count, to_count)
        list(conduct(group, group.conductor()))
        assert group.published(StripeEnd)

    @pytest.mark.parametrize(("from_count", "to_count"), WAYS)
    def test_a_plan_says_how_many_markers_each_queue_keeps_until_the_finish(
        self, from_count: int, to_count: int
    ) -> None:
        group = Group(from_count, to_count)
        finish = StripeFinish(GENERATION, from_count, to_count)
        for step in conduct(group, group.conductor()):
            if step == Publish(finish):
                break
        markers = group.plan.marker_counts(HASH_COUNT)
        assert [group.records()[index] for index in group.queues] == [1 + markers[index] for index in group.queues]

    def test_a_move_that_has_begun_goes_on_however_long_the_queue_is(self, group: Group) -> None:
        conductor = at(group, Subscribe(2, "lbg/2/>"))
        full = seen(group.sight(), dict.fromkeys(range(3), MAX_BACKLOG + 1))
        assert conductor.next_step(full) == Publish(ShardMarker(GENERATION, 2))

    def test_of_all_queues_only_the_one_that_the_next_shard_leaves_is_measured(self, group: Group) -> None:
        conductor = at(group, Publish(group.plan))
        assert conductor.queues_to_measure(group.sight()) == [], "nobody has read the plan"
        group.look()
        assert conductor.queues_to_measure(group.sight()) == [0]
        conductor = at(group, Subscribe(2, "lbg/2/>"))
        assert conductor.queues_to_measure(group.sight()) == [], "its move has begun"
        conductor = at(group, Unsubscribe(0, "lbg/2/>"))
        assert conductor.queues_to_measure(group.sight()) == [1], "the next one is shard 3"

    def test_in_the_end_queues_that_are_not_needed_are_measured_until_it_is_over(self) -> None:
        group = Group(3, 1, hash_count=6)
        conductor = at(group, Unsubscribe(2, group.topic))
        assert conductor.queues_to_measure(group.sight()) == [], "one still has the topic of the records"
        conductor = at(group, Unsubscribe(1, group.topic))
        assert conductor.queues_to_measure(group.sight()) == [1, 2]
        conductor = at(group, Publish(StripeEnd(GENERATION, 1)))
        group.look()
        assert conductor.queues_to_measure(group.sight()) == []

    def test_a_shard_is_unsubscribed_when_its_old_queue_is_done_with_it(self, group: Group) -> None:
        conductor = at(group, Publish(ShardMarker(GENERATION, 2)))
        assert waits_for(conductor, group.sight()) == "shard 2 to be handled up to its marker in queue orders/0"
        group.look()
        assert conductor.next_step(group.sight()) == Unsubscribe(0, "lbg/2/>")

    def test_the_finish_is_read_by_every_queue_before_anything_is_cleaned_up(self, group: Group) -> None:
        conductor = at(group, Publish(StripeFinish(GENERATION, 2, 3)))
        said = Striping(GENERATION, 2, 3, frozenset(range(6)), frozenset({0, 2}))
        assert waits_for(conductor, seen(group.sight(), said=said)) == "the members to read the finish in orders/1"
        before = Striping(GENERATION - 1, 1, 3, finished=frozenset({0, 1, 2}))
        assert "orders/0, orders/1, orders/2" in waits_for(conductor, seen(group.sight(), said=before))
        everybody = Striping(GENERATION, 2, 3, finished=frozenset({0, 1, 2}))
        assert conductor.next_step(seen(group.sight(), said=everybody)) == Publish(StripeEnd(GENERATION, 3))

    def test_of_many_queues_without_the_finish_some_are_named(self) -> None:
        group = Group(7, 8)
        conductor = at(group, Publish(StripeFinish(GENERATION, 7, 8)))
        said = Striping(GENERATION, 7, 8, finished=frozenset({0, 2, 4}))
        named = "orders/1, orders/3, orders/5 and 2 more"
        assert waits_for(conductor, seen(group.sight(), said=said)) == f"the members to read the finish in {named}"

    def test_queues_that_are_not_needed_are_emptied_before_the_end(self) -> None:
        group = Group(3, 2, hash_count=6)
        conductor = at(group, Unsubscribe(2, group.topic))
        sight = group.sight()
        assert waits_for(conductor, seen(sight, {0: 9, 1: 9, 2: 1})) == "queue orders/2 to be empty"
        assert conductor.next_step(seen(sight, {0: 9, 1: 9, 2: 0})) == Publish(StripeEnd(GENERATION, 2))


def seen(
    sight: Sight, depths: dict[int, int] | None = None, owned: set[int] | None = None, said: Striping | None = None
) -> Sight:
    return Sight(
        sight.subscriptions,
        sight.depths if depths is None else depths,
        sight.owned if owned is None else owned,
        said or sight.striping,
    )


class TestWhatNoStepLeaves:
    def test_a_queue_of_the_old_layout_is_missing(self) -> None:
        group = Group(3, 4)
        conductor = at(group, Publish(group.plan))
        group.look()
        del group.queues[0]
        with pytest.raises(UserError, match="orders/0: no such queue"):
            conductor.next_step(measured(group.sight(), conductor))

    def test_nobody_subscribes_to_a_shard_that_moves(self) -> None:
        group = Group(3, 4)
        conductor = at(group, Publish(group.plan))
        group.look()
        group.queues[0].remove("lbg/3/>")
        with pytest.raises(UserError, match="neither orders/0 nor orders/3 subscribes to it") as raised:
            conductor.next_step(group.sight())
        assert raised.value.where == "lbg/3/>"


class TestAPlanThatMembersTakeForOld:
    """They know of a newer one: it was named by a clock that is behind."""

    @pytest.fixture
    def group(self) -> Group:
        group = Group(2, 3, hash_count=3)
        group.said = Striping(GENERATION + 5, 2)
        return group

    def renewed(self) -> StripePlan:
        return StripePlan(GENERATION + 6, 2, 3, "s3cr3t")

    def test_one_that_is_told_nobody_gets_a_newer_name(self, group: Group) -> None:
        steps = list(conduct(group, group.conductor()))
        assert steps[0] == Subscribe(0, record_topic(CONTROL_TOPIC, self.renewed()))
        assert next(step.record for step in steps if isinstance(step, Publish)) == self.renewed()

    def test_one_under_way_is_renewed_in_all_queues_before_it_is_published(self, group: Group) -> None:
        old, new = group.topic, record_topic(CONTROL_TOPIC, self.renewed())
        group.queues[2] = set()
        for topics in group.queues.values():
            topics.add(old)
        assert list(conduct(group, group.conductor()))[:8] == [
            *(Subscribe(index, new) for index in range(3)),
            *(Unsubscribe(index, old) for index in range(3)),
            Publish(self.renewed()),
            Subscribe(2, "lbg/2/>"),
        ]

    def test_who_follows_at_any_point_ends_it(self) -> None:
        for died_at in range(25):
            for is_done in (False, True):
                group = Group(2, 3, hash_count=3)
                list_of_steps = conduct(group, group.conductor())
                for _ in range(4):
                    next(list_of_steps)
                group.said = Striping(GENERATION + 5, 2)
                steps = conduct(group, group.conductor())
                last = [step for step, _ in zip(steps, range(died_at + 1), strict=False)][-1]
                if is_done:
                    group.do(last)
                list(conduct(group, group.conductor()))
                assert group.plan == self.renewed()

    @pytest.mark.parametrize("last", [Subscribe(2, "lbg/2/>"), Unsubscribe(0, "lbg/2/>")])
    def test_in_mid_move_nothing_is_safe_and_who_conducts_gives_up(self, last: Step) -> None:
        """Some queues may have the old plan with its marker, and a second plan there stops them. One is enough."""
        group = Group(2, 3, hash_count=6)
        conductor = at(group, last)
        group.said = Striping(GENERATION + 5, 2)
        with pytest.raises(UserError, match=r"members ignore .* all members stopped before any is started again"):
            conductor.next_step(group.sight())

    def test_there_is_a_largest_name(self, group: Group) -> None:
        group.said = Striping(2**63 - 1, 2)
        with pytest.raises(UserError, match="know of a re-striping of generation 9223372036854775807"):
            group.conductor().next_step(group.sight())
