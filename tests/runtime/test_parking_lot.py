"""What the parking queues of a member are told of its group."""

import asyncio
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from lbg_runtime.core.parking.records import parking_queue
from lbg_runtime.core.restripe.records import StripePlan, encode_record, record_topic
from lbg_runtime.model.errors import BindFailed, ConfigError, RequestRefused
from lbg_runtime.model.ids import MemberId, QueueName
from lbg_runtime.runtime.parking_lot import ParkingLot
from lbg_runtime.transport.memory.transport import MemoryTransport
from tests.runtime.parking.slowness import settle_late
from tests.runtime.restripe.restripe_world import GROUP, made_queues

PARK = {"failure": {"attempts": 1, "then": "park", "backoff": {"initial": "100ms", "maximum": "1s"}}}
PLAN = StripePlan(7, 4, 6, "s3cr3t")
TOPIC = record_topic("lbg-control/orders", PLAN)


@pytest.fixture
def queues(trial, settings):
    """Those of the group and their parking queues."""
    for index in range(4):
        trial.broker.create_queue(parking_queue("orders", index), [parking_queue("orders", index)])
    return made_queues(trial, settings)


async def publish_plan(trial, queues):
    for index in range(PLAN.queue_total):
        await queues.create_queue(QueueName(f"orders/{index}"))
        await queues.subscribe(QueueName(f"orders/{index}"), TOPIC)
    conductor = MemoryTransport(trial.broker, "conductor")
    await conductor.open()
    await conductor.send(encode_record(PLAN, TOPIC))
    await conductor.close()


async def refuse(_message):
    raise ValueError("no")


def parked_reasons(logs):
    """Why messages could not be parked."""
    return {
        log["reason"].partition(": cannot park in lbg-parked/orders/0: ")[2]
        for log in logs
        if log["event"] == "move_failed"
    }


async def test_nothing_is_parked_while_the_group_is_being_re_striped(trial, queues):
    """What is parked belongs to a queue, and would stay behind when the shard of its key moves to another one."""

    sent = []
    async with trial.running(trial.discovered("a", work=refuse, group=GROUP, **PARK)):
        await trial.until_fed()
        await publish_plan(trial, queues)
        await asyncio.sleep(5)
        session, send = trial.sessions["a"], trial.sessions["a"].send

        def note(message):
            sent.append(message.topic)
            return send(message)

        session.send = note
        with capture_logs() as logs:
            await trial.publish(1)
            await asyncio.sleep(20)
    assert parked_reasons(logs) == {"the group is being re-striped"}
    assert sent == [], "not even what keeps room for it"
    assert trial.broker.engine.queue_depth("default", parking_queue("orders", 0)) == 1, "the fence of its owner"


async def test_what_is_about_to_be_parked_when_a_re_striping_begins_is_not(trial, queues, monkeypatch):
    settle_late(monkeypatch, 5)
    async with trial.running(trial.discovered("a", work=refuse, group=GROUP, **PARK)):
        await trial.until_fed()
        await asyncio.sleep(1)
        with capture_logs() as logs:
            await trial.publish(1)
            await asyncio.sleep(1)
            await publish_plan(trial, queues)
            await asyncio.sleep(20)
    assert parked_reasons(logs) == {"the group is being re-striped"}
    assert trial.broker.engine.queue_depth("default", parking_queue("orders", 0)) == 1, "the fence of its owner"


async def test_a_member_that_may_not_create_its_parking_queues_ends_with_one_line(trial, queues, monkeypatch):
    provision = MemoryTransport.provision

    async def refuse(transport, queue, subscriptions):
        if queue == parking_queue("orders", 0):
            raise RequestRefused(f"provision {queue}", "Permission Not Allowed")
        await provision(transport, queue, subscriptions)

    monkeypatch.setattr(MemoryTransport, "provision", refuse)
    group = {**GROUP, "provision": "create_missing"}
    with pytest.raises(ConfigError, match=r"park: cannot provision .*orders/0: Permission Not Allowed; expected "):
        await trial.discovered("a", work=refuse, group=group, **PARK).run()


async def test_parking_queues_that_cannot_be_looked_at_now_keep_no_member_from_starting(settings):
    asked = []

    async def refuse(queue, epoch, sink):
        asked.append(queue)
        raise BindFailed(queue, "the broker is starting")

    session, unused = SimpleNamespace(bind=refuse), SimpleNamespace()
    await ParkingLot(session, settings(group={"provision": "none"}), MemberId("m"), unused, unused, unused).prepare()
    assert asked == [parking_queue("orders", index) for index in range(4)]


async def test_a_member_that_is_to_leave_does_not_wait_for_its_parking_queues(trial, queues, monkeypatch):
    """With the broker away, each of them would be waited for."""
    app = trial.discovered("a", work=refuse, group=GROUP, **PARK)
    asked, bind = asyncio.Event(), MemoryTransport.bind

    async def unanswered(transport, queue, epoch, sink):
        if queue == parking_queue("orders", 0):
            asked.set()
            await asyncio.Event().wait()
        return await bind(transport, queue, epoch, sink)

    monkeypatch.setattr(MemoryTransport, "bind", unanswered)
    async with trial.running(app) as (task,):
        await asked.wait()
        app.stop()
        report = await asyncio.wait_for(task, 1)
    assert report.is_clean
