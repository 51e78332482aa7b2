"""All histories of something small: whatever may happen, at whatever moment, breaks no law and ends well."""

import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

Step = tuple[Any, ...]
"""A name, and whom it is about."""


class Breach(AssertionError):
    """A law, or something else that is promised, does not hold."""


class Small(Protocol):
    """A few machines and the world around them; the same step in the same state always leads to the same."""

    @property
    def is_at_rest(self) -> bool:
        """Whether all is handled and settled."""
        ...

    def regular_steps(self) -> Sequence[Step]:
        """What happens sooner or later, if nothing goes wrong."""
        ...

    def steps(self) -> Sequence[Step]:
        """Whatever may happen next."""
        ...

    def take(self, step: Step) -> None:
        """Let it happen; raises if a law is broken."""
        ...


MOST_STATES, MOST_STEPS = 50_000, 200
S = TypeVar("S", bound=Small)
T = TypeVar("T")

CONTAINERS: Mapping[type, Callable[[Any], object]] = {each: each.copy for each in (list, set, dict, deque)}
"""How their copies are made that `twin` does not share."""


def twin(part: T, copies: Mapping[type, Callable[[Any], object]] = CONTAINERS) -> T:
    """A copy that shares only what never changes: all that is of none of these types."""
    made = object.__new__(type(part))
    if hasattr(part, "__dict__"):
        made.__dict__ = {
            name: copies[kind](value) if (kind := type(value)) in copies else value
            for name, value in part.__dict__.items()
        }
        return made
    for name in type(part).__slots__:  # type: ignore[attr-defined]
        value = getattr(part, name)
        copy = copies.get(type(value))
        setattr(made, name, value if copy is None else copy(value))
    return made


def tell_of(name: object, histories: "Histories[Any]") -> None:
    """For a script that tries many."""
    sys.stdout.write(f"{name}: {len(histories)} {histories.problem or 'well'}\n")
    sys.stdout.flush()


def perform(world: Any, step: Step) -> None:
    """Call the method of the step's name; what may happen only so often may then happen once less."""
    name, *about = step
    if name in world.may_happen:
        place = world.may_happen.index(name)
        world.may_happen = world.may_happen[:place] + world.may_happen[place + 1 :]
    getattr(world, "_" + name.replace(" ", "_"))(*about)


class Histories(Generic[S]):
    """All states that something can come to, breadth first, so that the way to a problem is as short as can be."""

    def __init__(self, start: S, twin: Callable[[S], S], mark: Callable[[S], int], last: str) -> None:
        """`twin` copies a state to take a step in. `mark` is equal for states in which the same can happen. `last` is
        the step that is taken when nothing else goes on."""
        self.problem = ""
        """What is wrong, and the steps that lead there; empty if nothing is."""
        self._twin = twin
        self._mark = mark
        self._last = last
        self._ways: dict[int, tuple[int, Step] | None] = {mark(start): None}
        self._ends_well: set[int] = set()
        self._known: dict[tuple[int, Step], tuple[S, int]] = {}
        """Where a step led that was taken on a way to the end, until it is its turn."""
        waiting = deque([(start, mark(start))])
        while waiting and not self.problem:
            state, state_mark = waiting.popleft()
            assert len(self._ways) < MOST_STATES, (
                "with each step there are more states: something is counted without end"
            )
            self._go_to_the_end(state, state_mark)
            for step in state.steps():
                known = self._known.pop((state_mark, step), None)
                if (reached := known or self._after(state, step, state_mark)) and reached[1] not in self._ways:
                    self._ways[reached[1]] = state_mark, step
                    waiting.append(reached)

    def __len__(self) -> int:
        """Number of states."""
        return len(self._ways)

    def _after(self, state: S, step: Step, from_mark: int, way: tuple[Step, ...] = ()) -> tuple[S, int] | None:
        after = self._twin(state)
        try:
            after.take(step)
        except Exception as error:  # noqa: BLE001 - a breach, or what a machine says is impossible
            self._tell(repr(error), from_mark, (*way, step))
            return None
        return after, self._mark(after)

    def _tell(self, problem: str, state_mark: int, way: tuple[Step, ...]) -> None:
        steps = list(way[::-1])
        while (before := self._ways[state_mark]) is not None:
            state_mark, step = before
            steps.append(step)
        self.problem = self.problem or f"{problem} after {steps[::-1]}"

    def _go_to_the_end(self, state: S, from_mark: int) -> None:
        """Nothing is lost or waits for ever: if nothing more goes wrong, all is handled and settled."""
        here, seen, way = from_mark, set[int](), ()
        while here not in self._ends_well and not state.is_at_rest:
            steps = state.regular_steps() or [step for step in state.steps() if step[0] == self._last]
            if here in seen or not steps or len(seen) > MOST_STEPS:
                self._tell("nothing goes on", from_mark, way)
                return
            seen.add(here)
            reached = self._after(state, steps[0], from_mark, way)
            if reached is None:
                return
            self._known[here, steps[0]] = reached
            (state, here), way = reached, (*way, steps[0])
        self._ends_well |= seen | {here}
