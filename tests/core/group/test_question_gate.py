from lbg_runtime.core.group.control_messages import QuestionId
from lbg_runtime.core.group.question_gate import MAX_PER_SECOND, QuestionGate


def test_a_question_is_answered_once() -> None:
    gate = QuestionGate()
    assert [gate.admits(QuestionId("q"), now_ms) for now_ms in (0, 1, 10_000)] == [True, False, False]


def test_not_more_than_so_many_are_answered_in_a_second_however_many_are_asked() -> None:
    gate = QuestionGate()
    admitted = [now_ms for now_ms in range(5_000) if gate.admits(QuestionId(f"q{now_ms}"), now_ms)]
    assert len(admitted) == 5 * MAX_PER_SECOND
    assert all(later - earlier >= 1_000 for earlier, later in zip(admitted, admitted[MAX_PER_SECOND:], strict=False))


def test_what_it_remembers_is_bounded() -> None:
    gate = QuestionGate()
    for number in range(10_000):
        gate.admits(QuestionId(f"q{number}"), number * 1_000)
    assert not gate.admits(QuestionId("q9999"), 20_000_000)
    assert gate.admits(QuestionId("q0"), 20_000_000), "forgotten long ago"
