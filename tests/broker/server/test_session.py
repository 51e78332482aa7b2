"""One client's conversation, without a socket: frames in, frames out, on a real engine.

More than 400 lines, as each needs the same desk and frames.
"""

import pytest

from lbg_runtime.broker.engine.answers import Death, Introduction
from lbg_runtime.broker.engine.replay.log import ReplayLogSettings
from lbg_runtime.broker.engine.settings import AccessType
from lbg_runtime.broker.server.session import Session
from lbg_runtime.model.errors import ProtocolError
from lbg_runtime.model.ids import QueueName
from lbg_runtime.smf.assured_items import AssuredKind, ItemKind
from lbg_runtime.smf.client_ctrl import ClientCtrl, ClientItem, ClientKind, decode_client_ctrl, encode_client_ctrl
from lbg_runtime.smf.frame import Frame, Parameter, ParameterKind, Protocol, encode_frame
from lbg_runtime.smf.response import OK, Response, response_of
from lbg_runtime.smf.smp import SubscriptionKind, SubscriptionRequest, decode_subscription, encode_subscription
from tests.broker.server.desk import (
    TAG,
    Desk,
    ack,
    answers,
    bind,
    control,
    delivered,
    item,
    kind_of,
    login,
    open_flow,
    published,
    text,
    text_item,
    u32,
    u64,
)

# -- login


def with_queue() -> tuple[Desk, Session]:
    """A desk with a queue `q` that takes topic `t`, and a client that is logged in."""
    desk = Desk()
    session = desk.log_in()
    desk.create_queue("q", "t")
    return desk, session


def test_a_login_is_answered_with_everything_a_client_asks_for() -> None:
    session = Desk().new_session()
    session.receive(login("name"))
    (answer,) = answers(session)
    body = decode_client_ctrl(answer.body)
    assert body.find(ClientKind.CLIENT_NAME) == b"name\0"
    assert body.find(ClientKind.VPN) == b"default\0"
    inbox = body.find(ClientKind.INBOX)
    assert inbox is not None
    assert inbox.startswith(b"#P2P/v:lbg/")
    assert inbox.endswith(b"/name\0")
    capabilities = body.find(ClientKind.CAPABILITIES)
    assert capabilities is not None
    # 27 booleans; compression, subscriptions for others and no local delivery cleared.
    assert capabilities[:5] == bytes.fromhex("1bbfedffe0")
    assert body.find(ClientKind.EXTENDED_CAPABILITIES) == bytes.fromhex("0004000000070103 05000000070101")


@pytest.mark.parametrize("compressed", [b"\0", b"\1"])
def test_tls_that_is_to_end_after_the_login_is_refused(compressed: bytes) -> None:
    session = Desk().new_session()
    session.receive(login("name", ClientItem(ClientKind.AFTER_LOGIN, compressed, 1)))
    (answer,) = answers(session)
    assert response_of(answer) == Response(403, "TLS Downgrade Not Supported")
    assert session.ended


def test_a_client_without_a_name_is_given_one() -> None:
    session = Desk().new_session()
    session.receive(login(""))
    assert decode_client_ctrl(answers(session)[0].body).find(ClientKind.CLIENT_NAME) == b"anonymous\0"


@pytest.mark.parametrize(
    ("frame", "response"),
    [
        (login("a", vpn="nowhere"), Response(403, "Message VPN Not Allowed")),
        (login("a/*"), Response(400, "Client Name Parse Error")),
        (login("a>"), Response(400, "Client Name Parse Error")),
        (login("a\nb"), Response(400, "Client Name Parse Error")),
        (login("n" * 161), Response(400, "Client Name Parse Error")),
        (login("nn").replace(b"nn\0", b"n\xfc\0"), Response(400, "Client Name Parse Error")),
    ],
)
def test_a_refused_login_is_told_why_and_ends(frame: bytes, response: Response) -> None:
    session = Desk().new_session()
    session.receive(frame)
    (answer,) = answers(session)
    assert response_of(answer) == response
    assert answer.body == bytes.fromhex("010000000006")
    assert session.ended
    assert session.client is None


def test_nothing_but_a_login_is_taken_first() -> None:
    with pytest.raises(ProtocolError, match="before the login"):
        Desk().new_session().receive(bytes.fromhex("038b00010000000c0000000c"))


def test_a_client_is_known_by_what_it_says_of_itself_and_where_it_came_from() -> None:
    desk = Desk()
    session = Session(desk.engine, desk.carry_out, lambda _: None, "anonymous", "127.0.0.9")
    said = [
        ClientItem(kind, f"{kind.name}\0".encode())
        for kind in (
            ClientKind.SOFTWARE_VERSION,
            ClientKind.SOFTWARE_DATE,
            ClientKind.PLATFORM,
            ClientKind.USER_ID,
            ClientKind.DESCRIPTION,
        )
    ]
    session.receive(login("name", *said))
    client = desk.engine.administration.client("default", "name")
    assert (client.name, client.username, client.address) == ("name", "user", "127.0.0.9")
    assert client.introduction == Introduction(
        "SOFTWARE_VERSION", "SOFTWARE_DATE", "PLATFORM", "USER_ID", "DESCRIPTION"
    )


def test_an_update_is_no_login_and_is_answered_after_one() -> None:
    desk = Desk()
    update = encode_frame(Frame(Protocol.CLIENT_CTRL, (TAG,), encode_client_ctrl(ClientCtrl(1, (), 1))))
    with pytest.raises(ProtocolError, match="client control 1 before the login"):
        desk.new_session().receive(update)
    session = desk.log_in()
    session.receive(update)
    (answer,) = answers(session)
    assert (response_of(answer), answer.tag, decode_client_ctrl(answer.body)) == (OK, TAG.value, ClientCtrl(1))


def test_a_large_frame_is_not_waited_for_before_the_login() -> None:
    with pytest.raises(ProtocolError, match="65536 are allowed"):
        Desk().new_session().receive(bytes.fromhex("038c00010000000c00100000"))


def test_a_long_frame_that_is_no_message_is_not_read() -> None:
    session = Desk().log_in()
    with pytest.raises(ProtocolError, match="262169 bytes that is no message"):
        session.receive(encode_frame(Frame(Protocol.ASSURED_CTRL, (TAG,), bytes((1 << 18) + 9))))


def test_a_frame_of_a_protocol_that_is_not_spoken_ends_the_connection() -> None:
    session = Desk().log_in()
    with pytest.raises(ProtocolError, match="protocol 0x1 is not spoken here"):
        session.receive(encode_frame(Frame(1)))


def test_a_second_client_of_a_name_ends_the_first() -> None:
    desk = Desk()
    first = desk.log_in("same")
    desk.log_in("same")
    assert first.end_reason == "Client Name Taken Over"
    first.receive(login("same"))
    assert answers(first) == []


def test_a_keep_alive_is_answered() -> None:
    session = Desk().log_in()
    session.receive(bytes.fromhex("038b00010000000c0000000c"))
    assert b"".join(session.outbox.take()) == bytes.fromhex("038b00ff0000000c0000000c")


# -- publishing


def test_a_read_batch_is_acknowledged_once_and_with_a_response() -> None:
    desk, session = with_queue()
    flow, _, _ = open_flow(session)
    session.receive(b"".join(published(flow, number, "t") for number in (1, 2, 3)))
    (answer,) = answers(session)
    assert (item(answer, ItemKind.LAST_ACKED), response_of(answer)) == (3, OK)
    assert desk.depth("q") == 3


def test_a_flood_is_taken_in_parts_each_of_which_is_acknowledged() -> None:
    desk, session = with_queue()
    flow, _, _ = open_flow(session)
    session.receive(b"".join(published(flow, number, "t") for number in range(1, 4_502)))
    parts = 1
    while session.has_more:
        session.receive(b"")
        parts += 1
    assert parts == 3
    assert [item(answer, ItemKind.LAST_ACKED) for answer in answers(session)] == [2_000, 4_000, 4_501]
    assert desk.depth("q") == 4_501


def test_administrators_see_when_a_message_came() -> None:
    desk = Desk()
    desk.create_queue("q", "t")
    session = desk.log_in()
    flow, _, _ = open_flow(session)
    desk.engine.surroundings.wall_s = lambda: 1_000.9
    session.receive(published(flow, 1, "t") + published(flow, 2, "t"))
    desk.engine.surroundings.wall_s = lambda: 2_000.0
    session.receive(published(flow, 3, "t"))
    seen = desk.engine.administration.queue_messages("default", QueueName("q"))
    assert [spooled.message.spooled_at_s for spooled in seen] == [1_000, 1_000, 2_000]


def test_a_direct_message_that_a_queue_takes_has_its_time_too() -> None:
    desk = Desk()
    desk.create_queue("q", "t")
    direct = Frame(Protocol.MESSAGE, (Parameter(ParameterKind.TOPIC, text("t"), mark=2),), b"body")
    desk.engine.surroundings.wall_s = lambda: 1_000.9
    desk.log_in().receive(encode_frame(direct))
    (seen,) = desk.engine.administration.queue_messages("default", QueueName("q"))
    assert seen.message.spooled_at_s == 1_000


def test_what_a_publisher_sends_again_is_acknowledged_and_not_kept_twice() -> None:
    desk, session = with_queue()
    flow, _, _ = open_flow(session)
    session.receive(published(flow, 1, "t") + published(flow, 2, "t"))
    answers(session)
    session.receive(published(flow, 1, "t", resent=True))
    (answer,) = answers(session)
    assert item(answer, ItemKind.LAST_ACKED) == 2
    assert desk.depth("q") == 2


def test_the_flag_of_a_resent_message_is_not_passed_on() -> None:
    _, session = with_queue()
    flow, _, _ = open_flow(session)
    session.receive(published(flow, 1, "t", resent=True))
    answers(session)
    consumer = bind(session, "q")
    (message,) = answers(session)
    assert delivered(message) == (1, 0, False)
    assert message.find(ParameterKind.FLOW_ID) == u32(consumer)
    assert message.body == b"body"


def test_a_publisher_that_comes_back_resumes_by_name() -> None:
    desk = Desk()
    first = desk.log_in("same")
    flow, name, last_id = open_flow(first)
    assert last_id == 0
    first.receive(published(flow, 1, "t") + published(flow, 2, "t"))
    second = desk.log_in("same")
    _, again, last_id = open_flow(second, name)
    assert (again, last_id) == (name, 2)


def test_a_refused_message_comes_after_the_acknowledgement_of_all_before_it() -> None:
    desk = Desk()
    session = desk.log_in()
    desk.create_queue("q", "t", max_message_bytes=100)
    flow, _, _ = open_flow(session)
    session.receive(
        published(flow, 1, "t")
        + published(flow, 2, "t", bytes(200))
        + published(flow, 3, "t")
        + published(flow, 4, "t")
    )
    told = [(item(answer, ItemKind.LAST_ACKED), response_of(answer)) for answer in answers(session)]
    assert told == [(1, OK), (2, Response(400, "Document Is Too Large")), (4, OK)]
    assert desk.depth("q") == 3


def test_a_refused_message_that_is_sent_again_is_answered_once_on_a_connection_and_once_more_on_the_next() -> None:
    desk = Desk()
    first = desk.log_in("same")
    desk.create_queue("q", "t", max_message_bytes=100)
    flow, name, _ = open_flow(first)
    large = [published(flow, 1, "t", bytes(200)), published(flow, 1, "t", bytes(200), resent=True)]
    first.receive(large[0])
    answers(first)
    # Its answer is on its way; to be refused again it would have to be before what was acknowledged since.
    first.receive(published(flow, 2, "t") + large[1])
    assert [(item(answer, ItemKind.LAST_ACKED), response_of(answer)) for answer in answers(first)] == [(2, OK)]
    second = desk.log_in("same")
    flow, _, last_id = open_flow(second, name)
    assert last_id == 0
    second.receive(published(flow, 1, "t", bytes(200), resent=True) + published(flow, 2, "t", resent=True))
    told = [(item(answer, ItemKind.LAST_ACKED), response_of(answer)) for answer in answers(second)]
    assert told == [(1, Response(400, "Document Is Too Large")), (2, OK)]
    assert desk.depth("q") == 1


def test_what_a_publisher_flow_accepted_is_acknowledged_before_it_closes() -> None:
    session = Desk().log_in()
    flow, _, _ = open_flow(session)
    session.receive(published(flow, 1, "t") + control(AssuredKind.CLOSE_FLOW, (ItemKind.FLOW_ID, u32(flow))))
    assert [kind_of(answer) for answer in answers(session)] == [AssuredKind.CLIENT_ACK, AssuredKind.CLOSE_FLOW]


def test_a_message_on_a_flow_that_is_not_open_ends_the_connection() -> None:
    with pytest.raises(ProtocolError, match="not open"):
        Desk().log_in().receive(published(99, 1, "t"))


# -- consuming


def test_nothing_is_delivered_while_the_window_is_closed_and_no_more_than_it_takes() -> None:
    _, session = with_queue()
    publisher, _, _ = open_flow(session)
    session.receive(b"".join(published(publisher, number, "t") for number in range(1, 6)))
    answers(session)
    flow = bind(session, "q", window=0)
    assert answers(session) == []
    session.receive(ack(flow, window=2))
    assert [delivered(message) for message in answers(session)] == [(1, 0, False), (2, 1, False)]
    session.receive(ack(flow, received=1, window=2))
    assert [delivered(message) for message in answers(session)] == [(3, 2, False)]


def test_an_acknowledgement_leaves_as_it_is_what_it_does_not_say() -> None:
    _, session = with_queue()
    publisher, _, _ = open_flow(session)
    session.receive(
        control(AssuredKind.BIND, (ItemKind.QUEUE, text("q")), (ItemKind.WINDOW, b"\2"), (ItemKind.DURABILITY, b"\1"))
    )
    flow = item(answers(session)[0], ItemKind.FLOW_ID)
    session.receive(b"".join(published(publisher, number, "t") for number in range(1, 8)))
    assert [delivered(message)[0] for message in answers(session)[:-1]] == [1, 2]
    session.receive(ack(flow, received=1))
    assert [delivered(message) for message in answers(session)] == [(3, 2, False)]
    session.receive(ack(flow, window=3))
    assert [delivered(message) for message in answers(session)] == [(4, 3, False)]
    # An older one changes nothing.
    session.receive(ack(flow, received=0) + ack(flow))
    assert answers(session) == []


def test_a_bind_that_names_no_queue_is_refused_as_one_to_a_topic_endpoint() -> None:
    session = Desk().log_in()
    session.receive(control(AssuredKind.BIND, (ItemKind.WINDOW, b"\2"), (ItemKind.DURABILITY, b"\1")))
    (answer,) = answers(session)
    assert response_of(answer) == Response(503, "Unknown Durable Topic Endpoint")


def test_a_replay_ends_browsers_once_the_flow_that_asked_for_it_is_bound() -> None:
    desk, session = with_queue()
    desk.engine.replays.keep_log("default", ReplayLogSettings("log", 1_000))
    asked = ((ItemKind.QUEUE, text("q")), (ItemKind.WINDOW, b"\2"), (ItemKind.DURABILITY, b"\1"))
    session.receive(control(AssuredKind.BIND, *asked, (ItemKind.FLOW_TYPE, b"\2")))
    browser = item(answers(session)[0], ItemKind.FLOW_ID)
    session.receive(control(AssuredKind.BIND, *asked, (ItemKind.REPLAY_START, b"\0")))
    bound, ended = answers(session)
    assert (response_of(bound), kind_of(bound)) == (OK, AssuredKind.BIND)
    assert (kind_of(ended), item(ended, ItemKind.FLOW_ID)) == (AssuredKind.UNBIND, browser)
    assert response_of(ended) == Response(503, "Replay Started")


@pytest.mark.parametrize(("access", "type_"), [(b"\1", AccessType.EXCLUSIVE), (b"\2", AccessType.NON_EXCLUSIVE)])
@pytest.mark.parametrize("durable", [True, False])
def test_a_queue_is_made_as_its_client_says(access: bytes, type_: AccessType, durable: bool) -> None:
    desk = Desk()
    session = desk.log_in()
    session.receive(
        control(
            AssuredKind.CREATE,
            (ItemKind.QUEUE, text("made")),
            (ItemKind.ACCESS, access),
            (ItemKind.DURABILITY, b"\1" if durable else b"\2"),
        )
    )
    (answer,) = answers(session)
    assert (response_of(answer), answer.tag, text_item(answer, ItemKind.QUEUE)) == (OK, TAG.value, "made")
    settings = desk.engine.queue_status("default", QueueName("made")).settings
    assert (settings.access_type, settings.durable) == (type_, durable)


def test_acknowledged_ranges_end_as_they_say() -> None:
    desk, session = with_queue()
    publisher, _, _ = open_flow(session)
    session.receive(b"".join(published(publisher, number, "t") for number in range(1, 6)))
    answers(session)
    flow = bind(session, "q")
    answers(session)
    session.receive(ack(flow, ranges=(u64(0) + u64(2), u64(4) + u64(4) + b"\1", u64(5) + u64(5) + b"\3")))
    # 1 and 2 are gone, 5 is rejected, 4 comes again under a new id; 3 waits for its end.
    assert [delivered(message) for message in answers(session)] == [(6, 5, True)]
    assert desk.depth("q") == 2
    assert desk.engine.queue_status("default", QueueName("q")).deaths.discarded[Death.REJECTED] == 1


def test_an_unbind_is_answered_before_the_next_flow_is_told_and_fed() -> None:
    _, session = with_queue()
    publisher, _, _ = open_flow(session)
    first = bind(session, "q")
    second = bind(session, "q")
    session.receive(published(publisher, 1, "t"))
    answers(session)
    session.receive(control(AssuredKind.UNBIND, (ItemKind.FLOW_ID, u32(first)), tag=False))
    unbound, changed, message = answers(session)
    assert (kind_of(unbound), item(unbound, ItemKind.FLOW_ID)) == (AssuredKind.UNBIND, first)
    assert (kind_of(changed), item(changed, ItemKind.FLOW_ID), item(changed, ItemKind.ACTIVE)) == (
        AssuredKind.FLOW_CHANGE,
        second,
        1,
    )
    assert response_of(changed) is None
    assert delivered(message) == (2, 0, True)


def test_a_client_that_did_not_ask_for_changes_is_not_told_that_its_flow_is_fed_now() -> None:
    desk = Desk()
    session, other = desk.log_in(), desk.log_in("other")
    desk.create_queue("q", "t")
    first = bind(session, "q")
    asked = ((ItemKind.QUEUE, text("q")), (ItemKind.WINDOW, b"\xff"), (ItemKind.DURABILITY, b"\1"))
    other.receive(control(AssuredKind.BIND, *asked))
    publisher, _, _ = open_flow(session)
    session.receive(published(publisher, 1, "t"))
    answers(other)
    session.receive(control(AssuredKind.UNBIND, (ItemKind.FLOW_ID, u32(first))))
    (message,) = answers(other)
    assert delivered(message) == (2, 0, True)


def test_the_answer_to_a_flow_change_is_not_answered() -> None:
    _, session = with_queue()
    flow = bind(session, "q")
    session.receive(
        control(AssuredKind.FLOW_CHANGE, (ItemKind.FLOW_ID, u32(flow)), (ItemKind.ACTIVE, b"\0"), tag=False)
    )
    assert answers(session) == []


def test_a_handle_that_is_bound_again_keeps_its_old_ids_and_gets_new_ones_above() -> None:
    desk = Desk()
    session = desk.log_in("same")
    desk.create_queue("q", "t")
    publisher, _, _ = open_flow(session)
    flow = bind(session, "q")
    session.receive(b"".join(published(publisher, number, "t") for number in range(1, 4)))
    answers(session)
    again = desk.log_in("same")
    # Only the first two had arrived.
    second = bind(again, "q", last_received=2)
    assert second != flow
    desk.engine.queue_status("default", QueueName("q"))
    again.receive(ack(second, ranges=(u64(0) + u64(2),)))
    assert desk.depth("q") == 1


def test_an_acknowledgement_on_a_flow_that_has_ended_does_nothing() -> None:
    desk = Desk()
    session = desk.log_in()
    desk.create_queue("q")
    flow = bind(session, "q")
    desk.carry_out(desk.engine.delete_queue("default", QueueName("q")))
    (ended,) = answers(session)
    assert (kind_of(ended), response_of(ended)) == (AssuredKind.UNBIND, Response(503, "Queue Deleted"))
    session.receive(ack(flow, received=5, window=255, ranges=(u64(0) + u64(9),)))
    assert answers(session) == []


def test_a_flow_of_another_client_cannot_be_touched() -> None:
    desk = Desk()
    owner, stranger = desk.log_in("owner"), desk.log_in("stranger")
    desk.create_queue("q", "t")
    publisher, _, _ = open_flow(owner)
    flow = bind(owner, "q")
    owner.receive(published(publisher, 1, "t"))
    stranger.receive(ack(flow, ranges=(u64(0) + u64(9),)))
    stranger.receive(control(AssuredKind.UNBIND, (ItemKind.FLOW_ID, u32(flow)), tag=False))
    assert desk.depth("q") == 1
    assert len(desk.engine.queue_flows("default", QueueName("q"))) == 1
    with pytest.raises(ProtocolError):
        stranger.receive(published(publisher, 2, "t"))


def test_a_request_that_is_not_known_is_refused_and_the_connection_lives() -> None:
    session = Desk().log_in()
    session.receive(control(0x0A))
    (answer,) = answers(session)
    assert (response_of(answer), answer.tag) == (Response(400, "Not Supported"), TAG.value)


# -- subscriptions


def test_a_subscription_is_answered_by_repeating_it() -> None:
    session = Desk().log_in()
    session.receive(bytes.fromhex("038f0001000000100000001c23000002800000000c0c612f2a2f6300"))
    assert b"".join(session.outbox.take()) == bytes.fromhex(
        "038f00ff0000001800000024 23000002 0808000000c84f4b 800000000c0c 612f2a2f6300"
    )


def test_a_subscription_restored_after_a_reconnect_is_not_answered() -> None:
    session = Desk().log_in()
    body = encode_subscription(SubscriptionRequest(SubscriptionKind.ADD, 0x04, "a/b"))
    session.receive(encode_frame(Frame(Protocol.SUBSCRIPTION, (), body)))
    assert answers(session) == []


@pytest.mark.parametrize(
    ("kind", "topic", "queue", "response"),
    [
        (SubscriptionKind.REMOVE, "never/added", "", Response(400, "Subscription Not Found")),
        (SubscriptionKind.ADD, "", "", Response(400, "Subscription Parse Error")),
        (SubscriptionKind.ADD_TO_QUEUE, "t", "nowhere", Response(503, "Unknown Queue")),
        (SubscriptionKind.ADD_TO_QUEUE, "!t", "there", Response(400, "Subscription Parse Error")),
        (SubscriptionKind.ADD_TO_CLIENT, "t", "client", Response(403, "Permission Not Allowed")),
        (SubscriptionKind.REMOVE_FROM_CLIENT, "t", "another", Response(403, "Permission Not Allowed")),
    ],
)
def test_a_refused_subscription_is_told_why(kind, topic: str, queue: str, response: Response) -> None:
    desk = Desk()
    desk.create_queue("there")
    session = desk.log_in()
    request = SubscriptionRequest(kind, 0x0C, topic, queue)
    session.receive(encode_frame(Frame(Protocol.SUBSCRIPTION, (TAG,), encode_subscription(request))))
    (answer,) = answers(session)
    assert response_of(answer) == response
    assert decode_subscription(answer.body) == request


def test_subscriptions_of_a_client_and_of_a_queue_end() -> None:
    desk = Desk()
    desk.create_queue("q")
    session, publisher = desk.log_in(), desk.log_in("publisher")
    flow, _, _ = open_flow(publisher)

    def ask(kind: SubscriptionKind, topic: str, queue: str = "") -> None:
        request = encode_subscription(SubscriptionRequest(kind, 0x0C, topic, queue))
        session.receive(encode_frame(Frame(Protocol.SUBSCRIPTION, (TAG,), request)))
        (answer,) = answers(session)
        assert response_of(answer) == OK

    ask(SubscriptionKind.ADD, "t")
    ask(SubscriptionKind.ADD_TO_QUEUE, "t", "q")
    publisher.receive(published(flow, 1, "t"))
    assert (len(answers(session)), desk.depth("q")) == (1, 1)
    ask(SubscriptionKind.REMOVE, "t")
    ask(SubscriptionKind.REMOVE_FROM_QUEUE, "t", "q")
    publisher.receive(published(flow, 2, "t"))
    assert (len(answers(session)), desk.depth("q")) == (0, 1)
