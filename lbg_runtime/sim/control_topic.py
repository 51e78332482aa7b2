"""The group's control topic as a network that loses, repeats, delays and partitions; message flows are unaffected."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from lbg_runtime.core.group.control_messages import ControlMessage
from lbg_runtime.sim.chance import SeededChance
from lbg_runtime.sim.schedule import Schedule
from lbg_runtime.sim.settings import ControlSettings


class Listener(Protocol):
    """One life of a member on the topic."""

    @property
    def name(self) -> str:
        """The member's id: lives of one member are on the same side of every cut."""
        ...

    @property
    def is_reachable(self) -> bool:
        """Whether its connection currently works."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether it will never hear anything again."""
        ...

    def hear(self, message: ControlMessage) -> None:
        """A message arrived."""
        ...


@dataclass(frozen=True, slots=True)
class _Cut:
    side: frozenset[str]
    one_way: bool
    until_ms: int

    def stops(self, sender: str, listener: str) -> bool:
        if self.one_way:
            return sender in self.side and listener not in self.side
        return (sender in self.side) != (listener in self.side)


class ControlTopic:
    """Every message goes to every listener, including the sender: late, twice, after later ones, or never."""

    def __init__(
        self, schedule: Schedule, chance: SeededChance, settings: ControlSettings, noisy_until_ms: int
    ) -> None:
        """From `noisy_until_ms` on, nothing is lost or repeated, except for what a cut stops."""
        self._schedule = schedule
        self._chance = chance
        self._settings = settings
        self._noisy_until_ms = noisy_until_ms
        self._listeners: list[Listener] = []
        self._cuts: list[_Cut] = []
        self._newest_ms: dict[tuple[Listener, Listener], int] = {}

    def join(self, listener: Listener) -> None:
        """Hear everything from now on."""
        if listener not in self._listeners:
            self._listeners.append(listener)

    def part(self, listener: Listener) -> None:
        """Stop hearing; what is under way is lost too."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    def cut(self, side: Collection[str], until_ms: int, *, one_way: bool) -> None:
        """Keep one side and the others from hearing each other; with `one_way`, only that side is not heard."""
        self._cuts.append(_Cut(frozenset(side), one_way, until_ms))

    def publish(self, sender: Listener, message: ControlMessage, *, has_arrived: bool = False) -> None:
        """Send it to every listener; from a sender without a connection only if `has_arrived`: its last words."""
        if not sender.is_reachable and not has_arrived:
            return
        self._cuts = [cut for cut in self._cuts if cut.until_ms > self._schedule.now_ms]
        for listener in self._listeners:
            if not any(cut.stops(sender.name, listener.name) for cut in self._cuts):
                self._send(sender, listener, message)

    def _send(self, sender: Listener, listener: Listener, message: ControlMessage) -> None:
        chance, settings, now_ms = self._chance, self._settings, self._schedule.now_ms
        is_noisy = now_ms < self._noisy_until_ms
        if is_noisy and chance.happens(settings.loss_share):
            return
        copies = 2 if is_noisy and chance.happens(settings.repeat_share) else 1
        if listener.is_over:
            # Most listeners of a long run are lives that have ended. What others hear does not depend on them.
            chance.skip(copies)
            return
        for _ in range(copies):
            at_ms = now_ms + chance.between(0, settings.longest_delay_ms)
            if not settings.overtakes:
                at_ms = max(at_ms, self._newest_ms.get((sender, listener), 0))
                self._newest_ms[sender, listener] = at_ms
            self._schedule.at(at_ms, lambda: self._arrive(listener, message))

    def _arrive(self, listener: Listener, message: ControlMessage) -> None:
        if listener in self._listeners and listener.is_reachable:
            listener.hear(message)
