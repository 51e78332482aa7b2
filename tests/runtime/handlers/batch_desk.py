"""A handler of batches for tests, and what it was called with."""

import asyncio

from lbg_runtime.runtime.handlers.batches import Batch
from lbg_runtime.runtime.handlers.registry import Handlers


def batch_handlers(function, max_count=3, max_wait="1s", **failure):
    handlers = Handlers()
    handlers.batch_handler("orders/>", max_count=max_count, max_wait=max_wait, **failure)(function)
    return handlers


class Desk:
    """Takes batches, each for so many seconds; `act` may be set by the test."""

    def __init__(self, seconds=0):
        self.seconds = seconds
        self.batches = []
        self.loop = asyncio.get_running_loop()

    async def handle(self, batch: Batch[int]) -> None:
        self.batches.append((round(self.loop.time(), 1), [item.body for item in batch]))
        await self.act(batch)

    async def act(self, batch):
        if self.seconds:
            await asyncio.sleep(self.seconds)
