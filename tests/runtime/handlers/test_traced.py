"""Spans and log lines of a member's handlers, with members on a memory broker in virtual time."""

import asyncio

import pytest
import structlog
from opentelemetry import trace
from structlog.testing import LogCapture

from lbg_runtime.model.hashing import HashFunction
from lbg_runtime.model.message import Message
from lbg_runtime.publisher.hashed import HashedPublisher
from lbg_runtime.runtime.handlers.batches import Batch
from lbg_runtime.runtime.handlers.registry import Handlers
from lbg_runtime.runtime.log_facts import add_handling
from lbg_runtime.transport.memory.transport import MemoryTransport
from tests.metrics.kept_spans import SHAPE, KeptSpans


@pytest.fixture
def kept(monkeypatch):
    return KeptSpans.of_process(monkeypatch)


async def publish(trial, key, spans=None):
    session = MemoryTransport(trial.broker, f"publisher-{key}")
    await session.open()
    async with HashedPublisher(session, SHAPE, HashFunction.CRC32, publisher_id="p", spans=spans) as publisher:
        await publisher.publish("orders/new", b"x", key=key)
    await session.close()


async def test_every_attempt_is_a_span_below_that_of_the_publisher(trial, kept):
    failures = iter((ValueError("not yet"),))

    async def work(message):
        for error in failures:
            raise error

    async with trial.at_work(trial.discovered("a", work=work, ops={"tracing": "spans_with_keys"})):
        await publish(trial, "k", kept.make())
        await trial.until(lambda: trial.handled)
        await asyncio.sleep(1)
    # Whether the first attempt ends before its publisher knows of the confirm is a matter of the loop's turns.
    (published,) = (span for span in kept.ended if span.name.startswith("publish"))
    first, second = (span for span in kept.ended if span is not published)
    assert (
        first.name == second.name == f"process orders/{int(first.attributes['messaging.destination.partition.id']) % 4}"
    )
    assert [span.parent.span_id for span in (first, second)] == [published.context.span_id] * 2
    assert [span.attributes["lbg.attempt"] for span in (first, second)] == [1, 2]
    assert [span.attributes.get("error.type") for span in (first, second)] == ["ValueError", None]
    assert {span.attributes["lbg.key"] for span in (first, second)} == {"k"}


async def test_an_error_whose_text_cannot_be_made_stays_the_error_that_the_policy_judges(trial, kept):
    class Detached(Exception):
        def __str__(self):
            raise RuntimeError

    handlers, tries = Handlers(), 0

    @handlers.handler("orders/*", terminal=(Detached,), then="error_queue")
    async def fail(message):
        nonlocal tries
        tries += 1
        raise Detached

    async with trial.at_work(trial.discovered("a", hooks=handlers, ops={"tracing": "spans"})):
        await publish(trial, "k")
        await asyncio.sleep(60)
    (span,) = kept.ended
    assert (tries, span.attributes["error.type"], span.status.is_ok) == (1, Detached.__qualname__, False)


async def test_an_attempt_whose_body_has_not_run_is_a_span_that_failed(trial, kept):
    handlers = Handlers()

    async def book(message):
        raise AssertionError("it runs")

    @handlers.handler("orders/*")
    async def forgetful(message):
        return book(message)

    failure = {"then": "error_queue"}
    async with trial.at_work(trial.discovered("a", hooks=handlers, ops={"tracing": "spans"}, failure=failure)):
        await publish(trial, "k")
        await trial.until(lambda: kept.ended)
    assert {span.attributes.get("error.type") for span in kept.ended} == {"TerminalFailure"}


async def test_an_attempt_that_ran_into_its_time_out_is_told_as_such_and_a_recalled_one_as_cancelled(trial, kept):
    handlers, tries = Handlers(), []

    @handlers.handler("orders/*", timeout="90s")
    async def hang(message):
        tries.append(message)
        try:
            await asyncio.sleep(3_600)
        except asyncio.CancelledError:
            if len(tries) != 2:
                raise

    sections = {"ops": {"tracing": "spans"}, "rebind": {"drain_timeout": "5s"}}
    async with trial.at_work(trial.discovered("a", hooks=handlers, **sections)):
        await publish(trial, "k")
        await trial.until(lambda: len(tries) == 3, within_s=600)
    late, returned, recalled = kept.ended
    for span in (late, returned):
        told = span.attributes["error.type"], span.status.is_ok, span.status.description
        assert told == ("TimeoutError", False, "TimeoutError: the handler did not finish within 90 s")
    assert (recalled.attributes["error.type"], recalled.status.description) == ("CancelledError", "cancelled")


@pytest.mark.parametrize("is_transacted", [False, True])
async def test_what_a_handler_yields_has_the_context_of_its_span(trial, kept, is_transacted):
    handlers, found = Handlers(), []

    @handlers.handler("orders/*", transacted=is_transacted)
    async def price(message: Message):
        yield Message("bills/new", b"forwarded", message.properties)
        yield Message("bills/new", b"own", {"colour": "red"})
        yield Message("bills/new", b"bare")

    session = MemoryTransport(trial.broker, "reader")
    await session.open()
    await session.subscribe("bills/new", found.append)
    async with trial.at_work(trial.discovered("a", hooks=handlers, ops={"tracing": "spans"})):
        await publish(trial, "k", kept.make())
        await trial.until(lambda: len(found) == 3)
    await session.close()
    (span,) = (each for each in kept.ended if each.name.startswith("process"))
    context = f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}"
    assert [each.properties["traceparent"][:-3] for each in found] == [context] * 3
    assert found[1].properties["colour"] == "red"


@pytest.mark.parametrize("fails", [False, True])
async def test_the_call_of_a_batch_is_a_span_that_links_to_those_of_its_messages(trial, kept, fails):
    """What a batch handler does, such as to publish, had no span above it and began traces of its own."""
    handlers, inside, log = Handlers(), [], LogCapture()
    structlog.configure(processors=[add_handling, log])

    @handlers.batch_handler("orders/*", max_count=10, max_wait="1s", attempts=1, then="error_queue")
    async def count(batch: Batch):
        structlog.get_logger().info("told")
        inside.append(trace.get_current_span().get_span_context())
        if fails:
            raise ValueError("none of them")

    async with trial.at_work(trial.discovered("a", hooks=handlers, ops={"tracing": "spans"})):
        await asyncio.gather(*(publish(trial, key) for key in ("x", "y", "z")))
        await trial.until(lambda: len(kept.ended) == 4)
    (batch,) = (span for span in kept.ended if "messaging.batch.message_count" in span.attributes)
    attempts = [span for span in kept.ended if span is not batch]
    assert [each.span_id for each in inside] == [batch.context.span_id]
    assert {link.context.span_id for link in batch.links} == {span.context.span_id for span in attempts}
    assert (batch.parent, batch.attributes["messaging.batch.message_count"]) == (None, 3)
    assert batch.attributes.get("error.type") == ("ValueError" if fails else None)
    (told,) = (entry for entry in log.entries if entry["event"] == "told")
    assert (told["trace_id"], told["span_id"]) == (f"{inside[0].trace_id:032x}", f"{inside[0].span_id:016x}")


async def test_no_span_is_made_where_none_is_asked_for(trial, kept):
    async with trial.at_work(trial.discovered("a")):
        await publish(trial, "k")
        await trial.until(lambda: trial.handled)
    assert kept.ended == ()


@pytest.mark.parametrize("is_joined", [True, False])
async def test_log_lines_of_a_handler_and_about_it_have_the_ids_of_its_span(trial, kept, is_joined):
    log = LogCapture()
    structlog.configure(processors=[add_handling, log])

    async def work(message):
        structlog.get_logger().info("told")
        structlog.get_logger().info("told_otherwise", trace_id="its own")
        raise ValueError("not yet")

    failure = {"attempts": 1, "then": "error_queue"}
    async with trial.at_work(trial.discovered("a", work=work, ops={"tracing": "spans"}, failure=failure)):
        await publish(trial, "k", kept.make() if is_joined else None)
        await trial.until(lambda: len(kept.ended) == (2 if is_joined else 1))
        await asyncio.sleep(1)
    (span,) = (each for each in kept.ended if each.name.startswith("process"))
    ids = {"trace_id": f"{span.context.trace_id:032x}", "span_id": f"{span.context.span_id:016x}"}
    (told,) = (entry for entry in log.entries if entry["event"] == "told")
    assert told.items() >= ids.items()
    (otherwise,) = (entry for entry in log.entries if entry["event"] == "told_otherwise")
    assert otherwise["trace_id"] == "its own"
    (failed,) = (entry for entry in log.entries if entry["event"] == "handling_failed")
    assert failed.items() >= ids.items()


@pytest.mark.parametrize("traced", [True, False])
async def test_without_spans_log_lines_have_the_trace_that_the_message_says(trial, kept, traced):
    log = LogCapture()
    structlog.configure(processors=[add_handling, log])

    async def work(message):
        structlog.get_logger().info("told")

    async with trial.at_work(trial.discovered("a", work=work)):
        await publish(trial, "k", kept.make() if traced else None)
        await trial.until(lambda: trial.handled)
    (told,) = (entry for entry in log.entries if entry["event"] == "told")
    ids = {"trace_id": f"{kept.ended[0].context.trace_id:032x}"} if traced else {}
    assert {name: value for name, value in told.items() if name.endswith("_id")} == ids


async def test_log_lines_of_a_handler_and_of_its_tasks_tell_of_its_message(trial):
    log = LogCapture()
    structlog.configure(processors=[add_handling, log])

    async def tell_later():
        await asyncio.sleep(1)
        structlog.get_logger().info("told_later", key="its own")

    async def work(message):
        structlog.get_logger().info("told")
        await asyncio.create_task(tell_later())

    async with trial.at_work(trial.discovered("a", work=work)):
        await asyncio.gather(*(publish(trial, key) for key in ("x", "y")))
        await trial.until(lambda: len(trial.handled) == 2)
    told = [entry for entry in log.entries if entry["event"] == "told"]
    assert sorted((entry["key"], entry["epoch"]) for entry in told) == [("x", 1), ("y", 1)]
    assert all(entry["queue"].startswith("orders/") for entry in told)
    later = [entry for entry in log.entries if entry["event"] == "told_later"]
    assert sorted(entry["queue"] for entry in later) == sorted(entry["queue"] for entry in told)
    assert {entry["key"] for entry in later} == {"its own"}
    others = [entry for entry in log.entries if entry["event"] in ("member_started", "drain_started", "member_left")]
    assert others
    assert not any("key" in entry for entry in others)
