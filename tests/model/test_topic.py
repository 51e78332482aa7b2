import pytest

from lbg_runtime.model.topic import is_valid_topic, matches


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
