"""Batches: when they are handled, that each message is settled for itself, and what one that is cut short does."""

import asyncio
import gc
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from structlog.testing import capture_logs

from lbg_runtime.model.errors import BatchCutShort, HandlerError, TerminalFailure
from lbg_runtime.model.ids import Epoch, QueueName
from lbg_runtime.model.message import Message
from lbg_runtime.model.outcome import Outcome
from lbg_runtime.runtime.batches import Batch
from lbg_runtime.runtime.middleware import Proceed
from lbg_runtime.runtime.parameters import State
from lbg_runtime.runtime.registry import Handlers
from lbg_runtime.runtime.resources import MemberResources
from lbg_runtime.testing.virtual_time import VirtualTimeLoop

QUEUE = QueueName("orders/0")


def _handlers(function, max_count=3, max_wait="1s", **failure):
    handlers = Handlers()
    handlers.batch_handler("orders/>", max_count=max_count, max_wait=max_wait, **failure)(function)
    return handlers


class _Desk:
    """Takes batches; `act` may be set by the test."""

    def __init__(self):
        self.batches = []
        self.loop = asyncio.get_running_loop()

    async def handle(self, batch: Batch[int]) -> None:
        self.batches.append((round(self.loop.time(), 1), [item.body for item in batch]))
        await self.act(batch)

    async def act(self, batch):
        pass


async def test_a_batch_is_handled_when_it_is_full_or_its_time_has_come(rig, delivery):
    desk = _Desk()
    made = rig(handlers=_handlers(desk.handle), dispatch={"runners": 1})
    async with MemberResources().entered(()), made.running():
        for number in range(5):
            made.dispatcher.dispatch(delivery(number, f"k{number}"))
        await made.until_ended(5)
    assert desk.batches == [(0.0, [0, 1, 2]), (1.0, [3, 4])]
    assert set(made.outcomes().values()) == {Outcome.ACCEPTED}


async def test_a_batch_has_no_two_messages_of_a_key(rig, delivery):
    desk = _Desk()
    made = rig(handlers=_handlers(desk.handle))
    async with MemberResources().entered(()), made.running():
        for number in range(4):
            made.dispatcher.dispatch(delivery(number, f"k{number % 2}"))
        await made.until_ended(4)
    assert [bodies for _, bodies in desk.batches] == [[0, 1], [2, 3]]


async def test_a_batch_whose_task_group_failed_unseen_has_not_been_cut_short(rig, delivery):
    async def fail_in_a_moment():
        await asyncio.sleep(0.01)
        raise ValueError("a child failed")

    desk = _Desk()

    async def act(batch):
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(fail_in_a_moment())
        except* ValueError:
            pass

    desk.act = act
    made = rig(handlers=_handlers(desk.handle))
    async with MemberResources().entered(()), made.running():
        for number in range(3):
            made.dispatcher.dispatch(delivery(number, f"k{number}"))
        await made.until_ended(3, within_s=5)
    assert len(desk.batches) == 1
    assert set(made.outcomes().values()) == {Outcome.ACCEPTED}


async def test_each_message_is_settled_for_itself(rig, delivery):
    desk = _Desk()

    async def act(batch):
        assert len(batch) == 3
        batch[0].accept()
        batch[1].fail(ValueError("not yet"))
        desk.act = nothing
        await asyncio.sleep(0.5)
        assert made.outcomes() == {0: Outcome.ACCEPTED}

    async def nothing(batch):
        pass

    desk.act = act
    made = rig(handlers=_handlers(desk.handle))
    async with MemberResources().entered(()), made.running():
        for number in range(3):
            made.dispatcher.dispatch(delivery(number, f"k{number}"))
        await made.until_ended(3)
    assert {end.delivery.delivery_id: end.attempts for end in made.ends} == {0: 1, 1: 2, 2: 1}
    assert desk.batches[1][1] == [1]


async def test_what_a_handler_raises_is_the_failure_of_all_that_is_not_settled(rig, delivery):
    desk, moved = _Desk(), []

    class ErrorQueue:
        async def take(self, handling, report):
            moved.append((handling.delivery.delivery_id, report.error))

    async def act(batch):
        batch[1].accept()
        raise TerminalFailure("no")

    desk.act = act
    made = rig(handlers=_handlers(desk.handle, then="error_queue"), error_queue=ErrorQueue())
    async with MemberResources().entered(()), made.running():
        for number in range(3):
            made.dispatcher.dispatch(delivery(number, f"k{number}"))
        await made.until_ended(3)
    assert moved == [(0, "TerminalFailure: no"), (2, "TerminalFailure: no")]


async def test_a_body_that_does_not_fit_keeps_nobody_from_the_batch(rig, delivery):
    class Order(BaseModel):
        number: int

    batches, moved = [], []

    class ErrorQueue:
        async def take(self, handling, report):
            moved.append(handling.delivery.delivery_id)

    async def handle(batch: Batch[Order]) -> None:
        batches.append(batch)

    handlers = Handlers()
    handlers.batch_handler("orders/>", max_count=2, max_wait="1s", then="error_queue")(handle)
    made = rig(handlers=handlers, error_queue=ErrorQueue())
    async with MemberResources().entered(()), made.running():
        made.dispatcher.dispatch(delivery(1))
        await made.until_ended(1)
    assert (batches, moved) == ([], [1])


async def test_a_batch_that_takes_too_long_is_cut_short_for_all_and_tried_again(rig, delivery):
    desk, is_quick, cut = _Desk(), False, []

    async def act(batch):
        try:
            await asyncio.sleep(0 if is_quick else 1_000_000)
        except asyncio.CancelledError:
            cut.append(len(batch))
            raise

    desk.act = act
    made = rig(handlers=_handlers(desk.handle, timeout="10s"), failure={"backoff": {"maximum": "100ms"}})
    async with MemberResources().entered(()), made.running():
        for number in range(3):
            made.dispatcher.dispatch(delivery(number, f"k{number}"))
        await asyncio.sleep(9.9)
        is_quick = True
        await made.until_ended(3, within_s=2)
    assert cut == [3]
    assert {end.attempts for end in made.ends} == {2}


async def test_being_cut_short_by_the_time_of_another_is_no_failure_that_ends_the_attempts(rig, delivery):
    desk = _Desk()

    async def act(batch):
        await asyncio.sleep(1_000_000 if len(desk.batches) == 1 else 0)

    desk.act = act
    failure = {"timeout": "10s", "retriable": (ConnectionError,), "attempts": 5, "then": "stop"}
    handlers = _handlers(desk.handle, max_count=2, max_wait="9s", **failure)
    made = rig(handlers=handlers, failure={"backoff": {"maximum": "100ms"}})
    async with MemberResources().entered(()), made.running():
        made.dispatcher.dispatch(delivery(1, "early"))
        await asyncio.sleep(8)
        made.dispatcher.dispatch(delivery(2, "late"))
        await made.until_ended(2, within_s=20)
    assert desk.batches[0] == (8, [1, 2])
    assert {end.attempts for end in made.ends} == {2}


async def test_a_recall_cuts_the_batch_short_settles_nothing_of_it_and_the_others_go_on(rig, delivery):
    desk = _Desk()

    async def act(batch):
        if len(desk.batches) == 1:
            await asyncio.sleep(1_000_000)

    desk.act = act
    made = rig(handlers=_handlers(desk.handle, timeout="1h"))
    async with MemberResources().entered(()), made.running():
        for number in range(3):
            made.dispatcher.dispatch(delivery(number, f"k{number}", epoch=1 + number // 2))
        await asyncio.sleep(1)
        made.dispatcher.cancel_handling(QUEUE, Epoch(1))
        await made.until_ended(3, within_s=10)
    assert made.outcomes() == {0: None, 1: None, 2: Outcome.ACCEPTED}


async def test_a_batch_may_be_cut_short_before_it_has_begun(rig, delivery):
    desk = _Desk()
    made = rig(handlers=_handlers(desk.handle, max_count=2))
    async with MemberResources().entered(()), made.running():
        made.dispatcher.dispatch(delivery(1, "a", epoch=1))
        await asyncio.sleep(0.1)
        # In one turn of the loop the second one fills the batch, and the first one is recalled.
        made.dispatcher.dispatch(delivery(2, "b", epoch=2))
        made.dispatcher.cancel_handling(QUEUE, Epoch(1))
        await made.until_ended(2)
    assert made.outcomes() == {1: None, 2: Outcome.ACCEPTED}
    assert [bodies for _, bodies in desk.batches] == [[2]]
    assert made.dispatcher.counts.failed_attempts == 0, "its handler was not called"
    # Or it would be told of as a coroutine that nobody awaited.
    gc.collect()


async def test_who_is_recalled_as_the_batch_falls_due_takes_nobody_along(rig, delivery):
    desk = _Desk()
    made = rig(handlers=_handlers(desk.handle))
    async with MemberResources().entered(()), made.running():
        # Before the timer of the line, in the same turn of the loop.
        desk.loop.call_at(desk.loop.time() + 1, made.dispatcher.cancel_handling, QUEUE, Epoch(1))
        made.dispatcher.dispatch(delivery(1, "a", epoch=1))
        made.dispatcher.dispatch(delivery(2, "b", epoch=2))
        await made.until_ended(2)
    assert made.outcomes() == {1: None, 2: Outcome.ACCEPTED}
    assert desk.batches == [(1.0, [2])]
    assert made.dispatcher.counts.failed_attempts == 0


async def test_a_line_of_which_all_are_recalled_has_no_batch(rig, delivery):
    desk = _Desk()
    made = rig(handlers=_handlers(desk.handle, max_count=2))
    async with MemberResources().entered(()), made.running():
        desk.loop.call_at(desk.loop.time() + 1, made.dispatcher.cancel_handling, QUEUE, Epoch(1))
        made.dispatcher.dispatch(delivery(1, "a", epoch=1))
        await made.until_ended(1)
        made.dispatcher.dispatch(delivery(2, "b", epoch=2))
        made.dispatcher.dispatch(delivery(3, "c", epoch=2))
        await made.until_ended(3)
    assert made.outcomes() == {1: None, 2: Outcome.ACCEPTED, 3: Outcome.ACCEPTED}
    assert desk.batches == [(1.0, [2, 3])]


class Untellable(BaseException):
    """Of the kind that ends whoever waits, with what cannot be shown."""

    def __repr__(self):
        raise RuntimeError("detached")

    __str__ = __repr__


class Evil(Exception):
    """Even to ask for its class raises."""

    def __getattribute__(self, name):
        raise RuntimeError(name)


@pytest.mark.parametrize("kind", [Untellable, Evil, StopIteration])
async def test_an_error_that_cannot_be_shown_fails_the_batch_and_keeps_no_turn(rig, delivery, kind):
    async def handle(batch: Batch[int]) -> None:
        raise kind

    made = rig(handlers=_handlers(handle, attempts=1, then="stop"), dispatch={"runners": 1})
    with capture_logs() as logs:
        async with MemberResources().entered(()), made.running():
            for number in range(2):
                made.dispatcher.dispatch(delivery(number, f"k{number}"))
            await asyncio.sleep(2)
    failed = [log for log in logs if log["event"] == "handling_failed"]
    assert len(failed) == 2
    assert all("TimeoutError" not in log["reason"] for log in failed)


async def test_a_message_that_is_recalled_in_line_leaves_it(rig, delivery):
    desk = _Desk()
    made = rig(handlers=_handlers(desk.handle))
    async with MemberResources().entered(()), made.running():
        made.dispatcher.dispatch(delivery(1, "a", epoch=1))
        made.dispatcher.dispatch(delivery(2, "b", epoch=2))
        await asyncio.sleep(0.5)
        made.dispatcher.cancel_handling(QUEUE, Epoch(1))
        await made.until_ended(2)
    assert made.outcomes() == {1: None, 2: Outcome.ACCEPTED}
    assert desk.batches == [(1.0, [2])]


async def test_a_batch_handler_may_be_a_plain_function_with_state(rig, delivery):
    class Pool:
        pass

    seen, handlers = [], Handlers()

    @handlers.lifespan
    async def life():
        yield Pool()

    @handlers.batch_handler("orders/>", max_count=2, max_wait="1s")
    def handle(batch: Batch, pool: State[Pool]) -> None:
        seen.append(([item.body for item in batch], type(pool)))

    made = rig(handlers=handlers)
    async with MemberResources().entered(handlers.lifespans), made.running():
        made.dispatcher.dispatch(delivery(1, "a"))
        made.dispatcher.dispatch(delivery(2, "b"))
        await made.until_ended(2)
    assert seen == [([b"1", b"2"], Pool)]


async def _with_message(batch: Batch, message: Message) -> None: ...


async def _without_batch(message: Message) -> None: ...


async def _good(batch: Batch) -> None: ...


@pytest.mark.parametrize(
    ("register", "line"),
    [
        (lambda handlers: handlers.handler("a")(_good), "a batch; expected @handlers.batch_handler(...)"),
        (
            lambda handlers: handlers.batch_handler("a", max_count=2, max_wait="1s")(_without_batch),
            "no batch; expected @handlers.batch_handler(...)",
        ),
        (
            lambda handlers: handlers.batch_handler("a", max_count=2, max_wait="1s")(_with_message),
            "expected with a batch, nothing else but State[...]",
        ),
        (
            lambda handlers: handlers.batch_handler("a", max_count=0, max_wait="1s"),
            "max_count 0; expected at lea",
        ),
        (
            lambda handlers: handlers.batch_handler("a", max_count="5", max_wait="1s"),
            "max_count '5'; expected a whole number",
        ),
        (
            lambda handlers: handlers.batch_handler("a", max_count=2, max_wait=1),
            "max_wait 1; expected a duration",
        ),
        (lambda handlers: handlers.batch_handler(max_count=2, max_wait="1s"), "@batch_handler: no topic"),
    ],
)
def test_what_is_no_batch_handler_is_refused(register, line):
    with pytest.raises(HandlerError) as caught:
        register(Handlers())
    assert line in str(caught.value)


async def test_a_batch_may_wait_for_longer_than_an_attempt_may_take(rig, delivery):
    made = rig(handlers=_handlers(_good, max_wait="30s"), failure={"timeout": "10s"})
    async with made.running():
        made.dispatcher.dispatch(delivery(1))
        await made.until_ended(1)
    assert made.outcomes() == {1: Outcome.ACCEPTED}
    assert made.dispatcher.counts.failed_attempts == 0


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_every_message_of_every_batch_ends_once_in_the_order_of_its_key(rig, delivery, data):
    acts = st.sampled_from(("return", "wait", "raise", "hang", "accept", "fail", "swallow"))
    script = iter(data.draw(st.lists(acts, max_size=12)))
    steps = data.draw(
        st.lists(st.one_of(st.sampled_from("abcd"), st.sampled_from((0.0, 0.5, 6.0)), st.none()), max_size=25)
    )

    async def main():
        running, calls = set(), []

        async def handle(batch: Batch) -> None:
            calls.append(batch)
            try:
                await handle_one_of_two(batch)
            finally:
                calls.remove(batch)

        async def handle_one_of_two(batch):
            assert len(calls) <= 2, "more batches at once than runners"
            keys = [item.message.key for item in batch]
            assert not running & set(keys), "two handlings of a key overlap (L2)"
            assert len(set(keys)) == len(keys)
            running.update(keys)
            try:
                match next(script, "return"):
                    case "wait":
                        await asyncio.sleep(0.7)
                    case "raise":
                        raise ValueError("now")
                    case "hang":
                        await asyncio.sleep(1_000_000)
                    case "accept":
                        # Its key is free from here on.
                        batch[0].accept()
                        running.discard(keys[0])
                        await asyncio.sleep(0.3)
                    case "fail":
                        batch[-1].fail("not yet")
                        running.discard(keys[-1])
                        await asyncio.sleep(0.3)
                    case "swallow":
                        try:
                            await asyncio.sleep(1_000_000)
                        except asyncio.CancelledError:
                            return
            finally:
                running.difference_update(keys)

        handlers = _handlers(handle, timeout="5s")
        made = rig(handlers=handlers, dispatch={"runners": 2}, failure={"backoff": {"maximum": "1s"}})
        number, epoch, of_key = 0, 1, {}
        async with MemberResources().entered(()), made.running():
            for step in steps:
                if isinstance(step, str):
                    number += 1
                    made.dispatcher.dispatch(delivery(number, step, epoch=epoch))
                    of_key.setdefault((epoch, step), []).append(number)
                elif step is None:
                    made.dispatcher.return_unstarted(QUEUE, Epoch(epoch))
                    made.dispatcher.cancel_handling(QUEUE, Epoch(epoch))
                    epoch += 1
                else:
                    await asyncio.sleep(step)
            await made.until_ended(number)
        ended = [end.delivery.delivery_id for end in made.ends]
        assert sorted(ended) == list(range(1, number + 1))
        outcomes = made.outcomes()
        for numbers in of_key.values():
            accepted = [each for each in ended if each in numbers and outcomes[each] is Outcome.ACCEPTED]
            assert accepted == numbers[: len(accepted)]

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(main())


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
    desk = _Desk()

    async def act(batch):
        await asyncio.sleep(0.9)

    desk.act = act
    failure = {"timeout": "1s", "attempts": 1, "then": "error_queue"}
    handlers = _handlers(desk.handle, max_count=2, max_wait="500ms", **failure)
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


async def test_who_comes_while_a_batch_waits_for_its_turn_joins_it_until_it_is_full(rig, delivery):
    desk = _Desk()

    async def act(batch):
        await asyncio.sleep(5)

    desk.act = act
    made = rig(handlers=_handlers(desk.handle, max_wait="1s"), dispatch={"runners": 1})
    async with MemberResources().entered(()), made.running():
        for number in range(6):
            made.dispatcher.dispatch(delivery(number, f"k{number}"))
            await asyncio.sleep(0.9)
        made.dispatcher.dispatch(delivery(6, "k6"))
        await made.until_ended(7)
    assert desk.batches == [(1, [0, 1]), (6, [2, 3, 4]), (11, [5, 6])]


async def test_a_recall_ends_at_once_what_waits_for_its_turn(rig, delivery):
    desk = _Desk()

    async def act(batch):
        await asyncio.sleep(50)

    desk.act = act
    made = rig(handlers=_handlers(desk.handle, max_count=1, timeout="1h"), dispatch={"runners": 1})
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
    desk = _Desk()

    async def act(batch):
        await asyncio.sleep(50)

    desk.act = act
    made = rig(handlers=_handlers(desk.handle, max_count=1, timeout="1h"), dispatch={"runners": 2})
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
    desk, left = _Desk(), []

    async def act(batch):
        await asyncio.sleep(50)

    desk.act = act
    handlers = _handlers(desk.handle, max_count=1, timeout="1h")

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
    desk = _Desk()

    async def act(batch):
        await asyncio.sleep(13)

    desk.act = act
    made = rig(handlers=_handlers(desk.handle, max_wait="10s"), dispatch={"runners": 1})
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
    desk = _Desk()

    async def act(batch):
        batch[0].accept()
        if len(desk.batches) == 1:
            await asyncio.sleep(1_000_000)

    desk.act = act
    made = rig(handlers=_handlers(desk.handle, max_count=1, timeout="10s"), dispatch={"runners": 1})
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
        handlers = _handlers(handle, max_count=max_count, max_wait="500ms", **failure)
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
