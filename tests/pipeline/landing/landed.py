"""Rows and logs for the tests of the landing log."""

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa

from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.ids import GroupName
from lbg_runtime.pipeline.landing.lane import LaneWriter
from lbg_runtime.pipeline.landing.layout import claim_folder
from lbg_runtime.pipeline.landing.schema import LANDING_SCHEMA

SHAPE = GroupShape(GroupName("orders"), "hp", 8, 4)


def id_of(key: str, number: int, sent_at_ms: int | None = None) -> str:
    """As of a message that our publisher stamped."""
    return f"{number if sent_at_ms is None else sent_at_ms:013x}.{number}/p/{key}"


def rows(ids: Iterable[str], *, queue: int = 3, t_land: int = 1_000_000) -> pa.RecordBatch:
    """A flush with these ids; key and number are those of the id, the payload is the id."""
    made = []
    for row_id in ids:
        _, _, identity = row_id.partition(".")
        number, key = identity.split("/")[0], identity.split("/")[-1]
        made.append(
            {
                "queue": queue,
                "shard": queue,
                "key": key,
                "topic": f"hp/{queue}/orders",
                "seq": int(number) if number.isdecimal() else None,
                "broker_id": row_id,
                "redelivered": False,
                "t_enqueue": None,
                "t_land": t_land,
                "payload": row_id.encode(),
                "headers": None,
            }
        )
    return pa.RecordBatch.from_pylist(made, schema=LANDING_SCHEMA)


class LogOnDisk:
    """A landing log in the making, with a clock of its own; close its lanes with `close`."""

    def __init__(self, root: Path) -> None:
        claim_folder(root, SHAPE)
        self.root = root
        self.ticks = itertools.count(1)
        self.lanes: list[LaneWriter] = []

    def lane(
        self, member: str = "m", epoch: int = 1, queue: int = 3, segment_bytes: int = 1 << 20, handle: str = ""
    ) -> LaneWriter:
        """Begin one; not synced, as tests pull no plug."""
        lane = LaneWriter(
            self.root,
            queue,
            member,
            epoch,
            clock_us=lambda: next(self.ticks),
            is_synced=False,
            segment_bytes=segment_bytes,
            handle=handle,
        )
        self.lanes.append(lane)
        return lane

    def close(self) -> None:
        """Of all lanes."""
        for lane in self.lanes:
            lane.close()


def ids_of(batches: Iterable[pa.RecordBatch]) -> list[str]:
    """Of all rows, in order."""
    return list(_ids_of(batches))


def _ids_of(batches: Iterable[pa.RecordBatch]) -> Iterator[str]:
    for batch in batches:
        yield from batch.column("broker_id").to_pylist()
