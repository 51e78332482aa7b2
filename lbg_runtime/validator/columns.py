"""Arrow tables to NumPy columns: text to codes, nulls to flags, every moment on one clock."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lbg_runtime.validator.arrow import flags, ints, is_one_of, present, texts
from lbg_runtime.validator.layouts import Layouts, read_layouts
from lbg_runtime.validator.past import KNOWN, NO_PAST, Marks, Past
from lbg_runtime.validator.schema import RunTables
from lbg_runtime.validator.segments import FAR_FUTURE, Flags, Ints, dense

NONE = -1
"""Code of a missing text or shard."""

_WAKING_NS = 2_000_000_000
"""How long a member that stood still may afterwards receive what had been sent to it before."""


class Lexicon:
    """Texts of several columns as numbers, the same number for the same text; `NONE` for null."""

    def __init__(self, *columns: pa.ChunkedArray) -> None:
        chunks = [chunk for column in columns for chunk in column.chunks]
        encoded = pa.concat_arrays(chunks or [pa.array([], pa.string())]).dictionary_encode()
        self._texts = encoded.dictionary
        codes: Ints = pc.fill_null(encoded.indices, NONE).to_numpy(zero_copy_only=False).astype(np.int64)
        self.columns: list[Ints] = np.split(codes, np.cumsum([len(column) for column in columns])[:-1])
        """Codes of the columns given, in their order."""

    def text(self, code: int) -> str | None:
        value: str | None = None if code == NONE else self._texts[code].as_py()
        return value

    def ranks(self) -> Ints:
        """Per code, its place in the order of the texts; the last element is for `NONE`, which sorts first."""
        names: list[str] = self._texts.to_pylist()
        ranks = np.zeros(len(names) + 1, dtype=np.int64)
        ranks[sorted(range(len(names)), key=names.__getitem__)] = np.arange(1, len(names) + 1)
        return ranks

    def arrow(self, codes: Ints) -> pa.Array:
        """The texts of codes, null for `NONE`."""
        return self._texts.take(pa.array(codes, mask=codes == NONE))


@dataclass(frozen=True, slots=True)
class Lives:
    """The members' lives, one per journal, by the row number of its file."""

    member: Sequence[str]
    incarnation: Ints
    host: Ints
    """Code of the host from one boot to the next: lives with the same code share a monotonic clock."""
    ended_uncleanly: Flags
    """The process died, or left with something in flight."""
    last_ns: Ints
    offset_ns: Ints
    """What was added to the file's monotonic times."""
    wall_ns: int
    """How far the wall clock is ahead of the times here."""
    queue_count: int
    """Of the group, as most journals have it."""
    is_partitioned: bool
    """Whether members share queues, and the broker decides which of them gets which key."""
    pauses: Mapping[int, Sequence[tuple[int, int]]]
    """For each life that stood still for a time, from when to when, in order of time."""

    def before(self, journal: Ints, moments_ns: Ints, span_ns: int) -> Ints:
        """Per life and moment, the moment `span_ns` earlier, not counting the time in which the life stood still.

        While it stands still, it neither sends what it has settled nor notices that nobody answers.
        """
        found: Ints = moments_ns - span_ns
        for life, pauses in self.pauses.items():
            rows = np.flatnonzero(journal == life)
            for begin, end in reversed(pauses):
                stopped = np.minimum(end, moments_ns[rows]) - begin
                found[rows] -= np.where((stopped > 0) & (found[rows] < begin + stopped), stopped, 0)
        return found

    def happened_at(self, journal: Ints, noticed_ns: Ints) -> Ints:
        """Per life and moment at which it noticed something, the earliest moment at which that may have happened.

        What it notices right after it stood still may date from the beginning of the standstill; if it stood still
        again before it had caught up, from that of the first. It has caught up when it has run for `_WAKING_NS`.
        """
        if not self.pauses:
            return noticed_ns
        happened = noticed_ns.copy()
        for life, pauses in self.pauses.items():
            for begin, end in reversed(pauses):
                happened[(journal == life) & (happened > begin) & (happened <= end + _WAKING_NS)] = begin
        return np.maximum(happened, self.before(journal, noticed_ns, _WAKING_NS))


@dataclass(frozen=True, slots=True)
class Handlings:
    """The dispatch records as columns of equal length."""

    journal: Ints
    queue: Ints
    part: Ints
    """Code of the part of the run that the queue belongs to: the queue itself, unless shards moved between queues."""
    bind_epoch: Ints
    shard: Ints
    key: Ints
    publisher: Ints
    seq: Ints
    numbered: Flags
    """The message carries publisher, key and number."""
    redelivered: Flags
    receive_ns: Ints
    """For what a member received right after it had stood still, the moment the standstill began: it may have been sent
    then."""
    start_ns: Ints
    done_ns: Ints
    settle_ns: Ints
    """On the same clock as the other times; `FAR_FUTURE` if no settlement was sent."""
    complete: Flags
    """The handling ended accepted or rejected: the message was handled."""
    marks: Marks
    """What earlier slices knew of it (past.py); 0 for what is new, which is everything if there is only one slice."""

    @property
    def new(self) -> Flags:
        """Marks those that no earlier slice had."""
        fresh: Flags = self.marks & KNOWN == 0
        return fresh


@dataclass(frozen=True, slots=True)
class Ranges:
    """Ranges of numbers of messages, as columns of equal length: disjoint, and sorted by the codes and the number."""

    part: Ints
    publisher: Ints
    key: Ints
    first_seq: Ints
    last_seq: Ints
    first_start_ns: Ints
    last_start_ns: Ints


@dataclass(frozen=True, slots=True)
class Columns:
    """One examination's input."""

    lives: Lives
    layouts: Layouts
    handlings: Handlings
    handled: Ranges
    """What was handled to an end in earlier slices."""
    keys: Lexicon
    """Columns: key of dispatches, confirmed, unconfirmed; of the past: handled, listed, key_shards."""
    publishers: Lexicon
    """Columns: publisher of the same."""


def read_columns(tables: RunTables, lives: Lives, past: Past = NO_PAST) -> Columns:
    """Everything that more than one law needs; the tables themselves are not copied.

    `lives` are those of `tables.journals`. The rows of `past.dispatches` are the first of `tables.dispatches`.
    """
    layouts = read_layouts(tables.stripes, lives.offset_ns)
    dispatches = tables.dispatches
    publisher_of_ledger = tables.ledgers.column("publisher").combine_chunks()
    carried = (past.handled, past.listed, past.key_shards)
    with_keys = (dispatches, tables.confirmed, tables.unconfirmed, *carried)
    keys = Lexicon(*(table.column("key") for table in with_keys))
    publishers = Lexicon(
        dispatches.column("publisher"),
        pa.chunked_array([publisher_of_ledger.take(tables.confirmed.column("ledger").combine_chunks())]),
        pa.chunked_array([publisher_of_ledger.take(tables.unconfirmed.column("ledger").combine_chunks())]),
        *(table.column("publisher") for table in carried),
    )
    journal, queue = ints(dispatches, "journal"), ints(dispatches, "queue")
    offset = lives.offset_ns[journal]
    done = ints(dispatches, "done_mono_ns") + offset
    settled = present(dispatches, "t_settle")
    # The wall clock only bridges the instant from done to settle, so a step of it elsewhere does no harm.
    settle = done + (ints(dispatches, "t_settle") - ints(dispatches, "t_done")) * 1000
    handlings = Handlings(
        journal=journal,
        queue=queue,
        part=layouts.parts_of(queue),
        bind_epoch=ints(dispatches, "bind_epoch"),
        shard=ints(dispatches, "shard", NONE),
        key=keys.columns[0],
        publisher=publishers.columns[0],
        seq=ints(dispatches, "seq"),
        numbered=present(dispatches, "seq") & (keys.columns[0] != NONE) & (publishers.columns[0] != NONE),
        redelivered=flags(dispatches, "redelivered"),
        receive_ns=lives.happened_at(journal, ints(dispatches, "receive_mono_ns") + offset),
        start_ns=ints(dispatches, "start_mono_ns") + offset,
        done_ns=done,
        settle_ns=np.where(settled, settle, FAR_FUTURE),
        complete=is_one_of(dispatches, "outcome", "accepted", "rejected"),
        marks=np.concatenate([past.marks, np.zeros(dispatches.num_rows - len(past.marks), dtype=np.uint8)]),
    )
    # A re-striping can reduce the number of parts; then the number of the old part tells which new one it belongs to.
    part = layouts.parts_of(ints(past.handled, "part"))
    numbers = (ints(past.handled, name) for name in ("first_seq", "last_seq", "first_start_ns", "last_start_ns"))
    handled = Ranges(part, publishers.columns[3], keys.columns[3], *numbers)
    return Columns(lives, layouts, handlings, handled, keys, publishers)


def read_lives(journals: pa.Table) -> Lives:
    host = _clocks(journals)
    # Monotonic clocks of two hosts have nothing in common: with several hosts, each file is moved to its wall clock.
    several_hosts = len(np.unique(host[host != NONE])) > 1
    offset = ints(journals, "wall_offset_ns") if several_hosts else np.zeros(len(host), dtype=np.int64)
    walls = ints(journals, "wall_offset_ns")[present(journals, "wall_offset_ns")]
    queue_counts = ints(journals, "queue_count")[present(journals, "queue_count")]
    return Lives(
        member=[member or "?" for member in texts(journals, "member")],
        incarnation=ints(journals, "incarnation"),
        host=host,
        ended_uncleanly=flags(journals, "torn") | ~flags(journals, "clean"),
        last_ns=ints(journals, "last_mono_ns") + offset,
        offset_ns=offset,
        wall_ns=0 if several_hosts or not len(walls) else median_low(walls.tolist()),
        queue_count=median_low(queue_counts.tolist()) if len(queue_counts) else 1,
        is_partitioned="partitioned" in texts(journals, "backend"),
        pauses={
            life: sorted(_pause(text, int(offset[life])) for text in pauses.split())
            for life, pauses in enumerate(texts(journals, "pauses"))
            if pauses
        },
    )


def _clocks(journals: pa.Table) -> Ints:
    """Per journal, a code of its host and its host's boot; `NONE` without a host."""
    names = Lexicon(journals.column("host"), journals.column("boot_id"))
    host, start = names.columns
    for each in np.unique(host[start != NONE]).tolist():
        # A journal that does not name a boot is taken to share one with the others.
        start[(host == each) & (start == NONE)] = start[(host == each) & (start != NONE)].min()
    codes = dense(host - NONE, start - NONE)
    return np.where(host == NONE, NONE, codes)


def _pause(text: str, offset_ns: int) -> tuple[int, int]:
    begin, end = text.split(":")
    return int(begin) + offset_ns, int(end) + offset_ns
