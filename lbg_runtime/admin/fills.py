"""Looks at what lies in queues, and how many flows are bound to them, before anything is removed."""

from collections.abc import Callable, Iterable, Mapping

from lbg_runtime.admin.objects import ObjectKind, Ref
from lbg_runtime.admin.plan import Delete, Step
from lbg_runtime.core.parking.records import PARKING_PREFIX
from lbg_runtime.model.errors import GroupInUse, GroupReopened, MembersNotSeen, SempUnreachable, VpnNotUp
from lbg_runtime.semp.address import SempApi
from lbg_runtime.semp.answer import SempObject
from lbg_runtime.semp.client import SempClient

LOOK_COUNTS_S = 5.0
"""How long after it began a look at a queue that is to be deleted counts."""

_LOOKS = 3
"""The most looks at a queue whose answers come later than that."""


async def read_fills(client: SempClient, vpn: str, queues: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Messages and bound flows of each of the queues that exists; raises `SempError`."""
    return _fills(await _see(client, vpn, queues))


async def check_still_unused(client: SempClient, vpn: str, step: Step, steady_s: Callable[[], float]) -> None:
    """If the step deletes a queue, which was closed and found unused before: raise `GroupReopened` if it takes messages
    again, and `GroupInUse` if it has messages or flows. Raises `SempError`.

    Just before the step, as this process may have been stopped since `check_unused`, or its host may have slept, and
    somebody else may have had the group work again. `steady_s` goes on meanwhile, so that a look counts only if it has
    just begun.
    """
    if not isinstance(step, Delete) or step.ref.kind is not ObjectKind.QUEUE:
        return
    for _ in range(_LOOKS):
        began_s = steady_s()
        await _insist_on_unused(client, vpn, step.ref)
        if steady_s() - began_s < LOOK_COUNTS_S:
            return
    reason = f"it takes longer than {LOOK_COUNTS_S:g} s, after which what it says of a queue may hold no more"
    raise SempUnreachable(client.url, reason)


async def _insist_on_unused(client: SempClient, vpn: str, queue: Ref) -> None:
    seen = await client.find(SempApi.MONITOR, queue.path(vpn))
    if seen is None:
        return
    if seen.flag("ingressEnabled"):
        raise GroupReopened(queue.name)
    if any(fill := (seen.count("msgs"), seen.count("txFlows"))):
        raise GroupInUse({queue.name: fill})


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
