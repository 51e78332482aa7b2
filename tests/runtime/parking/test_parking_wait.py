"""A parking queue that its owner cannot open: its queue stands still, and whoever asks is told so, and why."""

import asyncio
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from lbg_runtime.broker.engine.engine import DEFAULT_VPN
from lbg_runtime.cli.group.text import picture_as_object, remarks
from lbg_runtime.core.parking.records import parking_queue
from lbg_runtime.model.hashing import HashFunction, shard_of
from lbg_runtime.runtime.observer import Observer
from lbg_runtime.runtime.parking.fence import FENCE_PATIENCE_S
from lbg_runtime.runtime.parking.stay import ParkingStay
from lbg_runtime.status.health import lacks
from lbg_runtime.status.objects import key_as_object, member_as_object
from lbg_runtime.status.picture import Standstill
from lbg_runtime.transport.memory.transport import MemoryTransport
from tests.runtime.test_member_status import shown

__all__ = ["shown"]

PARK = {"failure": {"attempts": 1, "then": "park"}, "ops": {"status": "127.0.0.1:0"}}
KEY = "bad"
SHARD = shard_of(HashFunction.CRC32, KEY, 8)
INDEX = SHARD % 4
PARKING = parking_queue("orders", INDEX)
SHUT_S = 100


async def refuse(message):
    if message.key == KEY:
        raise ValueError("no")


async def ready(trial):
    await trial.until_fed()
    await asyncio.sleep(1)


def switch(trial, *, egress):
    """Switch the egress of the key's parking queue, as an operator would over SEMP."""
    engine = trial.broker.engine
    changed = replace(engine.queue_status(DEFAULT_VPN, PARKING).settings, egress_enabled=egress)
    trial.broker.post(engine.administration.change_queue(DEFAULT_VPN, PARKING, changed))


@pytest.fixture
async def observer(trial, settings):
    session = MemoryTransport(trial.broker, "observer")
    await session.open()
    cooperative = {"membership": {"mode": "discovered", "index": None, "count": None}}
    yield Observer(session, settings(rebind={"mode": "cooperative"}, **cooperative), "observer")
    await session.close()


async def owners_answer(observer):
    answers, _ = await observer.look_for_key(KEY, 5)
    (owner,) = [answer for answer in answers if answer.flow is not None and answer.flow.is_owner]
    return owner


async def test_what_is_not_known_is_not_told_as_nothing(trial, shown, observer):
    async with trial.running(trial.discovered("a", work=refuse, **PARK)):
        await ready(trial)
        await trial.publish_key(KEY, 5)
        await trial.until(lambda: shown["a"].reading().parking.messages == 5)
        assert (await owners_answer(observer)).wait is None
        assert not lacks(shown["a"].picture())
        switch(trial, egress=False)
        await asyncio.sleep(SHUT_S)

        owner = await owners_answer(observer)
        assert owner.wait.reason.endswith("Queue Shutdown")
        assert owner.wait.waited_ms > 1_000 * (SHUT_S - 10)
        told = key_as_object(shown["a"].key(KEY))
        assert (told["known"], told["parked"], told["answers"][0]["parked"]) == (False, None, None)
        assert told["answers"][0]["parking_wait"]["reason"] == owner.wait.reason

        picture = await observer.look_at_group(5)
        told_lines = remarks(picture, [owner.queue], {}, None)
        (line,) = [line for line in told_lines if line.startswith("waits for its parking queue")]
        assert owner.queue in line
        assert line.endswith("Queue Shutdown")
        of_group = picture_as_object(picture, [], 10)["parking_waits"]
        assert (list(of_group), of_group[owner.queue]["member"]) == ([owner.queue], "a")

        flows = member_as_object(shown["a"].picture())["flows"]
        assert [queue for queue, flow in flows.items() if flow["parking_wait"] is not None] == [owner.queue]
        assert [lack.queue for lack in lacks(shown["a"].picture())] == [owner.queue]
        assert shown["a"].reading().troubles.stopped == 1
        (still,) = shown["a"].handled().standing_still.items()
        assert still == (INDEX, Standstill(False, shown["a"].key(KEY).wait))

        switch(trial, egress=True)
        await trial.until(lambda: shown["a"].reading().parking.messages == 5)
        owner = await owners_answer(observer)
        assert (owner.wait, owner.sight.parked) == (None, 5)
        assert (await observer.look_at_group(5)).waits == {}
        assert not lacks(shown["a"].picture())
        assert shown["a"].reading().troubles.stopped == 0
        assert shown["a"].handled().standing_still == {}


async def test_the_log_tells_of_it_when_it_begins_then_less_and_less_often_and_when_it_is_over(trial, shown):
    async with trial.running(trial.discovered("a", work=refuse, **PARK)):
        await ready(trial)
        with capture_logs() as logs:
            switch(trial, egress=False)
            await asyncio.sleep(SHUT_S)
            switch(trial, egress=True)
            await trial.until(lambda: not member_waits(shown))
    refused = [log for log in logs if log["event"] == "parking_queue_not_bound"]
    assert len(refused) == 4, "after 0, 10, 30 and 70 s"
    assert {(log["queue"], log["parking"], log["log_level"]) for log in refused} == {
        (f"orders/{INDEX}", PARKING, "error")
    }
    (opened,) = [log for log in logs if log["event"] == "parking_opened"]
    assert opened["queue"] == f"orders/{INDEX}"
    assert opened["waited_ms"] > 1_000 * (SHUT_S - 10)


def member_waits(shown):
    return [flow.queue for flow in shown["a"].picture().flows if flow.parking_wait is not None]


async def test_a_fence_that_does_not_come_is_told_the_same_way(trial, shown, observer, monkeypatch):
    take = ParkingStay._take_message
    monkeypatch.setattr(ParkingStay, "_take_message", lambda *_: None)
    async with trial.running(trial.discovered("a", work=refuse, **PARK)):
        await ready(trial)
        waits = (await observer.look_at_group(5)).waits
        assert {wait.reason for _, wait in waits.values()} == {"what lies there has not been read yet"}
        await asyncio.sleep(FENCE_PATIENCE_S)
        waits = (await observer.look_at_group(5)).waits
        assert {wait.reason for _, wait in waits.values()} == {"its own fence has not come for 10 s"}
        monkeypatch.setattr(ParkingStay, "_take_message", take)
        await trial.until(lambda: not member_waits(shown))


async def test_nothing_is_known_before_on_assigned_has_returned(trial, shown, observer):
    from lbg_runtime.runtime.handlers.registry import Handlers

    hooks, release = Handlers(), asyncio.Event()

    @hooks.on_assigned
    async def wait(*_):
        await release.wait()

    async with trial.running(trial.discovered("a", work=refuse, hooks=hooks, **PARK)):
        await ready(trial)
        await asyncio.sleep(10)
        assert (await owners_answer(observer)).wait.reason == "`on_assigned` has not returned"
        assert not lacks(shown["a"].picture()), "the broker and its queues are as they should be"
        release.set()
        await trial.until(lambda: not member_waits(shown))
        assert (await owners_answer(observer)).wait is None
