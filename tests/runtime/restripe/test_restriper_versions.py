"""Members beside which nothing is begun, being of another version or too many, and queues that refuse records: all are
named."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from lbg_runtime.core.group.control_codec import CONTROL_VERSION
from lbg_runtime.core.restripe.records import StripePlan, record_topic
from lbg_runtime.model.errors import PublishRefused, SempUnreachable, UserError
from lbg_runtime.model.ids import QueueName
from lbg_runtime.model.message import Message
from lbg_runtime.transport.memory.broker import DEFAULT_VPN
from lbg_runtime.transport.memory.transport import MemoryTransport
from tests.runtime.restripe.restripe_world import GROUP, restripe, topics_of

SMALL = QueueName("orders/2")
CONTROL_TOPIC = "lbg-control/orders"
OLD_BEAT = b'[%d,"heartbeat"]' % (CONTROL_VERSION - 1)
OTHER = f"control messages of version {CONTROL_VERSION - 1}"


@asynccontextmanager
async def old_member(trial, pause_s=1.0):
    """It beats in another version, and understands no question."""
    session = MemoryTransport(trial.broker, "old")
    await session.open()

    async def beat():
        while True:
            await asyncio.sleep(pause_s)
            session.send_direct(Message(CONTROL_TOPIC, OLD_BEAT))

    beating = asyncio.create_task(beat())
    try:
        yield
    finally:
        beating.cancel()
        await session.close()


@pytest.mark.parametrize("news", [True, False], ids=["beside a new one", "alone"])
async def test_nothing_is_begun_while_members_speak_another_version(trial, settings, queues, news: bool) -> None:
    before = await topics_of(queues)
    async with AsyncExitStack() as ending:
        if news:
            await ending.enter_async_context(trial.running(trial.discovered("a", group=GROUP)))
            await trial.until(lambda: len(trial.active()) == 4)
        await ending.enter_async_context(old_member(trial))
        with pytest.raises(UserError, match=f"{OTHER}; expected version {CONTROL_VERSION} from all members"):
            await asyncio.wait_for(restripe(trial, settings, queues, 6), 60)
    assert await topics_of(queues) == before


async def test_counted_members_keep_at_least_a_queue_each_and_have_new_ones_by_number(trial, settings, queues) -> None:
    """With fewer, none of them could start again, nor one that counts otherwise, as long as others run."""
    before = await topics_of(queues)
    counted = (trial.member(index, 3, rebind={"mode": "cooperative"}, group=GROUP) for index in range(3))
    async with trial.at_work(*counted):
        with pytest.raises(UserError, match=r"2, and member member-0 is one of 3 by membership\.count; .* 3 or more"):
            await asyncio.wait_for(restripe(trial, settings, queues, 2), 60)
        assert await topics_of(queues) == before
        for count in (3, 5):
            await restripe(trial, settings, queues, count)
            by_number = {index: f"member-{index % 3}" for index in range(count)}
            await trial.until(lambda expected=by_number: trial.active() == expected, within_s=60)


async def test_a_version_that_comes_before_the_plan_keeps_it_from_being_published(trial, settings, queues) -> None:
    subscribe = queues.subscribe

    async def subscribe_and_disturb(queue, topic):
        await subscribe(queue, topic)
        if queue == "orders/3":
            async with old_member(trial, pause_s=0.01):
                await asyncio.sleep(0.05)

    queues.subscribe = subscribe_and_disturb
    before = await topics_of(queues)
    async with trial.at_work(trial.discovered("a", group=GROUP)):
        with capture_logs() as told, pytest.raises(UserError, match=OTHER):
            await restripe(trial, settings, queues, 3)
    assert not [each for each in told if each.get("step") == "Publish"]
    assert await topics_of(queues) == before


async def test_a_plan_that_may_be_known_is_waited_for_and_the_reason_told(trial, settings, queues) -> None:
    topic = record_topic(CONTROL_TOPIC, StripePlan(7, 4, 3, "s3cr3t"))
    for name in queues.names():
        await queues.subscribe(QueueName(name), topic)
    told = asyncio.Queue()
    async with old_member(trial):
        restriping = asyncio.ensure_future(restripe(trial, settings, queues, 3, told.put_nowait))
        async with asyncio.timeout(60):
            while OTHER not in (await told.get()).waiting_for:
                pass
        restriping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await restriping


async def test_a_version_that_comes_later_is_told_with_what_is_waited_for(trial, settings, queues) -> None:
    old = MemoryTransport(trial.broker, "old")
    await old.open()
    told = []

    def speak_when_a_shard_has_moved(progress):
        if progress.moved:
            old.send_direct(Message(CONTROL_TOPIC, OLD_BEAT))
        told.append(progress.waiting_for)

    async with trial.at_work(trial.discovered("a", group=GROUP)):
        done = await restripe(trial, settings, queues, 6, speak_when_a_shard_has_moved)
    assert done.moved == done.moving
    assert any(OTHER in each for each in told)
    await old.close()


async def refused(trial, settings, queues) -> PublishRefused:
    """A re-striping whose records one queue refuses."""
    async with trial.at_work(trial.discovered("a", group=GROUP)):
        engine = trial.broker.engine
        narrow = replace(engine.queue_status(DEFAULT_VPN, SMALL).settings, max_message_bytes=10)
        trial.broker.post(engine.administration.change_queue(DEFAULT_VPN, SMALL, narrow))
        with pytest.raises(PublishRefused) as caught:
            await restripe(trial, settings, queues, 6)
    return caught.value


async def test_a_refused_record_is_told_with_the_queues_that_refuse(trial, settings, queues) -> None:
    queues.refusing = {"orders/2": "maxMsgSize 10", "orders/5": "ingressEnabled False"}
    error = await refused(trial, settings, queues)
    told = "queue orders/2 has maxMsgSize 10; queue orders/5 has ingressEnabled False"
    assert error.reason == f"Document Is Too Large: {told}"


async def test_where_no_queue_shows_why_the_refusal_is_told_as_it_came(trial, settings, queues) -> None:
    async def nobody_answers(queue, size_bytes):
        raise SempUnreachable("http://broker", "gone")

    queues.refusal = nobody_answers
    assert (await refused(trial, settings, queues)).reason == "Document Is Too Large"
