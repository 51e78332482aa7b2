"""What the vendor's JavaScript client sends otherwise than its C library, in frames as they came."""

import pytest

from lbg_runtime.broker.engine.settings import AccessType, Permission, QueueSettings, RejectOnDiscard
from lbg_runtime.broker.server.login import inbox_of
from lbg_runtime.broker.server.session import Session
from lbg_runtime.model.ids import QueueName
from lbg_runtime.smf.assured_items import AssuredKind, ItemKind, decode_assured
from lbg_runtime.smf.client_ctrl import ClientKind, decode_client_ctrl
from lbg_runtime.smf.frame import Frame, ParameterKind
from lbg_runtime.smf.response import OK, Response, response_of
from tests.broker.server.desk import Desk, answers, control, item, published, text, text_item, u32, u64

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

BIND_UNTOLD = bytes.fromhex(
    "030900010000001000000035 23000004 030400000025 820a0000000000000000 8303ff 8705 6e6900 0b0301 100a0000000000000000"
)
"""Of the queue `ni`, without being told of activity, as is this client's default."""
BIND_WITHOUT_OWN_MESSAGES = bytes.fromhex(
    """
    03090001000000100000003b 23000003 03040000002b 820a0000000000000000 8303ff 8706 6e6c7100 0b0301
    100a0000000000000000 9f02 210301
    """
)
"""Of the queue `nlq`."""
CREATE = bytes.fromhex(
    """
    03090001000000100000003e 23000004 03080000002e 8706 70763200 0b0301 0c0302 110600000003 130600000007 1406000004d2
    160301 22041000 2a0303
    """
)
"""The queue `pv2`, with all that can be said of it."""
CREATE_PLAINLY = bytes.fromhex("03090001000000100000001f 23000003 03080000000f 8706 70763200 0b0301")
CREATE_TOPIC_ENDPOINT = bytes.fromhex("03090001000000100000001f 23000010 03080000000f 8806 74653100 0b0301")
BIND_CREATED = bytes.fromhex(
    "030900010000001000000039 23000003 030400000029 820a0000000000000000 8303ff 8706 70763200 0b0301"
    "100a0000000000000000 210301"
)
REBIND = bytes.fromhex(
    """
    03090001000000100000004d 23000003 03040000003d 820a000000000000001b 8303ff 8705 653300 0b0301 100a000000000000001b
    110600000000 130600000000 140600989680 160300 210301
    """
)
"""Of the queue `e3`, whose properties it repeats."""
BIND_TEMPORARY = bytes.fromhex(
    """
    03090001000000100000005b 23000003 03040000004b 820a0000000000000000 8303ff
    8719 235032502f51544d502f763a6c62672f6d7974656d7000 0b0300 100a0000000000000000 110600000003 130600000003
    160301 210301
    """
)
"""`#P2P/QTMP/v:lbg/mytemp`, which takes 3 MB and lets messages expire."""
DELETE = bytes.fromhex("03090001000000100000001c 23000011 03090000000c 8706 70763200")
DELETE_TOPIC_ENDPOINT = bytes.fromhex("03090001000000100000001c 23000014 03090000000c 8806 74653100")
DESCRIBE = bytes.fromhex("030c0001000000100000002b 23000003 01010000001b 0400000015 6e6577206465736372697074696f6e00")
RENAME = bytes.fromhex("030c00010000001000000025 23000005 010100000015 050000000f 753172656e616d656400")

RENAME_BY_C = bytes.fromhex("038c00010000000c0000001c 810100000010 050000000a 726e2d6200")
"""Of the vendor's C library 7.25, through another's wrapper."""


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


def test_what_a_publisher_has_left_out_is_not_confirmed_with_what_comes_behind_it() -> None:
    desk = Desk()
    desk.create_queue("q", "t")
    session = desk.log_in()
    (opened,) = ask(session, OPEN_FLOW)
    flow = item(opened, ItemKind.FLOW_ID)
    # It leaves messages out when its socket takes no more, goes on when it does, and sends again what has no answer.
    confirmed = ask(session, published(flow, 1, "t"), published(flow, 3, "t"), published(flow, 4, "t"))
    assert [item(each, ItemKind.LAST_ACKED) for each in confirmed] == [1]
    assert desk.depth("q") == 1
    (repeated,) = ask(session, *(published(flow, number, "t", resent=True) for number in (1, 2, 3, 4)))
    assert item(repeated, ItemKind.LAST_ACKED) == 4
    assert desk.depth("q") == 4


def test_a_publisher_goes_on_with_its_own_numbers_at_a_broker_that_does_not_know_it() -> None:
    desk = Desk()
    desk.create_queue("q", "t")
    session = desk.log_in()
    heard = control(AssuredKind.OPEN_FLOW, (ItemKind.FLOW_NAME, text("old")), (ItemKind.LAST_ACKED, u64(50)))
    (opened,) = ask(session, heard)
    flow = item(opened, ItemKind.FLOW_ID)
    assert item(opened, ItemKind.LAST_ACKED) == 0
    # Its 52nd, without the 51st.
    (nothing,) = ask(session, published(flow, 52, "t"))
    assert item(nothing, ItemKind.LAST_ACKED) == 0
    (confirmed,) = ask(session, published(flow, 51, "t"), published(flow, 52, "t"))
    assert item(confirmed, ItemKind.LAST_ACKED) == 52
    assert desk.depth("q") == 2


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


def test_a_flow_that_is_told_of_no_activity_is_not_said_to_be_a_standby() -> None:
    desk = Desk()
    desk.create_queue("ni", "t")
    session = desk.log_in()
    first, standby, opened = ask(session, BIND_UNTOLD, BIND_UNTOLD, OPEN_FLOW)
    # With 0 here, the client takes nothing from that flow until it is told that it is fed, which it did not ask for.
    assert ItemKind.ACTIVE not in {each.kind for each in decode_assured(standby.body).items}
    ask(session, published(item(opened, ItemKind.FLOW_ID), 1, "t"))
    _, delivery = ask(session, control(AssuredKind.UNBIND, (ItemKind.FLOW_ID, u32(item(first, ItemKind.FLOW_ID)))))
    assert delivery.find(ParameterKind.FLOW_ID) == u32(item(standby, ItemKind.FLOW_ID))


def test_a_queue_is_created_as_its_client_wishes_and_a_client_that_binds_it_is_told_so() -> None:
    desk = Desk()
    (created,) = ask(desk.log_in(), CREATE)
    assert created.body == bytes.fromhex(
        "03080000002a 0706 70763200 0c0302 15060000000f 110600000003 160301 130600000007 1406000004d2"
    )
    settings = desk.engine.queue_status("default", QueueName("pv2")).settings
    assert settings == QueueSettings(
        AccessType.NON_EXCLUSIVE,
        owner="user",
        permission=Permission.CONSUME,
        reject_on_discard=RejectOnDiscard.NEVER,
        quota_bytes=7_000_000,
        max_message_bytes=1_234,
        max_redelivery_count=3,
        respect_time_to_live=True,
    )
    bound, *_ = ask(desk.log_in("stranger", username="stranger"), BIND_CREATED)
    assert item(bound, ItemKind.PERMISSIONS) == item(bound, ItemKind.OTHERS_PERMISSIONS) == 0b11
    assert (item(bound, ItemKind.RESPECT_TTL), item(bound, ItemKind.QUOTA_MEGABYTES)) == (1, 7)


@pytest.mark.parametrize(
    ("said", "instead", "refusal"),
    [
        ("130600000007", "130600000000", "Quota Out Of Range"),
        ("130600000007", "1306005b8d81", "Quota Out Of Range"),
        ("1406000004d2", "140601c9c381", "Message Size Out Of Range"),
    ],
)
def test_a_queue_that_is_too_large_and_one_for_no_messages_are_refused(said: str, instead: str, refusal: str) -> None:
    (refused,) = ask(Desk().log_in(), CREATE.replace(bytes.fromhex(said), bytes.fromhex(instead)))
    assert response_of(refused) == Response(400, refusal)


def test_a_client_that_is_back_may_repeat_what_it_was_told_of_a_queue() -> None:
    desk = Desk()
    desk.create_queue("e3", quota_bytes=1)
    bound, *_ = ask(desk.log_in(), REBIND)
    assert response_of(bound) == OK
    assert item(bound, ItemKind.QUOTA_MEGABYTES) == 0


def test_a_queue_of_which_nothing_is_said_is_as_the_broker_has_it() -> None:
    desk = Desk()
    ask(desk.log_in(), CREATE_PLAINLY)
    assert desk.engine.queue_status("default", QueueName("pv2")).settings == QueueSettings(owner="user")


def test_a_temporary_queue_is_as_its_client_wishes() -> None:
    desk = Desk()
    bound, *_ = ask(desk.log_in(), BIND_TEMPORARY)
    assert response_of(bound) == OK
    name = text_item(bound, ItemKind.QUEUE)
    settings = desk.engine.queue_status("default", QueueName(name)).settings
    assert (settings.quota_bytes, settings.respect_time_to_live, settings.durable) == (3_000_000, True, False)


@pytest.mark.parametrize(
    ("bits", "permission"), [(0, "no-access"), (1, "read-only"), (7, "modify-topic"), (6, "no-access")]
)
def test_others_may_do_what_the_bits_say(bits: int, permission: str) -> None:
    desk = Desk()
    ask(desk.log_in(), CREATE.replace(bytes.fromhex("110600000003"), bytes.fromhex("1106000000") + bytes((bits,))))
    assert desk.engine.queue_status("default", QueueName("pv2")).settings.permission is Permission(permission)


def test_a_queue_may_tell_publishers_of_what_it_did_not_take() -> None:
    desk = Desk()
    ask(desk.log_in(), CREATE.replace(bytes.fromhex("22041000"), bytes.fromhex("22042000")))
    settings = desk.engine.queue_status("default", QueueName("pv2")).settings
    assert settings.reject_on_discard is RejectOnDiscard.WHEN_QUEUE_ENABLED


def test_a_queue_is_deleted_by_a_client_that_may_do_that() -> None:
    desk = Desk()
    owner, stranger = desk.log_in("owner"), desk.log_in("stranger", username="stranger")
    assert [response_of(answer) for answer in ask(owner, DELETE)] == [Response(503, "Unknown Queue")]
    ask(owner, CREATE)
    ask(stranger, BIND_CREATED)
    assert [response_of(answer) for answer in ask(stranger, DELETE)] == [Response(403, "Permission Not Allowed")]
    (deleted,) = ask(owner, DELETE)
    assert (response_of(deleted), deleted.body.hex()) == (OK, "03090000000c070670763200")
    assert desk.engine.queue_names("default") == ()
    assert [response_of(answer) for answer in answers(stranger)] == [Response(503, "Queue Deleted")]


def test_topic_endpoints_are_neither_created_nor_deleted() -> None:
    desk = Desk()
    told = ask(desk.log_in(), CREATE_TOPIC_ENDPOINT, DELETE_TOPIC_ENDPOINT)
    assert [response_of(answer) for answer in told] == [Response(400, "Not Supported")] * 2
    assert desk.engine.queue_names("default") == ()


@pytest.mark.parametrize("name", ["a*", "#q1", "a//", "a\nb", "ü" * 201])
def test_a_queue_has_no_name_that_an_administrator_could_not_use(name: str) -> None:
    desk = Desk()
    (refused,) = ask(desk.log_in(), control(AssuredKind.CREATE, (ItemKind.QUEUE, text(name))))
    assert response_of(refused) == Response(400, "Invalid Queue Name")
    # Without its name in the answer, the client falls over.
    assert text_item(refused, ItemKind.QUEUE) == name
    for good in ("ü" * 200, "#DEAD_MSG_QUEUE"):
        (created,) = ask(desk.log_in(), control(AssuredKind.CREATE, (ItemKind.QUEUE, text(good))))
        assert response_of(created) == OK


def test_who_wants_no_messages_of_its_own_is_refused_as_it_would_get_them() -> None:
    desk = Desk()
    desk.create_queue("nlq")
    (refused,) = ask(desk.log_in(), BIND_WITHOUT_OWN_MESSAGES)
    assert response_of(refused) == Response(400, "No Local Not Supported")
    assert desk.engine.queue_flows("default", QueueName("nlq")) == ()


def test_a_client_describes_itself_anew_and_has_another_name() -> None:
    desk = Desk()
    session = desk.log_in("u1")
    told = ask(session, DESCRIBE, RENAME)
    assert [response_of(answer) for answer in told] == [OK, OK]
    assert decode_client_ctrl(told[1].body).find(ClientKind.INBOX) == text(inbox_of("u1renamed"))
    client = desk.engine.administration.client("default", "u1renamed")
    assert (client.name, client.introduction.description) == ("u1renamed", "new description")
    assert session.client_name == "u1renamed"


def test_a_name_that_another_client_has_is_not_given_to_a_second_one() -> None:
    desk = Desk()
    session = desk.log_in("u1")
    desk.log_in("u1renamed")
    (refused,) = ask(session, RENAME)
    assert response_of(refused) == Response(400, "Client Name Already In Use")
    assert session.client_name == "u1"


def test_the_c_library_asks_for_another_name_without_a_tag() -> None:
    desk = Desk()
    (told,) = ask(desk.log_in("rn-a"), RENAME_BY_C)
    assert (response_of(told), told.tag) == (OK, None)
    assert decode_client_ctrl(told.body).find(ClientKind.INBOX) == text(inbox_of("rn-b"))
