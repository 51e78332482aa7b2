"""A process that can stand still, hang and die."""

from collections import deque

from lbg_runtime.sim.schedule import Call, Schedule


class Process:
    """All that happens inside one member goes through `run`, so that a pause holds it back and an end ends it.

    What the client's own threads do goes through `run_beside`: a loop that hangs does not hold it back.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._held_back: deque[Call] = deque()
        self.is_alive = True
        self.is_paused = False
        self.is_hung = False
        self.keeps_settlements = False
        """Whether the client, while the loop hangs, sends nothing of what was settled."""

    @property
    def stands_still(self) -> bool:
        """Whether it is paused, or its loop hangs."""
        return self.is_paused or self.is_hung

    @property
    def now_ms(self) -> int:
        """The time of the world, for its history; nothing inside the process may live by it."""
        return self._schedule.now_ms

    def run(self, call: Call) -> None:
        """Do it now; when the process goes on, where it is paused; never, where it has ended."""
        if not self.is_alive:
            return
        if self.stands_still:
            self._held_back.append(call)
        else:
            call()

    def run_beside(self, call: Call) -> None:
        """The same for what needs no loop."""
        if self.is_hung and self.is_alive:
            call()
        else:
            self.run(call)

    def reach_loop(self, call: Call) -> None:
        """From inside, on whatever thread: do it on the loop; when the loop goes on, where it hangs."""
        if self.is_hung:
            self._held_back.append(call)
        else:
            call()

    def after(self, delay_ms: int, call: Call) -> None:
        """A timer of the process."""
        self._schedule.after(delay_ms, lambda: self.run(call))

    def after_beside(self, delay_ms: int, call: Call) -> None:
        """A timer of the client's own threads."""
        self._schedule.after(delay_ms, lambda: self.run_beside(call))

    def pause(self, until_ms: int) -> None:
        """Stand still; frames and timers wait and come in their order when the process goes on."""
        self.is_paused = True
        self._schedule.at(until_ms, self._resume)

    def hang(self, until_ms: int | None, *, keeps_settlements: bool) -> None:
        """The loop stands still, the client's threads go on; None: to the end of the process."""
        self.is_hung, self.keeps_settlements = True, keeps_settlements
        if until_ms is not None:
            self._schedule.at(until_ms, self._resume)

    def end(self) -> None:
        """The process is gone."""
        self.is_alive = False
        self._held_back.clear()

    def _resume(self) -> None:
        self.is_paused = self.is_hung = self.keeps_settlements = False
        while self._held_back and self.is_alive:
            self._held_back.popleft()()
