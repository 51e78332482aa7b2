"""A verdict as one object for programs and as text for people. Pure: the caller prints."""

from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime

from lbg_runtime.model.printable import printable
from lbg_runtime.validator.findings import Finding, Law, Move, Restriping, Verdict

_MOVES_SHOWN = 20
_FINDINGS_SHOWN = 5


def as_object(verdict: Verdict) -> dict[str, object]:
    """The verdict as values that JSON knows. Keys are stable; more may be added."""
    accounts, counts = verdict.accounts, verdict.counts
    return {
        "verdict": verdict.kind.value,
        "published": accounts.published,
        "handled_first": accounts.handled_first,
        "lost": counts[Law.LOSS],
        "out_of_order": counts[Law.ORDER],
        "overlaps": counts[Law.OVERLAP_IN_PROCESS] + counts[Law.OVERLAP_ACROSS_PROCESSES],
        "overlaps_after_loss": accounts.overlaps_after_loss,
        "duplicates": accounts.duplicates,
        "duplicate_bound": accounts.duplicate_bound,
        "duplicates_flagged": accounts.duplicates_flagged,
        "duplicates_resent": accounts.duplicates_resent,
        "fenced": accounts.fenced,
        "settled_after_epoch": counts[Law.SETTLED_AFTER_EPOCH],
        "unnumbered": accounts.unnumbered,
        "violations": {law.value: counts[law] for law in Law},
        "unproven": [law.value for law in verdict.unproven],
        "reasons": list(verdict.reasons),
        "unended": list(verdict.unended),
        "moves": [_move(move) for move in verdict.moves],
        "restripings": [_restriping(restriping) for restriping in verdict.restripings],
        "witnesses": [_finding(finding, verdict.wall_ns) for finding in verdict.findings],
    }


def as_text(verdict: Verdict) -> str:
    """The verdict for people: one line of judgement, the counts, why, the first findings of each law, the moves."""
    return "\n".join(printable(line) for line in _lines(verdict))


def lost_messages(verdict: Verdict) -> Iterator[dict[str, object]]:
    """Every lost message, in the words of the witnesses."""
    for row in verdict.lost.to_pylist():
        for seq in range(row["first_seq"], row["last_seq"] + 1):
            yield {"publisher": row["publisher"], "key": row["key"], "seq": seq}


def _lines(verdict: Verdict) -> Iterator[str]:
    accounts, counts = verdict.accounts, verdict.counts
    yield f"verdict: {verdict.kind.value}"
    yield f"  published {accounts.published}, handled {accounts.handled_first}, lost {counts[Law.LOSS]}"
    overlaps = counts[Law.OVERLAP_IN_PROCESS] + counts[Law.OVERLAP_ACROSS_PROCESSES]
    ran_on = f", and {accounts.overlaps_after_loss} with what ran on where the queue was lost"
    yield f"  out of order {counts[Law.ORDER]}, overlaps {overlaps}{ran_on if accounts.overlaps_after_loss else ''}"
    yield (
        f"  duplicates {accounts.duplicates} (allowed {accounts.duplicate_bound}: handlings that a crash, "
        "a disconnect or a second sending may have hidden from the broker)"
    )
    yield f"  settlements fenced {accounts.fenced}, sent after their epoch {counts[Law.SETTLED_AFTER_EPOCH]}"
    if verdict.reasons:
        yield "not provable:" if verdict.kind.value == "unknown" else "also not provable:"
        yield from (f"  {reason}" for reason in verdict.reasons)
    for law in Law:
        if counts[law]:
            weak = ", not proven" if law in verdict.unproven else ""
            yield f"{law.value}: {counts[law]}{weak}"
            shown = [finding for finding in verdict.findings if finding.law is law][:_FINDINGS_SHOWN]
            yield from (line for finding in shown for line in _finding_lines(finding, verdict.wall_ns))
            # One finding of loss has all numbers that follow each other.
            found = verdict.lost.num_rows if law is Law.LOSS else counts[law]
            if found > len(shown):
                where = ", which lbg validate --lost FILE lists" if law is Law.LOSS else ""
                yield f"  and {found - len(shown)} more{where}"
            if law is Law.LOSS:
                yield "  what lies on a queue, is parked or was dropped by hand counts too: judge when queues are empty"
            if law is Law.LOSS and verdict.unended:
                more = f" and {len(verdict.unended) - 1} more" if len(verdict.unended) > 1 else ""
                yield (
                    f"  no end in {verdict.unended[-1]}{more}: a member that still runs may yet handle these; judge "
                    "when it has left, or with --live"
                )
    for restriping in verdict.restripings:
        yield f"queues {restriping.from_count} -> {restriping.to_count}: {restriping.moved} shards moved"
    yield f"owner changes: {len(verdict.moves)}"
    for move in verdict.moves[:_MOVES_SHOWN]:
        yield (
            f"  queue {move.queue}: {move.from_member} -> {move.to_member}, {move.cause}, "
            f"{move.pause_ms} ms from last handling to first"
        )
    if len(verdict.moves) > _MOVES_SHOWN:
        yield f"  and {len(verdict.moves) - _MOVES_SHOWN} more"


def _finding_lines(finding: Finding, wall_ns: int) -> Iterator[str]:
    at = _moment(finding, wall_ns)
    yield f"  {finding.text}" + ("" if at is None else f", at {at}")
    for witness in finding.witnesses:
        facts = {name: value for name, value in asdict(witness).items() if value is not None and name != "record"}
        yield f"    {witness.record} " + " ".join(f"{name}={value}" for name, value in facts.items())


def _finding(finding: Finding, wall_ns: int) -> dict[str, object]:
    witnesses = [
        {name: value for name, value in asdict(witness).items() if value is not None} for witness in finding.witnesses
    ]
    told: dict[str, object] = {"law": finding.law.value, "text": finding.text, "records": witnesses}
    if (at := _moment(finding, wall_ns)) is not None:
        told["at"] = at
    return told


def _moment(finding: Finding, wall_ns: int) -> str | None:
    """When it was by the wall clock, as logs have it; None if the finding has no moment."""
    if not finding.moment_ns:
        return None
    moment = datetime.fromtimestamp((finding.moment_ns + wall_ns) / 1e9, UTC)
    return moment.isoformat(timespec="milliseconds")


def _restriping(restriping: Restriping) -> dict[str, object]:
    return {
        "generation": restriping.generation,
        "from": restriping.from_count,
        "to": restriping.to_count,
        "shards_moved": restriping.moved,
    }


def _move(move: Move) -> dict[str, object]:
    return {
        "queue": move.queue,
        "from": move.from_member,
        "to": move.to_member,
        "cause": move.cause,
        "pause_ms": move.pause_ms,
    }
