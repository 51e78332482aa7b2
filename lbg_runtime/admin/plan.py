"""The steps from the actual state to the desired one, in an order that may be interrupted anywhere. Pure.

Nothing is reachable before it is complete. Profiles come before the username that refers to them, a queue takes
messages only when it has all its subscriptions, the first queue comes when all others have theirs, the stored settings
when all queues are in use, and the username is enabled last: an enabled username without stored settings is somebody
else's. The way back is the same in reverse. A run that was killed is finished by the next one, as each looks at what is
there and not at what was planned.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from lbg_runtime.admin.objects import (
    INTERRUPTING,
    NEVER_READ,
    NEWER,
    SWITCHES,
    TOPIC_RULES,
    Attributes,
    ObjectKind,
    Ref,
    State,
)
from lbg_runtime.semp.answer import Json


@dataclass(frozen=True, slots=True)
class Create:
    """Add an object; attributes that are not given have the broker's defaults."""

    ref: Ref
    attributes: Attributes


@dataclass(frozen=True, slots=True)
class Change:
    """Set attributes of an object that exists."""

    ref: Ref
    attributes: Attributes
    before: Attributes
    """What these attributes were."""

    @property
    def interrupts(self) -> bool:
        """Whether clients or flows end because of it."""
        return not INTERRUPTING.get(self.ref.kind, frozenset()).isdisjoint(self.attributes)


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove an object and everything below it."""

    ref: Ref


Step = Create | Change | Delete

_PARTS_FIRST = (
    ObjectKind.ACL_PROFILE,
    *TOPIC_RULES,
    ObjectKind.CLIENT_PROFILE,
    ObjectKind.CLIENT_USERNAME,
)


def plan_apply(desired: State, actual: State) -> tuple[Step, ...]:
    """The steps after which every desired object is as desired.

    `actual` may hold objects that are not desired: of these, subscriptions of desired queues and topic rules of desired
    ACL profiles are removed and everything else is left alone. Attributes that are not desired are left alone too.
    """
    return (
        *_parts(desired, actual),
        *_queues(desired, actual),
        *_surplus(desired, actual, ObjectKind.SUBSCRIPTION),
        *_switched_on(desired, actual, ObjectKind.QUEUE),
        *_of_kind(desired, actual, ObjectKind.MARKER),
        *_switched_on(desired, actual, ObjectKind.CLIENT_USERNAME),
    )


def plan_quiet(actual: State) -> tuple[Step, ...]:
    """The steps after which no queue takes a message any more; the first part of a deletion."""
    return tuple(_switched_off(actual, ObjectKind.QUEUE, "ingressEnabled"))


def plan_delete(actual: State) -> tuple[Step, ...]:
    """The steps after which none of these objects is left; subscriptions go with their queues."""
    deletions = [
        Delete(ref)
        for kind in (ObjectKind.QUEUE, ObjectKind.CLIENT_USERNAME, ObjectKind.ACL_PROFILE, ObjectKind.CLIENT_PROFILE)
        for ref in actual
        if ref.kind is kind
    ]
    return (
        *plan_quiet(actual),
        *_switched_off(actual, ObjectKind.CLIENT_USERNAME, "enabled"),
        *(Delete(ref) for ref in actual if ref.kind is ObjectKind.MARKER),
        *_switched_off(actual, ObjectKind.QUEUE, "egressEnabled"),
        *deletions,
    )


def take_step(state: dict[Ref, Attributes], step: Step) -> None:
    """Change a state as a step does. In place: a group may have 100,000 subscriptions, and a step for each."""
    match step:
        case Create(ref, attributes):
            state[ref] = attributes
        case Change(ref, attributes):
            state[ref] = {**state[ref], **attributes}
        case Delete(ref):
            gone = [each for each in state if ref in (each, each.whole)]
            for each in gone:
                del state[each]


def after_steps(state: State, steps: Iterable[Step]) -> dict[Ref, Attributes]:
    """Another state, as it is after these steps."""
    after = dict(state)
    for step in steps:
        take_step(after, step)
    return after


def _parts(desired: State, actual: State) -> Iterator[Step]:
    for kind in _PARTS_FIRST:
        yield from _of_kind(desired, actual, kind)
        if kind in TOPIC_RULES:
            yield from _surplus(desired, actual, kind)


def _queues(desired: State, actual: State) -> Iterator[Step]:
    """Each queue with what it subscribes to, in the order of `desired`."""
    for ref, attributes in desired.items():
        if ref.kind is ObjectKind.QUEUE:
            yield from _made(ref, attributes, actual)
        elif ref.kind is ObjectKind.SUBSCRIPTION and ref not in actual:
            yield Create(ref, {})


def _of_kind(desired: State, actual: State, kind: ObjectKind) -> Iterator[Step]:
    for ref, attributes in desired.items():
        if ref.kind is kind:
            yield from _made(ref, attributes, actual)


def _made(ref: Ref, attributes: Attributes, actual: State) -> Iterator[Step]:
    """An object without its switches, which are off in a new one and left as they are in an existing one."""
    switches = SWITCHES.get(ref.kind, ())
    if ref not in actual:
        yield Create(ref, {**attributes, **dict.fromkeys(switches, False)})
    elif differing := difference(attributes, actual[ref], leave=frozenset(switches)):
        yield Change(ref, differing, {name: actual[ref].get(name) for name in differing})


def _surplus(desired: State, actual: State, kind: ObjectKind) -> Iterator[Step]:
    """Parts that a desired object should not have."""
    for ref in actual:
        if ref.kind is kind and ref not in desired and ref.whole in desired:
            yield Delete(ref)


def _switched_on(desired: State, actual: State, kind: ObjectKind) -> Iterator[Step]:
    switches = SWITCHES[kind]
    for ref, attributes in desired.items():
        if ref.kind is kind:
            wanted = {name: attributes[name] for name in switches}
            there = actual.get(ref, dict.fromkeys(switches, False))
            if differing := difference(wanted, there):
                yield Change(ref, differing, {name: there.get(name) for name in differing})


def _switched_off(actual: State, kind: ObjectKind, switch: str) -> Iterator[Step]:
    for ref, attributes in actual.items():
        if ref.kind is kind and attributes.get(switch) is not False:
            yield Change(ref, {switch: False}, {switch: attributes.get(switch)})


def difference(wanted: Attributes, there: Attributes, leave: frozenset[str] = frozenset()) -> dict[str, Json]:
    """Wanted attributes that are there with another value, or not at all; passwords are not compared."""
    ignored = leave | NEVER_READ | (NEWER - there.keys())
    return {name: value for name, value in wanted.items() if name not in ignored and there.get(name) != value}
