"""Schemas of the tables that a run's records become; the kernel reads nothing else.

`journal` and `ledger` columns hold the row number of a file in the tables `journals` and `ledgers`, so that naming its
writer costs a dispatch four bytes. Units and meanings of the other columns are those of `model/record.py`; columns that
no law reads are left out.
"""

from dataclasses import dataclass, field

import pyarrow as pa

DISPATCHES = pa.schema(
    [
        pa.field("journal", pa.int32(), nullable=False),
        pa.field("queue", pa.int32(), nullable=False),
        pa.field("bind_epoch", pa.int32(), nullable=False),
        pa.field("shard", pa.int32()),
        pa.field("key", pa.string()),
        pa.field("publisher", pa.string()),
        pa.field("seq", pa.int64()),
        pa.field("redelivered", pa.bool_(), nullable=False),
        pa.field("receive_mono_ns", pa.int64(), nullable=False),
        pa.field("start_mono_ns", pa.int64(), nullable=False),
        pa.field("done_mono_ns", pa.int64(), nullable=False),
        pa.field("t_done", pa.int64(), nullable=False),
        pa.field("t_settle", pa.int64()),
        pa.field("outcome", pa.string(), nullable=False),
    ]
)

FLOWS = pa.schema(
    [
        pa.field("journal", pa.int32(), nullable=False),
        pa.field("queue", pa.int32(), nullable=False),
        pa.field("bind_epoch", pa.int32(), nullable=False),
        pa.field("event", pa.string(), nullable=False),
        pa.field("cause", pa.string(), nullable=False),
        pa.field("t", pa.int64(), nullable=False),
        pa.field("mono_ns", pa.int64(), nullable=False),
    ]
)

LOSSES = ("inactive", "down")
"""Events of a flow that the member has not asked for, and after which another member may be given the queue."""
ENDS = (*LOSSES, "released")
"""Events after which another member may be given the queue."""

OWNERS = pa.schema(
    [
        pa.field("journal", pa.int32(), nullable=False),
        pa.field("queue", pa.int32(), nullable=False),
        pa.field("bind_epoch", pa.int32(), nullable=False),
        pa.field("event", pa.string(), nullable=False),
        pa.field("move_id", pa.string()),
        pa.field("from_member", pa.string()),
        pa.field("to_member", pa.string()),
        pa.field("cause", pa.string(), nullable=False),
        pa.field("decided_by", pa.string(), nullable=False),
        pa.field("is_leaving", pa.bool_(), nullable=False),
        pa.field("drain_ms", pa.int64()),
        pa.field("t", pa.int64(), nullable=False),
        pa.field("mono_ns", pa.int64(), nullable=False),
    ]
)
"""What members record of owner changes; read only by `moves.py`, by no law."""

STRIPES = pa.schema(
    [
        pa.field("journal", pa.int32(), nullable=False),
        pa.field("queue", pa.int32(), nullable=False),
        pa.field("bind_epoch", pa.int32(), nullable=False),
        pa.field("event", pa.string(), nullable=False),
        pa.field("generation", pa.int64(), nullable=False),
        pa.field("from_count", pa.int32(), nullable=False),
        pa.field("to_count", pa.int32(), nullable=False),
        pa.field("shard", pa.int32()),
        pa.field("t", pa.int64(), nullable=False),
        pa.field("mono_ns", pa.int64(), nullable=False),
    ]
)
"""What is recorded of re-stripings, per queue; a run whose queue count does not change has none."""

CONFIRMED = pa.schema(
    [
        pa.field("ledger", pa.int32(), nullable=False),
        pa.field("key", pa.string(), nullable=False),
        pa.field("shard", pa.int32(), nullable=False),
        pa.field("first_seq", pa.int64(), nullable=False),
        pa.field("last_seq", pa.int64(), nullable=False),
        pa.field("t_first", pa.int64(), nullable=False),
    ]
)

UNCONFIRMED = pa.schema(
    [
        pa.field("ledger", pa.int32(), nullable=False),
        pa.field("key", pa.string(), nullable=False),
        pa.field("shard", pa.int32(), nullable=False),
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("fate", pa.string(), nullable=False),
    ]
)

_FILE_END = [
    pa.field("torn", pa.bool_(), nullable=False, metadata={"doc": "no close record: the process died"}),
    pa.field("clean", pa.bool_(), nullable=False, metadata={"doc": "closed with nothing left in flight"}),
    pa.field("dropped", pa.int64(), nullable=False, metadata={"doc": "records the writer could not keep up with"}),
    pa.field("defect", pa.string(), metadata={"doc": "why the file cannot be trusted to be whole; null when it can"}),
]

JOURNALS = pa.schema(
    [
        pa.field("file", pa.string(), nullable=False),
        pa.field("run_id", pa.string()),
        pa.field("group", pa.string()),
        pa.field("hash_prefix", pa.string()),
        pa.field("hash_count", pa.int32()),
        pa.field("queue_count", pa.int32()),
        pa.field("member", pa.string()),
        pa.field("incarnation", pa.int64()),
        pa.field("host", pa.string()),
        pa.field("backend", pa.string(), metadata={"doc": "null, as in older files, for `exclusive`"}),
        *_FILE_END,
        pa.field("last_mono_ns", pa.int64(), metadata={"doc": "latest moment any record of the file tells of"}),
        pa.field("wall_offset_ns", pa.int64(), metadata={"doc": "wall clock minus monotonic clock, early in the file"}),
        pa.field("pauses", pa.string(), metadata={"doc": "when the member stood still: `from:to`, spaces between"}),
        pa.field(
            "named", pa.string(), metadata={"doc": "members that gave it a queue or got one: a JSON list of names"}
        ),
        pa.field("boot_id", pa.string(), metadata={"doc": "null, as in older files, where the host does not tell"}),
        pa.field(
            "given", pa.string(), metadata={"doc": "JSON: by move_id, the monotonic time of asking for a release"}
        ),
        pa.field("taken", pa.string(), metadata={"doc": "JSON: by move_id, the monotonic time of noticing to be fed"}),
    ]
)
"""Header fields are null if the file has no readable header; `defect` then says so. Those about the group are null as
well if the member left without ever having had a flow."""

LEDGERS = pa.schema(
    [
        pa.field("file", pa.string(), nullable=False),
        pa.field("run_id", pa.string()),
        pa.field("group", pa.string()),
        pa.field("hash_prefix", pa.string()),
        pa.field("hash_count", pa.int32()),
        pa.field("publisher", pa.string()),
        *_FILE_END,
    ]
)


@dataclass(frozen=True, slots=True)
class RunTables:
    """Everything in the records of one run. Row order carries no meaning in the tables of records."""

    dispatches: pa.Table
    flows: pa.Table
    confirmed: pa.Table
    unconfirmed: pa.Table
    journals: pa.Table
    ledgers: pa.Table
    owners: pa.Table = field(default_factory=OWNERS.empty_table)
    stripes: pa.Table = field(default_factory=STRIPES.empty_table)
