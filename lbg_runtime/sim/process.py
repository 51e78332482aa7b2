"""A process that can stand still, hang and die."""

from collections import deque

from lbg_runtime.sim.schedule import Call, Schedule


class Process:
    """Everything that happens inside one member goes through `run`, so that a pause delays it and an end stops it.

    What the client's own threads do goes through `run_beside`: a hanging loop does not delay it.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._held_back: deque[Call] = deque()
        self.is_alive = True
        self.is_paused = False
        self.is_hung = False
        self.keeps_settlements = False
        """Whether the client sends no settlements while the loop hangs."""
        self.was_stopped_ms = 0
        """How long it was paused last; whoever heeds that sets it back."""

    @property
    def stands_still(self) -> bool:
        """Whether it is paused, or its loop hangs."""
        return self.is_paused or self.is_hung

    @property
    def now_ms(self) -> int:
        """The time of the world, for its history; nothing inside the process may go by it."""
        return self._schedule.now_ms

    def run(self, call: Call) -> None:
        """Call it now; if the process is paused, when it goes on; if it has ended, never."""
        if not self.is_alive:
            return
        if self.stands_still:
            self._held_back.append(call)
        else:
            call()

    def run_beside(self, call: Call) -> None:
        """The same for calls that do not need the loop."""
        if self.is_hung and self.is_alive:
            call()
        else:
            self.run(call)

    def reach_loop(self, call: Call) -> None:
        """From inside the process, on any thread: call it on the loop; if that hangs, when it goes on."""
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
        """Stand still; frames and timers wait and come in order when the process goes on."""
        self.is_paused = True
        paused_ms = until_ms - self._schedule.now_ms
        self._schedule.at(until_ms, lambda: self._resume(paused_ms))

    def hang(self, until_ms: int | None, *, keeps_settlements: bool) -> None:
        """The loop stands still, the client's threads go on; None means until the end of the process."""
        self.is_hung, self.keeps_settlements = True, keeps_settlements
        if until_ms is not None:
            self._schedule.at(until_ms, lambda: self._resume(0))

    def end(self) -> None:
        self.is_alive = False
        self._held_back.clear()

    def _resume(self, paused_ms: int) -> None:
        self.is_paused = self.is_hung = self.keeps_settlements = False
        self.was_stopped_ms = paused_ms
        while self._held_back and self.is_alive:
            self._held_back.popleft()()
