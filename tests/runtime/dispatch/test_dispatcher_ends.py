"""Deliveries that are given back or cancelled end once, settle nothing, and let nothing of their key overtake."""

import asyncio
import random
from contextlib import suppress
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from lbg_runtime.core.lanes import KeyLanes
from lbg_runtime.metrics.reading import LanesReading
from lbg_runtime.model.errors import InvariantViolated
from lbg_runtime.model.ids import Epoch, QueueName
from lbg_runtime.model.outcome import Outcome
from lbg_runtime.runtime.dispatch.dispatcher import Dispatcher
from lbg_runtime.runtime.handlers.registry import Handlers
from tests.runtime.conftest import DispatcherRig
from tests.runtime.error_queue import TakingErrorQueue

QUEUE = QueueName("orders/0")


async def test_cancel_handling_ends_the_handlers_of_that_handle_only(rig, delivery):
    started = []

    async def handle(message):
        started.append(message.payload)
        await asyncio.sleep(1)

    made = rig(handle, dispatch={"runners": 2})
    async with made.running():
        made.dispatcher.dispatch(delivery(1, "a", epoch=1))
        made.dispatcher.dispatch(delivery(2, "b", epoch=2))
        await asyncio.sleep(0.5)
        made.dispatcher.cancel_handling(QUEUE, Epoch(1))
        await made.until_ended(1)
        assert made.outcomes() == {1: None}
        await made.until_ended(2)
        # Both runners live on.
        made.dispatcher.dispatch(delivery(3, "a", epoch=2))
        made.dispatcher.dispatch(delivery(4, "b", epoch=2))
        await made.until_ended(4, within_s=1.1)
    assert started == [b"1", b"2", b"3", b"4"]
    assert made.outcomes() == {1: None, 2: Outcome.ACCEPTED, 3: Outcome.ACCEPTED, 4: Outcome.ACCEPTED}


@pytest.mark.parametrize("was_parked", [True, False])
async def test_of_a_queue_that_parks_only_what_is_parked_is_accepted_when_it_goes_back(rig, delivery, was_parked):
    gate = asyncio.Event()

    async def handle(message):
        await gate.wait()

    made = rig(handle)
    made.dispatcher.park_in(
        QUEUE,
        SimpleNamespace(
            parking=QueueName("lbg-parked/orders/0"),
            finished=pytest.fail,
            concerns=lambda _: False,
            was_parked=lambda _: was_parked,
        ),
    )
    async with made.running():
        for number in (1, 2):
            made.dispatcher.dispatch(delivery(number, "a"))
        await asyncio.sleep(1)
        made.dispatcher.return_unstarted(QUEUE, Epoch(1))
        assert made.outcomes() == {2: Outcome.ACCEPTED if was_parked else None}
        gate.set()
        await made.until_ended(2)


async def test_what_is_dispatched_when_the_dispatcher_has_ended_ends_unhandled(rig, delivery):
    started = []

    async def handle(message):
        started.append(message.payload)

    made = rig(handle)
    async with made.running():
        pass
    assert not made.dispatcher.dispatch(delivery(1))
    assert (made.outcomes(), started) == ({1: None}, [])


async def test_a_cancelled_handler_that_returns_all_the_same_settles_nothing(rig, delivery):
    async def handle(message):
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            return

    made = rig(handle)
    async with made.running():
        made.dispatcher.dispatch(delivery(1))
        await asyncio.sleep(0.5)
        made.dispatcher.cancel_handling(QUEUE, Epoch(1))
        await made.until_ended(1)
    assert made.outcomes() == {1: None}


async def test_return_unstarted_gives_back_what_waits_and_what_is_between_tries(rig, delivery):
    async def handle(message):
        if message.key == "failing":
            raise ValueError("always")
        await asyncio.sleep(1)

    made = rig(handle, failure={"backoff": {"initial": "1m", "maximum": "1m"}})
    async with made.running():
        for number, key in ((1, "failing"), (2, "failing"), (3, "slow"), (4, "slow")):
            made.dispatcher.dispatch(delivery(number, key))
        await asyncio.sleep(0.5)
        made.dispatcher.return_unstarted(QUEUE, Epoch(1))
        assert made.outcomes() == {1: None, 2: None, 4: None}
        await made.until_ended(4)
    assert made.outcomes() == {1: None, 2: None, 3: Outcome.ACCEPTED, 4: None}


async def test_what_waits_behind_a_returned_head_starts_at_once(rig, delivery):
    async def handle(message):
        if message.payload == b"1":
            raise ValueError("always")

    made = rig(handle, failure={"backoff": {"initial": "1h", "maximum": "1h"}})
    async with made.running():
        made.dispatcher.dispatch(delivery(1, "a", epoch=1))
        made.dispatcher.dispatch(delivery(2, "a", epoch=2))
        await asyncio.sleep(1)
        made.dispatcher.return_unstarted(QUEUE, Epoch(1))
        await made.until_ended(2, within_s=1)
    assert made.outcomes() == {1: None, 2: Outcome.ACCEPTED}


async def test_a_failed_attempt_is_not_repeated_after_its_flow_took_the_rest_back_and_its_key_goes_on(rig, delivery):
    async def handle(message):
        await asyncio.sleep(1)
        if message.payload == b"1":
            raise ValueError("too late")

    made = rig(handle)
    async with made.running():
        made.dispatcher.dispatch(delivery(1))
        await asyncio.sleep(0.5)
        made.dispatcher.return_unstarted(QUEUE, Epoch(1))
        made.dispatcher.dispatch(delivery(2, epoch=2))
        await made.until_ended(2, within_s=2)
    assert made.outcomes() == {1: None, 2: Outcome.ACCEPTED}


async def test_a_delivery_that_would_end_twice_ends_the_dispatcher(rig, delivery, monkeypatch):
    async def handle(message):
        pass

    monkeypatch.setattr(KeyLanes, "finish", lambda *_: None)
    made = rig(handle)
    with pytest.raises(InvariantViolated, match="delivery 1 ended twice"):
        async with made.running():
            await made.handle(delivery(1))


async def test_a_redelivered_message_waits_behind_the_handler_of_the_dead_handle(rig, delivery):
    events = []

    async def handle(message):
        events.append(("start", message.payload))
        await asyncio.sleep(1)
        events.append(("end", message.payload))

    made = rig(handle)
    async with made.running():
        made.dispatcher.dispatch(delivery(1, "a", epoch=1))
        await asyncio.sleep(0.5)
        made.dispatcher.dispatch(delivery(2, "a", epoch=2))
        await made.until_ended(2)
    assert events == [("start", b"1"), ("end", b"1"), ("start", b"2"), ("end", b"2")]


async def test_a_handler_that_ignores_cancellation_keeps_its_key_and_gets_a_stand_in(rig, delivery):
    release, running, most = asyncio.Event(), 0, 0

    async def handle(message):
        nonlocal running, most
        if release.is_set():
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.1)
            running -= 1
        while message.key == "stuck" and not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    made = rig(handle, dispatch={"runners": 1}, failure={"timeout": "10s"})
    with capture_logs() as logs:
        async with made.running():
            made.dispatcher.dispatch(delivery(1, "stuck"))
            made.dispatcher.dispatch(delivery(2, "free"))
            await made.until_ended(1, within_s=21)
            assert made.outcomes() == {2: Outcome.ACCEPTED}
            release.set()
            # Not believed the first time, handled the second.
            await made.until_ended(2)
            for number in range(3, 10):
                made.dispatcher.dispatch(delivery(number, f"k{number}"))
            await made.until_ended(9)
    assert [log["event"] for log in logs].count("handler_ignored_cancellation") == 1
    assert most == 1, "the stand-in is gone when the other goes on"
    assert set(made.outcomes().values()) == {Outcome.ACCEPTED}


async def test_after_everything_was_cancelled_nothing_is_started(rig, delivery):
    started = []

    async def handle(message):
        started.append(message.payload)
        await asyncio.sleep(1_000)

    made = rig(handle)
    async with made.running():
        made.dispatcher.dispatch(delivery(1, "a"))
        made.dispatcher.dispatch(delivery(2, "a"))
        await asyncio.sleep(1)
        made.dispatcher.cancel_everything()
        made.dispatcher.dispatch(delivery(3, "b"))
        await made.until_ended(3, within_s=1)
    assert made.outcomes() == {1: None, 2: None, 3: None}
    assert started == [b"1"]


async def test_everything_ends_when_the_runners_are_cancelled(rig, delivery):
    async def handle(message):
        if message.key == "failing":
            raise ValueError("always")
        await asyncio.sleep(1_000_000)

    made = rig(handle)
    async with made.running():
        for number, key in ((1, "slow"), (2, "slow"), (3, "failing"), (4, "failing")):
            made.dispatcher.dispatch(delivery(number, key))
        await asyncio.sleep(0.5)
        assert made.ends == []
    assert made.outcomes() == dict.fromkeys((1, 2, 3, 4))
    assert len(made.ends) == 4


async def test_a_cancelled_runner_whose_handler_swallowed_that_still_ends(rig, delivery):
    async def handle(message):
        try:
            await asyncio.sleep(1_000_000)
        except asyncio.CancelledError:
            return

    made = rig(handle)
    async with made.running():
        made.dispatcher.dispatch(delivery(1))
        await asyncio.sleep(0.5)
    assert made.outcomes() == {1: None}


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_a_handler_may_end_the_process_and_settles_nothing(rig, delivery, error):
    async def handle(message):
        raise error

    made = None

    async def main():
        nonlocal made
        made = rig(handle)
        made.dispatcher.dispatch(delivery(1))
        await made.dispatcher.run()

    with pytest.raises(type(error)):
        asyncio.run(main())
    assert made.outcomes() == {1: None}


def test_when_a_handler_has_ended_the_process_each_delivery_ends_once_however_late_it_comes(rig, delivery):
    """The flows leave after that, and take back what they have dispatched: it ended a second time, which was an error
    on the way out, and what still came never ended."""

    async def handle(message):
        raise SystemExit(3)

    made = None

    async def main():
        nonlocal made
        made = rig(handle)
        for number in (1, 2):
            made.dispatcher.dispatch(delivery(number))
        # It goes through the loop as well, which ends this task behind it: then nobody asks for what that ended with.
        with suppress(SystemExit):
            await made.dispatcher.run()

    with pytest.raises(SystemExit):
        asyncio.run(main())
    made.dispatcher.return_unstarted(QUEUE, Epoch(1))
    made.dispatcher.cancel_everything()
    made.dispatcher.dispatch(delivery(3))
    assert made.outcomes() == dict.fromkeys((1, 2, 3))
    assert made.dispatcher.held() == LanesReading(0, 0, 0)


# -- what did not happen to a key's first message


@pytest.mark.parametrize(
    "options", [{"attempts": 2, "then": "error_queue"}, {"terminal": [ValueError], "then": "error_queue"}]
)
async def test_a_message_that_is_moved_leaves_its_key_to_be_met(rig, delivery, options):
    seen = []

    async def handle(message):
        seen.append((message.payload, message.is_first_of_key))
        if message.payload == b"1":
            raise ValueError("always")

    made = rig(handle, error_queue=TakingErrorQueue(), options=options)
    async with made.running():
        for number in (1, 2, 3):
            made.dispatcher.dispatch(delivery(number))
        await made.until_ended(3)
    assert made.outcomes() == dict.fromkeys((1, 2, 3), Outcome.ACCEPTED)
    assert list(dict.fromkeys(seen)) == [(b"1", True), (b"2", True), (b"3", False)]


async def test_what_is_cancelled_or_given_back_within_an_epoch_leaves_its_key_to_be_met(rig, delivery):
    seen = []

    async def handle(message):
        seen.append((message.payload, message.is_first_of_key))
        if message.payload == b"1":
            await asyncio.sleep(10)
        elif message.payload == b"2":
            raise ValueError("always")

    made = rig(handle, failure={"backoff": {"initial": "1m", "maximum": "1m"}})
    async with made.running():
        made.dispatcher.dispatch(delivery(1))
        await asyncio.sleep(0.5)
        made.dispatcher.cancel_handling(QUEUE, Epoch(1))
        await made.until_ended(1)
        made.dispatcher.dispatch(delivery(2))
        await asyncio.sleep(0.5)
        made.dispatcher.return_unstarted(QUEUE, Epoch(1))
        made.dispatcher.dispatch(delivery(3))
        await made.until_ended(3)
    assert seen == [(b"1", True), (b"2", True), (b"3", True)]


async def test_where_keys_move_unseen_every_message_is_the_first_of_its_key(settings, delivery):
    handlers, seen, made = Handlers(), [], settings()

    @handlers.handler("orders/>")
    async def handle(message):
        seen.append((message.payload, message.is_first_of_key))

    group = made.group
    dispatcher = Dispatcher(
        handlers, group.shape(), group.key, made.dispatch, made.failure, random.Random(1), keys_move_unseen=True
    )
    shared = DispatcherRig(dispatcher)
    async with shared.running():
        for number in (1, 2):
            dispatcher.dispatch(delivery(number))
        await shared.until_ended(2)
    assert seen == [(b"1", True), (b"2", True)]
