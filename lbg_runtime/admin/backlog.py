"""How much a group has not handled yet, and since when, as the broker sees it: what an autoscaler goes by."""

from dataclasses import dataclass

from lbg_runtime.admin.asking import ask_each
from lbg_runtime.model.errors import SempError, SempMissing
from lbg_runtime.model.group import queue_index
from lbg_runtime.model.ids import QueueName
from lbg_runtime.semp.address import Segment, SempApi
from lbg_runtime.semp.answer import SempObject
from lbg_runtime.semp.client import SempClient

NEXT_IDS = (100, 1_000, 10_000)
"""How many ids beyond the oldest message of a queue to look, if it is settled before it is seen; a broker numbers the
messages of all its queues together. After the last try, the age is not known."""


class BacklogUnknown(SempError):
    """The broker answered, but there is no queue, or the oldest message of one was gone each time it was looked for."""

    retriable = True


@dataclass(frozen=True, slots=True)
class Backlog:
    """All queues of a group together; not a snapshot of one moment."""

    messages: int
    """Including those that members hold unsettled."""
    oldest_spooled_at_s: int | None
    """When the oldest of them came to its queue: Unix time by the broker's clock. None if there are none."""


async def read_backlog(client: SempClient, vpn: str, group: str, queue_count: int | None = None) -> Backlog:
    """Ask once for each page of queues, and once for each queue with messages, or a few times if it moves on meanwhile.

    Only queues below `queue_count` count: no member handles what lies in one of a larger layout. None counts them all.
    Raises `SempError`, and `BacklogUnknown` rather than give a wrong age. Other queues whose names begin like the
    group's, for errors or made by hand, do not count: another member would not empty them.
    """
    queues = await find_shard_queues(client, vpn, group)
    found = {name: queue for name, queue in queues.items() if queue_count is None or _index_of(name) < queue_count}
    if not found:
        # A group has at least one queue.
        raise BacklogUnknown(f"there is no queue {group}/0 on the broker, nor any other of the group")
    looks = await ask_each(
        found.items(), lambda one: look_at_oldest(client, ("msgVpns", vpn, "queues", one[0]), one[1])
    )
    spooled_at_s = (at_s for _, at_s in looks if at_s is not None)
    return Backlog(sum(messages for messages, _ in looks), min(spooled_at_s, default=None))


async def find_shard_queues(client: SempClient, vpn: str, group: str) -> dict[QueueName, SempObject]:
    """The queues `<group>/<number>` that the broker has, as it sees them; raises `SempError`.

    `group.queue_count` does not matter: a re-striping may have made more queues.
    """
    # Whole objects, as brokers differ in how the count of a collection is selected.
    found = await client.find_all(SempApi.MONITOR, ("msgVpns", vpn, "queues"), where=(f"queueName=={group}/*",))
    # A queue may appear twice if queues come and go between two pages.
    return {QueueName(name): each for each in found if queue_index(group, name := each.text("queueName")) is not None}


def _index_of(queue: QueueName) -> int:
    return int(queue.rpartition("/")[2])


async def look_at_oldest(client: SempClient, path: tuple[Segment, ...], queue: SempObject) -> tuple[int, int | None]:
    """How many messages a queue has, and when the oldest came, as of the last look at it; raises as `read_backlog`."""
    messages = (*path, "msgs")
    if not queue.count("msgs"):
        return 0, None
    lowest_path = (*messages, str(queue.number("lowestMsgId")))
    oldest = await client.find(SempApi.MONITOR, lowest_path, select=("spooledTime",))
    if oldest is not None:
        return queue.count("msgs"), oldest.number("spooledTime")
    # Settled meanwhile. So read first the next messages, in any order, and then which of them is the oldest.
    for ids in NEXT_IDS:
        where = (f"msgId<={queue.number('lowestMsgId') + ids}",)
        try:
            found = await client.find_all(SempApi.MONITOR, messages, select=("msgId", "spooledTime"), where=where)
            queue = await client.get(SempApi.MONITOR, path)
        except SempMissing:
            # The queue was removed, and its messages with it.
            return 0, None
        if not queue.count("msgs"):
            return 0, None
        lowest = queue.number("lowestMsgId")
        for each in found:
            if each.number("msgId") == lowest:
                return queue.count("msgs"), each.number("spooledTime")
    raise BacklogUnknown(f"the oldest message of {queue.text('queueName')} was settled before it was seen")
