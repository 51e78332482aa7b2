"""Where one examination writes its findings: all are counted, and the first few of each law keep their witness."""

from collections.abc import Callable

import numpy as np

from lbg_runtime.validator.columns import NONE, Columns
from lbg_runtime.validator.epochs import Epochs
from lbg_runtime.validator.findings import WITNESSED_FINDINGS, Finding, Law, Witness
from lbg_runtime.validator.segments import FAR_FUTURE, Ints

HOST_CLOCK_TOLERANCE_MS = 50
"""How far the wall clocks of two hosts may differ before a difference between them proves something."""


class Book:
    """Collects the findings of one examination, and shows records as witnesses."""

    def __init__(self, columns: Columns, epochs: Epochs) -> None:
        self.counts = dict.fromkeys(Law, 0)
        self.findings: list[Finding] = []
        """The earliest of each law; if several are equally early, all of them."""
        self.doubtful = 0
        self._columns = columns
        self._epochs = epochs

    def write(
        self, law: Law, rows: Ints, moments_ns: Ints, find: Callable[[int], tuple[str, tuple[Witness, ...]]]
    ) -> None:
        """Count one finding per row; `find` words the earliest few. `moments_ns` has the moment of each row."""
        self.counts[law] += len(rows)
        if len(rows) > WITNESSED_FINDINGS:
            latest = np.partition(moments_ns, WITNESSED_FINDINGS - 1)[WITNESSED_FINDINGS - 1]
            rows, moments_ns = rows[moments_ns <= latest], moments_ns[moments_ns <= latest]
        for row, moment in zip(rows.tolist(), moments_ns.tolist(), strict=True):
            text, witnesses = find(row)
            self.findings.append(Finding(law, text, witnesses, moment))

    def write_pairs(
        self,
        law: Law,
        firsts: Ints,
        seconds: Ints,
        moments_ns: Ints,
        find: Callable[[int, int], tuple[str, tuple[Witness, ...]]],
    ) -> None:
        """Count one finding per pair; `find` words the earliest few."""
        pairs = np.arange(len(firsts))
        self.write(law, pairs, moments_ns, lambda pair: find(int(firsts[pair]), int(seconds[pair])))

    def without_doubt(
        self, firsts: Ints, seconds: Ints, first_journals: Ints, second_journals: Ints, margin_ns: Ints
    ) -> tuple[Ints, Ints]:
        """The pairs that hold whatever the hosts' clocks show; the others are counted as doubtful."""
        lives = self._columns.lives
        same_clock = lives.host[first_journals] == lives.host[second_journals]
        # On one clock, both were moved by what the wall clock showed in their life, between which it may be set.
        moved_ns = np.abs(lives.offset_ns[first_journals] - lives.offset_ns[second_journals])
        tolerance_ns = np.where(same_clock, moved_ns, HOST_CLOCK_TOLERANCE_MS * 1_000_000)
        sure = (margin_ns > tolerance_ns) | (same_clock & (moved_ns == 0))
        self.doubtful += int(np.count_nonzero(~sure))
        return firsts[sure], seconds[sure]

    def handling(self, row: int) -> Witness:
        """A dispatch record as a witness, with the times that its file shows."""
        columns, handlings = self._columns, self._columns.handlings
        journal, settle = int(handlings.journal[row]), int(handlings.settle_ns[row])
        offset, shard = int(columns.lives.offset_ns[journal]), int(handlings.shard[row])
        return Witness(
            record="dispatch",
            member=columns.lives.member[journal],
            incarnation=int(columns.lives.incarnation[journal]),
            queue=int(handlings.queue[row]),
            epoch=int(handlings.bind_epoch[row]),
            shard=None if shard == NONE else shard,
            publisher=columns.publishers.text(int(handlings.publisher[row])),
            key=columns.keys.text(int(handlings.key[row])),
            seq=int(handlings.seq[row]) if handlings.numbered[row] else None,
            start_mono_ns=int(handlings.start_ns[row]) - offset,
            done_mono_ns=int(handlings.done_ns[row]) - offset,
            settle_mono_ns=None if settle == FAR_FUTURE else settle - offset,
            complete=bool(handlings.complete[row]),
            redelivered=bool(handlings.redelivered[row]),
        )

    def stripes(self, row: int) -> Witness:
        """A record of a re-striping as a witness."""
        lives, layouts = self._columns.lives, self._columns.layouts
        journal = int(layouts.journal[row])
        return Witness(
            record="stripes",
            member=lives.member[journal],
            incarnation=int(lives.incarnation[journal]),
            queue=int(layouts.queue[row]),
            epoch=int(layouts.bind_epoch[row]),
            shard=int(layouts.shard[row]),
            start_mono_ns=int(layouts.moment_ns[row]) - int(lives.offset_ns[journal]),
        )

    def flow(self, epoch: int, start_ns: int, done_ns: int | None = None) -> Witness:
        """A flow record, or the span between two, as a witness."""
        lives, journal = self._columns.lives, int(self._epochs.journal[epoch])
        offset = int(lives.offset_ns[journal])
        return Witness(
            record="flow",
            member=lives.member[journal],
            incarnation=int(lives.incarnation[journal]),
            queue=int(self._epochs.queue[epoch]),
            epoch=int(self._epochs.number[epoch]),
            start_mono_ns=start_ns - offset,
            done_mono_ns=None if done_ns is None else done_ns - offset,
        )
