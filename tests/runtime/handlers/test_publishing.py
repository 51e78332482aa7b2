"""Handlers that answer with messages: settled when all of them are confirmed, and not before.

More than 400 lines, because what is published one by one and in a transaction comes from the same handlers.
"""

import asyncio
from dataclasses import fields, replace
from decimal import Decimal

import pytest

from lbg_runtime.model.errors import HandlerError, PublishRefused
from lbg_runtime.model.failure import ERROR_PROPERTY
from lbg_runtime.model.message import NO_PROPERTIES, Headers, Message
from lbg_runtime.model.outcome import Outcome
from lbg_runtime.runtime.handlers.publishing import MAX_UNCONFIRMED, own_copy
from lbg_runtime.runtime.handlers.receipts import Receipt
from lbg_runtime.runtime.handlers.registry import Handlers
from lbg_runtime.runtime.handlers.resources import MemberResources
from lbg_runtime.testing import running
from lbg_runtime.transport.base import MAX_TOGETHER
from tests.runtime.error_queue import TakingErrorQueue


class _Messenger:
    """Confirms when the test says so."""

    def __init__(self):
        self.sent = []
        self.most = 0
        self._changed = asyncio.Event()

    def send_together(self, messages):
        return self.send(Message(messages[0].topic, b"+".join(message.payload for message in messages)))

    def send(self, message):
        future = asyncio.get_running_loop().create_future()
        self.sent.append((message.payload, future))
        self.most = max(self.most, sum(not each.done() for _, each in self.sent))
        self._changed.set()
        return future

    async def until_sent(self, count):
        while len(self.sent) < count:
            self._changed.clear()
            await self._changed.wait()

    def confirm(self, number):
        self.sent[number][1].set_result(None)


def _out(text):
    return Message("priced/new", text.encode())


async def _several(message):
    return [_out("a"), _out("b")]


async def _yielding(message: Message):
    yield _out("a")
    yield _out("b")


def _plain(message):
    return (_out("a"), _out("b"))


def _plain_yielding(message):
    yield _out("a")
    yield _out("b")


@pytest.mark.parametrize("function", [_several, _yielding, _plain, _plain_yielding])
async def test_the_input_is_accepted_when_every_message_is_confirmed(rig, delivery, function):
    messenger = _Messenger()
    made = rig(function, options={"publishes": True})
    async with MemberResources(messenger).entered(()), made.running():
        made.dispatcher.dispatch(delivery(1))
        await messenger.until_sent(2)
        assert [payload for payload, _ in messenger.sent] == [b"a", b"b"]
        messenger.confirm(1)
        await asyncio.sleep(5)
        assert made.ends == []
        messenger.confirm(0)
        await made.until_ended(1)
    assert made.outcomes() == {1: Outcome.ACCEPTED}


async def test_a_handler_that_publishes_may_return_one_message_alone(rig, delivery):
    async def one(message):
        return _out("a")

    messenger = _Messenger()
    made = rig(one, options={"publishes": True})
    async with MemberResources(messenger).entered(()), made.running():
        made.dispatcher.dispatch(delivery(1))
        await messenger.until_sent(1)
        messenger.confirm(0)
        await made.until_ended(1)
    assert [payload for payload, _ in messenger.sent] == [b"a"]
    assert made.outcomes() == {1: Outcome.ACCEPTED}


async def test_what_is_given_the_properties_of_the_input_is_no_copy_of_it(rig, delivery):
    class Keeping(_Messenger):
        def send(self, message):
            kept.append(message)
            return super().send(message)

    async def pass_on(message: Message):
        yield Message("priced/new", b"a", message.properties)
        yield Message("priced/new", b"b", {**message.properties, "own": 1})

    kept = []
    messenger = Keeping()
    made = rig(pass_on)
    plain = delivery(1)
    stamps = {"lbg_publisher": "p", "lbg_key_sequence": 1}
    stamped = replace(plain, message=replace(plain.message, properties={**plain.message.properties, **stamps}))
    assert stamped.message.fencing_token is not None
    async with MemberResources(messenger).entered(()), made.running():
        made.dispatcher.dispatch(stamped)
        await messenger.until_sent(2)
    assert [message.fencing_token for message in kept] == [None, None]
    assert {message.key for message in kept} == {stamped.message.key}
    assert kept[1].properties["own"] == 1


def _from_one_buffer(message):
    properties, buffer = {}, bytearray()
    for number in range(3):
        properties["number"] = number
        buffer[:] = b"%d" % number
        yield Message("priced/new", buffer, properties)


def _from_one_buffer_in_time(message):
    return _from_one_buffer(message)


async def _from_one_buffer_async(message):
    for each in _from_one_buffer(message):
        yield each


async def _from_one_buffer_returned(message):
    return _from_one_buffer(message)


@pytest.mark.parametrize("transacted", [False, True])
@pytest.mark.parametrize(
    "function", [_from_one_buffer, _from_one_buffer_in_time, _from_one_buffer_async, _from_one_buffer_returned]
)
async def test_what_a_handler_changes_afterwards_is_sent_as_it_was(rig, delivery, function, transacted):
    class Keeping(_Messenger):
        def send_together(self, messages):
            kept.extend(messages)
            return super().send(messages[0])

        def send(self, message):
            kept.append(message)
            return super().send(message)

    kept = []
    messenger = Keeping()
    made = rig(function, options={"publishes": True, "transacted": transacted})
    async with MemberResources(messenger).entered(()), made.running():
        made.dispatcher.dispatch(delivery(1))
        await messenger.until_sent(1 if transacted else 3)
    assert [(each.payload, each.properties) for each in kept] == [(b"%d" % each, {"number": each}) for each in range(3)]
    assert {type(each.payload) for each in kept} == {bytes}


def test_the_copy_that_is_sent_has_all_that_was_published():
    message = Message("out/1", b"x", {"a": 1}, "id", 7, Headers("c"))
    assert len(fields(Message)) == 7, "with one more, `own_copy` has to have it"
    for each in (message, replace(message, properties={}), replace(message, payload=bytearray(b"x"))):
        copied = own_copy(each, "here")
        assert copied == replace(each, payload=b"x")
        assert copied.properties is not each.properties


def test_a_handler_that_publishes_its_input_publishes_no_key_that_the_input_did_not_have():
    for properties in ({}, {"JMSXGroupID": "stamped"}, NO_PROPERTIES):
        came = Message("in/1", b"x", properties)
        for handled in (came.in_lane_of("lane"), replace(came.in_lane_of("lane"), topic="in/1")):
            assert own_copy(handled, "here") == came


async def test_a_refused_message_fails_the_attempt_and_all_are_published_again(rig, delivery):
    messenger = _Messenger()
    made = rig(_several, options={"publishes": True})
    async with MemberResources(messenger).entered(()), made.running():
        made.dispatcher.dispatch(delivery(1))
        await messenger.until_sent(2)
        messenger.sent[0][1].set_exception(PublishRefused("priced/new", "no room"))
        await messenger.until_sent(4)
        messenger.confirm(2)
        messenger.confirm(3)
        await made.until_ended(1)
    assert [payload for payload, _ in messenger.sent] == [b"a", b"b"] * 2
    assert made.ends[0].attempts == 2


async def test_confirms_are_part_of_the_time_of_an_attempt(rig, delivery):
    messenger = _Messenger()
    made = rig(_several, options={"publishes": True}, failure={"timeout": "10s"})
    async with MemberResources(messenger).entered(()), made.running():
        made.dispatcher.dispatch(delivery(1))
        async with asyncio.timeout(11):
            await messenger.until_sent(4)
        messenger.confirm(2)
        messenger.confirm(3)
        await made.until_ended(1)
    assert all(future.cancelled() for _, future in messenger.sent[:2])


async def test_a_handler_is_not_asked_for_more_while_many_are_unconfirmed(rig, delivery):
    messenger = _Messenger()

    async def handle(message: Message):
        for number in range(3 * MAX_UNCONFIRMED):
            yield _out(str(number))

    made = rig(handle)
    async with MemberResources(messenger).entered(()), made.running():
        made.dispatcher.dispatch(delivery(1))
        await messenger.until_sent(MAX_UNCONFIRMED)
        for number in range(3 * MAX_UNCONFIRMED):
            await messenger.until_sent(number + 1)
            messenger.confirm(number)
        await made.until_ended(1)
    assert messenger.most == MAX_UNCONFIRMED


async def test_the_clean_up_of_a_generator_is_over_before_the_next_of_its_key_begins(rig, delivery):
    log = []

    class ErrorQueue:
        async def take(self, handling, report):
            log.append(("is moved", handling.message.payload))

    async def handle(message: Message):
        log.append(("begins", message.payload))
        try:
            yield "no message"
        finally:
            await asyncio.sleep(1)
            log.append(("is clean", message.payload))

    made = rig(handle, options={"then": "error_queue"}, error_queue=ErrorQueue())
    async with MemberResources(_Messenger()).entered(()), made.running():
        for number in (1, 2):
            made.dispatcher.dispatch(delivery(number))
        await made.until_ended(2)
    assert log == [(what, payload) for payload in (b"1", b"2") for what in ("begins", "is clean", "is moved")]


@pytest.mark.parametrize("payload", [None, 7, "text", [1]])
async def test_a_message_whose_payload_is_none_is_a_terminal_failure(rig, delivery, payload):
    queue = TakingErrorQueue()

    async def handle(message: Message):
        yield Message("out/1", payload)

    made = rig(handle, options={"then": "error_queue"}, error_queue=queue)
    async with MemberResources(_Messenger()).entered(()), made.running():
        await made.handle(delivery(1))
    (error,) = queue.errors
    assert "a payload is bytes" in error


@pytest.mark.parametrize("transacted", [False, True])
@pytest.mark.parametrize(
    ("topic", "properties", "reason"),
    [
        ("out/1", {"price": Decimal("1.2")}, "property 'price' must be a str, int, float, bool, bytes or None"),
        ("out/1", [("price", 1)], "properties must be a mapping, and are a list"),
        ("out/1", None, "properties must be a mapping, and are a NoneType"),
        (None, {}, "a topic must be 1 to 250 bytes"),
        (None, None, "a topic must be 1 to 250 bytes"),
        ("out/1", {"large": "x" * 30_000_000}, "and 30000000 are possible"),
    ],
)
async def test_a_message_that_can_never_be_sent_ends_the_attempts(transacted, topic, properties, reason):
    handlers = Handlers()

    @handlers.handler("in/>", publishes=True, transacted=transacted, then="error_queue")
    async def handle(message: Message):
        return [Message("out/0", b""), Message(topic, b"", properties)]

    async with running(handlers) as group:
        await group.publish("in/1", "x", key="k")
        await group.settled()
        (moved,) = group.error_queue()
        assert reason in moved.properties[ERROR_PROPERTY]
        assert len(group.attempts("k")) == 1


async def test_nothing_may_be_published_and_anything_else_is_a_terminal_failure(rig, delivery):
    queue = TakingErrorQueue()

    async def handle(body: bytes):
        return {b"1": None, b"2": "text", b"3": ["text"], b"4": 7}[body]

    made = rig(handle, options={"publishes": True, "then": "error_queue"}, error_queue=queue)
    async with MemberResources(_Messenger()).entered(()), made.running():
        for number in (1, 2, 3, 4):
            made.dispatcher.dispatch(delivery(number))
        await made.until_ended(4)
    assert len(queue.errors) == 3
    assert all("TerminalFailure" in error and "no Message" in error for error in queue.errors)


async def test_a_member_publishes_on_its_own_session(trial):
    trial.broker.create_queue("priced", ["priced/>"])
    handlers = Handlers()

    # Before the trial's own handler of `orders/>`, so that it takes the messages.
    @handlers.handler("orders/*")
    async def price(message: Message):
        yield Message("priced/one", message.payload, message.properties)

    async with trial.at_work(trial.member(hooks=handlers)):
        await trial.publish(20)
        await trial.until(lambda: sum(trial.depths()) == 0)
    assert trial.broker.engine.queue_depth("default", "priced") == 20
    assert trial.handled == []


@pytest.mark.parametrize("function", [_several, _yielding, _plain, _plain_yielding])
async def test_in_a_transaction_all_leave_at_once_and_the_input_is_accepted_with_the_commit(rig, delivery, function):
    messenger = _Messenger()
    made = rig(function, options={"publishes": True, "transacted": True})
    async with MemberResources(messenger).entered(()), made.running():
        made.dispatcher.dispatch(delivery(1))
        await messenger.until_sent(1)
        await asyncio.sleep(5)
        assert made.ends == []
        messenger.confirm(0)
        await made.until_ended(1)
    assert [payload for payload, _ in messenger.sent] == [b"a+b"]
    assert made.outcomes() == {1: Outcome.ACCEPTED}


async def test_a_transaction_that_fails_fails_the_attempt_and_is_made_again(rig, delivery):
    messenger = _Messenger()
    made = rig(_yielding, options={"transacted": True})
    async with MemberResources(messenger).entered(()), made.running():
        made.dispatcher.dispatch(delivery(1))
        await messenger.until_sent(1)
        messenger.sent[0][1].set_exception(PublishRefused("priced/new", "no room"))
        await messenger.until_sent(2)
        messenger.confirm(1)
        await made.until_ended(1)
    assert made.ends[0].attempts == 2


async def test_a_handler_that_fails_on_its_way_publishes_nothing_in_a_transaction(rig, delivery):
    messenger = _Messenger()
    failures = iter([ValueError("first")])

    async def handle(message: Message):
        yield _out("a")
        for failure in failures:
            raise failure
        yield _out("b")

    made = rig(handle, options={"transacted": True})
    async with MemberResources(messenger).entered(()), made.running():
        made.dispatcher.dispatch(delivery(1))
        await messenger.until_sent(1)
        messenger.confirm(0)
        await made.until_ended(1)
    assert [payload for payload, _ in messenger.sent] == [b"a+b"]
    assert made.ends[0].attempts == 2


async def test_no_message_is_no_transaction_and_too_many_are_a_terminal_failure(rig, delivery):
    messenger, queue = _Messenger(), TakingErrorQueue()

    async def handle(body: bytes):
        for number in range({b"1": 0, b"2": MAX_TOGETHER, b"3": MAX_TOGETHER + 1}[body]):
            yield _out(str(number))

    made = rig(handle, options={"transacted": True, "then": "error_queue"}, error_queue=queue)
    async with MemberResources(messenger).entered(()), made.running():
        for number in (1, 2, 3):
            made.dispatcher.dispatch(delivery(number))
        await messenger.until_sent(1)
        messenger.confirm(0)
        await made.until_ended(3)
    assert len(messenger.sent) == 1
    (error,) = queue.errors
    assert "publishes more than 256 messages in a transaction" in error


async def test_an_attempt_that_is_cut_short_takes_its_transaction_along(rig, delivery):
    messenger = _Messenger()
    made = rig(_several, options={"publishes": True, "transacted": True}, failure={"timeout": "10s"})
    async with MemberResources(messenger).entered(()), made.running():
        made.dispatcher.dispatch(delivery(1))
        async with asyncio.timeout(11):
            await messenger.until_sent(2)
        assert messenger.sent[0][1].cancelled()
        messenger.confirm(1)
        await made.until_ended(1)


async def test_a_member_commits_on_its_own_session(trial):
    trial.broker.create_queue("priced", ["priced/>"])
    handlers = Handlers()

    @handlers.handler("orders/*", transacted=True)
    async def price(message: Message):
        yield Message("priced/one", message.payload, message.properties)
        yield Message("priced/two", message.payload, message.properties)

    async with trial.at_work(trial.member(hooks=handlers)):
        await trial.publish(20)
        await trial.until(lambda: sum(trial.depths()) == 0)
    assert trial.broker.engine.queue_depth("default", "priced") == 40


def test_what_publishes_nothing_cannot_be_transacted():
    with pytest.raises(HandlerError, match="transacted, and nothing is published"):
        Handlers().handler("orders/>", transacted=True)(_several)


async def _receipt(receipt: Receipt):
    yield receipt


def test_a_receipt_and_yielding_do_not_go_together():
    with pytest.raises(HandlerError, match="a receipt and publishing"):
        Handlers().handler("orders/>")(_receipt)
