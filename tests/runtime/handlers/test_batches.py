"""Batches: when they are handled, that each message is settled for itself, and what one that is cut short does.

More than 400 lines, as all of it is about one kind of handler.
"""

import asyncio
from contextvars import ContextVar
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from structlog.testing import capture_logs

from lbg_runtime.model.errors import HandlerError, TerminalFailure
from lbg_runtime.model.ids import Epoch, QueueName
from lbg_runtime.model.message import Message
from lbg_runtime.model.outcome import Outcome
from lbg_runtime.runtime.handlers.batches import Batch
from lbg_runtime.runtime.handlers.middleware import Proceed
from lbg_runtime.runtime.handlers.parameters import State
from lbg_runtime.runtime.handlers.registry import Handlers
from lbg_runtime.runtime.handlers.resources import MemberResources
from lbg_runtime.testing.virtual_time import VirtualTimeLoop
from tests.runtime.error_queue import TakingErrorQueue
from tests.runtime.handlers.batch_desk import Desk, batch_handlers

QUEUE = QueueName("orders/0")


async def test_a_batch_is_handled_when_it_is_full_or_its_time_has_come(rig, delivery):
    desk = Desk()
    made = rig(handlers=batch_handlers(desk.handle), dispatch={"runners": 1})
    async with MemberResources().entered(()), made.running():
        for number in range(5):
            made.dispatcher.dispatch(delivery(number, f"k{number}"))
        await made.until_ended(5)
    assert desk.batches == [(0.0, [0, 1, 2]), (1.0, [3, 4])]
    assert set(made.outcomes().values()) == {Outcome.ACCEPTED}


async def test_a_batch_has_no_two_messages_of_a_key(rig, delivery):
    desk = Desk()
    made = rig(handlers=batch_handlers(desk.handle))
    async with MemberResources().entered(()), made.running():
        for number in range(4):
            made.dispatcher.dispatch(delivery(number, f"k{number % 2}"))
        await made.until_ended(4)
    assert [bodies for _, bodies in desk.batches] == [[0, 1], [2, 3]]


async def test_each_message_says_which_queue_and_epoch_it_is_of_and_whether_it_came_again(rig, delivery):
    """For the state of a queue, which its hooks load and drop: in a batch, messages of several queues meet."""
    desk, seen = Desk(), []

    async def act(batch):
        seen.extend(item.delivery for item in batch)
        assert [item.delivery.message for item in batch] == [item.message for item in batch]

    desk.act = act
    made = rig(handlers=batch_handlers(desk.handle))
    came = [delivery(0, "k0"), replace(delivery(1, "k1"), redelivered=True)]
    async with MemberResources().entered(()), made.running():
        for each in came:
            made.dispatcher.dispatch(each)
        await made.until_ended(2)
    assert [(each.queue, each.epoch, each.redelivered) for each in seen] == [
        (QUEUE, each.epoch, each.redelivered) for each in came
    ]


async def test_a_batch_sees_nothing_that_its_messages_set_in_context_variables(rig, delivery):
    tenant = ContextVar("tenant", default="nobody")
    desk, seen = Desk(), []

    async def act(batch):
        seen.append(tenant.get())

    desk.act = act
    handlers = batch_handlers(desk.handle)

    @handlers.middleware
    async def around(message: Message, proceed: Proceed) -> None:
        tenant.set(message.key)
        await proceed(message)

    made = rig(handlers=handlers.assembled())
    async with MemberResources().entered(()), made.running():
        for number in range(4):
            made.dispatcher.dispatch(delivery(number, f"k{number}"))
        await made.until_ended(4)
    assert seen == ["nobody"] * 2, "when it was full, and when its time had come"


async def test_a_batch_whose_task_group_failed_unseen_has_not_been_cut_short(rig, delivery):
    async def fail_in_a_moment():
        await asyncio.sleep(0.01)
        raise ValueError("a child failed")

    desk = Desk()

    async def act(batch):
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(fail_in_a_moment())
        except* ValueError:
            pass

    desk.act = act
    made = rig(handlers=batch_handlers(desk.handle))
    async with MemberResources().entered(()), made.running():
        for number in range(3):
            made.dispatcher.dispatch(delivery(number, f"k{number}"))
        await made.until_ended(3, within_s=5)
    assert len(desk.batches) == 1
    assert set(made.outcomes().values()) == {Outcome.ACCEPTED}


async def test_each_message_is_settled_for_itself(rig, delivery):
    desk = Desk()

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
    made = rig(handlers=batch_handlers(desk.handle))
    async with MemberResources().entered(()), made.running():
        for number in range(3):
            made.dispatcher.dispatch(delivery(number, f"k{number}"))
        await made.until_ended(3)
    assert {end.delivery.delivery_id: end.attempts for end in made.ends} == {0: 1, 1: 2, 2: 1}
    assert desk.batches[1][1] == [1]


async def test_what_a_handler_raises_is_the_failure_of_all_that_is_not_settled(rig, delivery):
    desk, queue = Desk(), TakingErrorQueue()

    async def act(batch):
        batch[1].accept()
        raise TerminalFailure("no")

    desk.act = act
    made = rig(handlers=batch_handlers(desk.handle, then="error_queue"), error_queue=queue)
    async with MemberResources().entered(()), made.running():
        for number in range(3):
            made.dispatcher.dispatch(delivery(number, f"k{number}"))
        await made.until_ended(3)
    assert queue.taken == [(0, 1, "TerminalFailure: no"), (2, 1, "TerminalFailure: no")]


async def test_a_body_that_does_not_fit_keeps_nobody_from_the_batch(rig, delivery):
    class Order(BaseModel):
        number: int

    batches, queue = [], TakingErrorQueue()

    async def handle(batch: Batch[Order]) -> None:
        batches.append(batch)

    handlers = Handlers()
    handlers.batch_handler("orders/>", max_count=2, max_wait="1s", then="error_queue")(handle)
    made = rig(handlers=handlers, error_queue=queue)
    async with MemberResources().entered(()), made.running():
        await made.handle(delivery(1))
    assert (batches, len(queue.taken)) == ([], 1)


async def test_a_batch_that_takes_too_long_is_cut_short_for_all_and_tried_again(rig, delivery):
    desk, is_quick, cut = Desk(), False, []

    async def act(batch):
        try:
            await asyncio.sleep(0 if is_quick else 1_000_000)
        except asyncio.CancelledError:
            cut.append(len(batch))
            raise

    desk.act = act
    made = rig(handlers=batch_handlers(desk.handle, timeout="10s"), failure={"backoff": {"maximum": "100ms"}})
    async with MemberResources().entered(()), made.running():
        for number in range(3):
            made.dispatcher.dispatch(delivery(number, f"k{number}"))
        await asyncio.sleep(9.9)
        is_quick = True
        await made.until_ended(3, within_s=2)
    assert cut == [3]
    assert {end.attempts for end in made.ends} == {2}


async def test_being_cut_short_by_the_time_of_another_is_no_failure_that_ends_the_attempts(rig, delivery):
    desk = Desk()

    async def act(batch):
        await asyncio.sleep(1_000_000 if len(desk.batches) == 1 else 0)

    desk.act = act
    failure = {"timeout": "10s", "retriable": (ConnectionError,), "attempts": 5, "then": "stop"}
    handlers = batch_handlers(desk.handle, max_count=2, max_wait="9s", **failure)
    made = rig(handlers=handlers, failure={"backoff": {"maximum": "100ms"}})
    async with MemberResources().entered(()), made.running():
        made.dispatcher.dispatch(delivery(1, "early"))
        await asyncio.sleep(8)
        made.dispatcher.dispatch(delivery(2, "late"))
        await made.until_ended(2, within_s=20)
    assert desk.batches[0] == (8, [1, 2])
    assert {end.attempts for end in made.ends} == {2}


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

    made = rig(handlers=batch_handlers(handle, attempts=1, then="stop"), dispatch={"runners": 1})
    with capture_logs() as logs:
        async with MemberResources().entered(()), made.running():
            for number in range(2):
                made.dispatcher.dispatch(delivery(number, f"k{number}"))
            await asyncio.sleep(2)
    failed = [log for log in logs if log["event"] == "handling_failed"]
    assert len(failed) == 2
    assert all("TimeoutError" not in log["reason"] for log in failed)


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
        await made.handle(delivery(1, "a"), delivery(2, "b"))
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
            lambda handlers: handlers.batch_handler("a", max_count=0, max_wait="1s")(_without_batch),
            "max_count 0; expected at lea",
        ),
        (
            lambda handlers: handlers.batch_handler("a", max_count="5", max_wait="1s")(_without_batch),
            "max_count '5'; expected a whole number",
        ),
        (
            lambda handlers: handlers.batch_handler("a", max_count=2, max_wait=1)(_without_batch),
            "max_wait 1; expected a duration",
        ),
        (lambda handlers: handlers.batch_handler(max_count=2, max_wait="1s"), ": no topic; expected a call of"),
    ],
)
def test_what_is_no_batch_handler_is_refused(register, line):
    with pytest.raises(HandlerError) as caught:
        register(Handlers())
    assert line in str(caught.value)
    assert "test_batches.py:" in caught.value.where


async def test_a_batch_may_wait_for_longer_than_an_attempt_may_take(rig, delivery):
    made = rig(handlers=batch_handlers(_good, max_wait="30s"), failure={"timeout": "10s"})
    async with made.running():
        await made.handle(delivery(1))
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

        handlers = batch_handlers(handle, timeout="5s")
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


async def test_a_batch_that_raises_generator_exit_fails_and_nothing_else(rig, delivery):
    desk, failed = Desk(), []

    async def act(batch):
        if not failed:
            failed.append(batch)
            raise GeneratorExit

    desk.act = act
    made = rig(handlers=batch_handlers(desk.handle))
    async with MemberResources().entered(()), made.running():
        for number in range(3):
            made.dispatcher.dispatch(delivery(number, f"k{number}"))
        await made.until_ended(3)
    assert made.dispatcher.counts.failed_attempts == 3
    assert set(made.outcomes().values()) == {Outcome.ACCEPTED}
