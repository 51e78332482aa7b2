"""What is kept of the last failure."""

import asyncio

import pytest

from lbg_runtime.model.failure import Then
from lbg_runtime.runtime.runners.failure_report import MAX_ERROR_BYTES, MAX_TEXT_LENGTH, error_text, leaves, report_of


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
    assert len(_report(lambda: _fail("x" * 10_000)).error) == MAX_ERROR_BYTES


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("app\0le", r"app\x00le"),
        ("app\ud800le", r"app\ud800le"),
        ("\udcff", r"\udcff"),
        ("\U0001f600 é", "\U0001f600 é"),
    ],
)
def test_the_error_says_in_writing_what_no_property_can_hold(text, told):
    assert _report(lambda: _fail(text)).error == f"ValueError: {told}"


def test_the_error_is_cut_by_its_bytes_and_between_characters():
    error = _report(lambda: _fail("é" * 400)).error
    assert error == f"ValueError: {'é' * 244}"
    assert len(error.encode()) == MAX_ERROR_BYTES


def test_the_stack_can_be_sent_whatever_the_code_is_called():
    names = {}
    # As a file is called whose name is no UTF-8.
    exec(compile("def fail():\n    raise ValueError", "od\udcff.py", "exec"), names)  # noqa: S102 - our own text
    assert _report(names["fail"]).stack.endswith(r" od\udcff.py:2 fail")


def test_the_text_for_the_log_is_bounded_and_says_how_long_it_was():
    text = error_text(ValueError("x" * 5_000_000))
    assert text == f"ValueError: {'x' * MAX_TEXT_LENGTH} ... (5000000 characters)"


def _cancel(_):
    raise asyncio.CancelledError


@pytest.mark.parametrize(
    ("make", "error"),
    [(lambda _: 1 / 0, "ZeroDivisionError"), (lambda _: 7, "TypeError"), (_cancel, "CancelledError")],
)
def test_an_error_whose_text_cannot_be_made_has_its_type(make, error):
    odd = type("Odd", (ValueError,), {"__str__": make})
    assert error_text(odd()) == f"Odd: (its text cannot be made: {error})"


def test_the_digest_is_that_of_type_and_place_and_names_the_place():
    calls = [lambda: _fail("one"), lambda: _fail("two")]
    first, second = (_report(lambda each=each: each()) for each in (calls[0], calls[0]))
    assert first.stack == second.stack
    assert first.stack.endswith(" _fail")
    assert "test_failure_report.py:" in first.stack
    assert first.stack != _report(lambda: _fail_elsewhere("one")).stack


def _fail_in_a_task_group(fail):
    async def fail_soon():
        fail("db away")

    async def handle():
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fail_soon())

    asyncio.run(handle())


def _group_of(call):
    try:
        call()
    except ExceptionGroup as group:
        return group
    raise AssertionError


def test_of_a_group_the_first_leaf_is_told_and_its_place():
    reports = [
        report_of(_group_of(lambda each=each: _fail_in_a_task_group(each)), Then.ERROR_QUEUE, 1)
        for each in (_fail, _fail, _fail_elsewhere)
    ]
    told = "ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception); the first is ValueError: db away"
    assert [each.error for each in reports] == [told] * 3
    assert reports[0].stack.endswith(" _fail")
    assert reports[0].stack == reports[1].stack != reports[2].stack


def test_leaves_come_in_order_whatever_the_groups_say_of_themselves():
    class Odd(ExceptionGroup):
        exceptions = property(lambda self: 1 / 0)

    one, two, three = ValueError(1), ValueError(2), ValueError(3)
    assert list(leaves(Odd("odd", [Odd("odder", [one, two]), three]))) == [one, two, three]
    assert list(leaves(one)) == [one]


def test_a_failure_of_no_code_has_a_digest_of_its_type():
    assert len(report_of(TimeoutError("late"), Then.STOP, 1).stack) == 12
