"""Looks at what lies in queues, and how many flows are bound to them, before anything is removed."""

from collections.abc import Iterable

from lbg_runtime.admin.objects import ObjectKind, Ref
from lbg_runtime.core.parking.records import PARKING_PREFIX
from lbg_runtime.model.errors import GroupInUse, VpnNotUp
from lbg_runtime.semp.address import SempApi
from lbg_runtime.semp.client import SempClient


async def read_fills(client: SempClient, vpn: str, queues: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Messages and bound flows of each of the queues that exists; raises `SempError`."""
    fills = {}
    for queue in queues:
        seen = await client.find(SempApi.MONITOR, Ref(ObjectKind.QUEUE, queue).path(vpn))
        if seen is not None:
            fills[queue] = (seen.count("msgs"), seen.count("txFlows"))
    return fills


async def check_unused(client: SempClient, vpn: str, objects: Iterable[Ref]) -> None:
    """Raise `GroupInUse` if a queue among these objects has messages or flows.

    Raises `VpnNotUp` if the VPN is not up on this broker, as a standby's answer proves nothing; and `SempError`.
    """
    state = (await client.get(SempApi.MONITOR, ("msgVpns", vpn), select=("state",))).text("state")
    if state != "up":
        raise VpnNotUp(client.url, vpn, state)
    fills = await read_fills(client, vpn, (ref.name for ref in objects if ref.kind is ObjectKind.QUEUE))
    if left := {queue: fill for queue, fill in fills.items() if any(fill)}:
        are_marks = all(queue.startswith(PARKING_PREFIX) and not flows for queue, (_, flows) in left.items())
        raise GroupInUse(left, only_parking=are_marks)
