"""Whole members on a memory broker: what a handler cannot handle ends on the error queue, or stops its queue."""

import asyncio
import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from lbg_runtime.broker.engine.settings import QueueSettings
from lbg_runtime.model.errors import BindFailed, ConfigError, MessageUnsendable, PublishRefused, RequestRefused
from lbg_runtime.model.failure import Then
from lbg_runtime.model.ids import Epoch, MemberId, QueueName
from lbg_runtime.model.message import FencingToken, Message
from lbg_runtime.runtime.dispatch.error_queue import ErrorQueue
from lbg_runtime.runtime.runners.failure_report import report_of
from lbg_runtime.transport.memory.transport import MemoryTransport
from tests.docs.pages import DOCS, blocks

BACKOFF = {"backoff": {"initial": "100ms", "maximum": "1s"}}
BURY = {"failure": {"attempts": 2, "then": "dmq", **BACKOFF}}
MOVE = {"failure": {"attempts": 2, "then": "error_queue", **BACKOFF}}
STOP = {"failure": {"attempts": 2, "then": "stop", **BACKOFF}}
ERRORS = "lbg-errors/orders"
DEAD = "#DEAD_MSG_QUEUE"


async def _refuse_k1(message):
    if message.key == "k1" and message.key_sequence % 2:
        raise ValueError(f"odd: {message.key_sequence}")


async def _publish(trial, count):
    """When the queues are there, as a publisher of a group must."""
    await trial.until(lambda: len(trial.active()) == 4)
    await trial.publish(count)


async def _read(broker, queue):
    """Everything that lies on a queue, which is left as it is."""
    reader, found = MemoryTransport(broker, "reader"), []
    await reader.open()
    flow = await reader.bind(QueueName(queue), Epoch(1), found.append)
    flow.start_intake()
    await asyncio.sleep(1)
    await reader.close()
    return [event.delivery.message for event in found if hasattr(event, "delivery")]


def _number(moved):
    return moved.properties["lbg_error_key_sequence"]


async def test_what_cannot_be_handled_lies_on_the_error_queue_in_order_and_the_rest_is_handled(trial):
    async with trial.running(trial.member(work=_refuse_k1, **MOVE)) as (task,):
        await _publish(trial, 40)
        await trial.until(lambda: trial.depths() == [0] * 4)
    assert task.result().is_clean
    assert trial.sequences()["k1"] == [2, 4, 6, 8, 10]
    assert trial.sequences()["k0"] == list(range(1, 11))
    moved = await _read(trial.broker, ERRORS)
    assert [_number(message) for message in moved] == [1, 3, 5, 7, 9]
    told = {name: value for name, value in moved[0].properties.items() if name.startswith("lbg_error")}
    assert told.pop("lbg_error_stack").endswith("_refuse_k1")
    assert told == {
        "lbg_error_topic": "h/1/orders/new",
        "lbg_error_key": "k1",
        "lbg_error_attempts": 2,
        "lbg_error": "ValueError: odd: 1",
        "lbg_error_queue": "orders/1",
        "lbg_error_member": "member-0",
        "lbg_error_publisher": "p",
        "lbg_error_key_sequence": 1,
    }
    assert (moved[0].payload, moved[0].key) == (b"x", "k1")


@pytest.mark.parametrize("policy", [MOVE, BURY], ids=["error_queue", "dmq"])
async def test_a_copy_that_is_published_again_as_it_is_has_no_token_that_a_guard_takes_for_an_old_one(trial, policy):
    refused, again = [], []

    async def refuse(message):
        (again if "lbg_error" in message.properties else refused).append(message.fencing_token)
        raise ValueError("never")

    queue = ERRORS if policy is MOVE else DEAD
    async with trial.running(trial.member(work=refuse, **policy)):
        await _publish(trial, 1)
        await trial.until(lambda: trial.broker.engine.queue_depth("default", queue) == 1)
        (moved,) = await _read(trial.broker, queue)
        assert (moved.key, moved.fencing_token) == ("k0", None)
        sender = MemoryTransport(trial.broker, "somebody")
        await sender.open()
        await sender.send(Message(str(moved.properties["lbg_error_topic"]), moved.payload, moved.properties))
        await sender.close()
        await trial.until(lambda: trial.broker.engine.queue_depth("default", queue) == 2)
    assert refused == [FencingToken("p", 1)] * 2
    assert again == [None] * 2
    # The second copy does not claim the stamps of the first message.
    assert "lbg_error_key_sequence" not in (await _read(trial.broker, queue))[1].properties


async def test_the_example_of_the_docs_publishes_a_copy_again_under_its_own_topic_and_key(trial):
    asked, example = [], {}

    class Publisher:
        async def publish(self, topic, payload, **rest):
            asked.append((topic, payload, rest))

    async with trial.running(trial.member(work=_refuse_k1, **MOVE)):
        await _publish(trial, 4)
        await trial.until(lambda: trial.broker.engine.queue_depth("default", ERRORS) == 1)
    (source,) = blocks(DOCS / "failing.md", "python")
    exec(source, example)  # noqa: S102  # it is our own page
    (moved,) = await _read(trial.broker, ERRORS)
    await example["publish_again"](Publisher(), moved)
    ((topic, payload, rest),) = asked
    assert (topic, payload, rest["key"]) == ("orders/new", b"x", "k1")
    assert rest["properties"] == {"JMSXGroupID": "k1"}


@pytest.mark.parametrize("policy", [MOVE, BURY], ids=["error_queue", "dmq"])
async def test_what_no_property_can_hold_is_told_in_writing(trial, policy):
    """Brokers cut a text at a zero character, and half a surrogate pair has no UTF-8: the transport refuses both."""

    async def refuse(message):
        raise ValueError(f"no such fruit: {json.loads(message.payload)['fruit']}")

    async with trial.at_work(trial.member(work=refuse, **policy, group={"key": "json:/id"})):
        sender = MemoryTransport(trial.broker, "somebody")
        await sender.open()
        await sender.send(Message("h/1/orders/new", rb'{"id": "a\u0000b", "fruit": "app\u0000l\ud800e"}'))
        await sender.close()
        await trial.until(lambda: trial.depths() == [0] * 4)
    (moved,) = await _read(trial.broker, ERRORS if policy is MOVE else DEAD)
    assert moved.properties["lbg_error"] == r"ValueError: no such fruit: app\x00l\ud800e"
    assert moved.properties["lbg_error_key"] == r"a\x00b"


async def test_a_full_error_queue_keeps_the_messages_where_they_are(trial):
    trial.broker.create_queue(ERRORS, [ERRORS], settings=QueueSettings(quota_bytes=0))
    app = trial.member(work=_refuse_k1, **MOVE)
    with capture_logs() as logs:
        async with trial.running(app):
            await _publish(trial, 8)
            await trial.until(lambda: len(trial.handled) == 6)
            await asyncio.sleep(60)
            assert sum(trial.depths()) == 2
            trial.broker.delete_queue(ERRORS)
            trial.broker.create_queue(ERRORS, [ERRORS])
            await trial.until(lambda: sum(trial.depths()) == 0)
    assert any(log["event"] == "move_failed" and "Quota" in log["reason"] for log in logs)
    assert trial.sequences()["k1"] == [2]
    assert [_number(message) for message in await _read(trial.broker, ERRORS)] == [1]


async def test_a_move_outlasts_an_outage_and_is_made_once(trial):
    app = trial.member(work=_refuse_k1, **MOVE)
    async with trial.at_work(app):
        publishing = asyncio.ensure_future(trial.publish(80))
        for _ in range(6):
            await asyncio.sleep(0.05)
            trial.sessions["member-0"].drop_connection(2)
            await asyncio.sleep(3)
        await publishing
        await trial.until(lambda: trial.depths() == [0] * 4)
    moved = [_number(message) for message in await _read(trial.broker, ERRORS)]
    assert sorted(set(moved)) == list(range(1, 21, 2))
    assert [first for at, first in enumerate(moved) if first not in moved[:at]] == list(range(1, 21, 2))


async def test_an_error_queue_that_does_not_exist_stops_the_start(trial):
    for index in range(4):
        trial.broker.create_queue(f"orders/{index}", [])
    app = trial.member(work=_refuse_k1, **MOVE, group={"provision": "none"})
    with pytest.raises(ConfigError) as caught:
        await app.run()
    assert str(caught.value) == (
        "failure.error_queue: lbg-errors/orders: Unknown Queue; "
        "expected a queue that may be bound, with a subscription to lbg-errors/orders; "
        "`lbg group apply` makes it, where it can import these handlers"
    )


async def test_what_cannot_be_handled_lies_on_the_dead_message_queue_which_subscribes_to_nothing(trial):
    async with trial.running(trial.member(work=_refuse_k1, **BURY)):
        await _publish(trial, 40)
        await trial.until(lambda: trial.depths() == [0] * 4)
    assert trial.sequences()["k1"] == [2, 4, 6, 8, 10]
    moved = await _read(trial.broker, DEAD)
    assert [_number(message) for message in moved] == [1, 3, 5, 7, 9]
    assert {message.topic for message in moved} == {f"#P2P/QUE/{DEAD}"}
    assert moved[0].properties["lbg_error_topic"] == "h/1/orders/new"
    assert trial.broker.engine.queue_status("default", QueueName(DEAD)).subscriptions == ()


async def test_a_dead_message_queue_that_goes_keeps_the_messages_where_they_are(trial):
    app = trial.member(work=_refuse_k1, **BURY)
    with capture_logs() as logs:
        async with trial.at_work(app):
            trial.broker.delete_queue(DEAD)
            await _publish(trial, 8)
            await asyncio.sleep(60)
            assert sum(trial.depths()) == 2
            trial.broker.create_queue(DEAD, [])
            await trial.until(lambda: sum(trial.depths()) == 0)
    assert any(log["event"] == "move_failed" and "Unknown Queue" in log["reason"] for log in logs)
    assert trial.sequences()["k1"] == [2]
    assert [_number(message) for message in await _read(trial.broker, DEAD)] == [1]


@pytest.mark.parametrize(
    ("policy", "name", "expected"),
    [
        (BURY, "dead_message_queue", "a queue that may be bound"),
        (MOVE, "error_queue", "a queue that may be bound, with a subscription to lbg-errors/orders"),
    ],
    ids=["dmq", "error_queue"],
)
async def test_a_queue_of_others_that_does_not_exist_stops_the_start(trial, policy, name, expected):
    """No command makes it, so none is named."""
    for index in range(4):
        trial.broker.create_queue(f"orders/{index}", [])
    failure = {**policy["failure"], name: "dead"}
    with pytest.raises(ConfigError) as caught:
        await trial.member(work=_refuse_k1, failure=failure, group={"provision": "none"}).run()
    assert str(caught.value) == f"failure.{name}: dead: Unknown Queue; expected {expected}"


async def test_an_error_queue_of_another_name_is_looked_for_and_let_go(trial):
    for index in range(4):
        trial.broker.create_queue(f"orders/{index}", [f"h/{index}/>"])
    trial.broker.create_queue("dead", [ERRORS])
    failure = {**MOVE["failure"], "error_queue": "dead"}
    async with trial.running(trial.member(work=_refuse_k1, failure=failure, group={"provision": "none"})):
        await _publish(trial, 8)
        await trial.until(lambda: sum(trial.depths()) == 0)
        assert not trial.broker.engine.queue_flows("default", QueueName("dead"))
    assert [_number(message) for message in await _read(trial.broker, "dead")] == [1]


async def test_a_message_without_a_key_is_moved_without_one_even_if_it_had_one_when_it_was_moved_before(
    settings, delivery
):
    sent = []

    async def send(message):
        sent.append(message)

    came = delivery(1)
    came = replace(came, message=replace(came.message, properties={"lbg_error_key": "k1"}))
    errors = ErrorQueue(SimpleNamespace(send=send), settings(), {Then.ERROR_QUEUE}, MemberId("m"))
    handling = SimpleNamespace(delivery=came, queue=came.queue, key=None)
    await errors.take(handling, report_of(ValueError("no"), Then.ERROR_QUEUE, 1))
    assert "lbg_error_key" not in sent[0].properties


@pytest.mark.parametrize(
    ("reason", "is_permanent", "is_told"),
    [("Permission Not Allowed", True, False), ("the broker is starting", False, True)],
)
async def test_an_error_queue_that_cannot_be_looked_at_now_or_by_members_keeps_no_member_from_starting(
    settings, reason, is_permanent, is_told
):
    """That it does not exist is not said: others may read it, and messages wait where it proves to be missing."""

    async def refuse(queue, epoch, sink):
        raise BindFailed(queue, reason, permanent=is_permanent)

    session = SimpleNamespace(bind=refuse)
    errors = ErrorQueue(session, settings(group={"provision": "none"}), {Then.ERROR_QUEUE}, MemberId("m"))
    with capture_logs() as logs:
        await errors.prepare()
    assert [log["event"] for log in logs] == ["error_queue_not_looked_at"] * is_told


async def test_a_broker_that_refuses_to_make_the_error_queue_is_told_by_its_setting(settings):
    async def refuse(queue, subscriptions):
        raise RequestRefused("create a queue", "Permission Not Allowed")

    session = SimpleNamespace(provision=refuse)
    errors = ErrorQueue(session, settings(group={"provision": "create_missing"}), {Then.ERROR_QUEUE}, MemberId("m"))
    with pytest.raises(ConfigError, match=r"^failure.error_queue: .*Permission Not Allowed"):
        await errors.prepare()


async def test_a_stopped_queue_keeps_its_messages_and_the_others_go_on(trial):
    app = trial.member(work=_refuse_k1, **STOP, rebind={"drain_timeout": "2s"})
    async with trial.running(app) as (task,):
        await _publish(trial, 40)
        await trial.until(lambda: len(trial.handled) == 30)
        await asyncio.sleep(600)
        assert trial.depths() == [0, 10, 0, 0]
        app.stop()
        report = await task
    assert report.left_behind == 10
    mended = trial.member()
    async with trial.running(mended):
        await trial.until(lambda: sum(trial.depths()) == 0)
    assert trial.sequences()["k1"] == list(range(1, 11))


async def test_attempts_that_nothing_follows_stop_the_start(trial):
    with pytest.raises(ConfigError, match=r"failure.then: not set"):
        await trial.member(failure={"attempts": 2}).run()


async def _moved_past(refusals, settings, delivery):
    """What is sent of a message with stamps, and one of an earlier move, where the first ones sent are refused."""
    sent, left = [], list(refusals)

    async def send(message):
        sent.append(message)
        if left:
            raise left.pop(0)

    came = delivery(1)
    properties = {**came.message.properties, "lbg_publisher": "p", "lbg_key_sequence": 7, "lbg_error": "of old", "a": 1}
    came = replace(came, message=replace(came.message, properties=properties))
    errors = ErrorQueue(SimpleNamespace(send=send), settings(), {Then.ERROR_QUEUE}, MemberId("m"))
    handling = SimpleNamespace(delivery=came, queue=came.queue, key="a")
    try:
        await errors.take(handling, report_of(ValueError("no"), Then.ERROR_QUEUE, 1))
    except PublishRefused as refusal:
        return sent, refusal
    return sent, None


@pytest.mark.parametrize(
    "refusal", [PublishRefused(ERRORS, "Document Is Too Large"), MessageUnsendable(ERRORS, "30000001 bytes")]
)
async def test_a_message_that_is_too_large_with_all_that_is_told_of_it_says_only_where_it_belongs(
    settings, delivery, refusal
):
    """It waited for good at the head of its key, where nothing can make the limit larger."""
    (full, brief), left = await _moved_past([refusal], settings, delivery)
    assert left is None
    assert brief.properties == {
        "JMSXGroupID": "a",
        "a": 1,
        "lbg_error_topic": "h/0/orders/new",
        "lbg_error_key": "a",
    }
    assert replace(brief, properties=full.properties) == full


@pytest.mark.parametrize(
    ("reasons", "count"), [(["Spool Over Quota"], 1), (["Document Is Too Large"] * 2, 2)], ids=["full", "too large"]
)
async def test_what_its_queue_refuses_nevertheless_is_not_taken(settings, delivery, reasons, count):
    sent, refusal = await _moved_past([PublishRefused(ERRORS, each) for each in reasons], settings, delivery)
    assert (len(sent), refusal.reason) == (count, reasons[0])
