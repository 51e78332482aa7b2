"""What the vendor's JavaScript client sends otherwise than its C library, in frames as they came."""

from lbg_runtime.broker.server.session import Session
from lbg_runtime.smf.assured_items import AssuredKind, ItemKind
from lbg_runtime.smf.frame import Frame
from lbg_runtime.smf.response import OK, response_of
from tests.broker.server.desk import Desk, answers, control, item, published, text_item

OPEN_FLOW = bytes.fromhex(
    "03090001000000100000002f 23000002 03000000001f 810a0000000000000000 820a0000000000000000 830332 0a02"
)
"""No name, not even its closing zero; the application wants 50 messages at most without an answer."""
BIND_WITH_REPLAY = bytes.fromhex(
    """
    03090001000000100000003b 23000005 03040000002b 820a0000000000000000 8303ff 87057131 00 0b0301 100a0000000000000000
    210301 b30300
    """
)
"""Of the queue `q1`: a new handle, and yet with a last received id, 0."""


def ask(session: Session, *frames: bytes) -> list[Frame]:
    session.receive(b"".join(frames))
    return answers(session)


def test_a_flow_is_resumed_by_a_name_without_its_closing_zero() -> None:
    desk = Desk()
    first = desk.log_in()
    (opened,) = ask(first, OPEN_FLOW)
    assert response_of(opened) == OK
    flow, name = item(opened, ItemKind.FLOW_ID), text_item(opened, ItemKind.FLOW_NAME)
    ask(first, published(flow, 1, "t"), published(flow, 2, "t"))
    (resumed,) = ask(desk.log_in(), control(AssuredKind.OPEN_FLOW, (ItemKind.FLOW_NAME, name.encode())))
    assert item(resumed, ItemKind.LAST_ACKED) == 2
    assert text_item(resumed, ItemKind.FLOW_NAME) == name


def test_a_publisher_has_the_window_that_it_asked_for() -> None:
    session = Desk().log_in()
    (opened,) = ask(session, OPEN_FLOW)
    (confirmed,) = ask(session, published(item(opened, ItemKind.FLOW_ID), 1, "t"))
    (refused,) = ask(session, published(item(opened, ItemKind.FLOW_ID), 2, "#P2P/QUE/none"))
    assert [item(answer, ItemKind.WINDOW) for answer in (opened, confirmed, refused)] == [50, 50, 50]


def test_a_new_handle_that_names_0_as_its_last_id_has_its_replay() -> None:
    desk = Desk()
    desk.create_queue("q1", "t")
    desk.engine.replays.keep_log_of_size("default", 1_000)
    session = desk.log_in()
    (opened,) = ask(session, OPEN_FLOW)
    ask(session, published(item(opened, ItemKind.FLOW_ID), 1, "t", b"again"))
    desk.engine.administration.delete_messages("default", "q1")
    bound, delivery = ask(session, BIND_WITH_REPLAY)
    assert response_of(bound) == OK
    assert delivery.body == b"again"
