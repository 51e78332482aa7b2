import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_runtime.core.group.control_codec import (
    MAX_MESSAGE_BYTES,
    ControlMessageRefused,
    RefusalReason,
    decode,
    encode,
)
from lbg_runtime.core.group.control_messages import (
    MAX_TEXT_LENGTH,
    Accept,
    ControlMessage,
    FlowReport,
    GroupAnswer,
    GroupQuestion,
    Header,
    Heartbeat,
    Inquiry,
    KeyAnswer,
    KeyDetail,
    KeyQuestion,
    KeySight,
    LaneHead,
    LastHandled,
    LastOutcome,
    Leave,
    Life,
    MemberFacts,
    MemberState,
    MoveId,
    Offer,
    ParkingWait,
    ParkingWaits,
    QuestionId,
    QueueStopped,
    Reject,
    ReportedFlow,
    SeenMember,
    StateRequest,
    StoppedQueues,
    Taken,
    settings_digest,
)
from lbg_runtime.core.lanes import LaneStage
from lbg_runtime.core.restripe.striping import Striping, StripingReport
from lbg_runtime.model.ids import Epoch, GroupName, MemberId, QueueName

STRIPING = StripingReport(Striping(0, 4), "")

AnyMessage = ControlMessage | Inquiry

GROUP = GroupName("orders")
HEADER = Header(GROUP, MemberId("member-1"), Life(7, 11), 3)

numbers = st.integers(0, (1 << 63) - 1)
# What `str.isprintable` takes; to filter with it would throw nearly all away.
printable = st.characters(exclude_categories=("C", "Z"), include_characters=" ")
texts = st.text(printable, min_size=1, max_size=MAX_TEXT_LENGTH)
queues = texts.map(QueueName)
members = texts.map(MemberId)
move_ids = texts.map(MoveId)
epochs = numbers.map(Epoch)
headers = st.builds(Header, st.just(GROUP), members, st.builds(Life, numbers, numbers), numbers)
flow_reports = st.builds(FlowReport, st.sampled_from(ReportedFlow), epochs, numbers)
positive = st.integers(1, (1 << 63) - 1)
stripings = st.one_of(
    st.builds(Striping, numbers, positive),
    st.builds(Striping, numbers, positive, positive, st.frozensets(numbers), st.frozensets(numbers)),
)
striping_reports = st.builds(StripingReport, stripings, texts | st.just(""))
heartbeats = st.builds(
    Heartbeat,
    headers,
    st.sampled_from(MemberState),
    numbers,
    st.dictionaries(texts, texts | st.just(""), max_size=5),
    st.dictionaries(queues, flow_reports, max_size=8),
    texts,
    striping_reports,
)
questions = texts.map(QuestionId)
heads = st.builds(
    LaneHead,
    st.sampled_from(LaneStage),
    numbers,
    st.booleans(),
    numbers | st.none(),
    numbers,
    numbers | st.none(),
    numbers | st.none(),
)
lasts = st.builds(LastHandled, numbers | st.none(), numbers, numbers)
sights = st.builds(KeySight, numbers, numbers, heads | st.none(), lasts | st.none())
seen_members = st.lists(st.builds(SeenMember, members, st.booleans()), max_size=5).map(tuple)
messages: st.SearchStrategy[AnyMessage] = st.one_of(
    heartbeats,
    st.builds(GroupQuestion, headers, questions),
    st.builds(GroupAnswer, headers, questions, seen_members),
    st.builds(KeyQuestion, headers, questions, texts),
    st.builds(KeyAnswer, headers, questions, numbers, queues, flow_reports | st.none(), sights),
    st.builds(QueueStopped, headers, questions),
    st.builds(MemberFacts, headers, questions, texts, numbers, st.dictionaries(numbers, numbers, max_size=5)),
    st.builds(StoppedQueues, headers, questions, st.lists(queues, max_size=5, unique=True).map(tuple)),
    st.builds(ParkingWaits, headers, questions, st.dictionaries(queues, st.builds(ParkingWait, numbers, texts))),
    st.builds(
        KeyDetail,
        headers,
        questions,
        texts | st.none(),
        texts | st.none(),
        st.sampled_from(LastOutcome) | st.none(),
    ),
    st.builds(StateRequest, headers),
    st.builds(Leave, headers),
    st.builds(Offer, headers, queues, epochs, move_ids, members),
    st.builds(Accept, headers, queues, move_ids),
    st.builds(Reject, headers, queues, move_ids, texts),
    st.builds(Taken, headers, queues, move_ids | st.none(), epochs),
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


def refusal(payload: bytes) -> RefusalReason:
    with pytest.raises(ControlMessageRefused) as caught:
        decode(payload, GROUP)
    assert len(str(caught.value)) < 400
    return caught.value.reason


def accept_or_refuse(payload: bytes) -> None:
    """Any other exception than a refusal fails the test; what is taken can be said again."""
    try:
        message = decode(payload, GROUP)
    except ControlMessageRefused:
        return
    assert decode(encode(message), GROUP) == message


@given(messages)
def test_what_is_encoded_is_decoded_again(message: AnyMessage) -> None:
    assert decode(encode(message), GROUP) == message


@given(st.binary(max_size=300))
def test_any_bytes_are_a_message_or_refused(payload: bytes) -> None:
    accept_or_refuse(payload)


@given(json_values)
def test_any_json_is_a_message_or_refused(value: object) -> None:
    accept_or_refuse(json.dumps(value).encode())


@given(messages, st.data())
def test_a_message_with_one_item_changed_is_a_message_or_refused(message: AnyMessage, data: st.DataObject) -> None:
    items = json.loads(encode(message))
    position = data.draw(st.integers(0, len(items) - 1))
    items[position] = data.draw(json_values)
    accept_or_refuse(json.dumps(items).encode())


@given(messages, st.data())
def test_a_message_with_damaged_bytes_is_a_message_or_refused(message: AnyMessage, data: st.DataObject) -> None:
    payload = bytearray(encode(message))
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    accept_or_refuse(bytes(payload))
    accept_or_refuse(bytes(payload[: data.draw(st.integers(0, len(payload)))]))


@given(messages, json_values)
def test_a_message_with_an_item_more_or_less_is_refused(message: AnyMessage, value: object) -> None:
    items = json.loads(encode(message))
    assert refusal(json.dumps([*items, value]).encode()) is RefusalReason.MALFORMED
    assert refusal(json.dumps(items[:-1]).encode()) is RefusalReason.MALFORMED


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{}",
        b"[]",
        b"[3]",
        b"\xff\xfe[\x001\x00]\x00",
        b"[" * 100_000,
        b"[" + b"9" * 5_000 + b"]",
        b'[true,"leave","orders","member-1",7,11,3]',
        b'[1.0,"leave","orders","member-1",7,11,3]',
        b'[3,"bye","orders","member-1",7,11,3]',
        b'[3,"leave","orders","",7,11,3]',
        b'[3,"leave","orders","a\\u0000b",7,11,3]',
        b'[3,"leave","orders","a\\ud800b",7,11,3]',
        b'[3,"leave","orders","' + b"x" * 251 + b'",7,11,3]',
        b'[3,"leave","orders","member-1",-1,11,3]',
        b'[3,"leave","orders","member-1",NaN,11,3]',
        b'[3,"leave","orders","member-1",9223372036854775808,11,3]',
    ],
)
def test_malformed_bytes_are_refused(payload: bytes) -> None:
    assert refusal(payload) is RefusalReason.MALFORMED


def test_a_plain_message_has_the_documented_layout() -> None:
    assert encode(Leave(HEADER)) == b'[3,"leave","orders","member-1",7,11,3]'
    taken = Taken(HEADER, QueueName("orders/0"), None, Epoch(4))
    assert encode(taken) == b'[3,"taken","orders","member-1",7,11,3,"orders/0",null,4]'


def test_an_answer_has_the_documented_layout() -> None:
    question, flow = QuestionId("q"), FlowReport(ReportedFlow.ACTIVE, Epoch(4), 2)
    head = LaneHead(LaneStage.DELAYED, 3, True, 17, 900, 800, 50)
    sight = KeySight(5, 6, head, LastHandled(None, 1, 1_000))
    assert encode(KeyAnswer(HEADER, question, 9, QueueName("orders/1"), flow, sight)) == (
        b'[3,"key_answer","orders","member-1",7,11,3,"q",9,"orders/1",[1,4,2],5,6,[2,3,1,17,900,800,50],[null,1,1000]]'
    )
    assert encode(GroupAnswer(HEADER, question, (SeenMember(MemberId("a"), True),))) == (
        b'[3,"group_answer","orders","member-1",7,11,3,"q",[["a",1]]]'
    )
    waits = {QueueName("orders/2"): ParkingWait(5, "y"), QueueName("orders/1"): ParkingWait(43_000, "x")}
    assert encode(ParkingWaits(HEADER, question, waits)) == (
        b'[3,"parking_waits","orders","member-1",7,11,3,"q",[["orders/1",43000,"x"],["orders/2",5,"y"]]]'
    )
    assert encode(KeyDetail(HEADER, question, "orders/new", "ValueError: no", LastOutcome.DMQ)) == (
        b'[3,"key_detail","orders","member-1",7,11,3,"q","orders/new","ValueError: no",2]'
    )
    stopped = (QueueName("orders/2"), QueueName("orders/1"))
    assert encode(StoppedQueues(HEADER, question, stopped)) == (
        b'[3,"stopped_queues","orders","member-1",7,11,3,"q",[["orders/2"],["orders/1"]]]'
    )
    assert encode(MemberFacts(HEADER, question, "0.2.0", 2, {10: 7, 9: 8})) == (
        b'[3,"member_facts","orders","member-1",7,11,3,"q","0.2.0",2,[[9,8],[10,7]]]'
    )
    assert encode(QueueStopped(HEADER, question)) == b'[3,"queue_stopped","orders","member-1",7,11,3,"q"]'
    assert encode(KeyDetail(HEADER, question, None, None, None)) == (
        b'[3,"key_detail","orders","member-1",7,11,3,"q",null,null,null]'
    )


def test_what_is_told_beside_an_answer_is_not_in_it_as_older_versions_would_refuse_it() -> None:
    head = LaneHead(LaneStage.DELAYED, 3, True, 17, 900, 800, 50)
    last = LastHandled(None, 1, 1_000)
    plain = KeyAnswer(HEADER, QuestionId("q"), 9, QueueName("orders/1"), None, KeySight(5, 6, head, last))
    more = KeyDetail(HEADER, QuestionId("q"), "orders/new", "ValueError: no", LastOutcome.ERROR_QUEUE)
    full = replace(plain, sight=more.added_to(plain.sight))
    assert full.sight.head == replace(head, topic="orders/new", error="ValueError: no")
    assert full.sight.last == replace(last, outcome=LastOutcome.ERROR_QUEUE)
    assert encode(full) == encode(plain)
    assert more.added_to(KeySight(0, 0, None, None)) == KeySight(0, 0, None, None)


@pytest.mark.parametrize(
    ("position", "value"),
    [
        (9, 1),
        (10, [3, 1, 1]),
        (10, [1, 1]),
        (10, 0),
        (13, [3, 1, 0, None, 1, None, None]),
        (13, [0, 1, True, 1, 1, 1, 1]),
    ],
)
def test_an_answer_with_an_impossible_item_is_refused(position: int, value: object) -> None:
    sight = KeySight(0, 0, None, None)
    items = json.loads(encode(KeyAnswer(HEADER, QuestionId("q"), 9, QueueName("orders/1"), None, sight)))
    items[position] = value
    assert refusal(json.dumps(items).encode()) is RefusalReason.MALFORMED


@pytest.mark.parametrize(
    ("message", "position"),
    [
        (ParkingWaits(HEADER, QuestionId("q"), {QueueName("orders/0"): ParkingWait(5, "x")}), 8),
        (StoppedQueues(HEADER, QuestionId("q"), (QueueName("orders/0"),)), 8),
        (MemberFacts(HEADER, QuestionId("q"), "0.2.0", 0, {0: 7}), 10),
    ],
)
def test_a_message_that_lists_a_queue_twice_is_refused(message: AnyMessage, position: int) -> None:
    items = json.loads(encode(message))
    items[position] *= 2
    assert refusal(json.dumps(items).encode()) is RefusalReason.MALFORMED


def test_another_version_is_refused_whatever_else_it_says() -> None:
    assert refusal(b'[4,{"new":"form"}]') is RefusalReason.VERSION


def test_another_group_is_refused() -> None:
    payload = encode(Leave(HEADER))
    with pytest.raises(ControlMessageRefused) as caught:
        decode(payload, GroupName("invoices"))
    assert caught.value.reason is RefusalReason.GROUP


def test_what_is_too_large_is_refused_by_both_sides() -> None:
    assert refusal(b" " * (MAX_MESSAGE_BYTES + 1)) is RefusalReason.TOO_LARGE
    flows = {
        QueueName("q" * 240 + f"{number:010}"): FlowReport(ReportedFlow.STANDBY, Epoch(1), 0) for number in range(600)
    }
    with pytest.raises(ControlMessageRefused, match="too_large"):
        encode(Heartbeat(HEADER, MemberState.ACTIVE, 1, {}, flows, "0" * 16, STRIPING))


@pytest.mark.parametrize(
    ("position", "value"),
    [
        (7, "asleep"),
        (9, settings_digest({"hash_count": "64"})),
        (10, [["hash_count", "32"], ["hash_count", "32"]]),
        (10, [["hash_count", "32", "more"]]),
        (10, ["hash_count"]),
        (12, [["orders/0", 3, 1, 0]]),
        (12, [["orders/0", 1, 1, 0], ["orders/0", 1, 1, 0]]),
        (12, {"orders/0": 1}),
    ],
)
def test_a_heartbeat_that_contradicts_itself_is_refused(position: int, value: object) -> None:
    flows = {QueueName("orders/0"): FlowReport(ReportedFlow.ACTIVE, Epoch(1), 0)}
    items = json.loads(
        encode(Heartbeat(HEADER, MemberState.ACTIVE, 1, {"hash_count": "32"}, flows, "0" * 16, STRIPING))
    )
    items[position] = value
    assert refusal(json.dumps(items).encode()) is RefusalReason.MALFORMED


def test_a_heartbeat_of_a_member_with_64_queues_stays_below_3_kilobytes() -> None:
    flows = {
        QueueName(f"lbg/orders/{number}"): FlowReport(ReportedFlow.STANDBY, Epoch(1_000 + number), 100)
        for number in range(64)
    }
    settings = {"hash_prefix": "orders", "hash_count": "64", "queue_count": "64", "hash_function": "crc32"}
    assert len(encode(Heartbeat(HEADER, MemberState.ACTIVE, 1, settings, flows, "0" * 16, STRIPING))) < 3_000
