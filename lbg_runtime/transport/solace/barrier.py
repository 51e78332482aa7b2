"""Finds out whether the broker has read what a session sent: the client does not wait for the answer to an unbind."""

import asyncio
from collections.abc import Callable
from functools import partial

from lbg_runtime.transport.solace.threads import ControlThreads


class Barrier:
    """The barrier of one session; used on the loop's thread.

    One question is under way at a time. Callers that ask meanwhile share the next one, which is sent after whatever
    they sent.
    """

    def __init__(self, threads: ControlThreads, question: Callable[[], int | None]) -> None:
        """`question` runs on a control thread: it sends something, and returns the connection in which the broker has
        answered, or None.

        If it raises an exception, or there is no memory to begin it, all callers that share the question get the error.
        """
        self._threads = threads
        self._question = question
        self._under_way: asyncio.Future[int | None] | None = None
        self._next: asyncio.Future[int | None] | None = None

    def ask(self) -> "asyncio.Future[int | None]":
        """Return a future with the connection in which the broker has read everything that was sent there by now, or
        None. The future is shared, so nobody may cancel it."""
        if self._under_way is None:
            return self._begin(asyncio.get_running_loop().create_future())
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        return self._next

    def fall(self) -> None:
        """The connection is gone: pending questions will never be answered."""
        for answer in (self._under_way, self._next):
            if answer is not None and not answer.done():
                answer.set_result(None)
        self._under_way = self._next = None

    def _begin(self, answer: "asyncio.Future[int | None]") -> "asyncio.Future[int | None]":
        try:
            asked = self._threads.begin(self._question)
        except MemoryError as error:
            # Otherwise the future would never be done.
            answer.set_exception(error)
        else:
            self._under_way = answer
            asked.add_done_callback(partial(self._answered, answer))
        return answer

    def _answered(self, answer: "asyncio.Future[int | None]", asked: "asyncio.Future[int | None]") -> None:
        if answer is not self._under_way:
            return
        self._under_way = None
        if (failure := asked.exception()) is not None:
            answer.set_exception(failure)
        else:
            answer.set_result(asked.result())
        following, self._next = self._next, None
        if following is not None:
            self._begin(following)
