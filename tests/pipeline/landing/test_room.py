"""What the room of a landing log says."""

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import structlog
from structlog.testing import LogCapture

from lbg_runtime.model.ids import Epoch, QueueName
from lbg_runtime.pipeline.landing.room import PAUSE_MIN_S, Room
from lbg_runtime.pipeline.landing.usage import DiskSpace
from lbg_runtime.runtime.log_facts import add_handling
from lbg_runtime.runtime.runners.handling import CURRENT_HANDLING


@pytest.fixture
def log() -> Iterator[LogCapture]:
    log = LogCapture()
    structlog.configure(processors=[add_handling, log])
    yield log
    structlog.reset_defaults()


async def test_a_full_disk_is_nothing_of_the_message_that_was_written_last(log: LogCapture) -> None:
    room = Room(None)

    async def handle() -> None:
        CURRENT_HANDLING.set(SimpleNamespace(queue="orders/0", epoch=1, key="29"))  # type: ignore[arg-type] # a stand-in
        room.count(0, DiskSpace(3, 3))
        room.count(0, DiskSpace(8, 3))

    await asyncio.create_task(handle())
    assert [each["event"] for each in log.entries] == ["landing_disk_full", "landing_goes_on"]
    assert not any({"queue", "epoch", "key"} & each.keys() for each in log.entries)


@pytest.mark.parametrize("quota_bytes", [None, 100])
async def test_of_a_full_disk_only_what_is_measured_is_told(log: LogCapture, quota_bytes: int | None) -> None:
    room = Room(quota_bytes)
    room.count(0, DiskSpace(50, 20))
    room.count_written(30)
    (told,) = log.entries
    of_quota = {} if quota_bytes is None else {"used_bytes": 30, "quota_bytes": 100}
    assert told == {
        "event": "landing_disk_full", "log_level": "warning", "free_bytes": 20, "reserve_bytes": 20, **of_quota
    }  # fmt: skip


async def test_each_failed_flush_pauses_for_twice_as_long_until_one_has_succeeded() -> None:
    room, queue, loop = Room(None), QueueName("orders/0"), asyncio.get_running_loop()

    async def paused_s() -> float:
        before_s = loop.time()
        room.flush_failed(queue)
        await room.wait(queue, Epoch(1))
        return loop.time() - before_s

    pauses_s = [await paused_s() for _ in range(3)]
    room.flush_succeeded(queue)
    pauses_s.append(await paused_s())
    assert pauses_s == pytest.approx([PAUSE_MIN_S, 2 * PAUSE_MIN_S, 4 * PAUSE_MIN_S, PAUSE_MIN_S])
