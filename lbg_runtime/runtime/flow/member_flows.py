"""The flows of a member as a whole: they are run, asked to leave and counted together. Used by the supervisor."""

import asyncio
from collections.abc import Callable, Iterable

from lbg_runtime.core.flow.events import HandlingStalled
from lbg_runtime.core.flow.table import FlowState
from lbg_runtime.core.group.rebalance import AWAY
from lbg_runtime.core.roles import Place
from lbg_runtime.model.errors import InvariantViolated
from lbg_runtime.model.ids import Epoch, QueueName
from lbg_runtime.runtime.flow.runner import FlowRunner


class MemberFlows:
    """One per life of a member, which calls it on its loop."""

    def __init__(self, make: Callable[[int, Place], FlowRunner], places: Iterable[Place]) -> None:
        """`make` makes the runner of a queue, by the queue's index and the member's first place on it. `places`: the
        first places on the queues of the settings, by index."""
        self._make = make
        self.runners = [make(index, place) for index, place in enumerate(places)]
        """By the index of their queue."""
        self.have_left = asyncio.Event()
        """Set when every flow is unbound for good, or by whoever gives up waiting for that."""
        self._first_count = len(self.runners)
        self._tasks: list[asyncio.Task[None]] = []
        self._group: asyncio.TaskGroup | None = None
        self._refused = set[QueueName]()
        """Queues to which the first bind has been refused."""

    def run(self, group: asyncio.TaskGroup) -> None:
        """Run all flows as tasks of this group, also those that are added later."""
        self._group = group
        for runner in self.runners:
            self._run(runner, group)

    def add(self, queue_total: int) -> list[FlowRunner]:
        """Make and run the flows of the queues that a re-striping adds, and return them; at first, the member has no
        place on any of these queues."""
        if self._group is None:
            raise InvariantViolated("a flow was to run before its member")
        added = [self._make(index, AWAY) for index in range(len(self.runners), queue_total)]
        for runner in added:
            self.runners.append(runner)
            self._run(runner, self._group)
        return added

    def stop(self) -> None:
        """Make all flows leave for good. Idempotent."""
        for runner in self.runners:
            runner.stop()

    def cancel(self) -> None:
        """Cancel the tasks of the flows that still run."""
        for task in self._tasks:
            task.cancel()

    def give_handles_up(self) -> None:
        """See `FlowRunner.give_handle_up`."""
        for runner in self.runners:
            runner.give_handle_up()

    def end_drains_in_vain(self, is_stopped: Callable[[QueueName, Epoch], bool]) -> None:
        """End the drains of stopped queues: what such a queue still holds is not started here, so nobody waits for
        it."""
        for runner in self.runners:
            machine = runner.machine
            if machine.state is FlowState.DRAINING and is_stopped(machine.queue, machine.epoch):
                runner.post(HandlingStalled(machine.epoch, has_stopped=True))

    def note_refusal(self, runner: FlowRunner) -> bool:
        """Note that the first bind of a flow was refused for good; return whether nothing in the settings can be bound.

        That alone may end the member. If any refusal did, a queue that is deleted while a member owns it would end each
        member that gets it next, one after the other. A first bind that is still to come, as a standby's may be, is no
        refusal.
        """
        if runner.queue_index >= self._first_count:
            return False
        self._refused.add(runner.machine.queue)
        wanted = {each.machine.queue for each in self.runners if each.machine.place.is_wanted}
        return wanted <= self._refused and not any(each.was_bound for each in self.runners)

    @property
    def unanswered(self) -> dict[QueueName, int]:
        """How many dispatched deliveries have not ended, of the queues that have any."""
        return {runner.machine.queue: runner.unanswered for runner in self.runners if runner.unanswered}

    @property
    def left_behind(self) -> int:
        """See `StopReport.left_behind`."""
        return sum(runner.left_behind + runner.unanswered for runner in self.runners)

    @property
    def still_bound(self) -> int:
        """See `StopReport.still_bound`."""
        return sum(runner.is_unheard or not runner.machine.is_stopped for runner in self.runners)

    def _run(self, runner: FlowRunner, group: asyncio.TaskGroup) -> None:
        task = group.create_task(runner.run())
        self._tasks.append(task)
        task.add_done_callback(self._note_end)

    def _note_end(self, _: "asyncio.Task[None]") -> None:
        if all(task.done() for task in self._tasks):
            self.have_left.set()
