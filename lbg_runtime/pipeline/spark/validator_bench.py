"""A large synthetic run, and the validator's questions as SQL for DuckDB and Spark: for `lbg bench pipeline`.

The run is clean except for what is seeded: messages that nobody handled, and copies that were handled although nothing
had failed. It is written in the layout of `journal/layout.py`, so that all of them read the same files.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lbg_runtime.journal.layout import ROW_GROUP_RECORDS
from lbg_runtime.validator.schema import (
    CONFIRMED,
    DISPATCHES,
    FLOWS,
    JOURNALS,
    LEDGERS,
    OWNERS,
    STRIPES,
)
from lbg_runtime.validator.segments import Ints

QUEUES, SHARDS, KEYS = 16, 128, 50_000
_MEMBERS = 4
_SPACING_NS = 20_000
"""Between consecutive handlings of a queue."""
_LOST, _COPIES = 12, 30
"""Per queue."""


@dataclass(frozen=True, slots=True)
class Seeded:
    """What is wrong with a synthetic run."""

    handlings: int
    lost: int
    copies: int


def make_run(run: Path, records: int) -> Seeded:
    """Lay out a run of about `records` handlings in a new folder: 16 queues, 4 members, 50,000 keys, some hot."""
    chance = np.random.default_rng(1)
    run.mkdir(parents=True)
    handlings = sum(_make_queue(run, queue, records // QUEUES, chance) for queue in range(QUEUES))
    end = {"torn": False, "clean": True, "dropped": 0, "defect": None}
    group = {"run_id": run.name.removeprefix("run="), "group": "bench", "hash_prefix": "bench", "hash_count": SHARDS}
    member = {"queue_count": QUEUES, "incarnation": 1, "host": "here", "wall_offset_ns": 0}
    member["last_mono_ns"] = (records // QUEUES + 2) * _SPACING_NS
    journals = [
        {
            "file": f"{number}.member.jsonl",
            "member": f"member-{number}",
            **member,
            **group,
            **end,
        }
        for number in range(_MEMBERS)
    ]
    ledgers = [{"file": "0.ledger.jsonl", "publisher": "publisher", **group, **end}]
    for name, rows, schema in (
        ("journals", journals, JOURNALS),
        ("ledgers", ledgers, LEDGERS),
        ("owners", [], OWNERS),
        ("stripes", [], STRIPES),
    ):
        pq.write_table(pa.Table.from_pylist(rows, schema), run / f"_{name}.parquet")
    return Seeded(handlings, _LOST * QUEUES, _COPIES * QUEUES)


def _make_queue(run: Path, queue: int, count: int, chance: np.random.Generator) -> int:
    folder = run / f"queue={queue}"
    folder.mkdir()
    # As in practice, a few keys get most of the messages.
    keys_here = KEYS // QUEUES
    key: Ints = (keys_here * chance.random(count) ** 3).astype(np.int64)
    seq = _numbers(key)
    lost = chance.choice(count, _LOST, replace=False)
    kept = np.setdiff1d(np.arange(count), lost)
    copies = chance.choice(kept, _COPIES, replace=False)
    row = np.concatenate([kept, copies])
    # A copy is handled in the pause before the next message, when the first one is done.
    start_ns = (row + 1) * _SPACING_NS + np.repeat([0, _SPACING_NS // 2], [len(kept), len(copies)])
    # In the order in which a member writes them.
    in_time = np.argsort(start_ns)
    row, start_ns = row[in_time], start_ns[in_time]
    done_ns = start_ns + _SPACING_NS // 4
    journal = queue % _MEMBERS
    shard_of_key = queue + QUEUES * (np.arange(keys_here) % (SHARDS // QUEUES))
    names = pa.array([f"account-{queue}-{number}" for number in range(keys_here)])
    columns = {
        "journal": np.full(len(row), journal),
        "queue": np.full(len(row), queue),
        "bind_epoch": np.ones(len(row), np.int64),
        "shard": shard_of_key[key[row]],
        "key": names.take(pa.array(key[row])),
        "publisher": pa.array(["publisher"] * len(row)),
        "seq": seq[row],
        "redelivered": np.zeros(len(row), np.bool_),
        "receive_mono_ns": start_ns - 1_000,
        "start_mono_ns": start_ns,
        "done_mono_ns": done_ns,
        "t_done": done_ns // 1000,
        "t_settle": done_ns // 1000 + 1,
        "outcome": pa.array(["accepted"] * len(row)),
    }
    _write(folder / f"dispatches-{journal}.parquet", columns, DISPATCHES)
    flow = {"journal": journal, "queue": queue, "bind_epoch": 1, "cause": ""}
    ends_ns = (count + 2) * _SPACING_NS
    flows = [
        {**flow, "event": event, "t": moment // 1000, "mono_ns": moment}
        for event, moment in (("bound", 1), ("active", 2), ("draining", ends_ns - 1), ("released", ends_ns))
    ]
    pq.write_table(pa.Table.from_pylist(flows, FLOWS), folder / f"flows-{journal}.parquet")
    used, counts = np.unique(key, return_counts=True)
    ledger = {
        "ledger": np.zeros(len(used), np.int64),
        "key": names.take(pa.array(used)),
        "shard": shard_of_key[used],
        "first_seq": np.ones(len(used), np.int64),
        "last_seq": counts,
        "t_first": np.zeros(len(used), np.int64),
    }
    _write(folder / "confirmed-0.parquet", ledger, CONFIRMED)
    return len(row)


def _numbers(key: Ints) -> Ints:
    """The number of each message within its key, from 1."""
    order = np.argsort(key, kind="stable")
    first = np.flatnonzero(np.concatenate([[True], key[order][1:] != key[order][:-1]]))
    lengths = np.diff(np.concatenate([first, [len(key)]]))
    numbers = np.empty(len(key), np.int64)
    numbers[order] = np.arange(len(key)) - np.repeat(first, lengths) + 1
    return numbers


def _write(path: Path, columns: "dict[str, object]", schema: pa.Schema) -> None:
    arrays = [pa.array(columns[field.name]).cast(field.type) for field in schema]
    table = pa.Table.from_arrays(arrays, schema=schema)
    pq.write_table(table, path, compression="zstd", row_group_size=ROW_GROUP_RECORDS)


def ask_duckdb(run: Path, threads: int) -> tuple[int, int, int, int]:
    """Lost, out of order, duplicates and overlapping handlings of a run, as DuckDB counts them.

    Keys in two shards are counted too, as the kernel does that work, but not returned. The rest of the kernel's laws,
    on flows, settlements and faults, is left out: the peer does less.
    """
    import duckdb

    with duckdb.connect(config={"threads": threads}) as database:
        for view, name in (("d", "dispatches"), ("c", "confirmed")):
            database.read_parquet(f"{run}/queue=*/{name}-*.parquet", hive_partitioning=False).create_view(view)
        lost, out_of_order, duplicates, overlaps, _ = (_one(database, question) for question in _QUESTIONS)
    return lost, out_of_order, duplicates, overlaps


def ask_spark_sql(run: Path, driver_memory: str) -> tuple[int, int, int, int]:
    """The same, as counted by Spark's own SQL. Raises `SparkUnavailable`."""
    from lbg_runtime.pipeline.spark.session import spark_session

    with spark_session("lbg bench pipeline", driver_memory=driver_memory) as session:
        for view, name in (("d", "dispatches"), ("c", "confirmed")):
            session.read.parquet(f"{run}/queue=*/{name}-*.parquet").createOrReplaceTempView(view)
        answers = (int(session.sql(question).collect()[0][0] or 0) for question in _QUESTIONS)
        lost, out_of_order, duplicates, overlaps, _ = answers
    return lost, out_of_order, duplicates, overlaps


def _one(database: object, question: str) -> int:
    (answer,) = database.execute(question).fetchone()  # type: ignore[attr-defined]  # a connection of duckdb
    return int(answer)


_QUESTIONS = (
    # lost, of all messages in the ledgers
    """
    SELECT (SELECT sum(last_seq - first_seq + 1) FROM c)
         - (SELECT count(*) FROM (SELECT DISTINCT publisher, key, seq FROM d WHERE outcome IN ('accepted', 'rejected')))
    """,
    # out of order: first handled after a higher number of its key had started
    """
    SELECT count(*) FROM (
      SELECT seq, max(seq) OVER (
        PARTITION BY queue, publisher, key ORDER BY start_mono_ns ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
      ) AS highest, row_number() OVER (PARTITION BY queue, publisher, key, seq ORDER BY start_mono_ns) AS time FROM d
    ) WHERE seq < highest AND time = 1
    """,
    # duplicates
    """
    SELECT coalesce(sum(times - 1), 0) FROM (
      SELECT count(*) AS times FROM d WHERE outcome IN ('accepted', 'rejected') GROUP BY publisher, key, seq
    ) WHERE times > 1
    """,
    # overlaps of one key
    """
    SELECT count(*) FROM (
      SELECT start_mono_ns, max(done_mono_ns) OVER (
        PARTITION BY queue, key ORDER BY start_mono_ns ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
      ) AS busy FROM d
    ) WHERE start_mono_ns < busy
    """,
    # keys in two shards
    "SELECT count(*) FROM (SELECT key FROM d GROUP BY key HAVING count(DISTINCT shard) > 1)",
)


def main() -> None:
    """Print what a peer found, named as in `lbg validate --json`. Arguments: the folder of the run, and `duckdb` or the
    memory that Spark has for its SQL."""
    import os
    import sys

    import orjson

    run, peer = Path(sys.argv[1]), sys.argv[2]
    answers = ask_duckdb(run, os.cpu_count() or 1) if peer == "duckdb" else ask_spark_sql(run, peer)
    lost, out_of_order, duplicates, overlaps = answers
    found = {"lost": lost, "out_of_order": out_of_order, "duplicates": duplicates, "overlaps": overlaps}
    sys.stdout.write(orjson.dumps(found).decode() + "\n")


if __name__ == "__main__":
    main()
