import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_runtime.model.topic import covers, is_valid_topic, matches, subscription_fault


@pytest.mark.parametrize(
    ("subscription", "topic", "expected"),
    [
        ("a/b", "a/b", True),
        ("a/b", "a/b/c", False),
        ("a/b/c", "a/b", False),
        ("a/*/c", "a/b/c", True),
        ("a/*/c", "a/b/d/c", False),
        ("*", "a", True),
        ("*", "a/b", False),
        ("a/*", "a/", True),
        ("ab*/c", "abc/c", True),
        ("ab*/c", "ab/c", True),
        ("ab*/c", "a/c", False),
        ("a*b", "a*b", True),
        ("a*b", "axb", False),
        (">", "a", True),
        (">", "a/b/c", True),
        ("a/>", "a/b/c", True),
        ("a/>", "a", False),
        ("a/>/c", "a/>/c", True),
        ("a/>/c", "a/b/c", False),
        ("a/b>", "a/bc", False),
        ("A", "a", False),
    ],
)
def test_subscription_matches_as_documented(subscription, topic, expected):
    assert matches(subscription, topic) is expected


def test_topic_is_at_most_250_bytes():
    assert is_valid_topic("é" * 125)
    assert not is_valid_topic("é" * 125 + "x")
    assert not is_valid_topic("")
    assert is_valid_topic("a")
    assert not is_valid_topic("half of a pair \ud800")


@pytest.mark.parametrize("subscription", ["a", ">", "*", "a/>", "*/b*/>", "a/b*", "//", "é" * 125])
def test_what_a_broker_understands_has_no_fault(subscription):
    assert subscription_fault(subscription) is None


@pytest.mark.parametrize(
    ("subscription", "expected"),
    [
        *((each, "1 to 250 bytes") for each in ("", "é" * 125 + "x", "\ud800")),
        *((each, "no NUL, as no topic has one") for each in ("\0", "orders/new\0", "orders\0/>")),
        *((each, "`>` only as the whole last level") for each in (">/a", "a/>/c", "a/b>", "a/>b", "a/>>", "b>/c")),
        *((each, "`*` only as the last character of a level") for each in ("*a", "a/*b", "a*b/c", "a/**", "**")),
    ],
)
def test_a_wildcard_that_a_broker_takes_literally_is_told(subscription, expected):
    assert subscription_fault(subscription) == expected


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
