"""Waiting for a task of one's own, so that what cancels the one who waits is known to come from elsewhere."""

import asyncio
from contextlib import ExitStack
from math import inf

import anyio


async def until_ended(task: "asyncio.Task[object]") -> None:
    """Wait until the task has ended, however it does. Whatever cancels the caller cancels the task as well, each time.

    Once the task has ended, the first cancellation is raised, whatever has become of it in there; but not in place of
    an error of the task.
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
                    # A cancel scope of anyio goes on cancelling in each turn of the loop, which is no wish to hurry.
                    shielded.enter_context(anyio.CancelScope(shield=True))
    if cancellation is not None and (task.cancelled() or task.exception() is None):
        raise cancellation


class _End(asyncio.Future[None]):
    """Comes with the end of a task, and cancels it at once if it is cancelled itself.

    So a task that is cancelled in the same turn, as all are when a loop ends, is cancelled once.
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
