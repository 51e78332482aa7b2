"""After a stop of the process, nothing is started of what may be with another member by now."""

import asyncio

import pytest

from lbg_runtime.model.ids import Epoch, QueueName
from lbg_runtime.model.outcome import Outcome
from lbg_runtime.runtime.dispatch import dispatcher as dispatcher_module
from lbg_runtime.runtime.handlers.registry import Handlers
from lbg_runtime.runtime.handlers.resources import MemberResources
from lbg_runtime.runtime.runners.attempts import attempt_put_off
from lbg_runtime.runtime.runners.pool import RunnerPool
from lbg_runtime.runtime.suspension import STOPPED_FOR_NS, Suspension
from tests.runtime.handlers.batch_desk import Desk, batch_handlers

QUEUE = QueueName("orders/0")
STOP_NS = STOPPED_FOR_NS + 1


class Clock:
    def __init__(self):
        self.now_ns = 1

    def __call__(self):
        return self.now_ns


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(dispatcher_module, "since_boot_ns", made)
    return made


class Watched:
    """A dispatcher whose flow runner stops its handles after a stop of the process; `may_end` lets handlers return."""

    def __init__(self, rig, clock, **sections):
        self.started, self.stops_ns, self.may_end = [], [], asyncio.Event()
        self.rig = rig(self._handle, **sections)
        self.dispatcher = self.rig.dispatcher
        self.suspension = Suspension(clock.now_ns)
        self.dispatcher.heed(self.suspension, self._resumed)

    async def _handle(self, message):
        self.started.append(message.payload)
        await self.may_end.wait()

    def _resumed(self, stopped_ns):
        self.stops_ns.append(stopped_ns)
        self.dispatcher.stop(QUEUE, Epoch(1))


async def test_where_nobody_watches_the_process_nothing_counts_as_a_stop(rig, delivery, clock):
    async def handle(message):
        clock.now_ns += STOP_NS

    made = rig(handle)
    async with made.running():
        for number in (1, 2):
            made.dispatcher.dispatch(delivery(number))
        await made.until_ended(2)
    assert made.outcomes() == dict.fromkeys((1, 2), Outcome.ACCEPTED)


async def test_what_runs_goes_on_and_nothing_more_of_the_handle_is_started(rig, delivery, clock):
    made = Watched(rig, clock)
    async with made.rig.running():
        for number, key in enumerate(("a", "a", "b"), 1):
            made.dispatcher.dispatch(delivery(number, key))
        await asyncio.sleep(1)
        clock.now_ns += STOP_NS
        made.may_end.set()
        await made.rig.until_ended(2)
        made.dispatcher.dispatch(delivery(4, "c"))
        await asyncio.sleep(100)
        assert made.started == [b"1", b"3"]
        assert made.stops_ns == [STOP_NS]
        made.dispatcher.return_unstarted(QUEUE, Epoch(1))
        assert made.rig.outcomes() == {1: Outcome.ACCEPTED, 3: Outcome.ACCEPTED, 2: None, 4: None}
        made.dispatcher.dispatch(delivery(5, "a", epoch=2))
        await made.rig.until_ended(5)
    assert made.started == [b"1", b"3", b"5"]


async def test_what_is_taken_back_at_once_although_its_turn_has_come_ends_without_a_start(rig, delivery, clock):
    """As the replays of parked messages are."""
    made = Watched(rig, clock, dispatch={"runners": 1})
    made.dispatcher.heed(made.suspension, lambda _: made.dispatcher.return_unstarted(QUEUE, Epoch(1)))
    async with made.rig.running():
        for number, key in enumerate(("a", "b", "c"), 1):
            made.dispatcher.dispatch(delivery(number, key))
        await asyncio.sleep(1)
        clock.now_ns += STOP_NS
        made.may_end.set()
        await made.rig.until_ended(3)
    assert made.started == [b"1"]
    assert made.rig.outcomes() == {1: Outcome.ACCEPTED, 2: None, 3: None}


async def test_a_second_attempt_is_not_begun_either(rig, delivery, clock):
    attempts = []

    async def fail(message):
        attempts.append(message.payload)
        raise ValueError

    made = rig(fail, failure={"backoff": {"initial": "100ms", "maximum": "1s"}})
    made.dispatcher.heed(Suspension(clock.now_ns), lambda _: made.dispatcher.stop(QUEUE, Epoch(1)))
    async with made.running():
        made.dispatcher.dispatch(delivery(1, "a"))
        await asyncio.sleep(0.01)
        clock.now_ns += STOP_NS
        await asyncio.sleep(100)
    assert attempts == [b"1"]
    assert made.outcomes() == {1: None}


class Moves:
    """An error queue that takes everything."""

    def __init__(self):
        self.taken = []

    async def take(self, handling, report):
        self.taken.append(handling.delivery.delivery_id)
        return "errors"


@pytest.mark.parametrize("then", ["error_queue", "stop"])
@pytest.mark.parametrize("notices", ["the failure", "the status"])
async def test_what_fails_behind_the_stop_goes_back_and_no_policy_ends_it(rig, delivery, clock, notices, then):
    """As the time-outs that have passed meanwhile, whether its flow runner has had a turn by then or not."""
    moves, may_fail = Moves(), asyncio.Event()

    async def handle(message):
        await may_fail.wait()
        raise ValueError

    made = rig(handle, error_queue=moves, failure={"attempts": 1, "then": then})
    made.dispatcher.heed(Suspension(clock.now_ns), lambda _: made.dispatcher.stop(QUEUE, Epoch(1)))
    async with made.running():
        for number, key in enumerate(("a", "a", "b"), 1):
            made.dispatcher.dispatch(delivery(number, key))
        await asyncio.sleep(1)
        clock.now_ns += STOP_NS
        if notices == "the status":
            made.dispatcher.note_awake()
        may_fail.set()
        await made.until_ended(2)
        made.dispatcher.return_unstarted(QUEUE, Epoch(1))
        made.dispatcher.dispatch(delivery(4, "c", epoch=2))
        await asyncio.sleep(1)
    assert moves.taken == ([4] if then == "error_queue" else [])
    assert made.outcomes() == {1: None, 2: None, 3: None, 4: Outcome.ACCEPTED if moves.taken else None}


async def test_a_blocked_loop_and_a_rest_are_no_stop(rig, delivery, clock):
    made = Watched(rig, clock)
    made.may_end.set()
    async with made.rig.running():
        for number in range(1, 4):
            clock.now_ns += STOP_NS
            made.suspension.look(clock.now_ns - STOP_NS // 2)
            made.suspension.look(clock.now_ns)
            made.dispatcher.dispatch(delivery(number, "a"))
            await made.rig.until_ended(number)
        made.dispatcher.note_awake()
    assert made.stops_ns == []
    assert made.rig.outcomes() == dict.fromkeys((1, 2, 3), Outcome.ACCEPTED)


async def test_a_member_that_had_nothing_to_do_notices_the_stop_once(rig, clock):
    made = Watched(rig, clock)
    clock.now_ns += STOP_NS
    made.dispatcher.note_awake()
    made.suspension.look(clock.now_ns)
    clock.now_ns += 1
    made.dispatcher.note_awake()
    assert made.stops_ns == [STOP_NS]


@pytest.mark.parametrize("notices", ["the batch", "the status"])
async def test_a_batch_that_was_gathering_is_not_begun(rig, delivery, clock, notices):
    """Whichever comes first when the process goes on; what comes with a new handle is no part of it."""
    desk = Desk()
    made = rig(handlers=batch_handlers(desk.handle, max_wait="10s"))
    made.dispatcher.heed(Suspension(clock.now_ns), lambda _: made.dispatcher.stop(QUEUE, Epoch(1)))
    async with MemberResources().entered(()), made.running():
        for number, key in ((1, "a"), (2, "b"), (3, "b")):
            made.dispatcher.dispatch(delivery(number, key))
        await asyncio.sleep(1)
        clock.now_ns += STOP_NS
        if notices == "the status":
            made.dispatcher.note_awake()
        await made.until_ended(2)
        made.dispatcher.return_unstarted(QUEUE, Epoch(1))
        made.dispatcher.dispatch(delivery(4, "a", epoch=2))
        await made.until_ended(4)
    assert made.outcomes() == {1: None, 2: None, 3: None, 4: Outcome.ACCEPTED}
    assert [bodies for _, bodies in desk.batches] == [[4]]
    assert made.dispatcher.counts.failed_attempts == 0


async def test_a_batch_that_was_made_and_not_called_yet_is_not_begun(rig, delivery, clock, monkeypatch):
    start = RunnerPool.start

    def start_and_stop(pool, work):
        clock.now_ns += STOP_NS
        return start(pool, work)

    desk = Desk()
    made = rig(handlers=batch_handlers(desk.handle, max_count=2))
    made.dispatcher.heed(Suspension(clock.now_ns), lambda _: made.dispatcher.stop(QUEUE, Epoch(1)))
    async with MemberResources().entered(()), made.running():
        made.dispatcher.dispatch(delivery(1, "a"))
        made.dispatcher.dispatch(delivery(2, "b"))
        with monkeypatch.context() as stopped:
            stopped.setattr(RunnerPool, "start", start_and_stop)
            await made.until_ended(2)
        made.dispatcher.return_unstarted(QUEUE, Epoch(1))
        made.dispatcher.dispatch(delivery(3, "a", epoch=2))
        made.dispatcher.dispatch(delivery(4, "b", epoch=2))
        await made.until_ended(4)
    assert made.outcomes() == {1: None, 2: None, 3: Outcome.ACCEPTED, 4: Outcome.ACCEPTED}
    assert [bodies for _, bodies in desk.batches] == [[3, 4]]
    assert made.dispatcher.counts.failed_attempts == 0


async def test_what_was_put_off_does_not_begin_although_what_it_waited_for_comes_first(rig, delivery, clock):
    """Before anything else shows that the process was stopped."""
    begun, may_begin = [], asyncio.Event()

    async def wait(message):
        with attempt_put_off():
            await may_begin.wait()
        begun.append(message.payload)

    made = rig(wait)
    await _through_a_stop(made, delivery, clock, may_begin)
    assert made.outcomes() == {1: None, 2: Outcome.ACCEPTED}
    assert begun == [b"2"]


@pytest.mark.parametrize("is_own_task", [False, True])
async def test_a_handler_is_not_called_by_a_middleware_that_has_waited_through_the_stop(
    rig, delivery, clock, is_own_task
):
    """Before anything else shows that the process was stopped."""
    called, ended, may_go_on, handlers = [], [], asyncio.Event(), Handlers()

    @handlers.middleware
    async def outer(message, proceed):
        try:
            await proceed(message)
        finally:
            await asyncio.sleep(1)
            ended.append(message.payload)

    @handlers.middleware
    async def wait(message, proceed):
        await may_go_on.wait()
        if is_own_task:
            await asyncio.create_task(proceed(message))
        else:
            await proceed(message)

    @handlers.handler("orders/>")
    async def handle(message):
        called.append(message.payload)

    made = rig(handlers=handlers.assembled())
    await _through_a_stop(made, delivery, clock, may_go_on)
    assert made.outcomes() == {1: None, 2: Outcome.ACCEPTED}
    assert (called, sorted(ended)) == ([b"2"], [b"1", b"2"])
    assert made.dispatcher.counts.failed_attempts == 0


async def _through_a_stop(made, delivery, clock, may_go_on):
    """Two messages wait while the process is stopped, for which the handle of the first is given up."""
    made.dispatcher.heed(Suspension(clock.now_ns), lambda _: made.dispatcher.stop(QUEUE, Epoch(1)))
    async with made.running():
        for number, epoch in ((1, 1), (2, 2)):
            made.dispatcher.dispatch(delivery(number, f"k{number}", epoch=epoch))
        await asyncio.sleep(1)
        clock.now_ns += STOP_NS
        may_go_on.set()
        await made.until_ended(2)
