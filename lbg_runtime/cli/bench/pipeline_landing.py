"""How many messages of 1 KB a member can land per second, on four queues, each flush of 1,000 synced.

`handlers`: as the handlers bring them, each waiting for its flush, on one event loop, in a process that collects
garbage as seldom as `lbg land` does; the broker and the flow machines are left out. `rows`: ready rows, flushed on
four threads. The peer, `bytes`: as many bytes, unprocessed, appended to four files and synced as often.
"""

import asyncio
import gc
import os
import shutil
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import uvloop

from lbg_runtime.cli.bench.pipeline import Found
from lbg_runtime.cli.bench.report import Ratio, Row, tell, within_rounds
from lbg_runtime.cli.garbage import GC_THRESHOLDS
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.ids import DeliveryId, GroupName
from lbg_runtime.model.message import KEY_SEQUENCE_PROPERTY, PARTITION_KEY_PROPERTY, PUBLISHER_PROPERTY, Message
from lbg_runtime.pipeline.files import sync_data
from lbg_runtime.pipeline.landing.lane import LaneWriter
from lbg_runtime.pipeline.landing.layout import claim_folder
from lbg_runtime.pipeline.landing.log import LandingLog
from lbg_runtime.pipeline.landing.open_lane import FlushLimits, OpenLane
from lbg_runtime.pipeline.landing.rows import Gathered, to_batch
from lbg_runtime.runtime.clock import wall_us

QUEUES = 4
MESSAGES = 50_000
"""Messages of each queue in one round."""
KEYS = 500
PAYLOAD_BYTES = 1_000
FLUSH_ROWS = 1_000
IN_FLIGHT = 2_000
"""Handlers of each queue that wait at the same time."""
LANE = "bench"
GOAL_PER_S = 150_000


@dataclass(frozen=True, slots=True)
class _Load:
    messages: Sequence[Message]
    root: Path


def landing(folder: Path, rounds: int) -> Found:
    """See the module."""
    messages = _messages()
    rates: dict[str, list[float]] = {"handlers": [], "rows": [], "bytes": []}
    found = Found(settings={"queues": QUEUES, "rows": QUEUES * MESSAGES, "payload_bytes": PAYLOAD_BYTES})
    for number in range(rounds):
        tell("pipeline", f"landing, round {number + 1} of {rounds}")
        for arm, measure in (("handlers", _by_handlers), ("rows", _by_rows), ("bytes", _bytes_alone)):
            root = folder / f"{arm}-{number}"
            claim_folder(root, GroupShape(GroupName("bench"), "bench", 2 * QUEUES, QUEUES))
            began_s = time.perf_counter()
            measure(_Load(messages, root))
            rates[arm].append(QUEUES * MESSAGES / (time.perf_counter() - began_s))
            if arm != "bytes":
                found.wrong += _what_is_wrong(root)
            shutil.rmtree(root)
    found.rows += [Row(arm, "messages/s", values, case="landing") for arm, values in rates.items()]
    found.ratios.append(Ratio("messages/s of the arm rows", rates["rows"], case="landing", goal=GOAL_PER_S))
    found.ratios += [
        Ratio(f"{arm} / bytes", within_rounds(rates[arm], rates["bytes"]), case="landing")
        for arm in ("handlers", "rows")
    ]
    return found


def _messages() -> Sequence[Message]:
    payloads = [os.urandom(PAYLOAD_BYTES) for _ in range(100)]
    return [
        Message(
            f"bench/{number % 8}/orders/new",
            payloads[number % len(payloads)],
            {
                PARTITION_KEY_PROPERTY: f"key-{number % KEYS}",
                PUBLISHER_PROPERTY: "host-4711-66012a3b4c5d6",
                KEY_SEQUENCE_PROPERTY: number // KEYS + 1,
            },
            sent_at_ms=1_750_000_000_000 + number // 100,
        )
        for number in range(MESSAGES)
    ]


def _make_writer(root: Path, queue: int) -> LaneWriter:
    return LaneWriter(root, queue, "bench", 1, clock_us=wall_us)


def _by_handlers(load: _Load) -> None:
    thresholds = gc.get_threshold()
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        uvloop.run(_land(load))
    finally:
        gc.set_threshold(*thresholds)


async def _land(load: _Load) -> None:
    with ThreadPoolExecutor(QUEUES) as threads:
        lanes = [
            OpenLane(
                queue,
                LANE,
                partial(_make_writer, load.root, queue),
                FlushLimits(FLUSH_ROWS),
                threads,
                wall_us,
                _forget,
            )
            for queue in range(QUEUES)
        ]

        async def handle(lane: OpenLane, first: int) -> None:
            for number in range(first, MESSAGES, IN_FLIGHT):
                message = load.messages[number]
                await lane.land(message, 0, message.key, DeliveryId(number + 1), redelivered=False)

        async with asyncio.TaskGroup() as group:
            for lane in lanes:
                for first in range(IN_FLIGHT):
                    group.create_task(handle(lane, first))
        for lane in lanes:
            await lane.close()


def _forget(size_bytes: int) -> None:
    del size_bytes


def _by_rows(load: _Load) -> None:
    def write(queue: int) -> None:
        writer = _make_writer(load.root, queue)
        for first in range(0, MESSAGES, FLUSH_ROWS):
            rows = Gathered()
            for number in range(first, first + FLUSH_ROWS):
                message = load.messages[number]
                rows.add(message, 0, message.key, DeliveryId(number + 1), redelivered=False)
            writer.append(to_batch(queue, LANE, rows, wall_us()))
        writer.close()

    with ThreadPoolExecutor(QUEUES) as threads:
        list(threads.map(write, range(QUEUES)))


def _bytes_alone(load: _Load) -> None:
    block = os.urandom(FLUSH_ROWS * PAYLOAD_BYTES)

    def write(queue: int) -> None:
        file = os.open(load.root / f"{queue}.bytes", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            for _ in range(MESSAGES // FLUSH_ROWS):
                os.write(file, block)
                sync_data(file)
        finally:
            os.close(file)

    with ThreadPoolExecutor(QUEUES) as threads:
        list(threads.map(write, range(QUEUES)))


def _what_is_wrong(root: Path) -> list[str]:
    log = LandingLog(root)
    wrong = []
    for queue in range(QUEUES):
        end = {name: extent.rows for name, extent in log.lanes(queue).items()}
        last: dict[str, int] = {}
        count = 0
        for batch in log.read_queue(queue, {}, end):
            for key, number in zip(batch.column("key").to_pylist(), batch.column("seq").to_pylist(), strict=True):
                count += 1
                if number != last.get(key, 0) + 1:
                    wrong.append(f"queue {queue}, key {key}: number {number} after {last.get(key, 0)}")
                last[key] = number
        if count != MESSAGES:
            wrong.append(f"queue {queue}: {count} rows of {MESSAGES}")
    return wrong[:3]
