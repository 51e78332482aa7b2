"""Whatever bytes a client sends, its session answers or ends it, without a socket, on a real engine."""

from hypothesis import given, settings
from hypothesis import strategies as st

from lbg_runtime.model.errors import ProtocolError
from lbg_runtime.smf.assured_items import AssuredKind, ItemKind
from lbg_runtime.smf.frame import Frame, Protocol, encode_frame
from lbg_runtime.smf.response import OK, response_of
from lbg_runtime.smf.smp import SubscriptionKind, SubscriptionRequest, encode_subscription
from tests.broker.server.desk import (
    TAG,
    Desk,
    ack,
    answers,
    consumed,
    control,
    login,
    published,
    put,
    text,
    transaction,
    u32,
    u64,
)

CONVERSATION = [
    login("client"),
    control(AssuredKind.OPEN_FLOW, (ItemKind.FLOW_NAME, text("")), tag=False),
    encode_frame(
        Frame(
            Protocol.SUBSCRIPTION, (TAG,), encode_subscription(SubscriptionRequest(SubscriptionKind.ADD, 0x0C, "t/>"))
        )
    ),
    control(AssuredKind.CREATE, (ItemKind.QUEUE, text("made")), (ItemKind.ACCESS, b"\2")),
    encode_frame(
        Frame(
            Protocol.SUBSCRIPTION,
            (TAG,),
            encode_subscription(SubscriptionRequest(SubscriptionKind.ADD_TO_QUEUE, 0x0C, "t/*", "made")),
        )
    ),
    control(
        AssuredKind.BIND, (ItemKind.QUEUE, text("made")), (ItemKind.WINDOW, b"\xff"), (ItemKind.WANTS_CHANGES, b"\1")
    ),
    published(1, 1, "t/1"),
    published(1, 2, "t/2"),
    ack(2, received=1, window=255, ranges=(u64(0) + u64(1), u64(2) + u64(2) + b"\1")),
    bytes.fromhex("038b00010000000c0000000c"),
    control(AssuredKind.UNBIND, (ItemKind.FLOW_ID, u32(2)), tag=False),
]


def test_the_conversation_that_is_garbled_below_is_sound() -> None:
    desk = Desk()
    session = desk.new_session()
    session.receive(b"".join(CONVERSATION))
    assert all(response_of(answer) in (OK, None) for answer in answers(session))
    assert desk.depth("made") == 1


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_garbled_conversation_ends_in_a_protocol_error_or_in_answers(data) -> None:
    stream = bytearray(b"".join(CONVERSATION))
    spared = len(CONVERSATION[0]) if data.draw(st.booleans(), label="spare the login") else 0
    for _ in range(data.draw(st.integers(1, 4), label="changes")):
        position = data.draw(st.integers(spared, len(stream) - 1), label="position")
        stream[position] = data.draw(st.integers(0, 255), label="value")
    session = Desk().new_session()
    position = 0
    try:
        while position < len(stream):
            size = data.draw(st.integers(1, 200), label="piece")
            session.receive(bytes(stream[position : position + size]))
            position += size
    except ProtocolError:
        pass
    for answer in answers(session):
        response_of(answer)


numbers = st.one_of(st.integers(0, 8), st.integers(0, (1 << 64) - 1), st.just((1 << 63) - 1))
flows = st.one_of(st.integers(1, 6), st.integers(0, (1 << 32) - 1)).map(u32)
ranges = st.tuples(numbers, numbers, st.sampled_from([b"", b"\0", b"\1", b"\2", b"\3"])).map(
    lambda drawn: u64(drawn[0]) + u64(drawn[1]) + drawn[2]
)
sessions = st.integers(0, 3)
parts = st.one_of(
    st.builds(consumed, st.integers(1, 6), numbers, numbers, st.integers(0, 3), numbers, st.integers(0, (1 << 32) - 1)),
    st.builds(put, st.integers(1, 6), st.integers(0, 3), numbers),
)
requests = st.one_of(
    st.sampled_from(CONVERSATION[1:]),
    st.builds(published, st.integers(1, 6), numbers.filter(bool), st.sampled_from(["t/1", "t/2", "other"])),
    st.builds(
        ack,
        flows.map(lambda flow: int.from_bytes(flow, "big")),
        st.none() | numbers,
        st.none() | st.integers(0, 255),
        st.lists(ranges, max_size=3).map(tuple),
    ),
    st.builds(
        lambda number, window, kind: control(
            AssuredKind.BIND,
            (ItemKind.QUEUE, text("made")),
            (ItemKind.LAST_RECEIVED, u64(number)),
            (ItemKind.WINDOW, bytes((window,))),
            (ItemKind.FLOW_TYPE, bytes((kind,))),
            (ItemKind.WANTS_CHANGES, b"\1"),
        ),
        numbers,
        st.integers(0, 255),
        st.sampled_from([2, 3]),
    ),
    st.builds(lambda flow: control(AssuredKind.UNBIND, (ItemKind.FLOW_ID, flow)), flows),
    st.builds(lambda flow: control(AssuredKind.CLOSE_FLOW, (ItemKind.FLOW_ID, flow)), flows),
    st.builds(
        lambda kind, session_id, parts: transaction(kind, session_id, *parts),
        st.integers(0, 9),
        sessions,
        st.lists(parts, max_size=2),
    ),
    st.builds(
        lambda session_id: control(
            AssuredKind.OPEN_FLOW, (ItemKind.FLOW_NAME, text("")), (ItemKind.TRANSACTED_SESSION, u32(session_id))
        ),
        sessions,
    ),
    st.builds(
        lambda session_id: control(
            AssuredKind.BIND,
            (ItemKind.QUEUE, text("made")),
            (ItemKind.WINDOW, b"\5"),
            (ItemKind.TRANSACTED_SESSION, u32(session_id)),
        ),
        sessions,
    ),
)


@settings(max_examples=100, deadline=None)
@given(asked=st.lists(st.lists(requests, min_size=1, max_size=4).map(b"".join), max_size=15))
def test_sound_requests_in_any_order_with_any_numbers_are_survived(asked: list[bytes]) -> None:
    desk = Desk()
    desk.create_queue("made", "t/*")
    session = desk.log_in("one")
    for number, request in enumerate(asked):
        try:
            session.receive(request)
        except ProtocolError:
            assert session.client is not None
            desk.carry_out(desk.engine.disconnect(session.client))
            session = desk.log_in("one")
        if number % 5 == 4:
            answers(session)
    for answer in answers(session):
        response_of(answer)
