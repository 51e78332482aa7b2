"""Applies the validator's laws to what the members of a test did.

The validator's tables are made here from records in memory, all on one virtual clock, so that a finding reads the same
in every run. They differ from those of a real run's files in three ways, each because a test knows more:

- A handling begins and ends with the user's function, not with what is wrapped around it: a wrapper that defers
  messages, releases them early, or hands them on twice is found.
- A message that still lies on its queue is not lost, nor is one that was moved. A message moved without a call of its
  handler is a handling of no length.
- What a member that the test has cut off did before it could know does not count against it (`cut_offs`).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass

import pyarrow as pa

from lbg_runtime.core.parking.identity import MessageIdentity
from lbg_runtime.model.group import GroupShape
from lbg_runtime.publisher.confirmation import Confirmation
from lbg_runtime.testing.cut_offs import CutOffs
from lbg_runtime.testing.group_broker import ACK_DELAY_S
from lbg_runtime.testing.handled import attempts_of_endings, identity_of_record
from lbg_runtime.testing.handler_watch import Attempt
from lbg_runtime.testing.life import Life
from lbg_runtime.validator.findings import Verdict
from lbg_runtime.validator.judge import validate
from lbg_runtime.validator.schema import (
    CONFIRMED,
    DISPATCHES,
    FLOWS,
    JOURNALS,
    LEDGERS,
    STRIPES,
    UNCONFIRMED,
    RunTables,
)

_Row = dict[str, object]


@dataclass(frozen=True, slots=True)
class PublishedMessages:
    """What the test's publisher knows about its messages."""

    publisher: str
    confirmed: Sequence[tuple[Confirmation, int]]
    """Each with the moment at which it was sent, on the virtual clock."""


def judge_lives(
    lives: Sequence[Life],
    broker_failures_ns: Sequence[int],
    published: PublishedMessages,
    left: set[tuple[str, int]],
    moved: set[MessageIdentity],
    shape: GroupShape,
) -> Verdict:
    """The verdict on what is recorded so far; `left` are the key and number of messages that lie on a queue.

    `moved` are those in the error queue or the dead message queue.
    """
    cut_offs = [CutOffs(life.records.flows, [*life.cut_off_ns, *broker_failures_ns], life.resumed_ns) for life in lives]
    tables = RunTables(
        dispatches=_table(
            DISPATCHES, "journal", [_dispatches(*each, moved, shape) for each in zip(lives, cut_offs, strict=True)]
        ),
        flows=_table(FLOWS, "journal", [map(asdict, each.flows) for each in cut_offs]),
        stripes=_table(STRIPES, "journal", [map(asdict, life.records.stripes) for life in lives]),
        confirmed=_table(CONFIRMED, "ledger", [_confirmed(published, left, moved)]),
        unconfirmed=UNCONFIRMED.empty_table(),
        journals=pa.Table.from_pylist([_journal(life, shape) for life in lives], JOURNALS),
        ledgers=pa.Table.from_pylist([_ledger(published, shape)], LEDGERS),
    )
    return validate(tables, ack_window_ms=round(ACK_DELAY_S * 1_000))


def _dispatches(life: Life, cut_offs: CutOffs, moved: set[MessageIdentity], shape: GroupShape) -> Iterator[_Row]:
    for ending, every_attempt in zip(life.records.endings, attempts_of_endings(life, shape), strict=True):
        record = ending.record
        identity = identity_of_record(record)
        for attempts in _handlings(every_attempt):
            # If the handler was never called, it has no length: no other handling of the key contains its beginning.
            start_ns = min((attempt.start_ns for attempt in attempts), default=ending.started_ns)
            ends = [attempt.end_ns for attempt in attempts]
            is_over = None not in ends and (bool(ends) or identity is None or identity in moved)
            done_ns = max((end for end in ends if end is not None), default=ending.written_ns if ends else start_ns)
            start_ns, done_ns = cut_offs.judged_span(record.queue, record.bind_epoch, start_ns, done_ns)
            yield {
                "queue": record.queue,
                "bind_epoch": record.bind_epoch,
                "shard": record.shard,
                "key": record.key,
                "publisher": record.publisher,
                "seq": record.seq,
                "redelivered": record.redelivered,
                "receive_mono_ns": record.receive_mono_ns,
                "start_mono_ns": start_ns,
                "done_mono_ns": done_ns,
                "t_done": done_ns // 1_000,
                # What the test saw of the function is not an outcome of the runtime, and so says nothing about its
                # settlement.
                "t_settle": None if record.t_settle is None or not is_over else ending.written_ns // 1_000,
                "outcome": record.outcome if is_over else "cancelled",
            }


def _handlings(attempts: Sequence[Attempt]) -> list[list[Attempt]]:
    """The calls of one delivery's handler: one list, or one for each successful end after which it was called again.

    Not if the runtime tried again because something around the handler failed after its success.
    """
    found: list[list[Attempt]] = [[]]
    for attempt in attempts:
        if found[-1] and found[-1][-1].is_good and found[-1][-1].runtime_attempt == attempt.runtime_attempt:
            found.append([])
        found[-1].append(attempt)
    return found


def _confirmed(published: PublishedMessages, left: set[tuple[str, int]], moved: set[MessageIdentity]) -> Iterator[_Row]:
    for confirmation, sent_ns in published.confirmed:
        key, number = confirmation.key, confirmation.key_sequence
        if (key, number) not in left and (key, published.publisher, number) not in moved:
            yield {
                "key": key,
                "shard": confirmation.shard,
                "first_seq": number,
                "last_seq": number,
                "t_first": sent_ns // 1_000,
            }


def _journal(life: Life, shape: GroupShape) -> _Row:
    return _file(f"{life.member}-{life.number}", shape) | {
        "queue_count": shape.queue_count,
        "backend": life.backend.value,
        "member": life.member,
        "incarnation": life.number,
        "host": "",
        "torn": not life.records.is_closed,
        "clean": life.records.is_clean,
        "last_mono_ns": life.records.last_ns,
        "wall_offset_ns": 0,
    }


def _ledger(published: PublishedMessages, shape: GroupShape) -> _Row:
    return _file("ledger", shape) | {"publisher": published.publisher, "torn": False, "clean": True}


def _file(name: str, shape: GroupShape) -> _Row:
    return {
        "file": name,
        "run_id": "",
        "group": shape.name,
        "hash_prefix": shape.hash_prefix,
        "hash_count": shape.hash_count,
        "dropped": 0,
        "defect": None,
    }


def _table(schema: pa.Schema, file_column: str, rows: Iterable[Iterable[_Row]]) -> pa.Table:
    """One table with the rows of several files, each with the number of its file."""
    return pa.Table.from_pylist([{**row, file_column: n} for n, file in enumerate(rows) for row in file], schema)
