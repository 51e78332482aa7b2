"""Threads that work only while a step of the loop waits for them: what they do has its place among the steps."""

import threading

_CURRENT = threading.local()


class SteppedThread:
    """One call on a thread of its own. `go_on` is called on the loop, which `work` may use while it runs."""

    def __init__(self, loop, work):
        self.loop = loop
        self.answer = loop.create_future()
        self._work = work
        self._goes_on, self._stands = threading.Semaphore(0), threading.Semaphore(0)
        self._end = None
        self._thread = None

    def go_on(self):
        """Have it work until it waits or ends."""
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

    def _run(self):
        _CURRENT.thread = self
        try:
            value = self._work()
        except BaseException as error:  # noqa: BLE001 - as an executor does
            self._end = lambda error=error: self.answer.set_exception(error)
        else:
            self._end = lambda: self.answer.set_result(value)
        self._stands.release()

    def wait(self, task):
        """On the thread: let the loop go on until the task is done."""
        task.add_done_callback(lambda _: self.go_on())
        self._stands.release()
        self._goes_on.acquire()


def done_on_loop(coroutine):
    """On such a thread: what the coroutine returns or raises, in a task that nobody else knows."""
    thread = _CURRENT.thread
    task = thread.loop.create_task(coroutine)
    thread.wait(task)
    return task.result()
