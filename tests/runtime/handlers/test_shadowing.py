"""A subscription that gets nothing behind an earlier one is refused, and no other."""

import pytest

from lbg_runtime.model.errors import HandlerError
from lbg_runtime.runtime.handlers.registry import Handlers


async def _handle(message): ...


@pytest.mark.parametrize(
    ("wide", "narrow"),
    [
        (">", "o/new"),
        (">", "o/>"),
        ("o/>", "o/new"),
        ("o/>", "o/new/>"),
        ("o/*", "o/new"),
        ("o/n*", "o/new*"),
        ("*/>", "o/>"),
        ("*/*/new", "o/*/new"),
    ],
)
def test_a_subscription_behind_one_that_takes_all_of_it_is_refused(wide, narrow):
    handlers = Handlers()
    handlers.handler(wide)(_handle)
    with pytest.raises(HandlerError) as caught:
        handlers.handler(narrow)(_handle)
    assert "test_shadowing.py:" in caught.value.where
    assert caught.value.found == f"topic subscription {narrow!r}, which gets nothing"
    assert caught.value.expected.startswith(f"it before {wide!r}, which takes all of it: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("o/new", "o/>"),
        ("o/>", "o"),
        ("*/>", ">"),
        ("o/*", "o/>"),
        ("o/*", "o/a/b"),
        ("o/new", "o/new*"),
        ("o/new*", "o/n*"),
        ("o/a/>", "o/*/b"),
    ],
)
def test_a_subscription_that_gets_something_is_taken(first, second):
    handlers = Handlers()
    handlers.handler(first)(_handle)
    handlers.handler(second)(_handle)
    assert len(handlers) == 2


def test_a_subscription_is_refused_in_an_included_object_too():
    general, special = Handlers(), Handlers()
    general.handler("o/>")(_handle)
    special.handler("o/new")(_handle)
    with pytest.raises(HandlerError, match="expected it before 'o/>'"):
        general.include(special)
