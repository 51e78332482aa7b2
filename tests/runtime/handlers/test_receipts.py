"""Messages that their handlers settle themselves: when, once, and what comes too late."""

import asyncio
import threading

import pytest
from structlog.testing import capture_logs

from lbg_runtime.model.errors import HandlerError, TerminalFailure
from lbg_runtime.model.ids import Epoch, QueueName
from lbg_runtime.model.message import Message
from lbg_runtime.model.outcome import Outcome
from lbg_runtime.runtime.handlers.receipts import Receipt
from lbg_runtime.runtime.handlers.registry import Handlers
from lbg_runtime.runtime.handlers.resources import MemberResources
from tests.patience import PATIENCE_S
from tests.runtime.error_queue import TakingErrorQueue

QUEUE = QueueName("orders/0")


class _Desk:
    """Keeps the receipts that a handler is given, and returns."""

    def __init__(self):
        self.receipts = []
        self.came = asyncio.Event()

    async def handle(self, receipt: Receipt, message: Message) -> None:
        assert receipt.message is message
        self.receipts.append(receipt)
        self.came.set()

    async def next(self):
        await self.came.wait()
        self.came.clear()
        return self.receipts[-1]


async def test_a_message_is_settled_when_its_receipt_is_and_its_key_waits_for_that(rig, delivery):
    desk = _Desk()
    made = rig(desk.handle)
    async with made.running():
        made.dispatcher.dispatch(delivery(1))
        made.dispatcher.dispatch(delivery(2))
        first = await desk.next()
        await asyncio.sleep(5)
        assert made.ends == []
        assert len(desk.receipts) == 1
        first.accept()
        (await desk.next()).accept()
        await made.until_ended(2, within_s=1)
    assert made.outcomes() == {1: Outcome.ACCEPTED, 2: Outcome.ACCEPTED}


async def test_receipts_take_no_runner_from_others(rig, delivery):
    desk = _Desk()
    made = rig(desk.handle, dispatch={"runners": 1})
    async with made.running():
        for number in range(100):
            made.dispatcher.dispatch(delivery(number, f"k{number}"))
        await asyncio.sleep(1)
        assert len(desk.receipts) == 100
        for receipt in reversed(desk.receipts):
            receipt.accept()
        await made.until_ended(100, within_s=1)
        # As many as before, which is seen by who runs at the same time.
        assert sum(task.get_name() == "lbg-runner" for task in asyncio.all_tasks()) == 1
    assert set(made.outcomes().values()) == {Outcome.ACCEPTED}


@pytest.mark.parametrize("settle", [Receipt.fail, Receipt.settle])
async def test_one_that_fails_with_a_class_has_failed_as_if_that_was_raised(rig, delivery, settle):
    desk, queue = _Desk(), TakingErrorQueue()
    made = rig(desk.handle, error_queue=queue, failure={"then": "error_queue"})
    async with made.running():
        made.dispatcher.dispatch(delivery(1))
        settle(await desk.next(), TerminalFailure)
        await made.until_ended(1, within_s=1)
    assert queue.taken == [(1, 1, "TerminalFailure")]


async def test_one_that_fails_is_tried_again_and_may_be_terminal(rig, delivery):
    desk, queue = _Desk(), TakingErrorQueue()
    made = rig(desk.handle, error_queue=queue, failure={"then": "error_queue"})
    async with made.running():
        made.dispatcher.dispatch(delivery(1))
        (await desk.next()).fail("no stock")
        (await desk.next()).fail(StopIteration())
        (await desk.next()).fail(KeyboardInterrupt())
        (await desk.next()).fail(TerminalFailure("no such customer"))
        await made.until_ended(1)
    assert queue.taken == [(1, 4, "TerminalFailure: no such customer")]


async def test_a_settlement_after_the_timeout_is_late_and_another_attempt_runs(rig, delivery):
    desk, resources = _Desk(), MemberResources()
    made = rig(desk.handle, failure={"timeout": "10s"})
    with capture_logs() as logs:
        async with resources.entered(()), made.running():
            made.dispatcher.dispatch(delivery(1, "k"))
            first = await desk.next()
            second = await desk.next()
            assert not first.is_open
            first.accept()
            await asyncio.sleep(1)
            assert made.ends == []
            second.accept()
            await made.until_ended(1)
            second.fail("on second thought")
    late = [log for log in logs if log["event"] == "settled_late"]
    assert [(log["attempt"], log["key"], log["reason"]) for log in late] == [
        (1, "k", "its attempt is over"),
        (2, "k", "its attempt is over"),
    ]
    assert resources.counts.late_settlements == 2
    assert made.outcomes() == {1: Outcome.ACCEPTED}


async def test_an_attempt_whose_receipt_is_forgotten_says_so_and_not_that_its_handler_did_not_finish(rig, delivery):
    desk = _Desk()
    made = rig(desk.handle, failure={"timeout": "10s"})
    with capture_logs() as logs:
        async with made.running():
            made.dispatcher.dispatch(delivery(1))
            await desk.next()
            (await desk.next()).accept()
            await made.until_ended(1)
    (failed,) = (each["reason"] for each in logs if each["event"] == "handling_failed")
    assert failed == "TimeoutError: its receipt was not settled within 10 s"


async def test_a_receipt_of_a_queue_that_went_away_is_late(rig, delivery):
    desk, resources = _Desk(), MemberResources()
    made = rig(desk.handle)
    async with resources.entered(()), made.running():
        made.dispatcher.dispatch(delivery(1))
        receipt = await desk.next()
        made.dispatcher.cancel_handling(QUEUE, Epoch(1))
        await made.until_ended(1, within_s=1)
        receipt.accept()
    assert made.outcomes() == {1: None}
    assert resources.counts.late_settlements == 1


async def test_a_receipt_may_be_settled_before_the_handler_returns_and_twice_is_late(rig, delivery):
    resources = MemberResources()

    async def handle(receipt: Receipt) -> None:
        receipt.accept()
        await asyncio.sleep(1)
        receipt.accept()

    made = rig(handle)
    with capture_logs() as logs:
        async with resources.entered(()), made.running():
            await made.handle(delivery(1))
    assert made.outcomes() == {1: Outcome.ACCEPTED}
    assert [log["reason"] for log in logs if log["event"] == "settled_late"] == ["it is settled"]


async def test_a_handler_that_raises_has_failed_whatever_it_said_before(rig, delivery):
    attempts = []

    async def handle(receipt: Receipt) -> None:
        attempts.append(receipt)
        receipt.accept()
        if len(attempts) == 1:
            raise ValueError("after all")

    made = rig(handle)
    async with made.running():
        await made.handle(delivery(1))
    assert len(attempts) == 2


@pytest.mark.real_time
async def test_a_thread_may_settle(rig, delivery):
    def handle(receipt: Receipt) -> None:
        threading.Timer(0.05, receipt.accept).start()

    made = rig(handle)
    async with made.running():
        for number in range(8):
            made.dispatcher.dispatch(delivery(number, f"k{number % 4}"))
        await made.until_ended(8, within_s=PATIENCE_S)
    assert set(made.outcomes().values()) == {Outcome.ACCEPTED}


def test_a_receipt_and_publishing_do_not_go_together():
    async def handle(receipt: Receipt) -> None: ...

    with pytest.raises(HandlerError, match="a receipt and publishing; expected one of them"):
        Handlers().handler("orders/>", publishes=True)(handle)
