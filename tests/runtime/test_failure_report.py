"""What is kept of the last failure."""

from lbg_runtime.model.failure import Then
from lbg_runtime.runtime.failure_report import MAX_ERROR_LENGTH, report_of


def _caught(call):
    try:
        call()  # the frame that stands for the dispatcher's
    except ValueError as error:
        return error
    raise AssertionError


def _fail(text):
    raise ValueError(text)


def _fail_elsewhere(text):
    raise ValueError(text)


def _report(call):
    return report_of(_caught(call), Then.ERROR_QUEUE, 3)


def test_the_error_is_one_bounded_line():
    assert _report(lambda: _fail("no\n  such order")).error == "ValueError: no such order"
    assert _report(lambda: _fail("")).error == "ValueError"
    assert len(_report(lambda: _fail("x" * 10_000)).error) == MAX_ERROR_LENGTH


def test_the_digest_is_that_of_type_and_place_and_names_the_place():
    calls = [lambda: _fail("one"), lambda: _fail("two")]
    first, second = (_report(lambda each=each: each()) for each in (calls[0], calls[0]))
    assert first.stack == second.stack
    assert first.stack.endswith(" _fail")
    assert "test_failure_report.py:" in first.stack
    assert first.stack != _report(lambda: _fail_elsewhere("one")).stack


def test_a_failure_of_no_code_has_a_digest_of_its_type():
    assert len(report_of(TimeoutError("late"), Then.STOP, 1).stack) == 12
