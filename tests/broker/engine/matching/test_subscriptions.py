import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_runtime.broker.engine.matching.subscriptions import Subscriptions
from lbg_runtime.model.errors import BrokerRefusal
from lbg_runtime.model.topic import matches

LEVELS = st.sampled_from(["a", "ab", "abc", "b", "", "*", "a*", "ab*", ">", "a>", "*a"])
SUBSCRIPTIONS = st.lists(LEVELS, min_size=1, max_size=4).map("/".join).filter(bool)
TOPICS = st.lists(st.sampled_from(["a", "ab", "abc", "b", ""]), min_size=1, max_size=4).map("/".join).filter(bool)


@given(
    kept=st.lists(st.tuples(st.integers(0, 3), SUBSCRIPTIONS), unique=True, max_size=12),
    removed=st.lists(st.tuples(st.integers(0, 3), SUBSCRIPTIONS), unique=True, max_size=6),
    topics=st.lists(TOPICS, min_size=1, max_size=6),
)
def test_the_tree_matches_as_the_rule_does_one_by_one(kept, removed, topics):
    subscriptions: Subscriptions[int] = Subscriptions()
    removed = [each for each in removed if each not in kept]
    for subscriber, text in removed + kept:
        subscriptions.add(subscriber, text)
    for topic in topics:
        subscriptions.match(topic)
    for subscriber, text in removed:
        subscriptions.remove(subscriber, text)

    for topic in topics:
        expected = {subscriber for subscriber, text in kept if matches(text, topic)}
        found = subscriptions.match(topic)
        assert set(found) == expected
        assert len(found) == len(expected)


def test_a_subscriber_is_named_once_however_many_subscriptions_match():
    subscriptions: Subscriptions[str] = Subscriptions()
    for text in ("a/>", "a/*", "a/b", ">", "#share/g/a/b"):
        subscriptions.add("ann", text)

    assert subscriptions.match("a/b") == ("ann",)


def test_subscribers_of_a_share_take_turns():
    subscriptions: Subscriptions[str] = Subscriptions()
    for name in ("ann", "bob"):
        subscriptions.add(name, "#share/g/a/>")
    subscriptions.add("cat", "a/>")

    assert [subscriptions.match("a/b") for _ in range(3)] == [("cat", "ann"), ("cat", "bob"), ("cat", "ann")]
    subscriptions.remove("ann", "#share/g/a/>")
    assert [subscriptions.match("a/b") for _ in range(2)] == [("cat", "bob")] * 2
    subscriptions.remove_all("bob")
    assert subscriptions.match("a/b") == ("cat",)


def test_two_shares_of_one_topic_get_a_message_each():
    subscriptions: Subscriptions[str] = Subscriptions()
    subscriptions.add("ann", "#share/g/a")
    subscriptions.add("bob", "#share/h/a")

    assert subscriptions.match("a") == ("ann", "bob")


@pytest.mark.parametrize("text", ["", "x" * 251, "#share/", "#share/g", "#share/g/", "#share/*/a", "#share//a", "a\0b"])
def test_what_is_no_subscription_is_refused(text):
    with pytest.raises(BrokerRefusal, match="400 Subscription Parse Error"):
        Subscriptions().add("ann", text)


def test_adding_twice_and_removing_what_is_not_there_are_refused():
    subscriptions: Subscriptions[str] = Subscriptions()
    subscriptions.add("ann", "a")
    with pytest.raises(BrokerRefusal, match="400 Subscription Already Exists"):
        subscriptions.add("ann", "a")
    with pytest.raises(BrokerRefusal, match="400 Subscription Not Found"):
        subscriptions.remove("bob", "a")
    with pytest.raises(BrokerRefusal, match="400 Subscription Not Found"):
        subscriptions.remove("ann", "b")

    assert subscriptions.of("ann") == ("a",)
    assert subscriptions.of("bob") == ()


def test_removing_everything_of_one_subscriber_leaves_the_others():
    subscriptions: Subscriptions[str] = Subscriptions()
    for name in ("ann", "bob"):
        for text in ("a/b", "a/>", "#share/g/a/b"):
            subscriptions.add(name, text)
    subscriptions.remove_all("ann")

    assert subscriptions.match("a/b") == ("bob",)
    assert subscriptions.of("ann") == ()
