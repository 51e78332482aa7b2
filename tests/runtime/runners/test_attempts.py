"""Attempts whose time does not run, because their handler waits to be called."""

import asyncio
from dataclasses import replace

import pytest

from lbg_runtime.model.ids import Epoch, QueueName
from lbg_runtime.runtime.runners.attempts import AttemptWatches, InterruptedBy, RunningAttempts
from lbg_runtime.runtime.runners.handling import Handling

QUEUE = QueueName("orders/0")


class _Task:
    """Notes when it is cancelled."""

    def __init__(self):
        self.cancelled_at = []

    def cancel(self):
        self.cancelled_at.append(round(asyncio.get_running_loop().time()))


@pytest.fixture
def start(delivery):
    def start(watch, number, epoch=1, queue=QUEUE):
        handling, task = Handling(replace(delivery(number, epoch=epoch), queue=queue), number, None, None), _Task()
        return handling, task, watch.start(handling, task)

    return start


async def test_one_that_is_put_off_has_its_whole_time_from_its_beginning_on(start):
    stuck = []
    watch = RunningAttempts(10_000, stuck.append)
    early, early_task, _ = start(watch, 1)
    watch.put_off(early)
    await asyncio.sleep(4)
    _, other_task, _ = start(watch, 2)
    assert [each.delivery.delivery_id for each in watch.handlings()] == [2, 1]
    await asyncio.sleep(46)
    watch.begin(early)
    watch.begin(early)
    assert [(attempt.handling, began_s) for attempt, began_s in watch.started() if attempt.handling is early] == [
        (early, 50)
    ]
    await asyncio.sleep(15)
    assert other_task.cancelled_at[:2] == [14, 24]
    assert early_task.cancelled_at == [60]
    assert not watch.is_stuck(early)
    await asyncio.sleep(10)
    assert early_task.cancelled_at == [60, 70]
    assert watch.is_stuck(early)
    watch.close()


async def test_the_only_one_is_watched_again_when_it_begins(start):
    watch = RunningAttempts(10_000, lambda _: None)
    handling, task, attempt = start(watch, 1)
    watch.put_off(handling)
    await asyncio.sleep(30)
    watch.begin(handling)
    await asyncio.sleep(11)
    assert task.cancelled_at == [40]
    watch.end(attempt)
    assert watch.handlings() == []
    assert not watch.has_timed_out(handling), "of one that has ended nothing is said, whoever still asks"
    assert not watch.is_stuck(handling)
    watch.close()


async def test_nothing_is_cancelled_any_more_when_nobody_watches(start):
    watches = AttemptWatches(lambda _: None)
    watch = watches.of(10_000)
    _, first_task, _ = start(watch, 1)
    await asyncio.sleep(1)
    _, second_task, _ = start(watch, 2)
    late, late_task, _ = start(watch, 3)
    watch.put_off(late)
    watch.begin(late)
    watches.close()
    await asyncio.sleep(30)
    assert (first_task.cancelled_at, second_task.cancelled_at, late_task.cancelled_at) == ([], [], [])


async def test_a_recall_reaches_what_is_put_off_and_no_other_handle(start):
    watch = RunningAttempts(10_000, lambda _: None)
    handling, task, attempt = start(watch, 1)
    _, later_task, _ = start(watch, 2, epoch=2)
    _, others_task, _ = start(watch, 3, queue=QueueName("orders/1"))
    watch.put_off(handling)
    watch.recall(QUEUE, Epoch(1))
    assert (task.cancelled_at, later_task.cancelled_at, others_task.cancelled_at) == ([0], [], [])
    assert attempt.interrupted_by is InterruptedBy.RETURN
    watch.close()


async def test_what_is_put_off_when_its_flow_has_taken_back_what_has_not_started_is_recalled_at_once(start):
    watch = RunningAttempts(10_000, lambda _: None)
    handling, task, attempt = start(watch, 1)
    later, later_task, _ = start(watch, 2, epoch=2)
    watch.recall_put_off(QUEUE, Epoch(1))
    assert task.cancelled_at == [], "it runs"
    watch.put_off(handling)
    watch.put_off(later)
    assert (task.cancelled_at, later_task.cancelled_at) == ([0], [])
    assert attempt.interrupted_by is InterruptedBy.RETURN
    watch.close()


async def test_one_that_is_recalled_again_cleans_up_undisturbed(start):
    watch = RunningAttempts(None, lambda _: None)
    _, task, _ = start(watch, 1)
    for _ in range(2):
        watch.recall(QUEUE, Epoch(1))
        await asyncio.sleep(1)
    assert task.cancelled_at == [0]


async def test_one_that_took_too_long_and_is_recalled_then_is_cancelled_again(start):
    """It may have ignored the first time."""
    watch = RunningAttempts(10_000, lambda _: None)
    _, task, attempt = start(watch, 1)
    await asyncio.sleep(15)
    watch.recall(QUEUE, Epoch(1))
    assert (task.cancelled_at, attempt.interrupted_by) == ([10, 15], InterruptedBy.RECALL)
    watch.close()


async def test_one_that_is_recalled_has_not_failed_even_if_its_handler_goes_on_beyond_its_time(start):
    watch = RunningAttempts(10_000, lambda _: None)
    _, task, attempt = start(watch, 1)
    watch.recall(QUEUE, Epoch(1))
    await asyncio.sleep(11)
    assert task.cancelled_at == [0, 10]
    assert attempt.interrupted_by is InterruptedBy.RECALL
    watch.close()


async def test_the_time_of_one_that_is_interrupted_goes_on(start):
    watch = RunningAttempts(10_000, lambda _: None)
    handling, task, _ = start(watch, 1)
    await asyncio.sleep(11)
    watch.put_off(handling)
    await asyncio.sleep(10)
    assert task.cancelled_at == [10, 20]
    [(_, began_s)] = watch.started()
    assert began_s == pytest.approx(0, abs=0.01), "what is told of it counts from its start"
    watch.close()
