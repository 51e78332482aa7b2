"""Random requests that a control plane could make of the members' flows: sensible moves and nonsense alike.

Not a fault: whatever is asked, at any time, may cost time, but never order, a message or a duplicate.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from enum import Enum
from typing import assert_never

from lbg_runtime.core.flow.events import HandBackRequested, PlaceChanged, StepAsideCancelled, StepAsideRequested
from lbg_runtime.core.roles import Place
from lbg_runtime.model.ids import QueueName
from lbg_runtime.sim.chance import SeededChance
from lbg_runtime.sim.member import SimMember
from lbg_runtime.sim.schedule import Schedule

LONGEST_STEP_ASIDE_MS = 1_500


class RequestKind(Enum):
    """What can be requested."""

    MOVE = "move"
    """A queue is to go to one member: it is placed there, and all others hand it back and step aside."""
    PLACE = "place"
    HAND_BACK = "hand_back"
    STEP_ASIDE = "step_aside"
    CANCEL = "cancel"
    """Nobody needs to step aside any more."""


class ControlNoise:
    """Makes requests of random members until its time is over; then everybody is placed as planned."""

    def __init__(
        self,
        schedule: Schedule,
        chance: SeededChance,
        queues: Sequence[QueueName],
        alive: Callable[[], list[SimMember]],
        gap_ms: int,
        until_ms: int,
    ) -> None:
        """`gap_ms` is the longest time between two requests."""
        self.requests: Counter[RequestKind] = Counter()
        self._schedule = schedule
        self._chance = chance
        self._queues = queues
        self._alive = alive
        self._gap_ms = gap_ms
        self._until_ms = until_ms

    def start(self) -> None:
        """Make the first request soon, and continue."""
        at_ms = self._schedule.now_ms + self._chance.between(1, self._gap_ms)
        if at_ms < self._until_ms:
            self._schedule.at(at_ms, self._ask)
        else:
            self._schedule.at(self._until_ms, self._end)

    def _ask(self) -> None:
        alive = self._alive()
        if alive:
            kind = self._chance.pick(tuple(RequestKind))
            self.requests[kind] += 1
            self._make(kind, self._chance.pick(alive), self._chance.pick(self._queues), alive)
        self.start()

    def _make(self, kind: RequestKind, member: SimMember, queue: QueueName, alive: list[SimMember]) -> None:
        chance = self._chance
        for_ms = chance.between(0, LONGEST_STEP_ASIDE_MS)
        match kind:
            case RequestKind.MOVE:
                member.request(queue, PlaceChanged(Place(0, gives_way=False)))
                others = [other for other in alive if other is not member]
                for rank, other in enumerate(others, start=1):
                    other.request(queue, PlaceChanged(Place(rank, gives_way=False)))
                    other.request(queue, StepAsideRequested(other.clock.now_ms + for_ms))
                    other.request(queue, HandBackRequested("move"))
            case RequestKind.PLACE:
                place = Place(chance.pick((None, 0, 1, 2)), gives_way=chance.happens(0.3))
                member.request(queue, PlaceChanged(place))
            case RequestKind.HAND_BACK:
                member.request(queue, HandBackRequested("alone"))
            case RequestKind.STEP_ASIDE:
                member.request(queue, StepAsideRequested(member.clock.now_ms + for_ms))
            case RequestKind.CANCEL:
                member.request(queue, StepAsideCancelled())
            case _:
                assert_never(kind)

    def _end(self) -> None:
        for member in self._alive():
            for queue in self._queues:
                member.request(queue, PlaceChanged(member.planned_place(queue)))
                member.request(queue, StepAsideCancelled())
