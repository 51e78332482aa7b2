"""How much a group has not handled yet, and since when, as the broker sees it: what an autoscaler goes by."""

import asyncio
import re
from collections.abc import Iterator
from dataclasses import dataclass

from lbg_runtime.model.errors import SempRefused
from lbg_runtime.model.semp_code import SempCode
from lbg_runtime.semp.address import SempApi
from lbg_runtime.semp.client import SempClient

REQUESTS_AT_ONCE = 8
"""Enough to ask a thousand queues within a second or two, and little for a broker."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """All queues of a group together, not of one moment."""

    messages: int
    """Those included that members hold unsettled."""
    oldest_spooled_at_s: int | None
    """When the oldest of them came to its queue: Unix time by the broker's clock. None where there are none."""


async def read_backlog(client: SempClient, vpn: str, group: str) -> Backlog:
    """Ask once for each page of queues, and once for each queue with messages. Raises `SempError`.

    Whatever `group.queue_count` says: a re-striping may have made more queues. Other queues whose names begin as the
    group's, for errors or by hand, do not count: a member more would not empty them.
    """
    queues = ("msgVpns", vpn, "queues")
    # Whole objects, as brokers differ in how the count of a collection is selected.
    found = await client.find_all(SempApi.MONITOR, queues, where=(f"queueName=={group}/*",))
    is_shard_queue = re.compile(re.escape(group) + r"/\d+").fullmatch
    # A queue may come twice where queues come and go between two pages.
    depths = {name: each for each in found if is_shard_queue(name := each.text("queueName"))}
    filled = iter([(name, each.number("lowestMsgId")) for name, each in depths.items() if each.count("msgs")])
    spooled_at_s: list[int] = []

    async def look(mine: Iterator[tuple[str, int]]) -> None:
        for name, lowest in mine:
            path = (*queues, name, "msgs", str(lowest))
            try:
                oldest = await client.get(SempApi.MONITOR, path, select=("spooledTime",))
            except SempRefused as refused:
                # Settled meanwhile.
                if refused.code != SempCode.NOT_FOUND:
                    raise
            else:
                spooled_at_s.append(oldest.number("spooledTime"))

    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(REQUESTS_AT_ONCE):
                # They share the iterator: each takes the next queue that nobody has.
                tasks.create_task(look(filled))
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return Backlog(sum(each.count("msgs") for each in depths.values()), min(spooled_at_s, default=None))
