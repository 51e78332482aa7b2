"""A small group that is re-striped, of which a conductor dies with a request on its way, which arrives late.

The shell of the conductor (runtime/restripe/restriper.py) is part of this: it reads what the queues subscribe to when
it begins, right before it publishes a plan, and once no late request can arrive any more; and it waits for that before
it publishes a plan or removes the last topic of records, if it has found one at its beginning. In between it knows only
of its own changes.
"""

from lbg_runtime.core.restripe.conductor import Conductor, CreateQueue, DeleteQueue, Publish, Subscribe, Unsubscribe
from lbg_runtime.core.restripe.conductor import Step as ConductorStep
from tests.core.histories import Step
from tests.core.restripe import small_stripe_parts
from tests.core.restripe.small_stripe_parts import Setup
from tests.core.restripe.small_stripes import SmallStripes

Request = CreateQueue | Subscribe | Unsubscribe | DeleteQueue


class LateStripes(SmallStripes):
    """A state; `die late` is among what may happen."""

    def __init__(self, setup: Setup) -> None:
        self.late_request: Request | None = None
        self.is_to_look = False
        """Whether the request has arrived, and the queues have not been read since."""
        self.known_topics: dict[int, frozenset[str]] = {}
        super().__init__(setup)

    def mark(self) -> int:
        """See `small_stripe_parts.mark`."""
        known = tuple(sorted(self.known_topics.items()))
        return hash((small_stripe_parts.mark(self), self.late_request, self.is_to_look, known))

    @property
    def seen(self) -> dict[int, frozenset[str]]:
        return self.known_topics

    # -- what can happen

    def regular_steps(self) -> list[Step]:
        found = super().regular_steps()
        if self.late_request is not None:
            found.append(("arrive",))
        return [*found, ("look",)] if self.is_to_look else found

    def steps(self) -> list[Step]:
        found = super().steps()
        # The first request of all leaves no trace (docs/restripe.md), and nobody would wait for it.
        may_be_late = self.late_request is None and self._queues().plans()
        if "die late" in self.may_happen and may_be_late and self.intent and isinstance(self.intent[1], Request):
            found.append(("die late",))
        return found

    # -- what happens

    def _die_late(self) -> None:
        assert self.intent is not None
        assert isinstance(self.intent[1], Request)
        self.late_request = self.intent[1]
        self._begin_to_conduct()

    def _arrive(self) -> None:
        request, self.late_request = self.late_request, None
        self.is_to_look = self.conductor is not None
        match request:
            case CreateQueue(index) if index not in self.queues:
                self.queues[index], self.topics[index] = (), frozenset()
            case Subscribe(index, topic) if index in self.queues:
                self.topics[index] |= {topic}
            case Unsubscribe(index, topic) if index in self.queues:
                self.topics[index] -= {topic}
            case DeleteQueue(index) if index in self.queues and index not in self.handles and not self.queues[index]:
                del self.queues[index], self.topics[index]
            case _:
                pass

    def _look(self) -> None:
        assert self.conductor is not None
        self._read()
        self._queues().ensure_informed(self.conductor.plan)

    def _read(self) -> None:
        self.known_topics, self.is_to_look = self.topics.copy(), False

    # -- the conductor

    def _begin_to_conduct(self) -> None:
        target = self.targets[0] if self.targets else 0
        if self.late_request and target and self._queues().leftover_plans(target):
            # Nothing is taken away before it can have arrived.
            self._arrive()
        super()._begin_to_conduct()
        self._read()

    def _think(self, *, is_patient: bool = True) -> tuple[Conductor, ConductorStep] | None:
        intent = super()._think(is_patient=is_patient)
        return None if intent is not None and self._has_to_wait(*intent) else intent

    def _has_to_wait(self, conductor: Conductor, step: ConductorStep) -> bool:
        is_plan = self.is_to_begin and step == Publish(conductor.plan)
        return self.late_request is not None and (is_plan or step == Unsubscribe(0, conductor.topic))

    def _conduct(self) -> None:
        assert self.intent is not None
        conductor, step = self.intent
        if self.is_to_begin and step == Publish(conductor.plan) and self.known_topics != self.topics:
            self._queues().ensure_layout(conductor.plan.from_count)
            self._read()
            return
        self.known_topics = known = self.known_topics.copy()
        is_done = False
        match step:
            case CreateQueue(index):
                is_done = index in self.queues
                known[index] = self.topics.get(index, frozenset())
            case Subscribe(index, topic):
                known[index] |= {topic}
            case Unsubscribe(index, topic):
                known[index] -= {topic}
            case DeleteQueue(index):
                is_done = index not in self.queues
                del known[index]
            case _:
                pass
        if is_done:
            self.conductor = conductor
            conductor.did(step)
        else:
            super()._conduct()
