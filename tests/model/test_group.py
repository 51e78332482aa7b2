"""Stripes partition the shards, and a hashed topic can be taken apart again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_runtime.model.errors import UserError
from lbg_runtime.model.group import LARGEST_HASH_COUNT, GroupShape, queue_index
from lbg_runtime.model.ids import GroupName
from lbg_runtime.model.topic import matches


def shape_of(hash_count: int = 100, queue_count: int = 8, prefix: str = "o", name: str = "orders") -> GroupShape:
    return GroupShape(GroupName(name), prefix, hash_count, queue_count)


@st.composite
def shapes(draw: st.DrawFn) -> GroupShape:
    queue_count = draw(st.integers(1, 50))
    return shape_of(draw(st.integers(queue_count, 200)), queue_count)


@given(shapes())
def test_stripes_partition_the_shards(shape: GroupShape) -> None:
    stripes = [shape.shards_of_queue(index) for index in range(shape.queue_count)]
    assert sorted(shard for stripe in stripes for shard in stripe) == list(range(shape.hash_count))
    for index, stripe in enumerate(stripes):
        assert all(shape.queue_index_of_shard(shard) == index for shard in stripe)


@given(shapes())
def test_stripes_differ_by_one_shard_at_most_and_are_even_when_they_say_so(shape: GroupShape) -> None:
    sizes = {len(shape.shards_of_queue(index)) for index in range(shape.queue_count)}
    assert max(sizes) - min(sizes) <= 1
    assert shape.is_even == (len(sizes) == 1)


@given(shapes(), st.text(min_size=1), st.data())
def test_a_hashed_topic_is_taken_apart_into_what_it_was_made_of(
    shape: GroupShape, topic: str, data: st.DataObject
) -> None:
    shard = data.draw(st.integers(0, shape.hash_count - 1))
    assert shape.split_topic(shape.hashed_topic(shard, topic)) == (shard, topic)


@given(shapes(), st.data())
def test_a_hashed_topic_is_attracted_by_its_queue_and_no_other(shape: GroupShape, data: st.DataObject) -> None:
    shard = data.draw(st.integers(0, shape.hash_count - 1))
    topic = shape.hashed_topic(shard, "orders/created")
    attracting = [
        index
        for index in range(shape.queue_count)
        if any(matches(subscription, topic) for subscription in shape.subscriptions(index))
    ]
    assert attracting == [shape.queue_index_of_shard(shard)]


@given(st.text())
def test_no_topic_makes_taking_apart_raise(topic: str) -> None:
    shape_of().split_topic(topic)
    shape_of().split_topic(f"o/{topic}/t")


@pytest.mark.parametrize(
    "topic",
    [
        *("", "o", "o/", "o/1", "o/1/", "p/1/t", "o/100/t", "o/-1/t", "o/x/t", "o//t", "o/ 1/t"),
        *("o/01/t", "o/+1/t", "o/\u0661/t", "o/1_0/t", "o/" + "9" * 5000 + "/t", "oo/1/t"),
    ],
)
def test_a_topic_that_no_publisher_of_the_group_writes_is_not_one_of_the_group(topic: str) -> None:
    assert shape_of().split_topic(topic) is None


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        ({"name": ""}, "group.name"),
        ({"name": "a>b"}, "group.name"),
        ({"name": "two words"}, "group.name"),
        ({"name": "#system"}, "group.name"),
        ({"name": "tab\there"}, "group.name"),
        *(({"name": name}, "group.name") for name in ("a//b", "/a", "a/")),
        ({"prefix": ""}, "group.hash_prefix"),
        ({"prefix": "a/b"}, "group.hash_prefix"),
        *(({"prefix": prefix}, "group.hash_prefix") for prefix in ("a*", "#share", "!h", "a\tb")),
        ({"queue_count": 0}, "group.queue_count"),
        ({"hash_count": 7}, "group.hash_count"),
        ({"hash_count": LARGEST_HASH_COUNT + 1}, "group.hash_count"),
    ],
)
def test_a_shape_that_cannot_be_is_refused_with_its_setting(arguments: dict[str, str | int], where: str) -> None:
    with pytest.raises(UserError) as raised:
        shape_of(**arguments)  # type: ignore[arg-type]  # the point of the table
    assert raised.value.where == where


def test_there_can_be_one_shard_for_each_queue_and_as_many_as_the_limit() -> None:
    assert shape_of(hash_count=8).is_even
    assert shape_of(hash_count=LARGEST_HASH_COUNT).hash_count == LARGEST_HASH_COUNT


def test_queues_are_numbered_from_zero() -> None:
    assert shape_of(queue_count=3).queue_names() == ("orders/0", "orders/1", "orders/2")


def test_subscriptions_are_one_per_shard_of_the_stripe() -> None:
    assert shape_of(hash_count=10, queue_count=4).subscriptions(1) == ("o/1/>", "o/5/>", "o/9/>")


@given(st.integers(0, 10**9 - 1))
def test_the_index_of_a_queue_is_found_in_its_name(index: int) -> None:
    assert queue_index("a/b", shape_of(name="a/b").queue_name(index)) == index


@pytest.mark.parametrize(
    "queue",
    ["orders", "orders/", "orders/007", "orders/\u0663", "orders/-1", "orders/1/2", "ordersX/1", "orders/1" * 9],
)
def test_no_other_queue_has_an_index(queue: str) -> None:
    assert queue_index("orders", queue) is None
