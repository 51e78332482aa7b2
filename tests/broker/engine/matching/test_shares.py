"""Who of a shared subscription gets a message."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lbg_runtime.broker.engine.matching.shares import Share, TopicSlice, slice_of
from lbg_runtime.broker.engine.matching.subscriptions import Subscriptions
from lbg_runtime.model.errors import BrokerRefusal

TOPICS = tuple(f"flespi/message/gw/channels/{channel}/{device}" for channel in range(2) for device in range(200))
NAMES = st.lists(st.text("abcdefgh", min_size=1, max_size=6), min_size=1, max_size=8, unique=True)


def share_of(name: str, *members: str) -> Share[str]:
    share: Share[str] = Share(name, str)
    for member in members:
        share.join(member)
    return share


def owners(share: Share[str]) -> dict[str, str]:
    return {topic: share.next(topic) for topic in TOPICS}


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("by_ident:6", TopicSlice(0, 6)),
        ("by_device_id:4:1", TopicSlice(4, 1)),
        ("plain", None),
        ("a:b", None),
        ("a:1:b", None),
        (":3", None),
        ("a:1:2:3", None),
        ("a:1000", None),
    ],
)
def test_the_end_of_the_name_says_what_sticks(name, found):
    assert slice_of(name) == found


@pytest.mark.parametrize("name", ["a:0", "a:4:0"])
def test_a_slice_of_no_levels_is_refused(name):
    with pytest.raises(BrokerRefusal, match="400 Subscription Parse Error"):
        Subscriptions[str]().add("ann", f"#share/{name}/a/>")


def test_a_slice_is_cut_where_the_topic_ends():
    assert TopicSlice(1, 2).of("a/b/c/d") == "b/c"
    assert TopicSlice(1, 2).of("a/b") == "b"
    assert TopicSlice(4, 1).of("a/b") == ""


def test_without_a_slice_subscribers_take_turns():
    share = share_of("plain", "ann", "bob", "cid")
    assert [share.next("a/b") for _ in range(6)] == ["ann", "bob", "cid"] * 2


def test_topics_that_are_alike_in_the_slice_go_to_one_subscriber():
    share = share_of("by_device:5:1", "ann", "bob", "cid")
    found = owners(share)
    by_device: dict[str, set[str]] = {}
    for topic, owner in found.items():
        by_device.setdefault(topic.rpartition("/")[2], set()).add(owner)
    assert all(len(owners) == 1 for owners in by_device.values())


def test_load_is_spread_over_the_subscribers():
    counts = Counter(owners(share_of("by_ident:6", *"abcdefghij")).values())
    assert min(counts.values()) > 20, "of 400 topics and 10 subscribers"
    assert max(counts.values()) < 60


@settings(max_examples=40, deadline=None)
@given(names=NAMES, joining=st.text("xyz", min_size=1, max_size=4))
def test_a_joining_subscriber_only_takes_load_off_the_others(names, joining):
    share = share_of("by_ident:6", *names)
    before = owners(share)
    share.join(joining)
    after = owners(share)
    assert all(after[topic] in (before[topic], joining) for topic in TOPICS)
    share.leave(joining)
    assert owners(share) == before


@settings(max_examples=40, deadline=None)
@given(names=NAMES.filter(lambda names: len(names) > 1), data=st.data())
def test_what_a_leaving_subscriber_had_is_all_that_moves(names, data):
    leaving = data.draw(st.sampled_from(names))
    share = share_of("by_ident:6", *names)
    before = owners(share)
    share.leave(leaving)
    after = owners(share)
    assert all(after[topic] == before[topic] for topic in TOPICS if before[topic] != leaving)
    share.join(leaving)
    assert owners(share) == before, "and comes back with it"


@settings(max_examples=25, deadline=None)
@given(names=NAMES, order=st.randoms(use_true_random=False))
def test_the_order_in_which_they_came_says_nothing(names, order):
    shuffled = list(names)
    order.shuffle(shuffled)
    assert owners(share_of("by_ident:6", *names)) == owners(share_of("by_ident:6", *shuffled))


def test_a_sticky_share_and_a_plain_one_each_have_one_taker():
    subscriptions: Subscriptions[str] = Subscriptions()
    for name in ("ann", "bob"):
        subscriptions.add(name, "#share/sticky:1/a/>")
    subscriptions.add("cid", "#share/turns/a/>")
    found = [subscriptions.match("a/b") for _ in range(4)]
    assert len(set(found)) == 1
    assert "cid" in found[0]
    assert len(found[0]) == 2
