"""Every message is stamped, sent in order, and accounted for exactly once.

Over 400 lines, as one publisher is looked at from all sides.
"""

import asyncio
import gc
from array import array
from collections.abc import Callable, Mapping
from enum import Enum
from types import MappingProxyType

import pytest
from structlog.testing import capture_logs

from lbg_runtime.metrics.reading import PublisherCounts
from lbg_runtime.model.errors import InvariantViolated, PublishFailed, PublishRefused, UserError
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.hashing import HashFunction, shard_of
from lbg_runtime.model.keys import KeySource
from lbg_runtime.model.message import NO_HEADERS, Headers, PropertyValue
from lbg_runtime.publisher import hashed
from lbg_runtime.publisher.confirmation import Confirmation
from tests.publisher.conftest import LedgerFile, MakePublisher, ScriptedMessenger, settled

# -- stamps and places


async def test_a_message_goes_to_the_shard_of_its_key(
    make_publisher: MakePublisher, messenger: ScriptedMessenger, shape: GroupShape
) -> None:
    publisher = make_publisher()
    await publisher.submit("orders/created", b"x", key="4711")
    shard = shard_of(HashFunction.CRC32, "4711", 100)
    assert messenger.sent[0].topic == f"o/{shard}/orders/created"


async def test_a_message_carries_key_publisher_sequence_and_id(
    make_publisher: MakePublisher, messenger: ScriptedMessenger
) -> None:
    publisher = make_publisher()
    for key in ("a", "b", "a"):
        await publisher.submit("t", b"", key=key)
    assert [(m.key, m.publisher_id, m.key_sequence, m.message_id, m.sent_at_ms) for m in messenger.sent] == [
        ("a", "p", 1, "p-1", 1_700_000_000_000),
        ("b", "p", 1, "p-2", 1_700_000_000_000),
        ("a", "p", 2, "p-3", 1_700_000_000_000),
    ]


async def test_headers_go_with_their_message_alone(make_publisher: MakePublisher, messenger: ScriptedMessenger) -> None:
    publisher = make_publisher()
    await publisher.submit("t", b"", key="a", headers=Headers("c", priority=9))
    await publisher.submit("t", b"", key="a")
    assert [each.headers for each in messenger.sent] == [Headers("c", priority=9), NO_HEADERS]


async def test_what_is_awaited_is_sent_with_all_that_it_was_given(
    make_publisher: MakePublisher, messenger: ScriptedMessenger
) -> None:
    messenger.confirm_after_s = 0.001
    await make_publisher().publish("t", b"x", key="a", properties={"colour": "red"}, headers=Headers("c"))
    [sent] = messenger.sent
    assert (sent.payload, sent.key, sent.properties["colour"], sent.headers) == (b"x", "a", "red", Headers("c"))


@pytest.mark.parametrize("mapping", [dict, MappingProxyType])
async def test_stamps_win_over_properties_of_a_forwarded_message(
    make_publisher: MakePublisher,
    messenger: ScriptedMessenger,
    mapping: Callable[[dict[str, PropertyValue]], Mapping[str, PropertyValue]],
) -> None:
    publisher = make_publisher()
    forwarded = mapping({"JMSXGroupID": "old", "lbg_publisher": "other", "lbg_key_sequence": 99, "colour": "red"})
    await publisher.submit("t", b"", key="new", properties=forwarded)
    assert dict(messenger.sent[0].properties) == {
        "JMSXGroupID": "new",
        "lbg_publisher": "p",
        "lbg_key_sequence": 1,
        "colour": "red",
    }


@pytest.mark.parametrize(
    ("rule", "topic", "payload", "expected"),
    [
        ("topic", "orders/created", b"", "orders/created"),
        ("topic_level:1", "orders/4711/created", b"", "4711"),
        ("property:customer", "t", b"", "c1"),
        ("json:/order/id", "t", b'{"order": {"id": 4711}}', "4711"),
    ],
)
async def test_the_key_is_found_by_the_key_source(
    make_publisher: MakePublisher, messenger: ScriptedMessenger, rule: str, topic: str, payload: bytes, expected: str
) -> None:
    publisher = make_publisher(key_source=KeySource.parse(rule))
    await publisher.submit(topic, payload, properties={"customer": "c1"})
    assert messenger.sent[0].key == expected


async def test_a_key_given_wins_over_the_key_source(
    make_publisher: MakePublisher, messenger: ScriptedMessenger
) -> None:
    publisher = make_publisher(key_source=KeySource.parse("topic"))
    await publisher.submit("t", b"", key="given")
    assert messenger.sent[0].key == "given"


@pytest.mark.parametrize(
    ("topic", "key", "function", "where"),
    [
        ("t", None, HashFunction.CRC32, "key"),
        ("t", "\ud83d", HashFunction.CRC32, "key"),
        ("t", "\ud83d", HashFunction.JAVA_STRING, "key"),
        ("t", "abc", HashFunction.MODULO, "key"),
        ("", "k", HashFunction.CRC32, "topic"),
        ("\udc00", "k", HashFunction.CRC32, "topic"),
        ("t" * 250, "k", HashFunction.CRC32, "topic"),
        ("o/3/orders/new", "k", HashFunction.CRC32, "topic"),
        (b"orders/new", "k", HashFunction.CRC32, "topic"),
        (5, "k", HashFunction.CRC32, "topic"),
        ("t", 4711, HashFunction.CRC32, "key"),
        ("t", b"k", HashFunction.CRC32, "key"),
        ("t", ["k"], HashFunction.CRC32, "key"),
    ],
)
async def test_a_message_that_cannot_be_addressed_is_turned_away_with_nothing_sent(
    make_publisher: MakePublisher,
    messenger: ScriptedMessenger,
    topic: str,
    key: str | None,
    function: HashFunction,
    where: str,
) -> None:
    publisher = make_publisher(function)
    with pytest.raises(UserError) as raised:
        await publisher.submit(topic, b"", key=key)
    assert raised.value.where == where
    assert messenger.sent == []
    assert publisher.counts == PublisherCounts(0, 0, 0, 0)


@pytest.mark.parametrize("key", ["k", None])
@pytest.mark.parametrize("properties", [None, "colour=red", [("colour", "red")]])
async def test_properties_that_are_no_mapping_are_turned_away_with_nothing_sent(
    make_publisher: MakePublisher, messenger: ScriptedMessenger, properties: object, key: str | None
) -> None:
    publisher = make_publisher(key_source=KeySource.parse("property:colour"))
    with pytest.raises(UserError, match=r"^properties: \w+; expected a mapping, such as a dict$"):
        await publisher.submit("t", b"", key=key, properties=properties)  # type: ignore[arg-type]
    assert (messenger.sent, publisher.counts) == ([], PublisherCounts(0, 0, 0, 0))


async def test_a_message_in_which_no_key_is_found_is_turned_away_with_the_rule(make_publisher: MakePublisher) -> None:
    with pytest.raises(UserError, match=r"key: none in a message to t; expected .* property:colour \(`group\.key`\)"):
        await make_publisher(key_source=KeySource.parse("property:colour")).submit("t", b"")


@pytest.mark.parametrize("rule", ["topic", "topic_level:0"])
@pytest.mark.parametrize("topic", [5, b"orders/new", None])
async def test_a_topic_that_is_none_is_turned_away_although_the_key_would_be_found_in_it(
    make_publisher: MakePublisher, messenger: ScriptedMessenger, rule: str, topic: str
) -> None:
    with pytest.raises(UserError) as raised:
        await make_publisher(key_source=KeySource.parse(rule)).submit(topic, b"")
    assert raised.value.where == "topic"
    assert messenger.sent == []


class _Name(str, Enum):  # noqa: UP042 - not a `StrEnum`, which gives its text everywhere
    TOPIC = "orders/created"
    KEY = "4711"


class _AnyCase(str):
    """Equals texts that differ from it in case alone."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and self.lower() == other.lower()

    def __hash__(self) -> int:
        return hash(self.lower())


async def test_a_topic_or_key_of_a_class_of_its_own_is_its_text(
    make_publisher: MakePublisher, messenger: ScriptedMessenger, shape: GroupShape
) -> None:
    publisher = make_publisher()
    for topic, key in (
        (_Name.TOPIC, _Name.KEY),
        ("orders/created", _AnyCase("AB")),
        ("orders/created", _AnyCase("ab")),
    ):
        await publisher.submit(topic, b"", key=key)
    assert [(message.topic, message.key, message.key_sequence) for message in messenger.sent] == [
        (shape.hashed_topic(shard_of(HashFunction.CRC32, key, shape.hash_count), "orders/created"), key, 1)
        for key in ("4711", "AB", "ab")
    ]
    of_topic = make_publisher(key_source=KeySource.parse("topic"))
    await of_topic.submit(_Name.TOPIC, b"")
    assert messenger.sent[-1].key == "orders/created"
    assert {type(message.key) for message in messenger.sent} == {str}


async def test_a_payload_is_bytes_of_its_own(make_publisher: MakePublisher, messenger: ScriptedMessenger) -> None:
    publisher = make_publisher()
    released = memoryview(b"abc")
    released.release()
    for payload in (7, "text", None, array("I", [1]), released):
        with pytest.raises(UserError) as raised:
            await publisher.submit("orders/new", payload, key="k")  # type: ignore[arg-type]  # as nobody may have checked
        assert raised.value.where == "payload"
    buffer = bytearray(b"abc")
    await publisher.submit("orders/new", buffer, key="k")
    buffer[:] = b"xyz"
    assert [each.payload for each in messenger.sent] == [b"abc"]


async def test_a_publisher_that_hashes_unlike_the_others_does_not_start(
    make_publisher: MakePublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(function: HashFunction) -> None:
        raise InvariantViolated("crc32")

    monkeypatch.setattr(hashed, "verify_hashing", broken)
    with pytest.raises(InvariantViolated):
        make_publisher()


# -- answers


async def test_publish_returns_when_the_broker_has_confirmed(
    make_publisher: MakePublisher, messenger: ScriptedMessenger
) -> None:
    publisher = make_publisher()
    publishing = asyncio.create_task(publisher.publish("t", b"x", key="k"))
    await settled()
    assert not publishing.done()
    messenger.confirm()
    shard = shard_of(HashFunction.CRC32, "k", 100)
    assert await publishing == Confirmation("k", shard, 1, f"o/{shard}/t", "p-1")
    assert publisher.counts == PublisherCounts(sent=1, confirmed=1, refused=0, unknown=0)


async def test_many_messages_are_under_way_at_once_and_confirmed_one_by_one(
    make_publisher: MakePublisher, messenger: ScriptedMessenger
) -> None:
    publisher = make_publisher()
    first = await publisher.submit("t", b"1", key="k")
    second = await publisher.submit("t", b"2", key="k")
    messenger.confirm()
    assert (await first).key_sequence == 1
    assert not second.done()
    messenger.confirm()
    assert (await second).key_sequence == 2


async def test_a_confirm_is_timed_from_the_sending_of_its_message(
    make_publisher: MakePublisher, messenger: ScriptedMessenger, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ns = 0
    monkeypatch.setattr(hashed, "monotonic_ns", lambda: now_ns)
    publisher = make_publisher(max_unconfirmed=1)
    first = await publisher.submit("t", b"1", key="k")
    waiting = asyncio.create_task(publisher.publish("t", b"2", key="k"))
    await settled()
    now_ns = 3_000_000_000
    messenger.confirm()
    await first
    await settled()
    now_ns += 2_000_000
    messenger.confirm()
    await waiting
    refused = await publisher.submit("t", b"3", key="k")
    now_ns += 1_000_000
    messenger.refuse()
    with pytest.raises(PublishRefused):
        await refused
    found = publisher.confirm_durations
    assert (sum(found.counts), found.sum_s) == (2, 3.002)


async def test_a_refused_message_is_raised_logged_counted_and_written(
    make_publisher: MakePublisher, messenger: ScriptedMessenger, ledger_file: LedgerFile
) -> None:
    publisher = make_publisher(ledger=ledger_file.ledger)
    answer = await publisher.submit("t", b"x", key="k")
    with capture_logs() as logs:
        messenger.refuse("Document Is Too Large")
        with pytest.raises(PublishRefused) as raised:
            await answer
    shard = shard_of(HashFunction.CRC32, "k", 100)
    assert raised.value.reason == "Document Is Too Large"
    assert [(entry["event"], entry["topic"], entry["key"], entry["reason"]) for entry in logs] == [
        ("publish_refused", f"o/{shard}/t", "k", "Document Is Too Large")
    ]
    assert publisher.counts == PublisherCounts(sent=1, confirmed=0, refused=1, unknown=0)
    assert [(line["seq"], line["fate"]) for line in ledger_file.lines("unconfirmed")] == [(1, "refused")]


async def test_a_failure_in_the_middle_of_a_key_is_unknown_and_never_sent_again(
    make_publisher: MakePublisher, messenger: ScriptedMessenger, ledger_file: LedgerFile
) -> None:
    publisher = make_publisher(ledger=ledger_file.ledger)
    answers = [await publisher.submit("t", payload, key="k") for payload in (b"1", b"2", b"3")]
    messenger.confirm()
    messenger.fail("session down")
    messenger.confirm()
    results = await asyncio.gather(*answers, return_exceptions=True)
    assert isinstance(results[1], PublishFailed)
    await publisher.close()
    assert messenger.payloads() == [b"1", b"2", b"3"]
    assert publisher.counts == PublisherCounts(sent=3, confirmed=2, refused=0, unknown=1)
    assert ledger_file.ranges() == [("k", 1, 1), ("k", 3, 3)]
    (line,) = ledger_file.lines("unconfirmed")
    assert (line["seq"], line["fate"], line["reason"]) == (2, "unknown", "session down")
    assert ledger_file.lines("close")[0]["clean"] is True


@pytest.mark.parametrize("error", [OSError("gone"), None])
async def test_an_answer_that_the_transport_never_promised_counts_as_unknown(
    make_publisher: MakePublisher, messenger: ScriptedMessenger, error: Exception | None
) -> None:
    publisher = make_publisher()
    answer = await publisher.submit("t", b"", key="k")
    if error is None:
        messenger.answers[0].cancel()
    else:
        messenger.answers[0].set_exception(error)
    with pytest.raises(type(error) if error else PublishFailed):
        await answer
    assert publisher.counts.unknown == 1


async def test_an_error_that_nobody_looks_at_is_reported_once_by_the_log_and_not_by_the_loop(
    make_publisher: MakePublisher, messenger: ScriptedMessenger
) -> None:
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    publisher = make_publisher()
    await publisher.submit("t", b"", key="k")
    with capture_logs() as logs:
        messenger.refuse()
        await settled()
    messenger.answers.clear()
    gc.collect()
    assert len(logs) == 1
    assert complaints == []


async def test_a_send_that_raises_leaves_no_gap_in_the_key_and_no_room_taken(
    make_publisher: MakePublisher, messenger: ScriptedMessenger
) -> None:
    publisher = make_publisher(max_unconfirmed=1)
    messenger.failing_send = UserError("properties", "a list", "text or a number")
    with pytest.raises(UserError):
        await publisher.submit("t", b"", key="k")
    messenger.failing_send = None
    await publisher.submit("t", b"", key="k")
    assert [message.key_sequence for message in messenger.sent] == [1]


async def test_another_thread_is_turned_away(make_publisher: MakePublisher, messenger: ScriptedMessenger) -> None:
    publisher = make_publisher()
    await publisher.submit("t", b"", key="k")
    with pytest.raises(UserError, match="another thread"):
        await asyncio.to_thread(asyncio.run, publisher.publish("t", b"", key="k"))
    assert len(messenger.sent) == 1


async def test_properties_that_are_none_take_no_room(
    make_publisher: MakePublisher, messenger: ScriptedMessenger
) -> None:
    publisher = make_publisher(max_unconfirmed=1)
    for wrong in (None, ["name"], 5):
        with pytest.raises(UserError):
            await publisher.submit("t", b"", key="k", properties=wrong)  # type: ignore[arg-type]  # as nobody may check
    await publisher.submit("t", b"", key="k")
    assert [message.key_sequence for message in messenger.sent] == [1]


# -- back-pressure


async def test_no_more_than_the_bound_is_ever_unconfirmed(
    make_publisher: MakePublisher, messenger: ScriptedMessenger
) -> None:
    publisher = make_publisher(max_unconfirmed=3)
    messenger.confirm_after_s = 0.1
    for number in range(20):
        await publisher.submit("t", b"%d" % number, key="k")
    await publisher.close()
    assert messenger.most_unanswered == 3
    assert publisher.counts == PublisherCounts(sent=20, confirmed=20, refused=0, unknown=0)


async def test_the_bytes_under_way_are_bounded(make_publisher: MakePublisher, messenger: ScriptedMessenger) -> None:
    publisher = make_publisher(max_unconfirmed_bytes=100)
    await publisher.submit("t", b"x" * 60, key="k")
    waiting = asyncio.create_task(publisher.submit("t", b"x" * 60, key="k"))
    await settled()
    assert len(messenger.sent) == 1
    messenger.confirm()
    await waiting
    assert len(messenger.sent) == 2


async def test_concurrent_callers_of_a_key_are_served_in_the_order_of_their_calls(
    make_publisher: MakePublisher, messenger: ScriptedMessenger
) -> None:
    publisher = make_publisher(max_unconfirmed=2)
    messenger.confirm_after_s = 0.01
    async with asyncio.TaskGroup() as group:
        for number in range(50):
            group.create_task(publisher.publish("t", b"%d" % number, key="k"))
    assert messenger.payloads() == [b"%d" % number for number in range(50)]
    assert [message.key_sequence for message in messenger.sent] == list(range(1, 51))


async def test_a_caller_cancelled_while_it_waits_for_room_has_sent_nothing(
    make_publisher: MakePublisher, messenger: ScriptedMessenger
) -> None:
    publisher = make_publisher(max_unconfirmed=1)
    await publisher.submit("t", b"1", key="k")
    cancelled = asyncio.create_task(publisher.publish("t", b"2", key="k"))
    after = asyncio.create_task(publisher.publish("t", b"3", key="k"))
    await settled()
    cancelled.cancel()
    messenger.confirm()
    await settled()
    messenger.confirm()
    assert (await after).key_sequence == 2
    assert messenger.payloads() == [b"1", b"3"]
    assert publisher.counts == PublisherCounts(sent=2, confirmed=2, refused=0, unknown=0)


async def test_a_caller_cancelled_while_it_waits_for_the_confirm_leaves_the_account_right(
    make_publisher: MakePublisher, messenger: ScriptedMessenger, ledger_file: LedgerFile
) -> None:
    publisher = make_publisher(ledger=ledger_file.ledger, max_unconfirmed=1)
    publishing = asyncio.create_task(publisher.publish("t", b"1", key="k"))
    await settled()
    publishing.cancel()
    await settled()
    assert publisher.counts.unconfirmed == 1
    messenger.confirm()
    await settled()
    assert publisher.counts == PublisherCounts(sent=1, confirmed=1, refused=0, unknown=0)
    await publisher.close()
    assert ledger_file.ranges() == [("k", 1, 1)]


async def test_a_topic_with_hash_prefix_and_shard_is_told_what_it_should_be(
    make_publisher: MakePublisher, messenger: ScriptedMessenger
) -> None:
    publisher = make_publisher()
    with pytest.raises(UserError) as refusal:
        await publisher.publish("o/3/orders/new", b"", key="k")
    expected = "a topic without o/ and the shard, which the publisher puts before it"
    assert str(refusal.value) == f"topic: 'o/3/orders/new'; expected {expected}"
    own = ("o", "orders/new", "o/new", "o/4711/new", "o/3")
    for topic in own:
        await publisher.submit(topic, b"", key="k")
    assert [message.topic.split("/", 2)[2] for message in messenger.sent] == list(own)
    assert [message.key_sequence for message in messenger.sent] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("topic", ["", "t" * 250])
async def test_a_topic_that_has_no_place_is_told_how_long_it_may_be(make_publisher: MakePublisher, topic: str) -> None:
    with pytest.raises(UserError) as refusal:
        await make_publisher().submit(topic, b"", key="k")
    assert str(refusal.value) == f"topic: {topic!r}; expected 1 to 250 bytes, hash prefix and shard included"


async def test_properties_that_change_while_a_message_waits_are_those_of_the_call(make_publisher, messenger):
    publisher = make_publisher(key_source=KeySource.parse("property:customer"), max_unconfirmed=1)
    await publisher.submit("t", b"x", properties={"customer": "ann"})
    row = {"customer": "bob"}
    waiting = asyncio.create_task(publisher.submit("t", b"y", properties=row))
    await settled()
    row["customer"] = "cid"
    messenger.confirm()
    await waiting
    assert (messenger.sent[1].key, messenger.sent[1].properties["customer"]) == ("bob", "bob")
