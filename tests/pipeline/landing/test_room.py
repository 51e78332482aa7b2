"""What the room of a landing log says."""

import asyncio
from types import SimpleNamespace

import structlog
from structlog.testing import LogCapture

from lbg_runtime.pipeline.landing.room import Room
from lbg_runtime.runtime.log_facts import add_handling
from lbg_runtime.runtime.runners.handling import CURRENT_HANDLING


async def test_a_full_disk_is_nothing_of_the_message_that_was_written_last() -> None:
    log = LogCapture()
    structlog.configure(processors=[add_handling, log])
    room = Room(None)

    async def handle() -> None:
        CURRENT_HANDLING.set(SimpleNamespace(queue="orders/0", epoch=1, key="29"))  # type: ignore[arg-type] # a stand-in
        room.count(10, 0)
        room.count(10, 5)

    try:
        await asyncio.create_task(handle())
    finally:
        structlog.reset_defaults()
    assert [each["event"] for each in log.entries] == ["landing_disk_full", "landing_goes_on"]
    assert not any({"queue", "epoch", "key"} & each.keys() for each in log.entries)
