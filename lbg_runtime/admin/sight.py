"""What the broker sees of a group's queues and members."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace

from lbg_runtime.admin.asking import ask_each
from lbg_runtime.admin.backlog import BacklogUnknown, look_at_oldest
from lbg_runtime.model.errors import SempElsewhere, SempMissing
from lbg_runtime.model.ids import MemberId, QueueName
from lbg_runtime.semp.address import SempApi
from lbg_runtime.semp.answer import SempObject
from lbg_runtime.semp.client import SempClient

LOOK_AGAIN_AFTER_S = (0.1, 0.3, 0.6)
"""The pauses before a broker is asked again for a client that it does not know."""


@dataclass(frozen=True, slots=True)
class QueueSight:
    """One queue at one moment."""

    depth: int
    """Messages, including those that members hold unsettled."""
    flow_count: int
    fed: str | None
    """Name of the client whose flow the queue feeds; None if nothing is bound."""
    unacked: int = 0
    """Messages that were sent to a client and are not settled."""
    redelivered: int = 0
    """Deliveries that were repetitions, since the broker began to count."""
    oldest_spooled_at_s: int | None = None
    """When its oldest message came: Unix time by the broker's clock. None if there is none, or if it was settled each
    time it was looked for."""
    rate: float | None = None
    """Messages a second that left the queue lately, settled or otherwise; None if nobody has looked twice."""
    is_shut: bool = False
    """Whether the broker feeds nobody and refuses binds, as the queue's egress is switched off."""


async def insist_on_broker_of(client: SempClient, vpn: str, name: str) -> None:
    """Raise `SempElsewhere` unless the administered broker is the one to which the client of this name is connected.

    One that is not known is looked for again for a second: it may have logged in just now.
    """
    path = ("msgVpns", vpn, "clients", name)
    for pause_s in (0, *LOOK_AGAIN_AFTER_S):
        await asyncio.sleep(pause_s)
        if await client.find(SempApi.MONITOR, path, select=("clientName",)) is not None:
            return
    raise SempElsewhere(client.url, name)


async def read_sights(
    client: SempClient, vpn: str, queues: Mapping[QueueName, SempObject]
) -> dict[QueueName, QueueSight]:
    """The queues of `find_shard_queues`, in their order, without those that are gone by now; not of one moment.

    Asks once for each queue that has flows, and once or more for each that has messages. Raises `SempError`.
    """

    async def look(found: tuple[QueueName, SempObject]) -> QueueSight | None:
        queue, seen = found
        path = ("msgVpns", vpn, "queues", queue)
        try:
            flows = await client.find_all(SempApi.MONITOR, (*path, "txFlows")) if seen.count("txFlows") else ()
        except SempMissing:
            return None
        fed = [flow.text("clientName") for flow in flows if flow.text("activityState") == "active-consumer"]
        try:
            _, oldest_at_s = await look_at_oldest(client, path, seen)
        except BacklogUnknown:
            oldest_at_s = None
        return QueueSight(
            seen.count("msgs"),
            seen.count("txFlows"),
            fed[0] if fed else None,
            seen.number("txUnackedMsgCount"),
            seen.number("redeliveredMsgCount"),
            oldest_at_s,
            is_shut=seen.attributes.get("egressEnabled") is False,
        )

    sights = zip(queues, await ask_each(queues.items(), look), strict=True)
    return {queue: sight for queue, sight in sights if sight is not None}


def with_rates(
    sights: Mapping[QueueName, QueueSight],
    before: Mapping[QueueName, SempObject],
    after: Mapping[QueueName, SempObject],
    took_s: float,
) -> dict[QueueName, QueueSight]:
    """Sights with what left each queue between two answers of `find_shard_queues`, `took_s` (not 0) apart. Pure.

    A queue that is not in both has no rate, nor one whose counts were reset in between.
    """

    def left(queue: QueueName) -> int:
        came = after[queue].number("spooledMsgCount") - before[queue].number("spooledMsgCount")
        return came - (after[queue].count("msgs") - before[queue].count("msgs"))

    rates = {queue: left(queue) / took_s for queue in sights if queue in before and queue in after}
    return {
        queue: replace(sight, rate=rates[queue]) if rates.get(queue, -1) >= 0 else sight
        for queue, sight in sights.items()
    }


def member_of(client: str, group: str) -> MemberId | None:
    """The member of the group that has this client name; None if it is another group's, or of nobody's making.

    Names of groups may have levels: `a/b/x/HOST/PROCESS` is `x` of group `a/b`, and not `b` of group `a`.
    """
    # The form in which config/broker_names.py makes client names.
    match client.removeprefix(f"{group}/").split("/"):
        case [member, host, process] if client.startswith(f"{group}/") and member and host and process.isdecimal():
            return MemberId(member)
    return None


async def disconnect(client: SempClient, vpn: str, group: str, member: str) -> list[str]:
    """End the connections of a member, wherever it runs, and of nobody else; return the names of the clients.

    The clients may come back by themselves; what they held goes to whoever stands by. Raises `SempError`.
    """
    clients = ("msgVpns", vpn, "clients")
    found = await client.find_all(SempApi.MONITOR, clients, where=(f"clientName=={group}/{member}/*",))
    ended = []
    for name in sorted({each.text("clientName") for each in found}):
        if member_of(name, group) != member:
            continue
        try:
            await client.act((*clients, name, "disconnect"))
        except SempMissing:
            continue  # It has gone by itself meanwhile.
        ended.append(name)
    return ended
