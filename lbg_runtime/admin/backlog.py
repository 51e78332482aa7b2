"""How much a group has not handled yet, and since when, as the broker sees it: what an autoscaler goes by."""

import asyncio
import re
from collections.abc import Iterator
from dataclasses import dataclass

from lbg_runtime.model.errors import SempRefused, SempUnreachable
from lbg_runtime.model.ids import QueueName
from lbg_runtime.model.semp_code import SempCode
from lbg_runtime.semp.address import Segment, SempApi
from lbg_runtime.semp.answer import SempObject
from lbg_runtime.semp.client import SempClient

REQUESTS_AT_ONCE = 8
"""Enough to ask a thousand queues within a second or two, and little for a broker."""

NEXT_IDS = (100, 1_000, 10_000)
"""How far beyond the oldest message of a queue to look, where it is settled before it is seen; a broker counts the
messages of all its queues together. Then the age is not known."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """All queues of a group together, not of one moment."""

    messages: int
    """Those included that members hold unsettled."""
    oldest_spooled_at_s: int | None
    """When the oldest of them came to its queue: Unix time by the broker's clock. None where there are none."""


async def read_backlog(client: SempClient, vpn: str, group: str) -> Backlog:
    """Ask once for each page of queues, and for each queue with messages once, or some times more while it moves on.

    Raises `SempError`, also where the oldest message of a queue is gone whenever it is looked for: an age without it
    would be wrong. Other queues whose names begin as the group's, for errors or by hand, do not count: a
    member more would not empty them.
    """
    found = iter((await find_shard_queues(client, vpn, group)).items())
    looks: list[tuple[int, int | None]] = []

    async def look(mine: Iterator[tuple[QueueName, SempObject]]) -> None:
        for name, queue in mine:
            looks.append(await _look_at(client, ("msgVpns", vpn, "queues", name), queue))

    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(REQUESTS_AT_ONCE):
                # They share the iterator: each takes the next queue that nobody has.
                tasks.create_task(look(found))
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    spooled_at_s = (at_s for _, at_s in looks if at_s is not None)
    return Backlog(sum(messages for messages, _ in looks), min(spooled_at_s, default=None))


async def find_shard_queues(client: SempClient, vpn: str, group: str) -> dict[QueueName, SempObject]:
    """The queues `<group>/<number>` that the broker has, as it sees them; raises `SempError`.

    Whatever `group.queue_count` says: a re-striping may have made more queues.
    """
    # Whole objects, as brokers differ in how the count of a collection is selected.
    found = await client.find_all(SempApi.MONITOR, ("msgVpns", vpn, "queues"), where=(f"queueName=={group}/*",))
    is_shard_queue = re.compile(re.escape(group) + r"/\d+").fullmatch
    # A queue may come twice where queues come and go between two pages.
    return {QueueName(name): each for each in found if is_shard_queue(name := each.text("queueName"))}


async def _look_at(client: SempClient, path: tuple[Segment, ...], queue: SempObject) -> tuple[int, int | None]:
    """How many messages a queue has, and when the oldest came, as of the last look at it."""
    messages = (*path, "msgs")
    if not queue.count("msgs"):
        return 0, None
    try:
        oldest = await client.get(
            SempApi.MONITOR, (*messages, str(queue.number("lowestMsgId"))), select=("spooledTime",)
        )
        return queue.count("msgs"), oldest.number("spooledTime")
    except SempRefused as refused:
        if refused.code != SempCode.NOT_FOUND:
            raise
    # Settled meanwhile. So first those that come next, in whatever order, and then which of them is the oldest.
    for ids in NEXT_IDS:
        where = (f"msgId<={queue.number('lowestMsgId') + ids}",)
        try:
            found = await client.find_all(SempApi.MONITOR, messages, select=("msgId", "spooledTime"), where=where)
            queue = await client.get(SempApi.MONITOR, path)
        except SempRefused as refused:
            if refused.code != SempCode.NOT_FOUND:
                raise
            # Removed, and its messages with it.
            return 0, None
        if not queue.count("msgs"):
            return 0, None
        lowest = queue.number("lowestMsgId")
        for each in found:
            if each.number("msgId") == lowest:
                return queue.count("msgs"), each.number("spooledTime")
    raise SempUnreachable(client.url, f"the oldest message of {queue.text('queueName')} was settled before it was seen")
