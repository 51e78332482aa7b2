"""From examinations to a verdict: what crosses queues, what is proven, and why it may be unknown."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lbg_runtime.model.errors import InvariantViolated
from lbg_runtime.validator.arrow import flags, ints, texts
from lbg_runtime.validator.columns import Lexicon, read_lives
from lbg_runtime.validator.doubts import NEEDS_EVERY_LEDGER, NEEDS_ITS_TIME, doubts_of_files
from lbg_runtime.validator.findings import (
    WITNESSED_FINDINGS,
    Accounts,
    Examination,
    Finding,
    Law,
    Verdict,
    VerdictKind,
    Witness,
    first_of_each_law,
    split_by_proof,
    sum_accounts,
)
from lbg_runtime.validator.kernel import DEFAULT_ACK_WINDOW_MS, examine
from lbg_runtime.validator.schema import RunTables
from lbg_runtime.validator.segments import (
    changes,
    joined_ranges,
    merged_ranges,
    positions_in_ranges,
    subtracted,
    united_ranges,
)

_BY_NUMBER = [("publisher", "ascending"), ("key", "ascending"), ("first_seq", "ascending")]


def validate(tables: RunTables, ack_window_ms: int = DEFAULT_ACK_WINDOW_MS) -> Verdict:
    """The verdict on a run whose tables fit in memory; the command line's entry point."""
    return judge([examine(tables, ack_window_ms)], tables.journals, tables.ledgers)


def judge(parts: Sequence[Examination], journals: pa.Table, ledgers: pa.Table) -> Verdict:
    """The verdict on a run from the examinations of its parts, each part in exactly one, and the files' tables.

    Raises `InvariantViolated` if a part is in two: what crosses from one to the other would not be seen.
    """
    _refuse_split_parts(parts)
    counts = Counter[Law](dict.fromkeys(Law, 0))
    for part in parts:
        counts.update(part.counts)
    findings = [finding for part in parts for finding in part.findings]
    lost, unlisted_of, unlisted, unseen = _settle_loss(parts, counts, findings)
    strangers = sorted({name or "?" for name in unlisted_of} - {name or "" for name in texts(ledgers, "publisher")})
    _settle_key_shards(parts, counts, findings)
    accounts = sum_accounts([part.accounts for part in parts])

    restripings = tuple(dict.fromkeys(restriping for part in parts for restriping in part.restripings))
    doubts = doubts_of_files(journals, ledgers, restripings)
    reasons = [*doubts.reasons, *_unclosed_ledgers(ledgers)]
    reasons += dict.fromkeys(contradiction for part in parts for contradiction in part.contradictions)
    reasons += _unaccounted(accounts, sum(part.doubtful for part in parts), unlisted, strangers)
    if unseen:
        reasons.append(
            f"a member's journal may be missing: {unseen} messages without a handling fit into times in which their "
            "queue had no owner on record"
        )
    if unplaced := sum(part.unplaced for part in parts):
        reasons.append(
            f"a member's journal may be missing: {unplaced} handlings of moved shards came before any record that "
            "their old queue had let them go, and it had no owner on record for a time"
        )
    if late := sum(part.late for part in parts):
        reasons.append(f"{late} records came when their time had been judged, and could change what was said of it")
    weak = set(doubts.weak)
    weak |= {Law.LOSS} if unseen == counts[Law.LOSS] else set()
    weak |= NEEDS_EVERY_LEDGER if strangers else set()
    weak |= NEEDS_ITS_TIME if late else set()
    proven, unproven = split_by_proof(counts, weak)
    unless_proven = VerdictKind.UNKNOWN if reasons else VerdictKind.VALID
    return Verdict(
        kind=VerdictKind.INVALID if proven else unless_proven,
        accounts=accounts,
        counts=dict(counts),
        unproven=unproven,
        reasons=tuple(reasons),
        findings=first_of_each_law(findings),
        moves=tuple(sorted((move for part in parts for move in part.moves), key=lambda m: (m.start_mono_ns, m.queue))),
        restripings=restripings,
        lost=lost,
        unended=tuple(name or "?" for name in texts(journals.filter(pc.field("torn")), "file")) if len(lost) else (),
        wall_ns=read_lives(journals).wall_ns,
    )


def _refuse_split_parts(parts: Sequence[Examination]) -> None:
    split = [code for code, count in Counter(code for part in parts for code in part.parts).items() if count > 1]
    if split:
        raise InvariantViolated(f"part {min(split)} of the run was given to two examinations")


def _settle_loss(
    parts: Sequence[Examination], counts: Counter[Law], findings: list[Finding]
) -> tuple[pa.Table, set[str | None], int, int]:
    """Write down the losses.

    Returns all of them (`Verdict.lost`), the publishers of handled messages that no ledger lists, how many such
    messages there are, and how many of the losses are not proven because a member without a journal may have handled
    the messages.

    A message missing in one queue may have been handled, unlisted, through another: a wrong stripe, not a loss.
    """
    unhandled = pa.concat_tables([part.unhandled for part in parts]).sort_by(_BY_NUMBER)
    unlisted = pa.concat_tables([part.unlisted for part in parts])
    names = Lexicon(*(table.column(name) for table in (unhandled, unlisted) for name in ("publisher", "key")))
    range_publisher, range_key, publisher, key = names.columns
    # Codes stay below 2**31, as the tables have no more rows than that; the missing publisher has code -1.
    code, start = (range_publisher + 1) << 31 | range_key, ints(unhandled, "first_seq")
    ranges = merged_ranges(code, start, ints(unhandled, "last_seq"))
    handled = united_ranges((publisher + 1) << 31 | key, ints(unlisted, "first_seq"), ints(unlisted, "last_seq"))
    lost, strayed = subtracted(ranges, handled), subtracted(handled, ranges)
    # The ranges of the parts are disjoint, so merging has only sorted them.
    row = np.lexsort((start, code))[positions_in_ranges(ranges, lost[0], lost[1])]
    shard, unseen = ints(unhandled, "shard")[row], flags(unhandled, "unseen")[row]
    begin, end = joined_ranges(lost[0] * 2 + unseen, lost[1], lost[2])
    lost, shard, unseen = (lost[0][begin], lost[1][begin], lost[2][end]), shard[begin], unseen[begin]
    lengths = lost[2] - lost[1] + 1
    counts[Law.LOSS] += int(np.sum(lengths))
    shown = np.argsort(unseen, kind="stable")[:WITNESSED_FINDINGS]
    for group, low, high, its_shard in zip(*(column[shown].tolist() for column in (*lost, shard)), strict=True):
        publisher_name, key_name = names.text((group >> 31) - 1), names.text(group & 0x7FFFFFFF)
        numbers = str(low) if low == high else f"{low} to {high}"
        text = f"{publisher_name}/{key_name}: {numbers} confirmed, never handled to an end"
        witness = Witness(record="confirmed", shard=its_shard, publisher=publisher_name, key=key_name, seq=low)
        findings.append(Finding(Law.LOSS, text, (witness,)))
    columns = [
        names.arrow((lost[0] >> 31) - 1),
        names.arrow(lost[0] & 0x7FFFFFFF),
        pa.array(lost[1]),
        pa.array(lost[2]),
    ]
    all_lost = pa.table(columns, names=["publisher", "key", "first_seq", "last_seq"])
    of_whom = {names.text((group >> 31) - 1) for group in np.unique(strayed[0]).tolist()}
    return all_lost, of_whom, int(np.sum(strayed[2] - strayed[1] + 1)), int(np.sum(lengths[unseen]))


def _settle_key_shards(parts: Sequence[Examination], counts: Counter[Law], findings: list[Finding]) -> None:
    """Write down the keys that lie in more than one shard."""
    table = pa.concat_tables([part.key_shards for part in parts])
    names = Lexicon(table.column("key"))
    key, shard = names.columns[0], ints(table, "shard")
    order = np.lexsort((shard, key))
    # One part per queue can name the same pair again, when a wrong stripe brings a shard through two queues.
    order = order[changes(key[order], shard[order])]
    repeated = np.unique(key[order][~changes(key[order])])
    counts[Law.KEY_ON_TWO_SHARDS] += len(repeated)
    by_name = sorted(repeated.tolist(), key=lambda code: names.text(code) or "")
    for code in by_name[:WITNESSED_FINDINGS]:
        rows = table.take(pa.array(order[key[order] == code][:2])).to_pylist()
        witnesses = tuple(Witness(record="message", **row) for row in rows)
        text = f"key {names.text(code)!r} lies in shards " + " and ".join(str(row["shard"]) for row in rows)
        findings.append(Finding(Law.KEY_ON_TWO_SHARDS, text, witnesses))


def _unclosed_ledgers(ledgers: pa.Table) -> list[str]:
    torn = texts(ledgers.filter(pc.field("torn")), "file")
    return [
        f"{file}: the publisher did not close its ledger, so messages may be confirmed and unrecorded" for file in torn
    ]


def _unaccounted(accounts: Accounts, doubtful: int, unlisted: int, strangers: list[str]) -> list[str]:
    reasons = []
    if not accounts.published:
        reasons.append("no message was confirmed, so nothing was proven")
    if strangers:
        reasons.append(f"messages of publishers without a ledger were handled: {', '.join(strangers[:5])}")
    if unlisted:
        reasons.append(f"{unlisted} handled messages are in no ledger")
    if accounts.unnumbered:
        reasons.append(f"{accounts.unnumbered} handlings are of messages without publisher, key or number")
    if doubtful:
        reasons.append(f"{doubtful} violations hold only if the clocks of two hosts agree better than clocks do")
    return reasons
