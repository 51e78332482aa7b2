"""A process that can stand still and die."""

from collections import deque

from lbg_runtime.sim.schedule import Call, Schedule


class Process:
    """All that happens inside one member goes through `run`, so that a pause holds it back and an end ends it."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._held_back: deque[Call] = deque()
        self.is_alive = True
        self.is_paused = False

    @property
    def now_ms(self) -> int:
        """The time of the world, for its history; nothing inside the process may live by it."""
        return self._schedule.now_ms

    def run(self, call: Call) -> None:
        """Do it now; when the process goes on, where it is paused; never, where it has ended."""
        if not self.is_alive:
            return
        if self.is_paused:
            self._held_back.append(call)
        else:
            call()

    def after(self, delay_ms: int, call: Call) -> None:
        """A timer of the process."""
        self._schedule.after(delay_ms, lambda: self.run(call))

    def pause(self, until_ms: int) -> None:
        """Stand still; frames and timers wait and come in their order when the process goes on."""
        self.is_paused = True
        self._schedule.at(until_ms, self._resume)

    def end(self) -> None:
        """The process is gone."""
        self.is_alive = False
        self._held_back.clear()

    def _resume(self) -> None:
        self.is_paused = False
        while self._held_back and self.is_alive:
            self._held_back.popleft()()
