"""As many batches run at once as there are runners; who waits for a turn spends no time of its attempt."""

import asyncio
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from lbg_runtime.core.lanes import LaneStage
from lbg_runtime.core.restripe.striping import StripingBook
from lbg_runtime.metrics.reading import LanesReading
from lbg_runtime.model.errors import BatchCutShort
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.hashing import HashFunction
from lbg_runtime.model.ids import Epoch, GroupName, QueueName
from lbg_runtime.model.message import Message
from lbg_runtime.model.outcome import Outcome
from lbg_runtime.runtime.dispatch.key_book import KeyBook
from lbg_runtime.runtime.handlers.batches import Batch
from lbg_runtime.runtime.handlers.middleware import Proceed
from lbg_runtime.runtime.handlers.registry import Handlers
from lbg_runtime.runtime.handlers.resources import MemberResources
from lbg_runtime.testing.virtual_time import VirtualTimeLoop
from tests.runtime.handlers.batch_desk import Desk, batch_handlers

QUEUE = QueueName("orders/0")


class _Counted:
    """Handlers that count how many of them run at once."""

    def __init__(self):
        self.now = self.most = 0

    def __enter__(self):
        self.now += 1
        self.most = max(self.most, self.now)

    def __exit__(self, *_):
        self.now -= 1


async def test_as_many_batches_are_handled_at_once_as_there_are_runners_of_all_handlers(rig, delivery):
    counted, order, handlers = _Counted(), [], Handlers()

    async def handle(batch: Batch) -> None:
        with counted:
            order.append(batch[0].message.topic[-1])
            await asyncio.sleep(0.5)

    for name in "ab":
        handlers.batch_handler(f"orders/{name}", max_count=1, max_wait="20ms")(handle)
    made = rig(handlers=handlers, dispatch={"runners": 2})
    async with MemberResources().entered(()), made.running():
        for number in range(12):
            topic = f"h/0/orders/{'aaaaaaaabbbb'[number]}"
            made.dispatcher.dispatch(delivery(number, f"k{number}", topic=topic))
        await made.until_ended(12)
        assert asyncio.get_running_loop().time() == pytest.approx(3)
    assert counted.most == 2
    # The first two were there alone; then the handlers take turns.
    assert sorted(order[2:10]) == ["a"] * 4 + ["b"] * 4
    assert set(made.outcomes().values()) == {Outcome.ACCEPTED}


async def test_an_attempt_begins_with_its_batch_however_long_that_waits_for_its_turn(rig, delivery):
    desk = Desk(0.9)
    failure = {"timeout": "1s", "attempts": 1, "then": "error_queue"}
    handlers = batch_handlers(desk.handle, max_count=2, max_wait="500ms", **failure)
    made = rig(handlers=handlers, dispatch={"runners": 1}, error_queue=object())
    async with MemberResources().entered(()), made.running():
        for number in range(9):
            made.dispatcher.dispatch(delivery(number, f"k{number}"))
        assert not made.dispatcher.running()
        await asyncio.sleep(3)
        assert len(made.dispatcher.running()) == 3, "what waits is under way, for whoever asks"
        await made.until_ended(9)
    assert [round(at_s, 1) for at_s, _ in desk.batches] == [0, 0.9, 1.8, 2.7, 3.6]
    assert {(end.outcome, end.attempts) for end in made.ends} == {(Outcome.ACCEPTED, 1)}


async def test_what_waits_for_its_batch_is_told_as_waiting_until_that_is_handled(rig, delivery):
    desk = Desk(5)
    made = rig(handlers=batch_handlers(desk.handle, max_count=2, max_wait="10s"), dispatch={"stuck_key": "5s"})
    shape = GroupShape(GroupName("orders"), "h", 8, 4)
    book = KeyBook(made.dispatcher, shape, HashFunction.CRC32, StripingBook(4, 8))
    async with MemberResources().entered(()), made.running():
        made.dispatcher.dispatch(delivery(1, "k1"))
        made.dispatcher.key_reports.look()
        await asyncio.sleep(9)
        with capture_logs() as logs:
            made.dispatcher.key_reports.look()
        waits, held = book.sight("k1").head, made.dispatcher.held()
        await asyncio.sleep(2)
        runs, held_then = book.sight("k1").head, made.dispatcher.held()
        await made.until_ended(1)
    assert (waits.stage, waits.attempts, waits.started_ms) == (LaneStage.READY, 0, None)
    assert (runs.stage, runs.attempts) == (LaneStage.RUNNING, 1)
    assert [(line["event"], line["stage"]) for line in logs] == [("key_stuck", "ready")]
    assert (held, held_then) == (LanesReading(1, 0, 1), LanesReading(1, 1, 0))


async def test_who_comes_while_a_batch_waits_for_its_turn_joins_it_until_it_is_full(rig, delivery):
    desk = Desk(5)
    made = rig(handlers=batch_handlers(desk.handle, max_wait="1s"), dispatch={"runners": 1})
    async with MemberResources().entered(()), made.running():
        for number in range(6):
            made.dispatcher.dispatch(delivery(number, f"k{number}"))
            await asyncio.sleep(0.9)
        made.dispatcher.dispatch(delivery(6, "k6"))
        await made.until_ended(7)
    assert desk.batches == [(1, [0, 1]), (6, [2, 3, 4]), (11, [5, 6])]


async def test_a_recall_ends_at_once_what_waits_for_its_turn(rig, delivery):
    desk = Desk(50)
    made = rig(handlers=batch_handlers(desk.handle, max_count=1, timeout="1h"), dispatch={"runners": 1})
    async with MemberResources().entered(()), made.running():
        for number in range(4):
            made.dispatcher.dispatch(delivery(number, f"k{number}", epoch=1 + number % 2))
        await asyncio.sleep(20)
        made.dispatcher.cancel_handling(QUEUE, Epoch(2))
        await made.until_ended(2, within_s=0.1)
        assert made.outcomes() == {1: None, 3: None}
        await made.until_ended(4)
    assert [bodies for _, bodies in desk.batches] == [[0], [2]]


async def test_batches_that_wait_for_their_turn_end_with_the_pool(rig, delivery):
    loop_errors = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: loop_errors.append(context))
    desk = Desk(50)
    made = rig(handlers=batch_handlers(desk.handle, max_count=1, timeout="1h"), dispatch={"runners": 2})
    async with MemberResources().entered(()), made.running():
        for number in range(9):
            made.dispatcher.dispatch(delivery(number, f"k{number}"))
        await asyncio.sleep(1)
    assert len(desk.batches) == 2
    assert made.outcomes() == dict.fromkeys(range(9))
    assert loop_errors == []


async def test_what_is_kept_in_the_line_when_the_pool_ends_fails_there(rig, delivery):
    loop_errors = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: loop_errors.append(context))
    desk, left = Desk(50), []
    handlers = batch_handlers(desk.handle, max_count=1, timeout="1h")

    @handlers.middleware
    async def around(message: Message, proceed: Proceed) -> None:
        inner = asyncio.ensure_future(proceed(message))
        inner.add_done_callback(lambda task: left.append(type(task.exception())))
        await asyncio.shield(inner)

    made = rig(handlers=handlers.assembled(), dispatch={"runners": 1})
    async with MemberResources().entered(()), made.running():
        for number in range(3):
            made.dispatcher.dispatch(delivery(number, f"k{number}"))
        await asyncio.sleep(1)
    assert left == [BatchCutShort] * 3
    assert len(desk.batches) == 1
    assert made.outcomes() == dict.fromkeys(range(3))
    assert loop_errors == []


async def test_where_the_first_leaves_a_batch_that_waits_for_its_turn_the_next_has_its_own_time(rig, delivery):
    desk = Desk(13)
    made = rig(handlers=batch_handlers(desk.handle, max_wait="10s"), dispatch={"runners": 1})
    async with MemberResources().entered(()), made.running():
        for number in range(3):
            made.dispatcher.dispatch(delivery(number, f"k{number}"))
        await asyncio.sleep(1)
        made.dispatcher.dispatch(delivery(3, "k3", epoch=2))
        await asyncio.sleep(7)
        made.dispatcher.dispatch(delivery(4, "k4"))
        await asyncio.sleep(4)
        made.dispatcher.cancel_handling(QUEUE, Epoch(2))
        await made.until_ended(5)
    assert desk.batches == [(0, [0, 1, 2]), (18, [4])]


async def test_a_batch_that_hangs_keeps_its_turn_for_two_time_outs_and_adds_no_runner(rig, delivery):
    counted, release, handlers = _Counted(), asyncio.Event(), Handlers()
    batches = []

    @handlers.batch_handler("orders/batch", max_count=3, max_wait="1s", timeout="10s")
    async def handle(batch: Batch) -> None:
        batches.append(asyncio.get_running_loop().time())
        is_first = len(batches) == 1
        while is_first and not release.is_set():
            with suppress(asyncio.CancelledError):
                await release.wait()

    @handlers.handler("orders/one")
    async def handle_one(message) -> None:
        with counted:
            await asyncio.sleep(1)

    made = rig(handlers=handlers, dispatch={"runners": 1}, failure={"backoff": {"maximum": "100ms"}})
    async with MemberResources().entered(()), made.running():
        for number in range(6):
            made.dispatcher.dispatch(delivery(number, f"k{number}", topic="h/0/orders/batch"))
        await made.until_ended(3, within_s=30)
        assert batches == [0, 20]
        await asyncio.sleep(1)
        for number in range(6, 26):
            made.dispatcher.dispatch(delivery(number, f"k{number}", topic="h/0/orders/one"))
        await made.until_ended(13)
        release.set()
        await made.until_ended(26)
        for number in range(26, 36):
            made.dispatcher.dispatch(delivery(number, f"k{number}", topic="h/0/orders/one"))
        await made.until_ended(36)
    assert counted.most == 1
    assert set(made.outcomes().values()) == {Outcome.ACCEPTED}


async def test_a_handler_that_goes_on_when_all_is_settled_keeps_its_turn_no_longer(rig, delivery):
    desk = Desk()

    async def act(batch):
        batch[0].accept()
        if len(desk.batches) == 1:
            await asyncio.sleep(1_000_000)

    desk.act = act
    made = rig(handlers=batch_handlers(desk.handle, max_count=1, timeout="10s"), dispatch={"runners": 1})
    async with MemberResources().entered(()), made.running():
        for number in range(3):
            made.dispatcher.dispatch(delivery(number, f"k{number}"))
        await made.until_ended(3)
    assert desk.batches == [(0, [0]), (20, [1]), (20, [2])]


@settings(max_examples=60, deadline=None)
@given(
    arrivals=st.lists(st.tuples(st.integers(0, 3), st.sampled_from((0.0, 0.0, 0.1, 2.0))), max_size=30),
    durations=st.lists(st.sampled_from((0.0, 0.3, 4.9)), min_size=1, max_size=6),
    max_count=st.integers(1, 4),
    runners=st.integers(1, 3),
)
def test_what_is_quick_enough_is_called_once_whatever_waits(rig, delivery, arrivals, durations, max_count, runners):
    async def main():
        counted, calls = _Counted(), []

        async def handle(batch: Batch) -> None:
            with counted:
                assert len(batch) <= max_count
                calls.append(len(batch))
                await asyncio.sleep(durations[len(calls) % len(durations)])

        failure = {"timeout": "5s", "attempts": 1, "then": "error_queue"}
        handlers = batch_handlers(handle, max_count=max_count, max_wait="500ms", **failure)
        made = rig(handlers=handlers, dispatch={"runners": runners}, error_queue=object())
        async with MemberResources().entered(()), made.running():
            for number, (key, pause_s) in enumerate(arrivals):
                made.dispatcher.dispatch(delivery(number, f"k{key}"))
                await asyncio.sleep(pause_s)
            await made.until_ended(len(arrivals))
        assert all((end.outcome, end.attempts) == (Outcome.ACCEPTED, 1) for end in made.ends)
        assert sum(calls) == len(arrivals)
        assert counted.most <= runners

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(main())
