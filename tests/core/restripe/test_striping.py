"""What a member knows of its group's stripes only grows, and what decides order is believed only with its proof."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_runtime.core.restripe.news import PlanReached, ShardLeft, StripesEnded, StripesFinished
from lbg_runtime.core.restripe.records import StripePlan
from lbg_runtime.core.restripe.striping import Striping, StripingBook, StripingReport, proof_of

COUNTS = {7: (4, 6), 8: (6, 3), 9: (3, 5)}
"""Of each generation: queues before and after. Members that read the same plan agree on them."""
SECRET = "s3cr3t"


def plan_of(generation: int, secret: str = SECRET) -> StripePlan:
    return StripePlan(generation, *COUNTS[generation], secret)


def left(generation: int, shard: int) -> ShardLeft:
    return ShardLeft(StripePlan(generation, 4, 6, SECRET), shard)


def under_way(generation: int, *left: int, finished: Sequence[int] = ()) -> Striping:
    return Striping(generation, *COUNTS[generation], frozenset(left), frozenset(finished))


def ended(generation: int) -> Striping:
    return Striping(generation, COUNTS[generation][1])


def proven(striping: Striping, secret: str = SECRET) -> StripingReport:
    return StripingReport(striping, proof_of(secret, striping) if striping.left or striping.finished else "")


def reader_of(generation: int = 7) -> StripingBook:
    """A member that has read the plan in one of its queues."""
    book = StripingBook(4, 64)
    assert book.see(PlanReached(plan_of(generation)), 0)
    return book


SHARDS = st.frozensets(st.integers(0, 11), max_size=4)
STRIPINGS = st.one_of(
    st.builds(
        lambda generation, left, finished: under_way(generation, *left, finished=sorted(finished)),
        st.sampled_from(sorted(COUNTS)),
        SHARDS,
        st.frozensets(st.integers(0, 5), max_size=3),
    ),
    st.builds(ended, st.sampled_from(sorted(COUNTS))),
    st.just(Striping(0, 4)),
)
REPORTS = st.one_of(
    STRIPINGS.map(proven),
    st.builds(StripingReport, STRIPINGS, st.text(max_size=70)),
    st.builds(proven, STRIPINGS, st.just("another secret")),
)


def test_at_first_the_settings_are_all_that_is_known() -> None:
    book = StripingBook(4, 64)
    assert book.now == Striping(0, 4)
    assert (book.now.queue_total, book.now.index_of(9)) == (4, 1)
    assert book.report() == StripingReport(Striping(0, 4), "")


def test_a_shard_belongs_to_its_new_queue_once_it_has_left_the_old_one() -> None:
    striping = under_way(7, 5)
    assert (striping.queue_total, striping.index_of(5), striping.index_of(4)) == (6, 5, 0)
    assert [ended(7).index_of(shard) for shard in (4, 5)] == [4, 5]
    finished = under_way(7, finished=[0])
    assert [finished.index_of(shard) for shard in (4, 5, 8)] == [4, 1, 2]


class TestWhatOurQueuesSay:
    def test_a_plan_begins_a_generation_once(self) -> None:
        book = StripingBook(4, 64)
        assert book.see(PlanReached(plan_of(7)), 0)
        assert not book.see(PlanReached(plan_of(7)), 0)
        assert book.now == under_way(7)

    def test_the_plan_of_an_older_generation_is_no_news(self) -> None:
        book = reader_of(8)
        assert not book.see(PlanReached(plan_of(7, "another secret")), 0)
        assert book.now == under_way(8)
        book.see(left(8, 5), 0)
        assert book.report() == proven(under_way(8, 5)), "which others believe, as it takes nobody's secret for it"

    def test_a_newer_plan_replaces_all_that_was_known(self) -> None:
        book = reader_of(7)
        book.see(left(7, 5), 0)
        book.see(StripesFinished(7, 4, 6), 0)
        assert book.see(PlanReached(plan_of(8)), 0)
        assert book.now == under_way(8)

    def test_a_shard_leaves_once_and_only_while_its_generation_is_under_way(self) -> None:
        book = reader_of()
        assert not book.see(left(6, 5), 0)
        assert not book.see(left(8, 5), 0)
        assert book.see(left(7, 5), 0)
        assert not book.see(left(7, 5), 0)
        book.see(StripesEnded(7, 6), 0)
        assert not book.see(left(7, 4), 0)
        assert book.now == ended(7)

    def test_a_queue_finishes_once(self) -> None:
        book = reader_of()
        assert book.see(StripesFinished(7, 4, 6), 2)
        assert not book.see(StripesFinished(7, 4, 6), 2)
        assert not book.see(StripesFinished(6, 4, 6), 3)
        assert book.now == under_way(7, finished=[2])

    def test_a_finish_alone_says_what_was_under_way(self) -> None:
        """The plan of a queue is settled before its finish: who binds the queue in between sees the finish only."""
        book = StripingBook(4, 64)
        assert book.see(StripesFinished(7, 4, 6), 2)
        assert book.now == under_way(7, finished=[2])

    def test_the_end_leaves_the_new_layout_and_nothing_else(self) -> None:
        book = reader_of()
        book.see(left(7, 5), 0)
        assert book.see(StripesEnded(7, 6), 0)
        assert not book.see(StripesEnded(7, 6), 0)
        assert not book.see(StripesFinished(7, 4, 6), 1)
        assert not book.see(PlanReached(plan_of(7)), 0), "a plan that comes again begins nothing anew"
        assert book.now == ended(7)
        assert StripingBook(4, 64).see(StripesEnded(7, 6), 0), "it may be the first that a member hears of it"

    def test_the_end_of_an_older_generation_ends_nothing(self) -> None:
        book = reader_of(8)
        assert not book.see(StripesEnded(7, 6), 0)
        assert book.now == under_way(8)


class TestWhatOthersSay:
    def test_what_has_left_is_believed_with_the_proof(self) -> None:
        book, teller = reader_of(), reader_of()
        teller.see(left(7, 5), 0)
        assert teller.report() == proven(under_way(7, 5))
        assert book.hear(teller.report())
        assert not book.hear(teller.report())
        assert book.now.left == {5}

    def test_the_proof_of_what_is_known_already_is_not_looked_at(self, monkeypatch: pytest.MonkeyPatch) -> None:
        book, said = reader_of(), proven(under_way(7, 5, 9, finished=[0]))
        looked: list[Striping] = []

        def look(secret: str, seen: Striping) -> str:
            looked.append(seen)
            return proof_of(secret, seen)

        monkeypatch.setattr("lbg_runtime.core.restripe.striping.proof_of", look)
        assert book.hear(said)
        assert not book.hear(said)
        assert not book.hear(proven(under_way(7, 9)))
        assert looked == [said.striping]

    def test_what_was_known_of_an_older_generation_is_not_known_of_a_newer_one(self) -> None:
        book = reader_of()
        assert book.see(left(7, 5), 0)
        book.trust(plan_of(8))
        assert book.hear(proven(under_way(8, 5)))
        assert book.now == under_way(8, 5)

    @pytest.mark.parametrize(
        "proof",
        [
            "",
            "0" * 64,
            "p\u00e4ss",
            proof_of("another secret", under_way(7, 5)),
            proof_of(SECRET, under_way(8, 5)),
            proof_of(SECRET, under_way(7, 5, 9)),
            proof_of(SECRET, under_way(7, 5, finished=[0])),
            proof_of(SECRET, under_way(7, finished=[5])),
            proof_of(SECRET, under_way(7)),
            proof_of(SECRET, under_way(7, 5))[:-1],
            proof_of(SECRET, under_way(7, 5)).upper(),
        ],
    )
    def test_what_has_left_is_not_believed_with_any_other_proof(self, proof: str) -> None:
        book = reader_of()
        assert not book.hear(StripingReport(under_way(7, 5), proof))
        assert book.now == under_way(7)

    def test_a_proof_does_not_stretch_to_more_shards(self) -> None:
        book = reader_of()
        said = proven(under_way(7, 5))
        assert not book.hear(replace(said, striping=under_way(7, 5, 9)))
        assert not book.hear(replace(said, striping=under_way(7)))
        assert not book.hear(replace(said, striping=under_way(7, 5, finished=[1])))
        assert book.now == under_way(7)

    def test_that_a_queue_has_finished_needs_the_proof_too(self) -> None:
        """For who handles the shards that came from it, it says that they have left."""
        book, teller = reader_of(), reader_of()
        teller.see(StripesFinished(7, 4, 6), 1)
        assert not book.hear(StripingReport(under_way(7, finished=[1]), ""))
        assert teller.report() == proven(under_way(7, finished=[1]))
        assert book.hear(teller.report())
        assert book.now == under_way(7, finished=[1])

    def test_what_has_left_is_not_believed_before_the_plan_was_read(self) -> None:
        book = StripingBook(4, 64)
        said = proven(under_way(7, 5, finished=[1]))
        assert book.hear(said)
        assert book.now == under_way(7)
        book.see(PlanReached(plan_of(7)), 0)
        assert book.hear(said), "the next heartbeat says it again"
        assert book.now == under_way(7, 5, finished=[1])

    def test_a_member_that_does_not_know_the_secret_says_of_no_queue_that_it_has_finished(self) -> None:
        book = StripingBook(4, 64)
        book.see(StripesFinished(7, 4, 6), 1)
        assert book.now == under_way(7, finished=[1])
        assert book.report() == StripingReport(under_way(7), "")

    def test_a_report_of_more_queues_than_shards_is_not_believed(self) -> None:
        book = StripingBook(4, hash_count=5)
        assert not book.hear(proven(under_way(7)))
        assert not book.hear(proven(ended(7)))
        assert book.hear(proven(ended(8)))
        assert book.now == ended(8)

    def test_who_trusts_a_plan_hears_what_has_left_and_does_not_take_it_for_under_way(self) -> None:
        book = StripingBook(4, 64)
        book.trust(plan_of(7))
        assert book.now == Striping(0, 4)
        book.hear(proven(under_way(7, 5)))
        assert book.now == under_way(7, 5)

    def test_a_trusted_plan_proves_nothing_of_another_generation(self) -> None:
        book = StripingBook(4, 64)
        book.trust(plan_of(8))
        book.hear(proven(under_way(7, 5)))
        assert book.now == under_way(7)

    def test_a_newer_generation_replaces_and_an_older_one_changes_nothing(self) -> None:
        book = reader_of()
        book.see(left(7, 5), 0)
        assert book.hear(proven(under_way(8)))
        assert not book.hear(proven(under_way(7, 5, 9)))
        assert not book.hear(proven(ended(7)))
        assert book.now == under_way(8)

    def test_what_is_over_for_one_is_over_for_all(self) -> None:
        book = reader_of()
        book.see(left(7, 5), 0)
        assert book.hear(proven(ended(7)))
        assert not book.hear(proven(under_way(7, 5)))
        assert book.now == ended(7)


class TestDisagreement:
    @pytest.mark.parametrize(
        ("ours", "theirs", "disagree"),
        [
            (Striping(0, 4), Striping(0, 6), True),
            (Striping(0, 4), Striping(0, 4), False),
            (Striping(0, 4), Striping(7, 6), False),
            (Striping(7, 6), Striping(0, 4), False),
            (Striping(7, 4, 6), Striping(0, 6), False),
            (Striping(7, 6), Striping(7, 4, 6), False),
        ],
    )
    def test_only_members_that_know_of_no_re_striping_disagree(
        self, ours: Striping, theirs: Striping, disagree: bool
    ) -> None:
        book = StripingBook(ours.queue_count, 64)
        book.now = ours
        assert book.disagrees(StripingReport(theirs, "")) is disagree


# -- whatever is heard, in whatever order


def knows_as_much(after: Striping, before: Striping) -> bool:
    """Whether nothing that was known is forgotten."""
    if after.generation != before.generation:
        return after.generation > before.generation
    if after.target is None:
        return after.queue_count == (before.target or before.queue_count)
    is_same = before.target is not None and (after.queue_count, after.target) == (before.queue_count, before.target)
    return is_same and after.left >= before.left and after.finished >= before.finished


def heard(reports: Sequence[StripingReport], generation: int) -> Striping:
    book = reader_of(generation)
    for report in reports:
        before = book.now
        assert book.hear(report) == (book.now != before), "says whether it was news"
        assert knows_as_much(book.now, before)
    return book.now


@given(st.lists(REPORTS, max_size=6), st.sampled_from(sorted(COUNTS)), st.data())
def test_reports_may_come_late_twice_and_in_any_order(
    reports: list[StripingReport], generation: int, data: st.DataObject
) -> None:
    repeats = data.draw(st.lists(st.sampled_from(reports), max_size=4)) if reports else []
    other_order = data.draw(st.permutations(reports + repeats))
    assert heard(reports, generation) == heard(other_order, generation)


@given(st.lists(REPORTS, max_size=6), st.sampled_from(sorted(COUNTS)))
def test_members_that_have_read_the_plan_teach_each_other_all_they_know(
    reports: list[StripingReport], generation: int
) -> None:
    teacher, pupil = reader_of(generation), reader_of(generation)
    for report in reports:
        teacher.hear(report)
    pupil.hear(teacher.report())
    assert pupil.now == teacher.now


@given(st.lists(REPORTS, max_size=6))
def test_nothing_has_left_unless_somebody_who_knows_the_plan_says_so(reports: list[StripingReport]) -> None:
    honest = [report.striping for report in reports if report == proven(report.striping)]
    known = heard(reports, 7)
    assert known.left <= {shard for striping in honest for shard in striping.left}
    assert known.finished <= {queue for striping in honest for queue in striping.finished}


@given(st.lists(REPORTS | st.sampled_from(["plan 7", "plan 9", "left", "finished", "ended"]), max_size=12))
def test_what_is_known_only_grows_whoever_says_it(happenings: list[StripingReport | str]) -> None:
    book = StripingBook(4, 64)
    for happening in happenings:
        before = book.now
        match happening:
            case StripingReport():
                is_news = book.hear(happening)
            case "left":
                is_news = book.see(left(book.now.generation, 5), 0)
            case "finished":
                is_news = book.see(StripesFinished(8, *COUNTS[8]), 2)
            case "ended":
                is_news = book.see(StripesEnded(8, COUNTS[8][1]), 0)
            case _:
                is_news = book.see(PlanReached(plan_of(int(happening[-1]))), 0)
        assert is_news == (book.now != before)
        assert knows_as_much(book.now, before)


def test_who_has_heard_the_same_in_another_order_has_the_same_proof() -> None:
    first, then = under_way(7, 0, 8), under_way(7, 8, 0)
    assert [*first.left] != [*then.left], "sets that were filled in another order"
    assert proof_of(SECRET, first) == proof_of(SECRET, then)


def test_the_shards_of_a_queue_that_has_finished_have_moved_whoever_told_so() -> None:
    assert Striping(7, 2, 3, left=frozenset({2})).moves(12) == (8, 1)
    assert Striping(7, 2, 3, finished=frozenset({0, 1})).moves(12) == (8, 8)
    assert Striping(7, 3).moves(12) == (0, 0)


def test_a_report_of_as_many_queues_as_shards_is_believed_and_of_one_more_is_not() -> None:
    for queue_total, is_believed in ((8, True), (9, False)):
        book = StripingBook(4, hash_count=8)
        assert book.hear(StripingReport(Striping(7, 4, queue_total), "")) is is_believed
