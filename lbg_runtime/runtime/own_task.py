"""Waiting for a part of one's work in a task of its own, so that any cancellation of the waiting task is known to come
from elsewhere."""

import asyncio
from contextlib import ExitStack
from math import inf

import anyio


async def until_ended(task: "asyncio.Task[object]") -> None:
    """Wait until the task has ended, however it does. Each cancellation of the caller cancels the task as well.

    Once the task has ended, the first cancellation of the caller is raised here, whatever the task has made of it; but
    not in place of an error of the task.
    """
    cancellation: asyncio.CancelledError | None = None
    with ExitStack() as shielded:
        while not task.done():
            try:
                # No bound: the task has its own.
                await _End(task)
            except asyncio.CancelledError as error:
                cancellation = cancellation or error
                if anyio.current_effective_deadline() == -inf:
                    # A cancel scope of anyio cancels again in each turn of the loop, which is no wish to hurry: once is
                    # enough.
                    shielded.enter_context(anyio.CancelScope(shield=True))
    if cancellation is not None and (task.cancelled() or task.exception() is None):
        raise cancellation


class _End(asyncio.Future[None]):
    """Done when a task has ended; if this future is cancelled, it cancels the task at once.

    At once, so that a task that is cancelled in the same turn of the loop anyway, as all are when a loop ends, is
    cancelled only once.
    """

    def __init__(self, task: "asyncio.Task[object]") -> None:
        super().__init__()
        self._task = task
        task.add_done_callback(self._come)

    def cancel(self, msg: object = None) -> bool:
        self._task.cancel(msg)
        return super().cancel(msg)

    def _come(self, _: object) -> None:
        if not self.done():
            self.set_result(None)
