"""Whether the broker has read what was sent: one question at a time, and nobody is told of an older one."""

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from lbg_runtime.transport.solace.barrier import Barrier
from lbg_runtime.transport.solace.threads import ControlThreads

pytestmark = pytest.mark.real_time

PATIENCE_S = 10


class Question:
    """Answered when the test says so."""

    def __init__(self) -> None:
        self.asked = 0
        self._answers: list[bool] = []
        self._may_answer = threading.Semaphore(0)

    def __call__(self) -> bool:
        self.asked += 1
        self._may_answer.acquire(timeout=PATIENCE_S)
        return self._answers.pop(0)

    def answer(self, *, is_heard: bool) -> None:
        self._answers.append(is_heard)
        self._may_answer.release()


@pytest.fixture
async def threads() -> AsyncIterator[ControlThreads]:
    made = ControlThreads()
    yield made
    await made.close()


async def test_who_asks_while_a_question_is_under_way_shares_the_next_one(threads: ControlThreads) -> None:
    question = Question()
    barrier = Barrier(threads, question)
    first = barrier.ask()
    others = [barrier.ask(), barrier.ask()]
    question.answer(is_heard=True)
    async with asyncio.timeout(PATIENCE_S):
        assert await first
        # What they sent was sent after the first question.
        assert not any(other.done() for other in others)
        question.answer(is_heard=False)
        assert [await other for other in others] == [False, False]
    assert question.asked == 2


async def test_a_lost_connection_ends_the_wait_and_a_late_answer_tells_nothing(threads: ControlThreads) -> None:
    question = Question()
    barrier = Barrier(threads, question)
    before = [barrier.ask(), barrier.ask()]
    barrier.fall()
    assert [answer.result() for answer in before] == [False, False]
    after = barrier.ask()
    # That of before the loss: the client may repeat a question on its next connection.
    question.answer(is_heard=True)
    question.answer(is_heard=False)
    async with asyncio.timeout(PATIENCE_S):
        assert not await after
