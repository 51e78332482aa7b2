"""Whether the broker has read what was sent: one question at a time, and nobody is told of an older one."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future

import pytest

from lbg_runtime.transport.solace.barrier import Barrier
from lbg_runtime.transport.solace.threads import ControlThreads
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.real_time


class Question:
    """Each time that it is asked it is answered when the test says so."""

    def __init__(self) -> None:
        self.asked = 0
        self._answers = [Future[int | None]() for _ in range(3)]

    def __call__(self) -> int | None:
        answer = self._answers[self.asked]
        self.asked += 1
        return answer.result(PATIENCE_S)

    def answer(self, number: int, heard_in: int | None) -> None:
        self._answers[number].set_result(heard_in)


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
    question.answer(0, 1)
    async with asyncio.timeout(PATIENCE_S):
        assert await first == 1
        # What they sent was sent after the first question.
        assert not any(other.done() for other in others)
        question.answer(1, None)
        assert [await other for other in others] == [None, None]
    assert question.asked == 2


async def test_what_a_question_raises_reaches_who_asked_it_and_the_next_is_asked(threads: ControlThreads) -> None:
    answers: Iterator[ZeroDivisionError | int] = iter([ZeroDivisionError("for a test"), 1])

    def question() -> int:
        answer = next(answers)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    barrier = Barrier(threads, question)
    first, second = barrier.ask(), barrier.ask()
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(ZeroDivisionError):
            await first
        assert await second == 1


async def test_a_lost_connection_ends_the_wait_and_a_late_answer_tells_nothing(threads: ControlThreads) -> None:
    question = Question()
    barrier = Barrier(threads, question)
    before = [barrier.ask(), barrier.ask()]
    async with asyncio.timeout(PATIENCE_S):
        while not question.asked:  # noqa: ASYNC110 - a thread asks, and tells nobody
            await asyncio.sleep(0)
        barrier.fall()
        assert [answer.result() for answer in before] == [None, None]
        after = barrier.ask()
        # That of before the loss: the client may repeat a question on its next connection.
        question.answer(0, 1)
        question.answer(1, None)
        assert await after is None


async def test_who_shares_a_question_that_cannot_be_asked_is_told_so_and_the_next_is_asked(
    threads: ControlThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unbind waited for its answer until the connection was lost, and so did all later ones."""

    def no_memory(_: object) -> None:
        raise MemoryError

    question = Question()
    barrier = Barrier(threads, question)
    first, others = barrier.ask(), [barrier.ask(), barrier.ask()]
    async with asyncio.timeout(PATIENCE_S):
        with monkeypatch.context() as patch:
            patch.setattr(threads, "begin", no_memory)
            question.answer(0, 1)
            assert await first == 1
            for other in (*others, barrier.ask()):
                with pytest.raises(MemoryError):
                    await other
        question.answer(1, 1)
        assert await barrier.ask() == 1
