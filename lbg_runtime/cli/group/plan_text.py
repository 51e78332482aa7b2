"""What the administration of a group shows: plans and queues, as objects for programs and as text for people. Pure."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from rich.table import Table

from lbg_runtime.admin.group import Plan
from lbg_runtime.admin.objects import NEVER_READ, Attributes
from lbg_runtime.admin.plan import Change, Create, Delete, Step
from lbg_runtime.admin.sight import QueueSight
from lbg_runtime.admin.spec import StoredGroup
from lbg_runtime.model.counted import counted
from lbg_runtime.model.errors import UserError
from lbg_runtime.model.ids import QueueName
from lbg_runtime.model.printable import printable

_VERBS = {Create: "create", Change: "change", Delete: "delete"}
_SUBSCRIPTIONS_NAMED = 4

_MARKS = {Create: "+", Change: "~", Delete: "-"}


def plan_as_object(plan: Plan) -> dict[str, object]:
    """The plan as values that JSON knows, without secrets. Keys are stable; more may be added."""
    return {
        "clean": plan.is_clean,
        "steps": [_step_as_object(step) for step in plan.steps],
        "problems": [_error_as_object(each) for each in plan.problems],
        "surplus_queues": list(plan.surplus),
        "remarks": [_error_as_object(each) for each in plan.remarks],
    }


def plan_lines(plan: Plan) -> Iterator[str]:
    """The plan for people: a line for each object, and one line for all subscriptions of a queue."""
    yield from _step_lines(plan.steps)
    for queue in plan.surplus:
        yield f"? queue {queue} is not among those of the settings, and is left alone"
    for remark in plan.remarks:
        yield f"? {remark}"
    if plan.is_clean:
        yield "the broker is as it should be"
    elif plan.steps:
        counts = Counter(_VERBS[type(step)] for step in plan.steps)
        yield "steps: " + ", ".join(f"{count} to {verb}" for verb, count in counts.items())


def _error_as_object(error: UserError) -> dict[str, object]:
    return {"where": error.where, "found": error.found, "expected": error.expected}


def _step_line(step: Step) -> str:
    """One step, as it is carried out."""
    return f"{_MARKS[type(step)]} {step.ref}{_details(step)}"


def groups_as_table(groups: Sequence[StoredGroup]) -> Table:
    table = Table()
    for heading in ("group", "hash prefix", "shards", "queues", "hash function", "key", "client username"):
        table.add_column(heading)
    for group in groups:
        shape = group.shape
        numbers = (str(shape.hash_count), str(shape.queue_count))
        table.add_row(shape.name, shape.hash_prefix, *numbers, group.hash_function.value, group.key, group.username)
    return table


def sights_as_object(sights: Mapping[QueueName, QueueSight], now_s: int) -> dict[str, object]:
    """What the broker sees of queues, as values that JSON knows; `now_s` is Unix time."""
    return {
        queue: {
            "depth": sight.depth,
            "unacked": sight.unacked,
            "oldest_age_s": _age_s(sight, now_s),
            "redelivered": sight.redelivered,
            "rate": None if sight.rate is None else round(sight.rate, 1),
            "flows": sight.flow_count,
            "fed": sight.fed,
        }
        for queue, sight in sights.items()
    }


def sights_as_table(queues: Sequence[QueueName], sights: Mapping[QueueName, QueueSight], now_s: int) -> Table:
    """A row for each queue that should be there; rates if there are any. `now_s` is Unix time."""
    has_rates = any(sight.rate is not None for sight in sights.values())
    table = Table()
    table.add_column("queue")
    for heading in ("depth", "unacked", "oldest", "redelivered", *(["a second"] if has_rates else []), "flows"):
        table.add_column(heading, justify="right")
    table.add_column("fed client")
    for queue in queues:
        sight = sights.get(queue)
        cells = ["missing"] if sight is None else _sight_cells(sight, now_s, has_rates)
        # A client chooses its own name.
        table.add_row(queue, *map(printable, cells))
    return table


def _sight_cells(sight: QueueSight, now_s: int, has_rates: bool) -> list[str]:
    age_s = _age_s(sight, now_s)
    rate = [] if not has_rates else ["" if sight.rate is None else f"{sight.rate:.1f}"]
    oldest = "" if age_s is None else f"{age_s} s"
    numbers = [str(sight.depth), str(sight.unacked), oldest, str(sight.redelivered), *rate, str(sight.flow_count)]
    return [*numbers, sight.fed or "none"]


def _age_s(sight: QueueSight, now_s: int) -> int | None:
    # The broker's clock may be ahead of this one.
    return None if sight.oldest_spooled_at_s is None else max(0, now_s - sight.oldest_spooled_at_s)


def _step_as_object(step: Step) -> dict[str, object]:
    ref = step.ref
    told: dict[str, object] = {"do": _VERBS[type(step)], "kind": ref.kind.value, "name": ref.name}
    if ref.queue is not None:
        told["queue"] = ref.queue
    if ref.profile is not None:
        told["profile"] = ref.profile
    if isinstance(step, Create | Change):
        told["attributes"] = {name: value for name, value in step.attributes.items() if name not in NEVER_READ}
    if isinstance(step, Change):
        told |= {"before": dict(step.before), "interrupts": step.interrupts}
    return told


def _step_lines(steps: Sequence[Step]) -> Iterator[str]:
    for (kind, queue), group in groupby(steps, lambda step: (type(step), step.ref.queue)):
        together = list(group)
        if queue is None:
            yield from map(_step_line, together)
        else:
            line = f"{_MARKS[kind]} {counted(len(together), 'subscription')} of queue {queue}"
            # A few are named, so that it can be seen which shards have lost messages, or came twice.
            few = len(together) <= _SUBSCRIPTIONS_NAMED
            yield f"{line}: {', '.join(printable(step.ref.name) for step in together)}" if few else line


def _details(step: Step) -> str:
    if isinstance(step, Change):
        changes = ", ".join(
            f"{name} {_written(step.before.get(name))} -> {_written(value)}" for name, value in step.attributes.items()
        )
        return f": {changes}" + (" (ends its clients or flows)" if step.interrupts else "")
    if isinstance(step, Create) and step.attributes:
        return f": {_attributes(step.attributes)}"
    return ""


def _attributes(attributes: Attributes) -> str:
    return ", ".join(
        f"{name} {'(not shown)' if name in NEVER_READ else _written(value)}" for name, value in attributes.items()
    )


def _written(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value is None else str(value) or "''"
