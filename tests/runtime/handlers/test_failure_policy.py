"""When attempts end: what settings and decorators say together, and which of the listed exceptions decides."""

import asyncio
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_runtime.config.settings import FailureSettings
from lbg_runtime.model.errors import BatchCutShort, BodyRefused, ConfigError, HandlerError, TerminalFailure
from lbg_runtime.model.failure import Then
from lbg_runtime.runtime.handlers.failure_policy import FailureOptions, make_policy, read_arguments
from lbg_runtime.runtime.handlers.registry import Handlers


class _Chance:
    """Chance that always gives this share of the range."""

    def __init__(self, share):
        self._share = share

    def uniform(self, a, b):
        return a + (b - a) * self._share


LONGEST = _Chance(1)


class OutOfStock(Exception):
    """Known to the settings by its name."""


class Sold(OutOfStock):
    pass


def _policy(said=None, *, retriable=(), terminal=(), **settings):
    options = read_arguments({**(said or {}), "retriable": retriable, "terminal": terminal}, "shop:handle", ())
    return make_policy(FailureSettings.model_validate(settings), options, "shop:handle")


def _policy_of_settings(options=None, **settings):
    return make_policy(FailureSettings.model_validate(settings), options or FailureOptions(), "shop:handle")


def test_without_a_word_attempts_do_not_end():
    policy = _policy()
    assert policy.end_after(1_000_000, ValueError()) is None
    assert policy.end_after(1, TerminalFailure("never")) is None


def test_attempts_end_after_the_last_one():
    policy = _policy(attempts=3, then="error_queue")
    assert [policy.end_after(number, ValueError()) for number in (1, 2, 3, 4)] == [
        None, None, Then.ERROR_QUEUE, Then.ERROR_QUEUE,
    ]  # fmt: skip


def test_what_a_handler_says_wins_and_the_rest_is_the_settings():
    policy = _policy({"attempts": 2, "timeout": "5s"}, attempts=9, timeout="1m", then="stop", backoff={"initial": "1s"})
    assert (policy.attempts, policy.timeout_ms, policy.then, policy.backoff.initial_ms) == (2, 5_000, Then.STOP, 1_000)


def test_a_handler_can_take_the_end_of_the_settings_back():
    policy = _policy({"attempts": "unlimited"}, attempts=2, then="stop")
    assert policy.end_after(1_000, ValueError()) is None
    assert policy.end_after(1, TerminalFailure("never")) is Then.STOP


@pytest.mark.parametrize("failure", [TerminalFailure("never"), BodyRefused("Order", "no JSON")])
def test_a_terminal_failure_ends_the_attempts_at_once(failure):
    assert _policy(then="error_queue").end_after(1, failure) is Then.ERROR_QUEUE


def test_a_terminal_failure_that_nothing_follows_is_tried_again_as_seldom_as_can_be():
    policy = _policy(backoff={"initial": "100ms", "maximum": "30s"})
    assert policy.delay_ms(1, TerminalFailure("never"), LONGEST) == 30_000
    assert policy.delay_ms(1, ValueError(), LONGEST) == 100


def test_the_wait_doubles_up_to_the_maximum():
    policy = _policy(backoff={"initial": "100ms", "maximum": "1s"})
    waits = [100, 200, 400, 800, 1_000, 1_000]
    assert [policy.delay_ms(attempts, ValueError(), LONGEST) for attempts in range(1, 7)] == waits
    assert [policy.move_delay_ms(tries, LONGEST) for tries in range(1, 7)] == waits


@given(failed=st.integers(1, 10**9), share=st.floats(0, 1))
def test_the_wait_is_never_above_the_maximum_nor_below_half_the_initial(failed, share):
    policy = _policy(backoff={"initial": "100ms", "maximum": "1s"})
    assert 50 <= policy.delay_ms(failed, ValueError(), _Chance(share)) <= 1_000


@pytest.mark.parametrize(
    ("failure", "is_terminal"),
    [
        (KeyError(), True),
        (LookupError(), True),
        (IndexError(), False),
        (ValueError(), False),
        (OutOfStock(), False),
    ],
)
def test_the_nearest_listed_type_decides(failure, is_terminal):
    policy = _policy(retriable=(IndexError, Exception), terminal=(LookupError,))
    assert policy.is_terminal(failure) is is_terminal


def test_where_some_are_retriable_all_others_are_terminal_but_not_those_that_tell_of_the_moment():
    policy = _policy(retriable=(ConnectionError,))
    assert policy.is_terminal(ValueError())
    assert not policy.is_terminal(ConnectionResetError())
    assert not policy.is_terminal(TimeoutError())
    assert not policy.is_terminal(asyncio.CancelledError())
    assert not policy.is_terminal(BatchCutShort())
    assert _policy(retriable=(ConnectionError,), terminal=(TimeoutError,)).is_terminal(TimeoutError())


def test_a_terminal_failure_may_be_said_to_be_retriable():
    assert not _policy(retriable=(BodyRefused,)).is_terminal(BodyRefused("Order", "no JSON"))
    assert _policy(retriable=(Exception,)).is_terminal(BodyRefused("Order", "no JSON"))


def _group(*failures):
    return ExceptionGroup("unhandled errors in a TaskGroup", failures)


@pytest.mark.parametrize(
    ("failures", "is_terminal"),
    [
        ((ConnectionError(),), False),
        ((ConnectionError(), ConnectionResetError()), False),
        ((ConnectionError(), _group(_group(ConnectionResetError()), TimeoutError())), False),
        ((ConnectionError(), _group(ValueError())), True),
        ((KeyError(),), True),
        ((TerminalFailure("never"),), True),
    ],
)
def test_a_group_is_judged_by_its_leaves(failures, is_terminal):
    policy = _policy(retriable=(ConnectionError,), terminal=(ValueError,))
    assert policy.is_terminal(_group(*failures)) is is_terminal


def test_what_is_listed_for_all_exceptions_does_not_hide_the_leaves_of_a_group():
    assert _policy(retriable=(Exception,), terminal=(ValueError,)).is_terminal(_group(KeyError(), ValueError()))
    assert not _policy(retriable=(KeyError,), terminal=(Exception,)).is_terminal(_group(KeyError()))


def test_a_listed_type_of_group_decides_whatever_is_in_it():
    assert not _policy(retriable=(ExceptionGroup,), terminal=(ValueError,)).is_terminal(_group(ValueError()))
    assert _policy(terminal=(ExceptionGroup,)).is_terminal(_group(ConnectionError()))
    kind = type("SoldTogether", (Sold, ExceptionGroup), {})
    assert _policy(terminal=(OutOfStock,)).is_terminal(kind("two", [ConnectionError()]))


def test_groups_nested_beyond_all_measure_are_judged_too():
    group = _group(TerminalFailure("never"))
    for _ in range(5_000):
        group = _group(group)
    assert _policy().is_terminal(group)


def test_settings_name_exceptions(monkeypatch):
    monkeypatch.setitem(sys.modules, "shop", SimpleNamespace(OutOfStock=OutOfStock))
    policy = _policy_of_settings(terminal=["shop.OutOfStock", "KeyError"], retriable=["LookupError"])
    assert policy.is_terminal(Sold())
    assert policy.is_terminal(KeyError())
    assert not policy.is_terminal(IndexError())


@pytest.mark.parametrize("name", ["no_such_module.Name", "NoSuchName", "int", "asyncio.CancelledError", "os.path"])
def test_a_name_that_is_no_exception_is_refused(name):
    with pytest.raises(ConfigError, match=r"failure.terminal: .*; expected an exception, as module.Name"):
        _policy_of_settings(terminal=[name])


def test_a_handler_that_lists_exceptions_takes_nothing_from_the_settings_lists():
    policy = _policy_of_settings(FailureOptions(terminal=(KeyError,)), terminal=["ValueError"])
    assert policy.is_terminal(KeyError())
    assert not policy.is_terminal(ValueError())


def test_attempts_that_nothing_follows_are_refused_where_they_are_said():
    with pytest.raises(ConfigError, match=r"failure.then: not set; expected error_queue or .*stop, as attempts end"):
        _policy(attempts=3)
    with pytest.raises(HandlerError, match=r"shop:handle: no `then`, nor failure.then in the settings; expected err"):
        _policy({"attempts": 3})


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"attempts": 0}, "attempts 0; expected at least 1"),
        ({"attempts": 2.5}, "attempts 2.5; expected a whole number"),
        ({"attempts": "many"}, "attempts 'many'"),
        ({"timeout": 5}, "timeout 5; expected a duration such as"),
        ({"then": "explode"}, "then 'explode'; expected one of error_queue, dmq, park or stop"),
        ({"backoff": "1s"}, "backoff '1s'; expected first and longest wait"),
        ({"backoff": ("1m", "1s")}, "backoff.maximum 1000ms; expected at least failure.backoff.initial, 60000ms"),
        ({"terminal": (int,)}, "terminal <class 'int'>; expected types of exceptions"),
        ({"retriable": (ValueError(),)}, "retriable ValueError"),
    ],
)
def test_options_that_cannot_be_are_one_line_with_the_place(options, found):
    async def handle(message):
        pass

    with pytest.raises(HandlerError) as caught:
        Handlers().handler("orders/>", **options)(handle)
    assert "test_failure_policy.py:" in caught.value.where
    assert found in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_type_is_not_both():
    with pytest.raises(HandlerError, match="KeyError is retriable and terminal"):
        _policy(retriable=(KeyError,), terminal=(KeyError,))
