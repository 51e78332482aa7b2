"""Owner changes as one object for programs and as lines for people. Pure: the caller prints."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from lbg_runtime.model.printable import printable

if TYPE_CHECKING:
    from lbg_runtime.validator.moves import OwnerChange

_DECIDERS = {
    "broker": "the broker",
    "stop": "the stop of the member",
    "cycle": "the rebind cycle",
    "stand_aside": "the other process of its id",
    "restripe": "the re-striping, which removes the queue",
}


def as_object(changes: "Sequence[OwnerChange]") -> dict[str, object]:
    """The changes as values that JSON knows. Keys are stable; more may be added."""
    listed = []
    for change in changes:
        facts = asdict(change)
        names = {"from_member": "from", "to_member": "to"}
        listed.append({names.get(name, name): value for name, value in facts.items()})
    return {"changes": listed, "causes": dict(Counter(change.cause for change in changes))}


def as_text(changes: "Sequence[OwnerChange]") -> str:
    """A line for each change, then how many changes had which cause."""
    return "\n".join(printable(line) for line in _lines(changes))


def _lines(changes: "Sequence[OwnerChange]") -> Iterator[str]:
    for change in changes:
        # The time of day: a run that takes days is read as JSON.
        at = datetime.fromtimestamp(change.t / 1e6, UTC).strftime("%H:%M:%S.%f")[:-3]
        facts = [change.cause, f"decided by {_decider(change)}"]
        facts += [f"drain {change.drain_ms} ms"] if change.drain_ms is not None else []
        facts += [f"pause {change.pause_ms} ms"] if change.pause_ms is not None else []
        facts += [f"duplicates {change.duplicates}"]
        yield f"{at} queue {change.queue}: {change.from_member or '-'} -> {change.to_member}, " + ", ".join(facts)
    causes = Counter(change.cause for change in changes)
    counted = ", ".join(f"{cause} {count}" for cause, count in sorted(causes.items()))
    yield f"owner changes: {len(changes)}" + (f" ({counted})" if counted else "")


def _decider(change: "OwnerChange") -> str:
    if change.decided_by == "offer":
        return f"{change.from_member}, which left" if change.is_leaving else f"{change.from_member}"
    return _DECIDERS.get(change.decided_by, change.decided_by)
