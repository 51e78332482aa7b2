"""A subscription that gets nothing behind an earlier one is refused, and no other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_runtime.model.errors import HandlerError
from lbg_runtime.model.topic import matches
from lbg_runtime.runtime.handlers.registry import Handlers
from lbg_runtime.runtime.handlers.shadowing import covers


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


_LEVELS = st.sampled_from(["a", "ab", "*", "a*", "ab*"])
_SUBSCRIPTIONS = st.builds(
    lambda levels, is_open: "/".join([*levels, ">"] if is_open else levels),
    st.lists(_LEVELS, min_size=1, max_size=3),
    st.booleans(),
)
_TOPICS = ["/".join(levels) for levels in (("a",), ("ab",), ("b",))] + [
    f"{one}/{two}{rest}"
    for one in ("a", "ab", "b")
    for two in ("a", "abc", "c")
    for rest in ("", "/a", "/ab/a", "/d/d")
]


@given(_SUBSCRIPTIONS, _SUBSCRIPTIONS)
def test_one_that_covers_another_attracts_all_that_it_attracts(wide, narrow):
    attracted = [topic for topic in _TOPICS if matches(narrow, topic)]
    if covers(wide, narrow):
        assert all(matches(wide, topic) for topic in attracted)
