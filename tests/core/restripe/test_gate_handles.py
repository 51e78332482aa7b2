"""What the gate makes of records that come again, on this handle or the next, and of those that make no sense."""

import json

import pytest

from lbg_runtime.core.restripe.news import PlanReached
from lbg_runtime.core.restripe.records import RECORD_VERSION, ShardMarker, StripeFinish, StripePlan
from tests.core.restripe.gate_shell import (
    COMING,
    FINISH,
    FINISHED,
    GENERATION,
    LEAVING,
    LEFT,
    PLAN,
    STAYING,
    Queue,
    marker,
)


@pytest.fixture
def queue() -> Queue:
    return Queue.with_plan()


class TestRecordsThatComeAgain:
    def test_a_second_plan_means_nothing(self, queue: Queue) -> None:
        assert queue.get(2, PLAN) == ["drop 2"]

    def test_the_first_marker_counts(self, queue: Queue) -> None:
        queue.get(2, LEAVING)
        queue.get(3, marker(LEAVING))
        assert queue.get(4, marker(LEAVING)) == ["drop 4"]
        queue.get(5, LEAVING)
        assert queue.done(2) == ["drop 5", "probe 1"]
        assert queue.get(6, marker(LEAVING)) == ["drop 6"]

    def test_a_marker_behind_the_finish_means_nothing(self, queue: Queue) -> None:
        queue.get(2, STAYING)
        queue.get(3, FINISH)
        assert queue.get(4, marker(LEAVING)) == ["drop 4"]
        assert queue.get(5, LEAVING) == ["pass 5"]

    def test_a_second_finish_means_nothing(self, queue: Queue) -> None:
        queue.get(2, STAYING)
        queue.get(3, FINISH)
        queue.get(4, STAYING)
        assert queue.get(5, FINISH) == ["drop 5"]
        assert queue.done(2) == ["drop 1", "drop 3", "probe 1"]

    @pytest.mark.parametrize("again", [PLAN, marker(LEAVING), FINISH])
    def test_nothing_of_a_generation_counts_behind_its_last_settlement(
        self, queue: Queue, again: StripePlan | ShardMarker | StripeFinish
    ) -> None:
        queue.get(2, FINISH)
        assert queue.get(3, again) == ["drop 3"]
        assert queue.get(4, LEAVING) == ["pass 4"]

    def test_that_holds_on_later_handles_once_the_broker_has_taken_it(self, queue: Queue) -> None:
        queue.get(2, FINISH)
        queue.reached(1)
        queue.next_handle()
        assert queue.get(1, PLAN) == ["drop 1"]
        assert queue.get(2, COMING) == ["pass 2"]

    def test_before_that_the_records_may_come_back_and_count(self, queue: Queue) -> None:
        queue.get(2, FINISH)
        queue.next_handle()
        assert queue.get(1, PLAN) == [PlanReached(PLAN)]


class TestANewHandle:
    def test_a_new_handle_decides_the_same_again(self, queue: Queue) -> None:
        stream = [(2, LEAVING), (3, marker(COMING)), (4, COMING), (5, marker(LEAVING)), (6, LEAVING), (7, STAYING)]
        first = [queue.get(number, content) for number, content in stream]
        queue.next_handle()
        assert queue.gate.kept_count == 0
        queue.get(1, PLAN)
        assert (
            [queue.get(number, content) for number, content in stream] == first == [["pass 2"], *[[]] * 4, ["pass 7"]]
        )
        assert queue.done(2) == ["drop 6", "probe 1"]

    def test_what_has_left_elsewhere_stays_known(self, queue: Queue) -> None:
        queue.learn(COMING)
        queue.next_handle()
        queue.get(1, PLAN)
        queue.get(2, marker(COMING))
        assert queue.get(3, COMING) == ["pass 3"]

    def test_a_shard_that_had_left_leaves_again(self, queue: Queue) -> None:
        queue.get(2, marker(LEAVING))
        queue.next_handle()
        queue.get(1, PLAN)
        assert queue.get(2, marker(LEAVING)) == ["probe 2"]

    def test_a_probe_of_the_handle_before_answers_nothing(self, queue: Queue) -> None:
        queue.get(2, marker(LEAVING))
        queue.next_handle()
        assert queue.reached(1) == []
        queue.get(1, PLAN)
        queue.get(2, marker(LEAVING))
        assert queue.reached(1) == [], "the probes of a gate are numbered on"
        assert queue.reached(2) == [LEFT]

    @pytest.mark.parametrize("settled", range(5))
    def test_any_settlements_of_the_records_may_be_lost_but_for_a_prefix(self, queue: Queue, settled: int) -> None:
        """All before the finish is settled by then. What lies behind it is handled, whatever is left of the records."""
        queue.get(2, marker(LEAVING))
        queue.get(3, marker(COMING))
        assert queue.get(4, FINISH)[:4] == ["drop 2", "drop 3", "drop 1", "drop 4"]
        queue.next_handle()
        left = {1: PLAN, 2: marker(LEAVING), 3: marker(COMING), 4: FINISH}
        for number in (2, 3, 1, 4)[:settled]:
            del left[number]
        for number, record in left.items():
            told = queue.get(number, record)
            assert "restripe_record_kept" not in told
        assert [queue.get(number, shard) for number, shard in ((5, COMING), (6, STAYING))] == [["pass 5"], ["pass 6"]]
        if settled < 4:
            assert FINISHED in queue.reached(99)


class TestTheQueueStops:
    """Behind what nobody can read nothing is handled: what it would have said of the messages is not known."""

    @pytest.mark.parametrize("payload", [b"", b"junk", json.dumps([RECORD_VERSION + 1, "marker", 7, 2]).encode()])
    def test_an_unreadable_record_stops_the_queue(self, queue: Queue, payload: bytes) -> None:
        assert queue.get(2, payload) == ["restripe_record_kept"]
        assert queue.get(3, STAYING) == []
        assert queue.get(4, "orders/new") == []
        assert queue.get(5, FINISH) == []
        assert queue.get(6, b"more") == [], "one note, not one for each"

    def test_a_marker_without_its_plan_stops_the_queue(self) -> None:
        queue = Queue()
        assert queue.get(1, marker(LEAVING)) == ["restripe_record_kept"]
        assert queue.get(2, STAYING) == []

    @pytest.mark.parametrize("generation", [GENERATION - 1, GENERATION + 1])
    @pytest.mark.parametrize("kind", ["plan", "marker", "finish"])
    def test_a_record_of_another_generation_in_mid_move_stops_the_queue(
        self, queue: Queue, kind: str, generation: int
    ) -> None:
        records = {
            "plan": StripePlan(generation, 3, 2, "other"),
            "marker": marker(LEAVING, generation),
            "finish": StripeFinish(generation, 3, 2),
        }
        assert queue.get(2, records[kind]) == ["restripe_record_kept"]
        assert queue.get(3, STAYING) == []

    def test_what_was_in_flight_ends_and_settles_nothing_more(self, queue: Queue) -> None:
        queue.get(2, LEAVING)
        queue.get(3, b"junk")
        assert queue.done(2) == []

    def test_what_comes_counts_for_the_cap(self, queue: Queue) -> None:
        queue.get(2, b"junk")
        queue.get(3, STAYING)
        queue.get(4, STAYING)
        assert queue.gate.kept_count == 3, "or a broken queue would be read to its end"

    def test_a_new_handle_looks_again(self, queue: Queue) -> None:
        """An operator has taken the record out of the queue."""
        queue.get(2, b"junk")
        queue.next_handle()
        queue.get(1, PLAN)
        assert (queue.get(3, STAYING), queue.gate.kept_count) == (["pass 3"], 0)
