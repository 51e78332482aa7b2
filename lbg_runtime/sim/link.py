"""One network connection: frames arrive late and in order or, once it is cut, never."""

from lbg_runtime.sim.chance import SeededChance
from lbg_runtime.sim.schedule import Call, Schedule


class Stream:
    """What one end sends to the other, until it is cut; a frame is a call that runs where it arrives."""

    def __init__(self, schedule: Schedule, chance: SeededChance, longest_delay_ms: int) -> None:
        self.is_cut = False
        """Whether what is under way, and all that is still sent, is lost."""
        self._schedule = schedule
        self._chance = chance
        self._longest_delay_ms = longest_delay_ms
        self._last_ms = 0
        """When the last frame arrives that took its own time."""

    def send(self, call: Call) -> None:
        """A frame that takes its time, and comes after all that were sent before it."""
        arrival_ms = self._schedule.now_ms + self._chance.between(0, self._longest_delay_ms)
        self._last_ms = max(self._last_ms, arrival_ms)
        self._arrive(self._last_ms, call)

    def send_with_last(self, call: Call) -> None:
        """A frame that arrives as soon as all that were sent before it have."""
        self._arrive(max(self._last_ms, self._schedule.now_ms), call)

    def _arrive(self, at_ms: int, call: Call) -> None:
        self._schedule.at(at_ms, lambda: None if self.is_cut else call())


class Link:
    """Two streams between a client and the broker: `up` arrives at the broker, `down` at the client."""

    def __init__(self, schedule: Schedule, chance: SeededChance, longest_delay_ms: int) -> None:
        self._schedule = schedule
        self.up = Stream(schedule, chance, longest_delay_ms)
        self.down = Stream(schedule, chance, longest_delay_ms)
        self.cut_ms: int | None = None
        """Since when frames get lost; None while the connection is whole."""

    def cut(self) -> None:
        """Lose what is under way in both directions; neither end knows."""
        self._cut(self.up, self.down)

    def close(self, call: Call) -> None:
        """The broker ends the connection: what it sent still arrives, then `call` runs at the client."""
        self._cut(self.up)
        self.down.send(call)

    def end_after_frames(self, call: Call) -> None:
        """The client's process is gone: what it sent still arrives, then `call` runs at the broker."""
        self._cut(self.down)
        # A connection that was cut before does not deliver its end either; the caller then schedules what the broker
        # notices.
        self.up.send(call)

    def _cut(self, *streams: Stream) -> None:
        if self.cut_ms is None:
            self.cut_ms = self._schedule.now_ms
        for stream in streams:
            stream.is_cut = True
