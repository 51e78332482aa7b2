"""One network connection: frames arrive late and in order or, once it is cut, never."""

from lbg_runtime.sim.chance import SeededChance
from lbg_runtime.sim.schedule import Call, Schedule


class Link:
    """Two ordered streams between a client and the broker."""

    def __init__(self, schedule: Schedule, chance: SeededChance, longest_delay_ms: int) -> None:
        self._schedule = schedule
        self._chance = chance
        self._longest_delay_ms = longest_delay_ms
        self._last_up_ms = 0
        self._last_down_ms = 0
        self._up_is_cut = False
        self._down_is_cut = False
        self.cut_ms: int | None = None
        """Since when frames get lost; None while the connection is whole."""

    def send_up(self, call: Call) -> None:
        """A frame from the client; `call` runs at the broker."""
        self._last_up_ms = max(self._last_up_ms, self._arrival_ms())
        self._schedule.at(self._last_up_ms, lambda: None if self._up_is_cut else call())

    def send_down(self, call: Call) -> None:
        """A frame from the broker; `call` runs at the client."""
        self._last_down_ms = max(self._last_down_ms, self._arrival_ms())
        self._schedule.at(self._last_down_ms, lambda: None if self._down_is_cut else call())

    def send_up_with_last(self, call: Call) -> None:
        """A frame that arrives at the broker as soon as all that were sent before it have."""
        at_ms = max(self._last_up_ms, self._schedule.now_ms)
        self._schedule.at(at_ms, lambda: None if self._up_is_cut else call())

    def send_down_with_last(self, call: Call) -> None:
        """A frame that arrives at the client as soon as all that were sent before it have."""
        at_ms = max(self._last_down_ms, self._schedule.now_ms)
        self._schedule.at(at_ms, lambda: None if self._down_is_cut else call())

    def cut(self) -> None:
        """Lose what is under way in both directions; neither end knows."""
        if self.cut_ms is None:
            self.cut_ms = self._schedule.now_ms
        self._up_is_cut = self._down_is_cut = True

    def close(self, call: Call) -> None:
        """The broker ends the connection: what it sent still arrives, then `call` runs at the client."""
        if self.cut_ms is None:
            self.cut_ms = self._schedule.now_ms
        self._up_is_cut = True
        self.send_down(call)

    def end_after_frames(self, call: Call) -> None:
        """The client's process is gone: what it sent still arrives, then `call` runs at the broker."""
        if self.cut_ms is None:
            self.cut_ms = self._schedule.now_ms
        self._down_is_cut = True
        # A connection that was cut before does not deliver its end either; the caller then schedules what the broker
        # notices.
        self.send_up(call)

    def _arrival_ms(self) -> int:
        return self._schedule.now_ms + self._chance.between(0, self._longest_delay_ms)
