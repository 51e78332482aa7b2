"""The kernel's results: findings with their witnesses, owner changes, counts, the verdict."""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import astuple, dataclass
from enum import Enum
from itertools import groupby

import pyarrow as pa

WITNESSED_FINDINGS = 20
"""Findings kept with their witness, per law; all are counted."""


class Law(Enum):
    """The laws by their stable names; `kernel.py` says at its top what each demands."""

    LOSS = "loss"
    ORDER = "order"
    OVERLAP_IN_PROCESS = "overlap_in_process"
    OVERLAP_ACROSS_PROCESSES = "overlap_across_processes"
    DUPLICATE_WITHOUT_FAULT = "duplicate_without_fault"
    DUPLICATE_UNFLAGGED = "duplicate_unflagged"
    SETTLED_AFTER_EPOCH = "settled_after_epoch"
    SETTLED_WITHOUT_OUTCOME = "settled_without_outcome"
    SETTLED_OUT_OF_ORDER = "settled_out_of_order"
    STARTED_AFTER_LOSS = "started_after_loss"
    TWO_ACTIVE = "two_active"
    KEY_ON_TWO_SHARDS = "key_on_two_shards"
    SHARD_IN_WRONG_QUEUE = "shard_in_wrong_queue"
    SHARD_HANDLED_AFTER_LEAVING = "shard_handled_after_leaving"
    SHARD_HANDLED_BEFORE_ARRIVING = "shard_handled_before_arriving"


_PLACE = {law: place for place, law in enumerate(Law)}


class VerdictKind(Enum):
    """A proven violation makes a run invalid, whatever else is unknown; valid needs every record."""

    VALID = "valid"
    INVALID = "invalid"
    UNKNOWN = "unknown"

    @property
    def exit_code(self) -> int:
        """The exit code of a command that judges a run."""
        return {VerdictKind.VALID: 0, VerdictKind.INVALID: 1, VerdictKind.UNKNOWN: 3}[self]


@dataclass(frozen=True, slots=True)
class Witness:
    """One record that a finding rests on, with what is needed to find it in its file; None where it does not apply."""

    record: str
    """`dispatch`, `flow`, `stripes`, `confirmed`; or `message`, for one that shows where its key lies."""
    member: str | None = None
    incarnation: int | None = None
    queue: int | None = None
    epoch: int | None = None
    shard: int | None = None
    publisher: str | None = None
    key: str | None = None
    seq: int | None = None
    start_mono_ns: int | None = None
    """Start of the handling or of the activity; the moment of a `stripes` record."""
    done_mono_ns: int | None = None
    settle_mono_ns: int | None = None
    complete: bool | None = None
    """Whether the handling ended accepted or rejected."""
    redelivered: bool | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One violation and the fewest records that prove it."""

    law: Law
    text: str
    witnesses: tuple[Witness, ...]
    moment_ns: int = 0
    """When, on the clock that the run is judged on; 0 if the finding has no moment. Findings are reported in this
    order.
    """


def _order(finding: Finding) -> tuple[object, ...]:
    # Losses have no moment. By their numbers, as texts have 13 before 5.
    first = finding.witnesses[0]
    message = first.publisher or "", first.key or "", first.seq or 0
    return _PLACE[finding.law], finding.moment_ns, *message, finding.text, repr(finding.witnesses)


def first_of_each_law(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The earliest few findings of each law, in an order that does not depend on that of the findings given."""
    kept = []
    for _, group in groupby(sorted(findings, key=_order), key=lambda finding: finding.law):
        kept += list(group)[:WITNESSED_FINDINGS]
    return tuple(kept)


def split_by_proof(counts: Mapping[Law, int], weak: Set[Law]) -> tuple[tuple[Law, ...], tuple[Law, ...]]:
    """The laws with proven violations, and those with violations that missing records or clocks could explain.

    `weak` are the laws to which the latter applies. Only a proven violation makes a verdict invalid.
    """
    broken = [law for law in Law if counts[law]]
    return tuple(law for law in broken if law not in weak), tuple(law for law in broken if law in weak)


@dataclass(frozen=True, slots=True)
class Move:
    """The handling of a queue passed from one member's life to another's."""

    queue: int
    from_member: str
    to_member: str
    cause: str
    """A `ReleaseCause` as the old owner recorded it, `crash` when it could not, or `unknown`."""
    pause_ms: int
    """End of the old owner's last handling to start of the new owner's first. It includes waiting for a message to
    handle, so it is an upper bound of what the move cost; negative when the two overlapped."""
    start_mono_ns: int
    """Start of the new owner's first handling; moves are listed in this order."""
    to_incarnation: int
    to_epoch: int
    """These two and the member's name identify the flow handle that the queue came to."""


@dataclass(frozen=True, slots=True)
class Restriping:
    """The queue count of the group changed while the group went on."""

    generation: int
    from_count: int
    to_count: int
    moved: int
    """Shards recorded as having left their old queue."""


@dataclass(frozen=True, slots=True)
class Accounts:
    """Counts of messages confirmed, handled, repeated. The sums over the parts are those of the whole run."""

    published: int
    """Distinct messages that the broker confirmed."""
    handled_first: int
    """Distinct messages with a handling that was accepted or rejected."""
    duplicates: int
    """Handlings of a message after its first accepted or rejected one."""
    duplicate_bound: int
    """Duplicates that the recorded faults allow; in a valid run never below `duplicates`."""
    duplicates_flagged: int
    """Duplicates that the broker had flagged as redelivered."""
    duplicates_resent: int
    """Duplicates excused because the publisher may have sent the message twice."""
    fenced: int
    """Accepted or rejected handlings whose settlement was never sent."""
    unnumbered: int
    """Handlings of messages without publisher, key or number, which most laws cannot follow."""
    overlaps_after_loss: int
    """Handlings that started while another of their key still ran that had lost its flow, and whose message had come
    again: no consumer can prevent it."""


def sum_accounts(accounts: Sequence[Accounts]) -> Accounts:
    """The accounts of a run from those of its parts; there must be at least one."""
    return Accounts(*map(sum, zip(*map(astuple, accounts), strict=True)))


@dataclass(frozen=True, slots=True)
class Examination:
    """What one call of the kernel found out about the queues it was given; `judge` takes one or several.

    Three tables wait for the judge because their question can cross queues: `unhandled` (publisher, key, first_seq,
    last_seq, shard, unseen: confirmed here and not handled here, unless by a member whose journal is missing),
    `unlisted` (publisher, key, first_seq, last_seq: handled here, in no ledger row seen here) and `key_shards` (key,
    shard, and publisher and seq of one message that shows it).
    """

    counts: Mapping[Law, int]
    findings: tuple[Finding, ...]
    doubtful: int
    """Violations that rest on the clocks of two hosts agreeing better than clocks do; they are not in `counts`."""
    unplaced: int
    """Handlings that would break `shard_handled_before_arriving`, except that a member whose journal is missing may
    have had the queue that the shard left. They are not in `counts`."""
    parts: frozenset[int]
    """Codes of the parts it was given; no part may be split between two examinations."""
    restripings: tuple[Restriping, ...]
    """Those of the whole run."""
    contradictions: tuple[str, ...]
    """Impossible statements in the records of re-stripings; of the whole run."""
    moves: tuple[Move, ...]
    accounts: Accounts
    unhandled: pa.Table
    unlisted: pa.Table
    key_shards: pa.Table
    late: int
    """Records that came after their time had been judged, and that could change the judgement. Only if the records came
    in slices, and some came too late."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How a run stands while it goes on: what is certain by now. Standings of parts add up."""

    until_ns: int
    """The run was judged up to this moment, on its own clock."""
    counts: Mapping[Law, int]
    """Violations that no later record can change. None of loss, and none of a key in two shards: a message not handled
    yet may still be, so these wait for the end of the run."""
    published: int
    """Messages that the ledgers list by now."""
    handled_first: int
    on_the_way: int
    """Of those published, the ones without a judged handling."""
    overtaken: int
    """Of these, the ones overtaken by a higher number of their key: lost, or out of order when they come, or handled by
    a member whose journal is not here."""
    duplicates: int
    """Handlings of a message after its first complete one, most of them allowed."""
    doubtful: int
    waiting: int
    """Handlings that are not judged yet."""
    late: int
    """As `Examination` has it."""
    unnumbered: int
    reasons: tuple[str, ...] = ()
    """What the files reveal that keeps everything from being valid (`doubts.py`). A ledger that is not closed yet is no
    such reason: its publisher may go on."""
    weak: frozenset[Law] = frozenset()
    """Laws whose violations are not proven for these reasons, or because something came late."""

    @property
    def kind(self) -> VerdictKind:
        """Invalid if a violation is proven; else unknown if something cannot be proven; else valid so far."""
        if split_by_proof(self.counts, self.weak)[0]:
            return VerdictKind.INVALID
        if self.reasons or self.overtaken or self.late or self.doubtful or self.unnumbered or not self.handled_first:
            return VerdictKind.UNKNOWN
        return VerdictKind.VALID

    @property
    def unproven(self) -> tuple[Law, ...]:
        """Laws with violations that missing records or clocks could explain."""
        return split_by_proof(self.counts, self.weak)[1]


NOTHING_YET = Standing(0, dict.fromkeys(Law, 0), 0, 0, 0, 0, 0, 0, 0, 0, 0)


def total(standings: Sequence[Standing]) -> Standing:
    """The standing of a run from those of its parts."""
    if not standings:
        return NOTHING_YET
    return Standing(
        until_ns=min(each.until_ns for each in standings),
        counts={law: sum(each.counts[law] for each in standings) for law in Law},
        published=sum(each.published for each in standings),
        handled_first=sum(each.handled_first for each in standings),
        on_the_way=sum(each.on_the_way for each in standings),
        overtaken=sum(each.overtaken for each in standings),
        duplicates=sum(each.duplicates for each in standings),
        doubtful=sum(each.doubtful for each in standings),
        waiting=sum(each.waiting for each in standings),
        late=sum(each.late for each in standings),
        unnumbered=sum(each.unnumbered for each in standings),
        reasons=tuple(dict.fromkeys(reason for each in standings for reason in each.reasons)),
        weak=frozenset(law for each in standings for law in each.weak),
    )


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement on a run: its kind, the counts it rests on, and, if it is unknown, why."""

    kind: VerdictKind
    accounts: Accounts
    counts: Mapping[Law, int]
    """Violations per law, all laws listed."""
    unproven: tuple[Law, ...]
    """Laws with violations that missing records or clocks could explain; they do not make the verdict invalid."""
    reasons: tuple[str, ...]
    """Why the verdict cannot be valid, one sentence each; empty when every record is there."""
    findings: tuple[Finding, ...]
    moves: tuple[Move, ...]
    restripings: tuple[Restriping, ...]
    lost: pa.Table
    """Every violation of loss: publisher, key, first_seq, last_seq, both included. `findings` has only the first."""
    unended: tuple[str, ...] = ()
    """Files of members' lives without an end, if messages were lost: they died, or go on and may yet handle these."""
    wall_ns: int = 0
    """How far the wall clock is ahead of the moments of findings."""
