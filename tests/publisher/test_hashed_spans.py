"""The spans of a publisher: one for each message, from its sending to whatever becomes of it."""

import asyncio

import pytest
from opentelemetry.trace import StatusCode

from lbg_runtime.metrics import spans
from lbg_runtime.model.errors import PublishFailed, PublishRefused
from lbg_runtime.model.hashing import HashFunction
from lbg_runtime.model.message import Headers
from lbg_runtime.publisher.hashed import HashedPublisher
from tests.metrics.kept_spans import KeptSpans
from tests.publisher.conftest import settled


@pytest.fixture
def kept():
    return KeptSpans()


@pytest.fixture
def publisher(shape, messenger, kept):
    return HashedPublisher(messenger, shape, HashFunction.CRC32, publisher_id="p", spans=kept.make())


async def test_a_span_ends_with_the_answer_and_the_message_carries_its_context(publisher, messenger, kept):
    for number in range(3):
        await publisher.submit(
            "orders/new", b"12345", key="k", properties={"number": number, "traceparent": "old"}, headers=Headers("c")
        )
    assert kept.ended == ()
    messenger.confirm()
    messenger.refuse()
    await settled()
    confirmed, refused = kept.ended
    assert [span.attributes["messaging.message.id"] for span in kept.ended] == ["p-1", "p-2"]
    assert confirmed.attributes["messaging.message.conversation_id"] == "c"
    assert (confirmed.status.status_code, refused.status.status_code) == (StatusCode.UNSET, StatusCode.ERROR)
    sent = messenger.sent[0].properties
    assert sent["traceparent"][:-3] == f"00-{confirmed.context.trace_id:032x}-{confirmed.context.span_id:016x}"
    assert sent["number"] == 0
    await publisher.close(timeout_ms=1)
    assert kept.ended[2].attributes["error.type"] == "PublishFailed", "no answer came"


async def test_a_span_that_cannot_be_ended_leaves_nobody_waiting_and_no_message_off_the_ledger(
    shape, messenger, kept, ledger_file, monkeypatch
):
    def fail(*_):
        raise RuntimeError("a processor of the program")

    complaints = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context["exception"]))
    monkeypatch.setattr(spans, "end_publish", fail)
    made = HashedPublisher(
        messenger, shape, HashFunction.CRC32, publisher_id="p", spans=kept.make(), ledger=ledger_file.ledger
    )
    answers = [await made.submit("orders/new", b"", key="k") for _ in range(2)]
    messenger.confirm()
    messenger.refuse()
    await settled()
    assert answers[0].result().key_sequence == 1
    assert isinstance(answers[1].exception(), PublishRefused)
    assert [type(error) for error in complaints] == [RuntimeError] * 2
    await made.close()
    assert ledger_file.ranges() == [("k", 1, 1)]
    assert [line["seq"] for line in ledger_file.lines("unconfirmed")] == [2]


async def test_a_message_that_could_not_be_sent_has_a_failed_span(publisher, messenger, kept):
    messenger.failing_send = PublishFailed("orders/new", "no session")
    with pytest.raises(PublishFailed):
        await publisher.submit("orders/new", b"x", key="k")
    assert [span.status.status_code for span in kept.ended] == [StatusCode.ERROR]


async def test_a_message_that_is_refused_unsent_has_no_span(publisher, kept):
    with pytest.raises(Exception, match="key"):
        await publisher.submit("orders/new", b"x")
    assert kept.ended == ()
