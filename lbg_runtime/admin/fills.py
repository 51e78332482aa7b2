"""Looks at what lies in queues, and how many flows are bound to them, before anything is removed."""

from collections.abc import Iterable, Mapping

from lbg_runtime.admin.objects import ObjectKind, Ref
from lbg_runtime.core.parking.records import PARKING_PREFIX
from lbg_runtime.model.errors import GroupInUse, MembersNotSeen, VpnNotUp
from lbg_runtime.semp.address import SempApi
from lbg_runtime.semp.answer import SempObject
from lbg_runtime.semp.client import SempClient


async def read_fills(client: SempClient, vpn: str, queues: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Messages and bound flows of each of the queues that exists; raises `SempError`."""
    return _fills(await _see(client, vpn, queues))


async def check_unused(client: SempClient, vpn: str, objects: Iterable[Ref]) -> None:
    """Raise `GroupInUse` if a queue among these objects has messages or flows.

    Raises `MembersNotSeen` if some had messages, and the broker has not seen yet who binds to them; `VpnNotUp` if the
    VPN is not up on this broker, as a standby's answer proves nothing; and `SempError`.
    """
    state = (await client.get(SempApi.MONITOR, ("msgVpns", vpn), select=("state",))).text("state")
    if state != "up":
        raise VpnNotUp(client.url, vpn, state)
    seen = await _see(client, vpn, (ref.name for ref in objects if ref.kind is ObjectKind.QUEUE))
    if left := {queue: fill for queue, fill in _fills(seen).items() if any(fill)}:
        are_marks = all(queue.startswith(PARKING_PREFIX) and not flows for queue, (_, flows) in left.items())
        raise GroupInUse(left, only_parking=are_marks)
    # The counts of binds begin anew when a broker starts or takes over; the number of the last message does not.
    used = tuple(queue for queue, each in seen.items() if each.number("lastSpooledMsgId"))
    if used and not any(each.number("bindSuccessCount") for each in seen.values()):
        raise MembersNotSeen(used)


async def _see(client: SempClient, vpn: str, queues: Iterable[str]) -> dict[str, SempObject]:
    found = {queue: await client.find(SempApi.MONITOR, Ref(ObjectKind.QUEUE, queue).path(vpn)) for queue in queues}
    return {queue: seen for queue, seen in found.items() if seen is not None}


def _fills(seen: Mapping[str, SempObject]) -> dict[str, tuple[int, int]]:
    return {queue: (each.count("msgs"), each.count("txFlows")) for queue, each in seen.items()}
