"""Transacted sessions without sockets: what a client may name in them, and what is kept of them."""

import struct
from dataclasses import replace

import pytest

from lbg_runtime.broker.engine.accounts import Account, ClientProfile
from lbg_runtime.broker.engine.settings import AccessType
from lbg_runtime.broker.server.session import Session
from lbg_runtime.broker.server.transactions import MOST_HELD_MESSAGES
from lbg_runtime.model.errors import ProtocolError
from lbg_runtime.model.ids import QueueName
from lbg_runtime.smf.assured_items import AssuredKind, ItemKind, decode_assured
from lbg_runtime.smf.frame import Frame, Protocol, decode_frame, encode_frame
from lbg_runtime.smf.response import OK, Response, response_of
from lbg_runtime.smf.transactions import TransactionKind
from tests.broker.server.desk import (
    TAG,
    Desk,
    ack,
    answers,
    consumed,
    control,
    delivered,
    item,
    open_flow,
    published,
    put,
    text,
    transaction,
    u32,
)

FAILURE = Response(503, "Transaction Failure")


def tell(session: Session, kind: TransactionKind, session_id: int = 0, *parts: tuple[int, bytes]) -> list[Frame]:
    """What a request about a session is answered with, and what follows."""
    session.receive(transaction(kind, session_id, *parts))
    return answers(session)


def ask(session: Session, kind: TransactionKind, session_id: int = 0, *parts: tuple[int, bytes]) -> Response | None:
    return response_of(tell(session, kind, session_id, *parts)[0])


def bind(session: Session, queue: str, session_id: int) -> tuple[int, list[int]]:
    """The flow, and the ids that it is sent."""
    asked = (
        (ItemKind.QUEUE, text(queue)),
        (ItemKind.WINDOW, b"\0"),
        (ItemKind.DURABILITY, b"\1"),
        (ItemKind.TRANSACTED_SESSION, u32(session_id)),
    )
    session.receive(control(AssuredKind.BIND, *asked))
    flow = item(answers(session)[0], ItemKind.FLOW_ID)
    session.receive(ack(flow, window=255))
    return flow, [delivered(frame)[0] for frame in answers(session)]


def open_transacted(session: Session, session_id: int) -> Frame:
    asked = ((ItemKind.FLOW_NAME, text("")), (ItemKind.TRANSACTED_SESSION, u32(session_id)))
    session.receive(control(AssuredKind.OPEN_FLOW, *asked))
    return answers(session)[0]


def desk_with_orders(count: int) -> Desk:
    desk = Desk()
    desk.create_queue("orders", "o/>")
    publisher = desk.log_in("publisher")
    flow, _, _ = open_flow(publisher)
    for number in range(count):
        publisher.receive(published(flow, number + 1, "o/a"))
    return desk


def publishing_in_transactions() -> tuple[Desk, Session, int]:
    """With the id of the flow."""
    desk = desk_with_orders(0)
    session = desk.log_in()
    ask(session, TransactionKind.OPEN)
    return desk, session, item(open_transacted(session, 1), ItemKind.FLOW_ID)


def test_a_commit_consumes_what_its_own_session_holds_and_nothing_of_others() -> None:
    desk = desk_with_orders(3)
    holder, other = desk.log_in("holder"), desk.log_in("other")
    for session in (holder, holder, other):
        assert ask(session, TransactionKind.OPEN) == OK
    flow, ids = bind(holder, "orders", 1)
    part = consumed(flow, ids[0], ids[-1], 3)
    assert ask(other, TransactionKind.COMMIT, 1, part) == FAILURE
    assert ask(holder, TransactionKind.COMMIT, 2, part) == FAILURE
    assert desk.depth("orders") == 3
    assert ask(holder, TransactionKind.COMMIT, 1, part) == OK
    assert desk.depth("orders") == 0


def test_a_commit_names_what_several_flows_consumed_in_one_item_as_the_official_client_does() -> None:
    desk = desk_with_orders(1)
    desk.create_queue("others", "o/>")
    publisher, session = desk.log_in("another publisher"), desk.log_in()
    publisher.receive(published(open_flow(publisher)[0], 1, "o/a"))
    ask(session, TransactionKind.OPEN)
    (first, ids), (second, other_ids) = bind(session, "orders", 1), bind(session, "others", 1)
    kind, part = consumed(first, ids[0], ids[-1], 2)
    _, other_part = consumed(second, other_ids[0], other_ids[-1], 1)
    assert ask(session, TransactionKind.COMMIT, 1, (kind, part + other_part)) == OK
    assert (desk.depth("orders"), desk.depth("others")) == (0, 0)


def test_a_flow_that_has_ended_is_no_part_of_its_session_any_more() -> None:
    desk = desk_with_orders(1)
    session = desk.log_in()
    ask(session, TransactionKind.OPEN)
    flow, ids = bind(session, "orders", 1)
    session.receive(control(AssuredKind.UNBIND, (ItemKind.FLOW_ID, u32(flow))))
    answers(session)
    assert ask(session, TransactionKind.COMMIT, 1, consumed(flow, ids[0], ids[0], 1)) == FAILURE
    assert desk.depth("orders") == 1


def test_a_commit_acknowledges_what_has_arrived_and_opens_no_wider_window_than_there_is() -> None:
    desk = desk_with_orders(600)
    session = desk.log_in()
    ask(session, TransactionKind.OPEN)
    flow, ids = bind(session, "orders", 1)
    assert len(ids) == 255
    part = consumed(flow, ids[0], ids[0], 1, received=ids[-1], window=(1 << 32) - 1)
    answer, *following = tell(session, TransactionKind.COMMIT, 1, part)
    assert response_of(answer) == OK
    assert len(following) == 255


def test_a_rollback_gives_each_message_back_once_where_two_flows_share_the_queue() -> None:
    desk = Desk()
    desk.create_queue("orders", "o/>", access_type=AccessType.NON_EXCLUSIVE, max_redelivery_count=1)
    session, publisher = desk.log_in(), desk.log_in("publisher")
    ask(session, TransactionKind.OPEN)
    for _ in range(2):
        bind(session, "orders", 1)
    flow, _, _ = open_flow(publisher)
    for number in range(4):
        publisher.receive(published(flow, number + 1, "o/a"))
    assert len(answers(session)) == 4
    answer, *again = tell(session, TransactionKind.ROLLBACK, 1)
    assert response_of(answer) == OK
    assert len(again) == desk.depth("orders") == 4


def test_a_session_that_is_not_open_has_no_flows_and_numbers_none() -> None:
    desk = Desk()
    session = desk.log_in()
    before = open_flow(session)[0]
    for _ in range(3):
        assert response_of(open_transacted(session, 7)) == Response(400, "Unknown Transacted Session")
    assert open_flow(session)[0] == before + 1


def test_nothing_is_kept_of_flows_and_sessions_that_were_closed() -> None:
    desk = Desk()
    session = desk.log_in()
    for session_id in range(1, 20):
        ask(session, TransactionKind.OPEN)
        flow = item(open_transacted(session, session_id), ItemKind.FLOW_ID)
        named, _, _ = open_flow(session)
        for closed in (flow, named):
            session.receive(control(AssuredKind.CLOSE_FLOW, (ItemKind.FLOW_ID, u32(closed))))
        answers(session)
        assert ask(session, TransactionKind.CLOSE, session_id) == OK
    (name,) = desk.engine.administration.client_names("default")
    assert desk.engine.administration.client("default", name).publisher_flow_count == 0


def test_a_session_that_was_closed_is_unknown_and_so_are_its_flows() -> None:
    session = Desk().log_in()
    ask(session, TransactionKind.OPEN)
    flow = item(open_transacted(session, 1), ItemKind.FLOW_ID)
    assert ask(session, TransactionKind.CLOSE, 1) == OK
    assert ask(session, TransactionKind.COMMIT, 1) == Response(400, "Unknown Transacted Session")
    with pytest.raises(ProtocolError, match=f"flow {flow}, which is not open"):
        session.receive(published(flow, 1, "o/a"))


def test_what_was_published_before_its_flow_was_closed_is_committed() -> None:
    desk, session, flow = publishing_in_transactions()
    session.receive(published(flow, 1, "o/a"))
    session.receive(control(AssuredKind.CLOSE_FLOW, (ItemKind.FLOW_ID, u32(flow))))
    answers(session)
    assert ask(session, TransactionKind.COMMIT, 1, put(flow, 1, 1)) == OK
    assert desk.depth("orders") == 1


def test_a_transaction_publishes_as_many_messages_as_may_be_and_one_more_undoes_it_and_no_other() -> None:
    desk, session, flow = publishing_in_transactions()
    last_id = 0
    for count in (MOST_HELD_MESSAGES, MOST_HELD_MESSAGES + 1, 1):
        for _ in range(count):
            last_id += 1
            session.receive(published(flow, last_id, "o/a"))
        expected = OK if count <= MOST_HELD_MESSAGES else Response(503, "Too Many Messages In Transaction")
        assert ask(session, TransactionKind.COMMIT, 1, put(flow, count, last_id)) == expected
    assert desk.depth("orders") == MOST_HELD_MESSAGES + 1


def accepted(frame: Frame) -> list[tuple[int, int, int]]:
    """Flow, last id and window of each part that an answer says was published."""
    parts = [each.value for each in decode_assured(frame.body).items if each.kind == 0x1D]
    return [struct.unpack(">IQI", part) for part in parts]


def test_the_end_of_a_transaction_tells_of_flows_that_were_open_in_it() -> None:
    session = Desk().log_in()
    ask(session, TransactionKind.OPEN)
    assert accepted(tell(session, TransactionKind.COMMIT, 1)[0]) == []
    unused, used = (item(open_transacted(session, 1), ItemKind.FLOW_ID) for _ in range(2))
    assert accepted(tell(session, TransactionKind.COMMIT, 1)[0]) == [(unused, 0, 255), (used, 0, 255)]
    session.receive(published(used, 3, "o/a"))
    for flow in (unused, used):
        session.receive(control(AssuredKind.CLOSE_FLOW, (ItemKind.FLOW_ID, u32(flow))))
    answers(session)
    assert accepted(tell(session, TransactionKind.COMMIT, 1, put(used, 1, 3))[0]) == [(used, 3, 255)]
    assert accepted(tell(session, TransactionKind.COMMIT, 1)[0]) == []


def test_what_a_transaction_published_is_what_its_client_says_or_nothing_of_it_is_kept() -> None:
    desk, session, flow = publishing_in_transactions()
    last_id = 0
    for said in (put(flow, 1, 2), put(flow, 3, 3), put(flow + 1, 2, 2), None):
        for _ in range(2):
            last_id += 1
            session.receive(published(flow, last_id, "o/a"))
        assert ask(session, TransactionKind.COMMIT, 1, *([said] if said else [])) == FAILURE
    assert desk.depth("orders") == 0
    # Sent again, a message counts once.
    for number in (last_id, last_id + 1, last_id + 1, last_id):
        session.receive(published(flow, number, "o/a", resent=True))
    assert ask(session, TransactionKind.COMMIT, 1, put(flow, 1, last_id + 1)) == OK
    assert desk.depth("orders") == 1


def test_a_commit_says_what_was_received_and_the_window_in_this_order() -> None:
    session = desk_with_orders(20).log_in()
    ask(session, TransactionKind.OPEN)
    asked = ((ItemKind.QUEUE, text("orders")), (ItemKind.WINDOW, b"\5"), (ItemKind.DURABILITY, b"\1"))
    session.receive(control(AssuredKind.BIND, *asked, (ItemKind.TRANSACTED_SESSION, u32(1))))
    bound, *sent = answers(session)
    flow = item(bound, ItemKind.FLOW_ID)
    assert [delivered(message)[0] for message in sent] == [1, 2, 3, 4, 5]
    answer, *following = tell(session, TransactionKind.COMMIT, 1, consumed(flow, 1, 1, 1, received=3, window=7))
    assert response_of(answer) == OK
    assert [delivered(message)[0] for message in following] == [6, 7, 8, 9, 10]


def test_a_client_that_may_not_use_transactions_has_none() -> None:
    desk = Desk()
    desk.engine.administration.accounts("default").put(
        Account("user", profile=ClientProfile(may_use_transactions=False))
    )
    session = desk.log_in()
    for kind in (TransactionKind.OPEN, TransactionKind.RESUME):
        assert ask(session, kind) == Response(403, "Permission Not Allowed")
    assert response_of(open_transacted(session, 1)) == Response(400, "Unknown Transacted Session")


def test_what_only_a_broker_says_ends_the_connection_of_a_client_that_says_it() -> None:
    session = Desk().log_in()
    ask(session, TransactionKind.OPEN)
    with pytest.raises(ProtocolError, match="transaction control 4 from a client"):
        tell(session, TransactionKind.OPENED, 1)


def test_a_name_that_was_closed_is_resumed_where_it_stood() -> None:
    desk = Desk()
    desk.create_queue("orders", "o/>")
    session = desk.log_in()
    flow, name, _ = open_flow(session)
    session.receive(published(flow, 1, "o/a"))
    session.receive(control(AssuredKind.CLOSE_FLOW, (ItemKind.FLOW_ID, u32(flow))))
    answers(session)
    again, _, last_answered = open_flow(session, name)
    session.receive(published(again, 1, "o/a"))
    assert (last_answered, desk.depth("orders")) == (1, 1)


@pytest.mark.parametrize("protocol", [Protocol.ASSURED_PASS_THROUGH, Protocol.ASSURED_CTRL])
def test_a_commit_is_answered_in_its_protocol_and_then_its_messages_go_out(protocol: Protocol) -> None:
    _, session, flow = publishing_in_transactions()
    bind(session, "orders", 1)
    session.receive(published(flow, 1, "o/a"))
    assert answers(session) == []
    commit = decode_frame(transaction(TransactionKind.COMMIT, 1, put(flow, 1, 1)))
    session.receive(encode_frame(replace(commit, protocol=protocol)))
    answer, message = answers(session)
    assert (answer.protocol, response_of(answer), answer.tag) == (protocol, OK, TAG.value)
    assert delivered(message) == (1, 0, False)


def test_a_bind_for_a_session_that_is_not_open_binds_nothing() -> None:
    desk = desk_with_orders(1)
    session = desk.log_in()
    asked = ((ItemKind.QUEUE, text("orders")), (ItemKind.DURABILITY, b"\1"), (ItemKind.TRANSACTED_SESSION, u32(1)))
    session.receive(control(AssuredKind.BIND, *asked))
    (answer,) = answers(session)
    assert response_of(answer) == Response(400, "Unknown Transacted Session")
    assert desk.engine.queue_flows("default", QueueName("orders")) == ()


def test_withheld_acknowledgements_are_given_when_that_is_over() -> None:
    session = Desk().log_in()
    flow, _, _ = open_flow(session)
    session.withholds_acks = True
    session.receive(published(flow, 1, "o/a"))
    session.receive(published(flow, 2, "o/a"))
    assert answers(session) == []
    session.give_acks()
    session.receive(published(flow, 3, "o/a"))
    assert [item(answer, ItemKind.LAST_ACKED) for answer in answers(session)] == [2, 3]


def test_withheld_acknowledgements_of_a_flow_that_was_closed_are_not_given() -> None:
    desk = Desk()
    session = desk.log_in()
    flow, _, _ = open_flow(session)
    session.withholds_acks = True
    session.receive(published(flow, 1, "o/a"))
    session.receive(control(AssuredKind.CLOSE_FLOW, (ItemKind.FLOW_ID, u32(flow))))
    assert len(answers(session)) == 1
    session.give_acks()
    assert answers(session) == []
