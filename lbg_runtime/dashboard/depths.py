"""How many messages lie in a group's queues, as the broker's administration tells."""

from lbg_runtime.model.ids import QueueName
from lbg_runtime.semp.address import SempApi
from lbg_runtime.semp.client import SempClient


async def read_depths(client: SempClient, vpn: str, group: str) -> dict[QueueName, int]:
    """Messages by queue, those included that members hold; raises `SempError`.

    A request for each page of queues, not for each queue: there may be a thousand. Whole objects, as brokers differ in
    how the count of a collection is selected.
    """
    found = await client.find_all(
        SempApi.MONITOR,
        ("msgVpns", vpn, "queues"),
        where=(f"queueName=={group}/*",),
    )
    return {QueueName(queue.text("queueName")): queue.count("msgs") for queue in found}
