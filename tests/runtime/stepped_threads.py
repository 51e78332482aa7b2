"""Threads that work only while a step of the loop waits for them: what they do has its place among the steps."""

import threading
from contextvars import copy_context

_CURRENT = threading.local()


class SteppedThread:
    """One call on a thread of its own, which `go_on` lets go on."""

    def __init__(self, loop, work):
        self.answer = loop.create_future()
        self._loop = loop
        self._work = work
        self._goes_on, self._stands = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = None
        self._end = None
        """Gives the answer."""
        self._wanted = None
        """What the thread waits for, and the context of that."""
        self._task = None

    def go_on(self):
        """On the loop: have it work until it waits or ends."""
        if self._thread is None:
            # One that never goes on again keeps no process.
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
        else:
            self._goes_on.release()
        self._stands.acquire()
        if self._end is not None:
            self._thread.join()
            self._end()
            return
        coroutine, context = self._wanted
        self._task = self._loop.create_task(coroutine, context=context)
        self._task.add_done_callback(lambda _: self.go_on())

    def _run(self):
        _CURRENT.thread = self
        try:
            value = self._work()
        except BaseException as error:  # noqa: BLE001 - as an executor does
            self._end = lambda error=error: self.answer.set_exception(error)
        else:
            self._end = lambda: self.answer.set_result(value)
        self._stands.release()

    def done_on_loop(self, coroutine):
        """On the thread: what the coroutine returns or raises."""
        self._wanted = coroutine, copy_context()
        self._stands.release()
        self._goes_on.acquire()
        return self._task.result()


def done_on_loop(coroutine):
    """On such a thread: what the coroutine returns or raises, in a task that nobody else knows."""
    return _CURRENT.thread.done_on_loop(coroutine)
