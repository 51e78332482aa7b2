"""One flow runner that gives its queue away, or leaves: what comes before the unbind, and what is waited for."""

import asyncio
from types import SimpleNamespace

import pytest

from lbg_runtime.core.flow.events import (
    FlowActive,
    FlowDown,
    FlowInactive,
    HandBackRequested,
    HandlingStalled,
    MessageReceived,
    PlaceChanged,
    StepAsideRequested,
)
from lbg_runtime.core.parking.ledger import Verdict
from lbg_runtime.core.roles import Place
from lbg_runtime.model.errors import BindFailed, ParkingNotReady
from lbg_runtime.model.ids import QueueName
from lbg_runtime.runtime.runners.handling import GivenBack
from tests.runtime.scripted import QUEUE, STANDBY


async def _return(_message):
    pass


async def test_an_unbind_comes_after_every_settlement(flow_trial, delivery):
    async def work(_message):
        await asyncio.sleep(0.1)

    trial = flow_trial(work)
    async with trial.running() as task:
        epoch = await trial.activate()
        for number in range(1, 41):
            trial.transport.sink(MessageReceived(delivery(number, f"k{number}")))
        await asyncio.sleep(0.05)
        trial.runner.stop()
        await task
    assert trial.log[-2][0] == "unbind"
    assert len(trial.settled()) == 40
    assert {of_epoch for of_epoch, _ in trial.settled()} == {epoch}
    assert trial.flow_changes() == [("bound", ""), ("active", ""), ("draining", "stop"), ("released", "stop")]
    assert trial.runner.is_released


async def test_an_unbind_that_nobody_answered_is_no_release(flow_trial, delivery):
    trial = flow_trial(_return)
    trial.transport.unbinds_are_answered = False
    async with trial.running() as task:
        await trial.activate()
        trial.transport.sink(MessageReceived(delivery(1, "k")))
        await trial.transport.settled(1)
        trial.runner.stop()
        await task
    assert trial.runner.is_unheard
    assert not trial.runner.is_released
    assert trial.flow_changes()[-2:] == [("draining", "stop"), ("down", "the broker did not answer the unbind")]


async def test_nor_is_one_of_a_flow_that_was_given_up_because_a_message_was_given_back(flow_trial, delivery):
    """The broker had not taken the queue away, so nothing else says that what was settled may not have arrived."""

    async def work(message):
        if message.key == "late":
            raise GivenBack

    trial = flow_trial(work, place=Place(1, gives_way=True), rebind={"interval": "5s"})
    trial.transport.unbinds_are_answered = False
    async with trial.fed() as epoch:
        for number, key in ((1, "k"), (2, "late")):
            trial.transport.sink(MessageReceived(delivery(number, key, epoch=epoch)))
        assert await trial.transport.binds.get() == epoch + 1
    assert trial.settled() == [(epoch, 1)]
    assert trial.flow_changes()[2] == ("down", "the broker did not answer the unbind")


async def test_an_unbind_that_nobody_answered_long_before_the_stop_is_no_matter_of_the_leaving(flow_trial):
    # As after an outage from which the broker came back without the queue.
    trial = flow_trial(_return)
    trial.transport.unbinds_are_answered = False
    async with trial.running() as task:
        epoch = await trial.activate()
        trial.transport.refusals = [BindFailed(QUEUE, "Unknown Queue", permanent=True)] * 100
        trial.transport.sink(FlowInactive(epoch))
        await asyncio.sleep(5)
        assert ("released", "inactive") in trial.flow_changes()
        trial.runner.stop()
        await task
    assert not trial.runner.is_unheard
    assert not trial.owner.refusals, "a queue that this member had may come back"


async def test_a_flow_away_from_home_gives_way_and_binds_again(flow_trial):
    trial = flow_trial(_return, place=Place(1, gives_way=True), rebind={"interval": "5s"})
    loop = asyncio.get_running_loop()
    async with trial.running():
        assert await trial.activate() == 1
        assert await trial.activate() == 2
        assert loop.time() < 6
    assert trial.flow_changes()[:4] == [("bound", ""), ("active", ""), ("draining", "rebind"), ("released", "rebind")]


async def test_a_hand_back_is_journalled_and_observed_from_drain_to_the_bind_as_a_standby(flow_trial, delivery):
    async def work(_message):
        await asyncio.sleep(1)

    trial = flow_trial(work, place=STANDBY)
    async with trial.fed() as first:
        trial.transport.sink(MessageReceived(delivery(1, epoch=first)))
        await asyncio.sleep(0.5)
        trial.runner.post(HandBackRequested("m"))
        assert await trial.transport.binds.get() == first + 1
        await asyncio.sleep(1)
        assert trial.owner.changes == [
            ("binding", 1, None),
            ("standby", 1, None),
            ("active", 1, None),
            ("draining", 1, "handback"),
            ("unbinding", 1, "handback"),
            ("unbound", 1, None),
            ("binding", 2, None),
            ("standby", 2, None),
        ]
    assert trial.settled() == [(first, 1)]
    assert trial.log.index(("settle", first, 1)) < trial.log.index(("unbind", first))
    expected = [("bound", ""), ("active", ""), ("draining", "handback"), ("released", "handback"), ("bound", "")]
    assert trial.flow_changes()[:5] == expected


async def test_a_drain_ends_a_quiet_gap_after_its_last_message_however_long_it_might_take(flow_trial, delivery):
    async def work(_message):
        await asyncio.sleep(0.01)

    trial = flow_trial(work, place=STANDBY)
    loop = asyncio.get_running_loop()
    async with trial.fed():
        trial.transport.sink(MessageReceived(delivery(1)))
        trial.runner.post(HandBackRequested("m"))
        began_s = loop.time()
        assert await trial.transport.binds.get() == 2
        assert loop.time() - began_s < 1


async def test_a_stop_waits_for_what_still_runs_of_a_dead_handle(flow_trial, delivery):
    async def work(_message):
        await asyncio.sleep(5)

    trial = flow_trial(work)
    async with trial.running() as task:
        epoch = await trial.activate()
        trial.transport.sink(MessageReceived(delivery(1)))
        await asyncio.sleep(1)
        trial.transport.sink(FlowDown(epoch, "gone"))
        trial.runner.stop()
        await task
    [record] = trial.dispatch_records()
    assert (record.outcome, record.t_settle) == ("accepted", None)
    assert (trial.runner.unanswered, trial.runner.left_behind) == (0, 1)


async def test_what_could_not_be_parked_before_the_end_is_left_behind(flow_trial, delivery):
    async def refuse(*_):
        raise ParkingNotReady(QUEUE, "full")

    full = SimpleNamespace(
        parking=QueueName("parked"),
        finished=None,
        concerns=lambda _: True,
        judge=lambda _: Verdict.PARK,
        is_replaying=lambda _: False,
        was_parked=lambda _: False,
        take=refuse,
    )
    trial = flow_trial(_return, rebind={"drain_timeout": "1s"})
    trial.rig.dispatcher.park_in(QUEUE, full)
    async with trial.running() as task:
        await trial.activate()
        trial.transport.sink(MessageReceived(delivery(1)))
        await asyncio.sleep(1)
        trial.runner.stop()
        await task
    assert (trial.settled(), trial.runner.left_behind) == ([], 1)


async def test_a_flow_that_is_to_stop_cancels_what_still_runs_when_its_time_is_over(flow_trial, delivery):
    async def work(_message):
        await asyncio.sleep(1_000)

    trial = flow_trial(work, rebind={"drain_timeout": "5s"}, failure={"timeout": "1h"})
    async with trial.running() as task:
        await trial.activate()
        trial.transport.sink(MessageReceived(delivery(1)))
        await asyncio.sleep(1)
        trial.runner.stop()
        async with asyncio.timeout(6):
            await task
    assert (trial.settled(), trial.runner.left_behind) == ([], 1)


async def test_a_hand_back_that_is_given_up_leaves_the_flow_active(flow_trial, delivery):
    async def work(_message):
        await asyncio.sleep(8)

    trial = flow_trial(work, place=STANDBY, rebind={"drain_timeout": "5s"})
    async with trial.fed() as epoch:
        trial.transport.sink(MessageReceived(delivery(1, epoch=epoch)))
        await asyncio.sleep(0.5)
        trial.runner.post(HandBackRequested("m"))
        await asyncio.sleep(6)
        assert trial.owner.changes[-2:] == [("draining", epoch, "handback"), ("active", epoch, None)]
        await asyncio.sleep(3)
        assert trial.settled() == [(epoch, 1)]
        intake = [name for name, *_ in trial.log if name.endswith("intake")]
        assert intake == ["start_intake", "stop_intake", "start_intake"]
    assert [event for event, _ in trial.flow_changes()][:4] == ["bound", "active", "draining", "active"]


async def test_a_hand_back_does_not_wait_for_the_next_attempt_at_a_key_that_fails(flow_trial, delivery):
    """What waits for it, or behind it, goes back unsettled; what runs comes to its end first."""

    async def work(message):
        if message.key == "bad":
            raise ValueError("never")
        await asyncio.sleep(3)

    trial = flow_trial(work, place=STANDBY, failure={"backoff": {"initial": "1m", "maximum": "1m"}})
    loop = asyncio.get_running_loop()
    async with trial.fed() as epoch:
        for number, key in ((1, "bad"), (2, "good"), (3, "bad")):
            trial.transport.sink(MessageReceived(delivery(number, key, epoch=epoch)))
        await asyncio.sleep(1)
        trial.runner.post(HandBackRequested("m"))
        began_s = loop.time()
        assert await trial.transport.binds.get() == epoch + 1
        assert 2 <= loop.time() - began_s < 3
    assert trial.settled() == [(epoch, 2)]
    _, failed = trial.dispatch_records()
    assert (failed.delivery_id, failed.attempts, failed.outcome, failed.t_settle) == (1, 1, "cancelled", None)
    expected = [("bound", ""), ("active", ""), ("draining", "handback"), ("released", "handback"), ("bound", "")]
    assert trial.flow_changes()[:5] == expected


async def test_a_hand_back_goes_on_if_an_attempt_has_begun_since_it_looked_for_a_stall(flow_trial, delivery):
    """It is given up in time then, as any other: otherwise it would wait for a handler that may hang."""

    async def work(_message):
        await asyncio.sleep(8)

    trial = flow_trial(work, place=STANDBY, rebind={"drain_timeout": "5s"})
    async with trial.fed() as epoch:
        trial.transport.sink(MessageReceived(delivery(1, epoch=epoch)))
        trial.runner.post(HandBackRequested("m"))
        await asyncio.sleep(4)
        trial.runner.post(HandlingStalled(epoch))
        await asyncio.sleep(2)
        assert trial.owner.changes[-2:] == [("draining", epoch, "handback"), ("active", epoch, None)]


async def test_a_standby_that_steps_aside_or_is_not_wanted_opens_no_intake(flow_trial):
    trial = flow_trial(_return, place=STANDBY)
    async with trial.running():
        trial.runner.post(StepAsideRequested(60_000))
        assert await trial.activate() == 1
        assert await trial.transport.binds.get() == 2
        trial.runner.post(PlaceChanged(Place(None, gives_way=False)))
        await asyncio.sleep(10)
        assert trial.owner.changes[-1] == ("unbound", 2, None)
    assert [name for name, *_ in trial.log if name.endswith("intake")] == []
    expected = [("bound", ""), ("released", "hop"), ("bound", ""), ("released", "unwanted")]
    assert trial.flow_changes() == expected


async def test_a_handle_that_is_given_up_starts_nothing_more_and_a_new_one_is_bound(flow_trial, delivery):
    """Also of what has come, but has not been dispatched, and of what the transport still brings."""
    started, may_end = [], asyncio.Event()

    async def work(message):
        started.append(message.payload)
        await may_end.wait()

    trial = flow_trial(work)
    async with trial.fed() as epoch:
        for number, key in ((1, "a"), (2, "a")):
            trial.transport.sink(MessageReceived(delivery(number, key)))
        await asyncio.sleep(0.01)
        trial.runner.hold_up(epoch, ())
        trial.transport.sink(MessageReceived(delivery(3, "b")))
        trial.runner.give_handle_up()
        trial.transport.sink(MessageReceived(delivery(4, "c")))
        await asyncio.sleep(1)
        may_end.set()
        assert await trial.activate() == epoch + 1
        trial.transport.sink(MessageReceived(delivery(1, "a", epoch=epoch + 1)))
        await trial.transport.settled(1)
    assert started == [b"1", b"1"]
    assert trial.settled() == [(epoch, 1), (epoch + 1, 1)]
    changes = [("bound", ""), ("active", ""), ("inactive", ""), ("draining", "inactive"), ("released", "inactive")]
    assert trial.flow_changes()[:5] == changes


async def test_a_stop_that_waits_for_a_handler_goes_on_soon_after_it_and_not_at_its_timeout(flow_trial, delivery):
    may_end = asyncio.Event()

    async def work(_message):
        await may_end.wait()

    trial = flow_trial(work)
    async with trial.running() as task:
        epoch = await trial.activate()
        trial.transport.sink(MessageReceived(delivery(1)))
        await asyncio.sleep(0.01)
        trial.runner.stop()
        await asyncio.sleep(0.01)
        may_end.set()
        await asyncio.wait([task], timeout=1)
        assert task.done()
    assert trial.settled() == [(epoch, 1)]


async def test_nothing_more_is_started_in_the_turn_in_which_a_handle_is_given_up(flow_trial, delivery):
    """Before the machine knows: after a stop of the process, that is where a runner notices it."""
    started = []

    async def work(message):
        started.append(message.payload)
        trial.runner.give_handle_up()

    trial = flow_trial(work, dispatch={"runners": 1})
    async with trial.fed() as epoch:
        for number, key in ((1, "a"), (2, "b")):
            trial.transport.sink(MessageReceived(delivery(number, key)))
        assert await trial.transport.binds.get() == epoch + 1
    assert started == [b"1"]
    assert trial.settled() == [(epoch, 1)]


@pytest.mark.parametrize("is_fed", [True, False])
async def test_a_handle_is_given_up_together_with_its_parking_queue(flow_trial, is_fed):
    """Of a standby too: what it hears next may be old news, and its parking queue may be fed already."""
    given_up, left = [], []

    async def leave(epoch):
        left.append(epoch)
        return True

    parking = SimpleNamespace(
        open_for=lambda *_: True, give_up=lambda: given_up.append(len(trial.log)), leave=leave, follow=lambda *_: None
    )
    trial = flow_trial(_return, parking=parking)
    async with trial.running():
        if is_fed:
            await trial.activate()
            await asyncio.sleep(1)
        moves = len(trial.log)
        trial.runner.give_handle_up()
        assert given_up == [moves], "at once"
        await asyncio.sleep(5)
        assert left == [1] * is_fed


@pytest.mark.parametrize("comes", ["just before", "just after", "with the bind", "long after"])
async def test_a_standby_gives_its_handle_up_if_it_hears_now_that_it_is_fed(flow_trial, comes):
    """That lay in the client while the process was stopped. A standby that hears nothing keeps its place in line."""
    trial = flow_trial(_return, place=STANDBY)
    async with trial.running():
        if comes == "with the bind":
            await asyncio.sleep(0.0005)
            trial.runner.give_handle_up()
        epoch = await trial.transport.binds.get()
        if comes == "just before":
            await asyncio.sleep(1)
            trial.transport.sink(FlowActive(epoch))
            trial.runner.give_handle_up()
        else:
            if comes != "with the bind":
                await asyncio.sleep(1)
                trial.runner.give_handle_up()
            if comes == "long after":
                await asyncio.sleep(60)
            trial.transport.sink(FlowActive(epoch))
        await asyncio.sleep(10)
        assert [name for name, *_ in trial.log if name == "start_intake"] == ["start_intake"] * (comes == "long after")
        assert trial.transport.binds.empty() == (comes == "long after")
    expected = [("bound", ""), ("active", "")] if comes == "long after" else [("bound", ""), ("released", "hop")]
    assert trial.flow_changes()[:2] == expected
