from lbg_runtime.model.record import FlowRecord
from lbg_runtime.testing.cut_offs import CutOffs

S = 1_000_000_000


def flow(event: str, at_s: float, queue: int = 0, epoch: int = 1) -> FlowRecord:
    moment = round(at_s * S)
    return FlowRecord(queue, epoch, event, "primary", "", moment // 1_000, moment)  # type: ignore[arg-type]


def events(cut_offs: CutOffs) -> list[tuple[str, float]]:
    return [(record.event, record.mono_ns / S) for record in cut_offs.flows]


def test_a_handle_is_inactive_from_the_cut_on_not_from_when_its_member_was_told() -> None:
    cut_offs = CutOffs([flow("bound", 1), flow("active", 2), flow("inactive", 30)], [10 * S], [30 * S])
    assert events(cut_offs) == [("bound", 1), ("active", 2), ("inactive", 10)]


def test_what_is_done_between_the_two_is_judged_as_if_done_at_the_cut() -> None:
    cut_offs = CutOffs([flow("active", 2), flow("inactive", 30)], [10 * S], [30 * S])
    assert cut_offs.judged_span(0, 1, 5 * S, 8 * S) == (5 * S, 8 * S)
    assert cut_offs.judged_span(0, 1, 5 * S, 40 * S) == (5 * S, 10 * S)
    assert cut_offs.judged_span(0, 1, 20 * S, 40 * S) == (10 * S, 10 * S)
    assert cut_offs.judged_span(0, 1, 31 * S, 40 * S) == (31 * S, 40 * S), "it knew, and answers for that"


def test_a_handler_may_begin_a_turn_of_the_loop_after_the_runtime_started_it() -> None:
    cut_offs = CutOffs([flow("active", 2), flow("inactive", 30)], [10 * S], [30 * S])
    assert cut_offs.judged_span(0, 1, 30 * S + 7, 40 * S) == (10 * S, 10 * S)


def test_other_handles_have_nothing_to_do_with_it() -> None:
    records = [flow("active", 2), flow("inactive", 30), flow("active", 2, queue=1), flow("active", 40, epoch=2)]
    cut_offs = CutOffs(records, [10 * S], [])
    assert cut_offs.judged_span(1, 1, 20 * S, 40 * S) == (20 * S, 40 * S)
    assert cut_offs.judged_span(0, 2, 41 * S, 42 * S) == (41 * S, 42 * S)


def test_a_cut_before_a_handle_became_active_is_not_its_own() -> None:
    cut_offs = CutOffs([flow("bound", 1), flow("active", 20), flow("inactive", 30)], [10 * S, 30 * S], [])
    assert cut_offs.judged_span(0, 1, 25 * S, 40 * S) == (25 * S, 30 * S)


def test_a_connection_that_broke_during_a_release_is_on_record() -> None:
    cut_offs = CutOffs([flow("active", 2), flow("draining", 9), flow("released", 11)], [10 * S], [])
    assert events(cut_offs) == [("active", 2), ("draining", 9), ("inactive", 10), ("released", 11)]


def test_a_flow_whose_connection_did_not_break_is_left_as_it_is() -> None:
    records = [flow("active", 2), flow("draining", 9), flow("released", 11)]
    assert CutOffs(records, [20 * S], []).flows == records


def test_activity_of_which_a_stopped_member_was_told_with_its_end_was_none() -> None:
    records = [flow("bound", 1), flow("active", 30), flow("inactive", 30.000001)]
    assert events(CutOffs(records, [10 * S], [30 * S])) == [("bound", 1), ("inactive", 10)]
    assert events(CutOffs(records, [], [])) == [("bound", 1), ("active", 30), ("inactive", 30.000001)]


def test_activity_that_began_as_a_stopped_member_went_on_and_lasted_is_its_own() -> None:
    """Another member was killed at that moment; what came earlier has nothing to do with the new owner."""
    records = [flow("bound", 1), flow("active", 30), flow("inactive", 40)]
    cut_offs = CutOffs(records, [10 * S, 40 * S], [30 * S])
    assert events(cut_offs) == [("bound", 1), ("active", 30), ("inactive", 40)]
    assert cut_offs.judged_span(0, 1, 31 * S, 32 * S) == (31 * S, 32 * S)
