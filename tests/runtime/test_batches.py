"""Batches: when they are handled, that each message is settled for itself, and what one that is cut short does."""

import asyncio
import gc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from lbg_runtime.model.errors import HandlerError, TerminalFailure
from lbg_runtime.model.ids import Epoch, QueueName
from lbg_runtime.model.message import Message
from lbg_runtime.model.outcome import Outcome
from lbg_runtime.runtime.batches import Batch
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
    # Or it would be told of as a coroutine that nobody awaited.
    gc.collect()


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


def test_a_batch_may_not_wait_for_longer_than_an_attempt_may_take(rig):
    with pytest.raises(HandlerError, match="max_wait 30000ms; expected less than the time of an attempt, 10000ms"):
        rig(handlers=_handlers(_good, max_wait="30s"), failure={"timeout": "10s"})


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_every_message_of_every_batch_ends_once_in_the_order_of_its_key(rig, delivery, data):
    acts = st.sampled_from(("return", "wait", "raise", "hang", "accept", "fail", "swallow"))
    script = iter(data.draw(st.lists(acts, max_size=12)))
    steps = data.draw(
        st.lists(st.one_of(st.sampled_from("abcd"), st.sampled_from((0.0, 0.5, 6.0)), st.none()), max_size=25)
    )

    async def main():
        running = set()

        async def handle(batch: Batch) -> None:
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
