"""How a run that still goes on stands, for people and for programs; printed by `lbg validate --live DIRECTORY`."""

from collections.abc import Mapping

from lbg_runtime.model.printable import printable
from lbg_runtime.validator.findings import Standing, VerdictKind


def as_object(standing: Standing) -> Mapping[str, object]:
    """The standing as values that JSON knows. Keys are stable; more may be added."""
    return {
        "verdict_so_far": standing.kind.value,
        "published": standing.published,
        "handled_first": standing.handled_first,
        "on_the_way": standing.on_the_way,
        "overtaken": standing.overtaken,
        "duplicates": standing.duplicates,
        "violations": {law.value: count for law, count in standing.counts.items()},
        "doubtful": standing.doubtful,
        "waiting": standing.waiting,
        "late": standing.late,
        "unnumbered": standing.unnumbered,
        "unproven": [law.value for law in standing.unproven],
        "reasons": list(standing.reasons),
    }


def as_line(standing: Standing) -> str:
    facts = [f"handled {standing.handled_first}", f"on the way {standing.on_the_way}"]
    facts += [f"duplicates {standing.duplicates}", f"not judged yet {standing.waiting}"]
    for law, count in standing.counts.items():
        weak = " (not proven)" if law in standing.weak else ""
        facts += [f"{law.value} {count}{weak}"] if count else []
    facts += [f"passed over {standing.overtaken} (lost, or out of order)"] if standing.overtaken else []
    facts += [f"too late to judge {standing.late}"] if standing.late else []
    facts += [f"doubtful {standing.doubtful}"] if standing.doubtful else []
    facts += [f"without publisher, key or number {standing.unnumbered}"] if standing.unnumbered else []
    facts += [f"not provable: {reason}" for reason in standing.reasons]
    kind = "valid so far" if standing.kind is VerdictKind.VALID else standing.kind.value
    return printable(f"{kind}: {', '.join(facts)}")
