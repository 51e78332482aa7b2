"""The records of a re-striping as bytes and as topics: what is written is read, and nothing else is."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lbg_runtime.core.restripe.records import (
    MAX_SECRET_LENGTH,
    RECORD_VERSION,
    ShardMarker,
    StripeEnd,
    StripeFinish,
    StripePlan,
    StripeRecord,
    decode_record,
    encode_record,
    plan_of_topic,
    record_prefix,
    record_topic,
    without_secret,
)
from lbg_runtime.core.restripe.striping import Striping, proof_of
from lbg_runtime.model.errors import RestripeRecordRefused
from lbg_runtime.model.group import LARGEST_HASH_COUNT

CONTROL_TOPIC = "lbg-control/orders"
LARGEST = 2**63 - 1
GENERATIONS = st.integers(1, LARGEST)
COUNTS = st.integers(1, LARGEST_HASH_COUNT)
SECRETS = st.text("abcXYZ019", min_size=1, max_size=MAX_SECRET_LENGTH)
PLANS = st.builds(StripePlan, GENERATIONS, COUNTS, COUNTS, SECRETS)
RECORDS: st.SearchStrategy[StripeRecord] = st.one_of(
    PLANS,
    st.builds(ShardMarker, GENERATIONS, st.integers(0, LARGEST)),
    st.builds(StripeFinish, GENERATIONS, COUNTS, COUNTS),
    st.builds(StripeEnd, GENERATIONS, COUNTS),
)
ITEMS = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2**64) | st.floats(allow_nan=False) | st.text(max_size=80),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)
NO_HEADERS = [(RECORD_VERSION + 1, 7), (RECORD_VERSION, 0), (RECORD_VERSION, 7.0)]
"""Versions and generations that no record has."""
NEARLY_RECORDS = st.builds(
    lambda kind, rest: json.dumps([RECORD_VERSION, kind, *rest]).encode(),
    st.sampled_from(["plan", "marker", "finish", "end"]),
    st.lists(ITEMS, max_size=5),
)


@given(RECORDS)
@example(StripePlan(LARGEST, LARGEST_HASH_COUNT, 1, "s" * MAX_SECRET_LENGTH))
@example(ShardMarker(1, LARGEST))
def test_a_record_is_read_as_it_was_written(record: StripeRecord) -> None:
    message = encode_record(record, "a/topic")
    assert message.topic == "a/topic"
    assert decode_record(message.payload) == record


@pytest.mark.parametrize(
    ("record", "payload"),
    [
        (StripePlan(9, 4, 8, "s3cret"), b'[1,"plan",9,4,8,"s3cret"]'),
        (ShardMarker(9, 17), b'[1,"marker",9,17]'),
        (StripeFinish(9, 4, 8), b'[1,"finish",9,4,8]'),
        (StripeEnd(9, 8), b'[1,"end",9,8]'),
    ],
)
def test_records_lie_in_queues_as_the_versions_since_22_november_know_them(
    record: StripeRecord, payload: bytes
) -> None:
    """One version may begin a re-striping that another one ends; another form takes another `RECORD_VERSION`."""
    assert encode_record(record, "t").payload == payload
    assert decode_record(payload) == record


def test_topics_and_proofs_are_those_that_the_versions_since_22_november_know() -> None:
    plan = StripePlan(9, 4, 8, "s3cret")
    assert record_topic(CONTROL_TOPIC, plan) == "lbg-control/orders/restripe/9/4/8/s3cret"
    striping = Striping(9, 4, 8, frozenset({5, 6}), frozenset({2}))
    assert proof_of("s3cret", striping) == "6bf4a09cde311d1c3dfebca467556130f40853dbee2754f5c3fa6b9099360cb2"


@given(st.binary() | NEARLY_RECORDS)
@example(b"")
@example(b"[" * 100_000)
@example(b'[1,"marker",1' + b"0" * 5_000 + b",1]")
@example(b'[1,"plan",1,4,8,"\\ud800"]')
@example(b"\xff\xfe[\x001\x00]\x00")
def test_any_bytes_are_a_record_or_are_refused(payload: bytes) -> None:
    try:
        record = decode_record(payload)
    except RestripeRecordRefused:
        return
    assert decode_record(encode_record(record, "t").payload) == record
    if isinstance(record, StripePlan):
        # What members do with a plan that they have read.
        assert plan_of_topic(CONTROL_TOPIC, record_topic(CONTROL_TOPIC, record)) == record
        assert proof_of(record.secret, Striping(record.generation, record.from_count, record.to_count))


@pytest.mark.parametrize(
    "items",
    [
        [RECORD_VERSION + 1, "marker", 7, 3],
        [True, "marker", 7, 3],
        [RECORD_VERSION, "marker", True, 3],
        [RECORD_VERSION, "marker", 7.0, 3],
        [RECORD_VERSION, "marker", 0, 3],
        [RECORD_VERSION, "marker", 7, -1],
        [RECORD_VERSION, "marker", 7, LARGEST + 1],
        [RECORD_VERSION, "marker", 7],
        [RECORD_VERSION, "marker", 7, 3, 3],
        [RECORD_VERSION, "plan", 7, 0, 4, "s"],
        [RECORD_VERSION, "plan", 7, 4, 0, "s"],
        [RECORD_VERSION, "plan", 7, LARGEST_HASH_COUNT + 1, 4, "s"],
        [RECORD_VERSION, "plan", 7, 4, LARGEST, "s"],
        [RECORD_VERSION, "plan", 7, 4, 8, ""],
        [RECORD_VERSION, "plan", 7, 4, 8, "s" * (MAX_SECRET_LENGTH + 1)],
        [RECORD_VERSION, "plan", 7, 4, 8, "a/b"],
        [RECORD_VERSION, "plan", 7, 4, 8, "\u00e9"],
        [RECORD_VERSION, "plan", 7, 4, 8, ">"],
        *([version, "plan", generation, 4, 8, "s"] for version, generation in NO_HEADERS),
        *([version, "finish", generation, 4, 8] for version, generation in NO_HEADERS),
        *([version, "end", generation, 4] for version, generation in NO_HEADERS),
        [RECORD_VERSION, "finish", 7, 0, 8],
        [RECORD_VERSION, "finish", 7, 4, LARGEST],
        [RECORD_VERSION, "finish", 7, True, 8],
        [RECORD_VERSION, "end", 7, 0],
        [RECORD_VERSION, "end", 7, LARGEST],
        [RECORD_VERSION, "other", 7, 4],
        {"version": RECORD_VERSION},
        None,
    ],
)
def test_what_is_no_record_is_refused(items: object) -> None:
    with pytest.raises(RestripeRecordRefused):
        decode_record(json.dumps(items).encode())


@given(PLANS)
def test_a_topic_names_its_plan(plan: StripePlan) -> None:
    topic = record_topic(CONTROL_TOPIC, plan)
    assert topic.startswith(record_prefix(CONTROL_TOPIC))
    assert plan_of_topic(CONTROL_TOPIC, topic) == plan
    assert plan_of_topic("lbg-control/bills", topic) is None


def test_no_secret_is_in_what_is_shown_of_a_plan() -> None:
    plan = StripePlan(1, 2, 3, "s3cr3t")
    topic = record_topic(CONTROL_TOPIC, plan)
    assert without_secret(CONTROL_TOPIC, topic) == f"{CONTROL_TOPIC}/restripe/1/2/3"
    assert without_secret(CONTROL_TOPIC, "h/3/>") == "h/3/>"
    assert repr(plan) == "StripePlan(generation=1, from_count=2, to_count=3)"
    with pytest.raises(RestripeRecordRefused) as refused:
        decode_record(encode_record(plan, topic).payload.replace(b"[1,", b"[2,", 1))
    assert "b'[2,\"plan\",1,2,3,'" in str(refused.value)


@given(st.text(), st.booleans())
def test_any_topic_names_one_plan_or_none(tail: str, is_ours: bool) -> None:
    topic = record_prefix(CONTROL_TOPIC) + tail if is_ours else tail
    plan = plan_of_topic(CONTROL_TOPIC, topic)
    assert plan is None or record_topic(CONTROL_TOPIC, plan) == topic


@pytest.mark.parametrize(
    "topic",
    [
        CONTROL_TOPIC,
        "lbg/0/orders",
        f"{CONTROL_TOPIC}/restripe",
        f"{CONTROL_TOPIC}/restripe/",
        f"{CONTROL_TOPIC}/restripe/>",
        f"{CONTROL_TOPIC}/restripe/1/4/8",
        f"{CONTROL_TOPIC}/restripe/1/4/8/",
        f"{CONTROL_TOPIC}/restripe/1/4/8/s/more",
        f"{CONTROL_TOPIC}/restripe/0/4/8/s",
        f"{CONTROL_TOPIC}/restripe/1/0/8/s",
        f"{CONTROL_TOPIC}/restripe/-1/4/8/s",
        f"{CONTROL_TOPIC}/restripe/one/4/8/s",
        f"{CONTROL_TOPIC}/restripe/\u0661/4/8/s",
        f"{CONTROL_TOPIC}/restripe/01/4/8/s",
        f"{CONTROL_TOPIC}/restripe/{LARGEST + 1}/4/8/s",
        f"{CONTROL_TOPIC}/restripe/{'1' * 5_000}/4/8/s",
        f"{CONTROL_TOPIC}/restripe/1/{LARGEST_HASH_COUNT + 1}/4/s",
        f"{CONTROL_TOPIC}/restripe/1/4/{LARGEST}/s",
        f"{CONTROL_TOPIC}/restripe/1/4/8/*",
        f"{CONTROL_TOPIC}/restripe/1/4/8/{'s' * (MAX_SECRET_LENGTH + 1)}",
    ],
)
def test_a_topic_of_something_else_names_no_plan(topic: str) -> None:
    """A queue may subscribe to whatever an operator likes; a plan that nobody can write down would stop every queue.

    One of more queues than any group can have would keep whoever looks for each of them busy for years.
    """
    assert plan_of_topic(CONTROL_TOPIC, topic) is None


def test_a_plan_says_where_a_shard_lies_before_and_after() -> None:
    plan = StripePlan(1, from_count=8, to_count=12, secret="s")
    assert [(shard, plan.old_index(shard), plan.new_index(shard)) for shard in (7, 8, 11, 12, 24)] == [
        (7, 7, 7),
        (8, 0, 8),
        (11, 3, 11),
        (12, 4, 0),
        (24, 0, 0),
    ]
    assert plan.queue_total == 12
