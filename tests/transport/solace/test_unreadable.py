"""What a foreign publisher may get wrong in a message, by each receive path: it arrives nevertheless, or its flow ends.

Never is a message skipped: its successors would be handled before it.
"""

from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from lbg_runtime.broker.engine.effects import Published
from lbg_runtime.broker.server.server import BrokerServer
from lbg_runtime.config.settings import ClientPathChoice
from lbg_runtime.model.ids import Epoch, QueueName
from lbg_runtime.model.message import Headers, Message
from lbg_runtime.model.outcome import Outcome
from lbg_runtime.smf.contents import relay_of
from lbg_runtime.smf.message import Relay
from lbg_runtime.testing.conformance_steps import bind
from lbg_runtime.testing.flow_recorder import FlowRecorder
from lbg_runtime.transport.solace import public_path
from lbg_runtime.transport.solace.transport import SolaceTransport
from tests.transport.solace.steps import eventually, opened

pytestmark = pytest.mark.real_time

MakeTransport = Callable[..., SolaceTransport]
QUEUE = QueueName("orders/0")
KEY = "JMSXGroupID"
PUBLIC_ONLY = pytest.mark.parametrize("client_path", [ClientPathChoice.PUBLIC], indirect=True)

TEXT, NUMBER = b"\x1c\x0aabcdefg\0", b"\x08\x0a\0\0\0\0\0\0\0\3"
"""A text and a number, as they are sent: of equal length."""
ONE = relay_of(Message("orders/new", b"1"))
NO_TEXT = b"\x1c\x0aa\xff\xffdefg\0"


def spoilt(message: Message, *changes: tuple[bytes, bytes]) -> Relay:
    relay = relay_of(message)
    body = relay.body
    for sound, instead in changes:
        assert body.count(sound) == 1
        assert len(sound) == len(instead)
        body = body.replace(sound, instead)
    return Relay.of(relay.head, relay.carried, body, relay.contents)


CUT_SHORT = spoilt(Message("orders/new", b"cut", {KEY: "abcdefg"}), (TEXT, b"\x1c\xf0abcdefg\0"))
"""Its key says that it is longer than there is."""

LENIENT = {
    "id is a number": (
        spoilt(Message("orders/new", b"1", {KEY: "k"}, "abcdefg"), (TEXT, NUMBER)),
        Message("orders/new", b"1", {KEY: "k"}),
    ),
    "id is no text": (
        spoilt(Message("orders/new", b"1", {KEY: "k"}, "abcdefg"), (TEXT, NO_TEXT)),
        Message("orders/new", b"1", {KEY: "k"}, "a\ufffd\ufffddefg"),
    ),
    "time is a text": (
        spoilt(Message("orders/new", b"1", {KEY: "k"}, sent_at_ms=3), (NUMBER, TEXT)),
        Message("orders/new", b"1", {KEY: "k"}),
    ),
    "header is a number": (
        spoilt(Message("orders/new", b"1", {KEY: "k"}, headers=Headers("abcdefg", "type")), (TEXT, NUMBER)),
        Message("orders/new", b"1", {KEY: "k"}, headers=Headers(None, "type")),
    ),
    "sequence number is a text": (
        spoilt(Message("orders/new", b"1", {KEY: "k"}, headers=Headers("c", "type", 3)), (NUMBER, TEXT)),
        Message("orders/new", b"1", {KEY: "k"}, headers=Headers("c", "type")),
    ),
    "key is no text": (
        spoilt(Message("orders/new", b"1", {KEY: "abcdefg"}), (TEXT, NO_TEXT)),
        Message("orders/new", b"1", {KEY: "a\ufffd\ufffddefg"}),
    ),
    "key is half a character": (
        spoilt(
            Message("orders/new", b"1", {KEY: "abcdefg", "n": b"x"}),
            (TEXT + b"\x1c\4n\0\x18\3x", b"\x14\4\xd8\0" + b"\x1c\7nnnn\0\x18\6xxxx"),
        ),
        Message("orders/new", b"1", {KEY: "\ufffd", "nnnn": b"xxxx"}),
    ),
    "name is no text": (
        spoilt(Message("orders/new", b"1", {KEY: "k", "abcdefg": 1}), (TEXT, NO_TEXT)),
        Message("orders/new", b"1", {KEY: "k", "a\ufffd\ufffddefg": 1}),
    ),
    "name is empty": (
        relay_of(Message("orders/new", b"1", {KEY: "k", "": 1})),
        Message("orders/new", b"1", {KEY: "k"}),
    ),
    "character is a zero": (
        spoilt(Message("orders/new", b"1", {KEY: "k", "n": b"no"}), (b"\x18\4no", b"\x14\4\0\0")),
        Message("orders/new", b"1", {KEY: "k", "n": "\ufffd"}),
    ),
    "topic is no text": (
        Relay.of(ONE.head, b"\x98\x0dorders/n\xffw\0\3\3\4", ONE.body, ONE.contents),
        Message("orders/n\ufffdw", b"1"),
    ),
    "content type is no text": (
        spoilt(
            Message("orders/new", b"1", {KEY: "k"}, headers=Headers("abcdefg")), (b"ci\0", b"ct\0"), (TEXT, NO_TEXT)
        ),
        Message("orders/new", b"1", {KEY: "k"}),
    ),
    "content encoding is a number": (
        spoilt(Message("orders/new", b"1", {KEY: "k"}, headers=Headers("abcdefg")), (b"ci\0", b"ce\0"), (TEXT, NUMBER)),
        Message("orders/new", b"1", {KEY: "k"}),
    ),
}


def fill(broker: BrokerServer, *relays: Relay) -> None:
    """Put messages on the queue as they are."""
    client, _ = broker.engine.connect("default", "default", "", "filler")
    for relay in relays:
        broker.carry_out(broker.engine.publish_direct(client, Published("orders/new", relay, relay.size_bytes)))
    broker.engine.disconnect(client)


def plain(payload: bytes) -> Relay:
    return relay_of(Message("orders/new", payload, {KEY: "k"}))


async def test_a_part_that_neither_order_nor_payload_depends_on_keeps_no_message_back(
    broker: BrokerServer, transport: SolaceTransport
) -> None:
    for relay, _ in LENIENT.values():
        fill(broker, plain(b"0"), relay)
    _, recorder = await bind(transport)
    deliveries = await recorder.until_received(2 * len(LENIENT))
    assert recorder.payloads == [b"0", b"1"] * len(LENIENT)
    come = dict(zip(LENIENT, [delivery.message for delivery in deliveries[1::2]], strict=True))
    assert come == {name: expected for name, (_, expected) in LENIENT.items()}


async def test_what_is_behind_an_unreadable_message_waits_and_what_was_before_it_is_handled_once(
    broker: BrokerServer, transport: SolaceTransport
) -> None:
    fill(broker, plain(b"0"), plain(b"1"), CUT_SHORT, plain(b"3"), plain(b"4"))
    first, second = FlowRecorder(), FlowRecorder()
    with capture_logs() as logs:
        flow = await transport.bind(QUEUE, Epoch(1), first)
        flow.start_intake()
        for delivery in await first.until_received(2):
            flow.settle(delivery.delivery_id, Outcome.ACCEPTED)
        assert (await first.until_down()).startswith("a message cannot be read: ")
        await flow.unbind()
        await eventually(lambda: broker.engine.queue_depth("default", QUEUE) == 3)
        again = await transport.bind(QUEUE, Epoch(2), second)
        again.start_intake()
        await second.until_down()
        await again.unbind()
    assert (first.payloads, second.payloads) == ([b"0", b"1"], [])
    told = [(log["epoch"], log["delivery_id"]) for log in logs if log["event"] == "message_unreadable"]
    assert told == [(1, 3), (2, 1)]
    assert broker.engine.queue_depth("default", QUEUE) == 3


@PUBLIC_ONLY
async def test_a_callback_of_the_client_that_fails_ends_the_flow_and_loses_nothing(
    broker: BrokerServer, make_transport: MakeTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C goes on with the next message where a callback fails, and does not show this one again."""

    made = 0

    def fail_once(*_: Any) -> None:
        nonlocal made
        made += 1
        if made == 2:
            raise MemoryError("for a test")

    transport = await opened(make_transport("first"))
    fill(broker, *(plain(str(number).encode()) for number in range(5)))
    first, second = FlowRecorder(), FlowRecorder()
    with monkeypatch.context() as patched:
        patched.setattr(public_path._PlainMessage, "_Message__process_rest_interoperability", fail_once)
        flow = await transport.bind(QUEUE, Epoch(1), first)
        flow.start_intake()
        assert "for a test" in await first.until_down()
        await flow.unbind()
    assert first.payloads in ([], [b"0"])
    (await transport.bind(QUEUE, Epoch(2), second)).start_intake()
    await second.until_received(5)
    assert second.payloads == [b"0", b"1", b"2", b"3", b"4"]


@PUBLIC_ONLY
@pytest.mark.parametrize("is_redelivered", [True, False])
async def test_the_flag_of_a_redelivery_is_one_byte(
    broker: BrokerServer, make_transport: MakeTransport, monkeypatch: pytest.MonkeyPatch, is_redelivered: bool
) -> None:
    """The client takes it for a number of four, of which the library writes one."""
    from lbg_runtime.transport.solace import library

    transport = await opened(make_transport("first"))
    with monkeypatch.context() as patched:
        patched.setattr(library.CORE, "solClient_msg_isRedelivered", lambda _: 0x34550100 | is_redelivered)
        fill(broker, plain(b"0"))
        recorder = FlowRecorder()
        (await transport.bind(QUEUE, Epoch(1), recorder)).start_intake()
        [delivery] = await recorder.until_received(1)
    assert delivery.redelivered is is_redelivered
