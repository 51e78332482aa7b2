"""What the files of a run reveal that keeps a verdict from being valid, and which laws that leaves unproven.

The judge asks at the end of a run, and the standing of a run that goes on asks with every slice; both get the same
answer.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from lbg_runtime.validator.arrow import texts
from lbg_runtime.validator.book import HOST_CLOCK_TOLERANCE_MS
from lbg_runtime.validator.columns import read_lives
from lbg_runtime.validator.findings import Law, Restriping

T = TypeVar("T")

NEEDS_EVERY_JOURNAL = frozenset(
    {
        Law.LOSS,
        Law.ORDER,
        Law.DUPLICATE_WITHOUT_FAULT,
        Law.DUPLICATE_UNFLAGGED,
        Law.STARTED_AFTER_LOSS,
        Law.SHARD_HANDLED_AFTER_LEAVING,
        Law.SHARD_HANDLED_BEFORE_ARRIVING,
    }
)
"""A missing record could be the very handling, first handling, fault, activity or leaving that is not found."""

NEEDS_ITS_TIME = NEEDS_EVERY_JOURNAL - {Law.LOSS}
"""What was judged without a record that came late is not judged again; of a loss, nothing is said before the end."""

NEEDS_CLOCKS = frozenset(
    {
        Law.ORDER,
        Law.OVERLAP_ACROSS_PROCESSES,
        Law.DUPLICATE_WITHOUT_FAULT,
        Law.DUPLICATE_UNFLAGGED,
        Law.TWO_ACTIVE,
        Law.SHARD_HANDLED_AFTER_LEAVING,
        Law.SHARD_HANDLED_BEFORE_ARRIVING,
    }
)
"""What one member did is compared with what another did before or after."""

NEEDS_EVERY_LEDGER = frozenset({Law.DUPLICATE_WITHOUT_FAULT, Law.DUPLICATE_UNFLAGGED})
"""A missing record could be the second sending."""


@dataclass(frozen=True, slots=True)
class Doubts:
    """Why a verdict cannot be valid, one sentence each, and the laws whose violations are therefore not proven."""

    reasons: tuple[str, ...]
    weak: frozenset[Law]


def doubts_of_files(journals: pa.Table, ledgers: pa.Table, restripings: Sequence[Restriping]) -> Doubts:
    """The doubts that follow from the tables of files. Rows without a name are not files: they keep a number free."""
    journals, ledgers = (files.filter(pc.not_equal(files.column("file"), "")) for files in (journals, ledgers))
    mixed = _mixed_files(journals, ledgers)
    of_journals = _incomplete(journals, "there is no member journal") + _unheard_members(journals)
    of_ledgers = _incomplete(ledgers, "there is no publisher ledger, so loss cannot be excluded")
    of_clocks = _clocks_apart(journals)
    others = _disagreement("hash_count", journals, ledgers) + _unexplained_queue_counts(restripings, journals)
    weak = frozenset(Law) if mixed else frozenset[Law]()
    weak |= NEEDS_EVERY_JOURNAL if of_journals else frozenset()
    weak |= NEEDS_EVERY_LEDGER if of_ledgers else frozenset()
    weak |= NEEDS_CLOCKS if of_clocks else frozenset()
    return Doubts((*mixed, *of_journals, *of_ledgers, *of_clocks, *others), weak)


def _clocks_apart(journals: pa.Table) -> list[str]:
    """Why wall clocks must differ by more than they may, with the widest gap; empty if nothing shows it.

    A queue that was taken, by the taker's clock, before the giver had asked the broker to release it, by its own.
    """
    lives, hosts = read_lives(journals), texts(journals, "host")
    given = {
        move_id: (life, asked_ns + int(lives.offset_ns[life]))
        for life, moves in enumerate(texts(journals, "given"))
        for move_id, asked_ns in orjson.loads(moves or "{}").items()
    }
    apart_ns, between = 0, (0, 0)
    for taker, moves in enumerate(texts(journals, "taken")):
        for move_id, taken_ns in orjson.loads(moves or "{}").items():
            giver, asked_ns = given.get(move_id, (taker, 0))
            before_ns = asked_ns - taken_ns - int(lives.offset_ns[taker])
            if lives.host[giver] != lives.host[taker] and before_ns > apart_ns:
                apart_ns, between = before_ns, (giver, taker)
    if apart_ns <= HOST_CLOCK_TOLERANCE_MS * 1_000_000:
        return []
    giver, taker = between
    return [
        f"wall clocks differ by {apart_ns // 1_000_000} ms or more: by them, {lives.member[taker]} on {hosts[taker]} "
        f"took a queue before {lives.member[giver]} on {hosts[giver]} gave it up"
    ]


def _unheard_members(journals: pa.Table) -> list[str]:
    """Members that had a queue from, or for, a member whose journal is there, and left none themselves."""
    lists = (orjson.loads(names) for names in texts(journals, "named") if names)
    missing = sorted(
        {name for names in lists for name in names} - {member or "" for member in texts(journals, "member")}
    )
    return [f"there is no journal of member {name}, whom others name" for name in missing]


def _mixed_files(journals: pa.Table, ledgers: pa.Table) -> list[str]:
    """Files of different runs or groups prove nothing about each other."""
    reasons = []
    for name in ("run_id", "group", "hash_prefix"):
        reasons += _disagreement(name, journals, ledgers)
    # Whose journal says nothing of the group, as it never had a flow, says nothing of this either.
    of_group = journals.filter(pc.is_valid(journals.column("group")))
    backends = pc.fill_null(of_group.column("backend"), "exclusive")
    of_group = of_group.set_column(of_group.schema.get_field_index("backend"), "backend", backends)
    reasons += _disagreement("backend", of_group)
    lives = zip(texts(journals, "member"), journals.column("incarnation").to_pylist(), strict=True)
    reasons += [
        f"{len(files)} journals claim incarnation {incarnation} of member {member}: {_some(files)}"
        for (member, incarnation), files in _grouped(lives, journals).items()
        if len(files) > 1 and member is not None
    ]
    reasons += [
        f"{len(files)} ledgers claim publisher {name}: {_some(files)}"
        for name, files in _grouped(texts(ledgers, "publisher"), ledgers).items()
        if len(files) > 1 and name
    ]
    return reasons


def _grouped(values: Iterable[T], files: pa.Table) -> dict[T, list[str]]:
    """The names of files by what each has of a value."""
    names: dict[T, list[str]] = {}
    for value, name in zip(values, texts(files, "file"), strict=True):
        names.setdefault(value, []).append(name or "")
    return names


def _by_value(name: str, *tables: pa.Table) -> dict[str | int, list[str]]:
    """The files that have a value in this column, by the value."""
    found: dict[str | int, list[str]] = {}
    for table in tables:
        for value, files in _grouped(table.column(name).to_pylist(), table).items():
            if value is not None:
                found.setdefault(value, []).extend(files)
    return dict(sorted(found.items()))


def _some(files: Sequence[str]) -> str:
    """A file or two by name, and how many more there are: those to look at are few, on one side or the other."""
    shown, others = sorted(files)[:2], len(files) - 2
    return ", ".join(shown) + (f" and {others} more" if others > 0 else "")


def _disagreement(name: str, *tables: pa.Table) -> list[str]:
    files = _by_value(name, *tables)
    values = "; ".join(f"{value!r} in {_some(names)}" for value, names in files.items())
    return [f"the files disagree on {name}: {values}"] if len(files) > 1 else []


def _unexplained_queue_counts(restripings: Sequence[Restriping], journals: pa.Table) -> list[str]:
    """A header has the queue count that its member was started with, which may be that of any layout."""
    known = {count for restriping in restripings for count in (restriping.from_count, restriping.to_count)}
    if not known:
        return _disagreement("queue_count", journals)
    named = _by_value("queue_count", journals)
    strange = "; ".join(f"{count} in {_some(files)}" for count, files in named.items() if count not in known)
    layouts = ", ".join(str(count) for count in sorted(known))
    told = f"the files disagree on queue_count: headers name {strange}, the records of re-stripings {layouts}"
    return [told] if strange else []


def _incomplete(files: pa.Table, absence: str) -> list[str]:
    reasons = [] if files.num_rows else [absence]
    for row in files.select(["file", "torn", "dropped", "defect"]).to_pylist():
        if row["defect"]:
            reasons.append(f"{row['file']}: {row['defect']}")
        if row["dropped"]:
            # Without its last line, a file does not say how many records were dropped in all.
            least = "at least " if row["torn"] else ""
            reasons.append(f"{row['file']}: {least}{row['dropped']} records were dropped")
    return reasons
