"""What may be done to the queues of a group while members and publishers keep running."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from lbg_runtime.admin.account import semp_missing
from lbg_runtime.admin.spec import SHARED_USERNAME
from lbg_runtime.config.settings import Settings
from lbg_runtime.model.counted import counted
from lbg_runtime.model.errors import QueueInUse, QueueMissing, QueueUnfit, SempExists, SempMissing
from lbg_runtime.model.ids import QueueName
from lbg_runtime.semp.address import Segment, SempApi
from lbg_runtime.semp.answer import Json, SempObject
from lbg_runtime.semp.client import SempClient


@dataclass(frozen=True, slots=True)
class QueueAccess:
    """Who owns a new queue; the owner may do everything."""

    owner: str
    others_consume: bool = True
    """Whether client usernames that do not own it may take its messages; otherwise they may do nothing with it."""


KEEPS_ALL: Mapping[str, Json] = {
    "redeliveryEnabled": True,
    "maxRedeliveryCount": 0,
    "respectTtlEnabled": False,
    "respectMsgPriorityEnabled": False,
}
"""With these, a queue keeps every message in its place until it is settled; otherwise it discards some by itself."""

_OPEN: Mapping[str, Json] = {"ingressEnabled": True, "egressEnabled": True}

_TELLS: Mapping[str, Json] = {"rejectMsgToSenderOnDiscardBehavior": "always"}
"""With this, a publisher is told of every message that the queue does not take; otherwise some, or all, are confirmed
to it and dropped."""

TAKES_OR_TELLS: Mapping[str, Json] = {"ingressEnabled": True, **_TELLS}
"""What a queue of others needs, so that nothing is lost that members move to it."""

SMALL_MESSAGE_BYTES = 1_024
"""Larger than anything that a group itself writes into its queues, except what is parked."""

_FIT: Mapping[str, Json] = {"accessType": "exclusive", "partitionCount": 0, **KEEPS_ALL, **_TELLS, **_OPEN}


class QueueAdmin:
    """Changes queues of one VPN. Every change is idempotent and in force when its call returns.

    Raises `SempError` if the broker refuses or does not answer; a change whose answer was lost may be in force.
    """

    def __init__(self, client: SempClient, vpn: str, access: QueueAccess, spool_mb: int) -> None:
        """A new queue may hold `spool_mb` megabytes."""
        self._client = client
        self._vpn = vpn
        self._rights = _rights(access)
        self._new_queue = {**attributes_of_new_queue(access, spool_mb), **KEEPS_ALL}

    async def subscriptions(self, queue: QueueName) -> frozenset[str] | None:
        """The topics that the queue attracts; None if it does not exist."""
        try:
            found = await self._client.find_all(SempApi.CONFIG, self._path(queue, "subscriptions"))
        except SempMissing:
            return None
        return frozenset(each.text("subscriptionTopic") for each in found)

    async def ensure_fit(self, queue: QueueName, unsettled: int = 1) -> None:
        """Raises `QueueUnfit` for a queue that is closed, takes not even messages of `SMALL_MESSAGE_BYTES`, shows a
        member fewer than `unsettled` messages at once, may drop messages, or may deliver them out of order, and
        `QueueMissing`.

        A fit queue tells a publisher of every message that it does not take, also if it is closed later.
        """
        least = {"maxMsgSize": SMALL_MESSAGE_BYTES, "maxDeliveredUnackedMsgsPerFlow": unsettled}
        there = await self._ensure(queue, _FIT, *least)
        for name, count in least.items():
            if (limit := there.number(name)) < count:
                raise QueueUnfit(queue, f"{name} {limit}", f"{name} {count} or more", is_limit=True)

    async def ensure_like_new(self, queue: QueueName) -> None:
        """Raises `QueueUnfit` for a queue that has messages, or gives other rights than a new one, and `QueueMissing`.

        Subscriptions and other settings are not looked at.
        """
        await self._ensure(queue, self._rights)
        if messages := await self.depth(queue):
            raise QueueUnfit(queue, counted(messages, "message"), "none in a queue that the group takes over")

    async def create_queue(self, queue: QueueName) -> None:
        """Make sure that a fit queue of this name exists; raises `QueueUnfit`.

        One that exists is left as it is: it may be somebody else's.
        """
        try:
            await self._client.create(("msgVpns", self._vpn, "queues"), {"queueName": queue, **self._new_queue})
        except SempExists:
            await self.ensure_fit(queue)

    async def subscribe(self, queue: QueueName, topic: str) -> None:
        """Have the queue attract a topic; raises `QueueMissing`."""
        try:
            with suppress(SempExists):
                await self._client.create(self._path(queue, "subscriptions"), {"subscriptionTopic": topic})
        except SempMissing:
            raise QueueMissing(queue) from None

    async def unsubscribe(self, queue: QueueName, topic: str) -> None:
        """Have the queue no longer attract a topic; does nothing if it does not, or is gone."""
        await self._client.delete(self._path(queue, "subscriptions", topic))

    async def refusal(self, queue: QueueName, size_bytes: int) -> str | None:
        """Why the queue takes no message of that size now, by its settings and what it holds; None if it shows nothing.

        It is asked after a message was refused, as the broker does not say by which queue. Raises `QueueMissing`.
        """
        there = await self._client.find(SempApi.CONFIG, self._path(queue))
        seen = await self._monitor(queue)
        if there is None or seen is None:
            raise QueueMissing(queue)
        if not there.flag("ingressEnabled"):
            return "ingressEnabled False"
        if (limit := there.number("maxMsgSize")) < size_bytes:
            return f"maxMsgSize {limit}"
        quota_mb, held = there.number("maxMsgSpoolUsage"), seen.number("msgSpoolUsage")
        if held + size_bytes > quota_mb * 1_000_000:
            return f"maxMsgSpoolUsage {quota_mb}, and holds {held} bytes"
        return None

    async def depth(self, queue: QueueName) -> int:
        """Messages in the queue, including those that members hold unsettled; raises `QueueMissing`."""
        seen = await self._monitor(queue)
        if seen is None:
            raise QueueMissing(queue)
        return seen.count("msgs")

    async def delete_queue(self, queue: QueueName) -> None:
        """Delete the queue; raises `QueueInUse` while messages or flows are left, and then leaves it as it was.

        One that is cut off on its way may leave the queue closed to all; the next one deletes it.
        """
        # Checked before anything is disabled, so that an early call disturbs nobody; and again afterwards, as only then
        # can nothing more come.
        if not await self._is_free(queue):
            return
        try:
            await self._set_enabled(queue, enabled=False)
            free = await self._is_free(queue)
        except QueueInUse:
            await self._set_enabled(queue, enabled=True)
            raise
        if free:
            await self._client.delete(self._path(queue))

    # -- parts

    def _path(self, queue: QueueName, *below: Segment) -> tuple[Segment, ...]:
        return ("msgVpns", self._vpn, "queues", queue, *below)

    async def _ensure(self, queue: QueueName, expected: Mapping[str, Json], *wanted: str) -> SempObject:
        """The queue's attributes, those `wanted` as well; raises `QueueUnfit` if others are expected, and
        `QueueMissing`."""
        there = await self._client.find(SempApi.CONFIG, self._path(queue), select=(*expected, *wanted))
        if there is None:
            raise QueueMissing(queue)
        for name, value in expected.items():
            # A broker does not act on an attribute that it does not have.
            found = there.attributes.get(name, value)
            if found != value:
                raise QueueUnfit(queue, f"no {name}" if found == "" else f"{name} {found}", f"{name} {value}")
        return there

    async def _set_enabled(self, queue: QueueName, *, enabled: bool) -> None:
        await self._client.update(self._path(queue), dict.fromkeys(_OPEN, enabled))

    async def _is_free(self, queue: QueueName) -> bool:
        """False if the queue is gone; raises `QueueInUse`."""
        seen = await self._monitor(queue)
        if seen is None:
            return False
        messages, flows = seen.count("msgs"), seen.count("txFlows")
        if messages or flows:
            raise QueueInUse(queue, messages, flows)
        return True

    async def _monitor(self, queue: QueueName) -> SempObject | None:
        return await self._client.find(SempApi.MONITOR, self._path(queue))


def _rights(access: QueueAccess) -> dict[str, Json]:
    return {"owner": access.owner, "permission": "consume" if access.others_consume else "no-access"}


def attributes_of_new_queue(access: QueueAccess, spool_mb: int) -> dict[str, Json]:
    """The attributes that a queue is created with, whether for a group or for what its members set aside."""
    return {
        "accessType": "exclusive",
        **_rights(access),
        **_TELLS,
        **_OPEN,
        "maxMsgSpoolUsage": spool_mb,
    }


async def queue_admin(client: SempClient, settings: Settings) -> QueueAdmin:
    """The queues of `connection.vpn`, in the administrator's session `client`.

    New queues belong to `connection.username`, as those of `lbg group create` do: to it alone if that is a configured
    client username; otherwise others may consume, as the broker may then know a client by another name. Raises
    `ConfigError` if `semp` is not set, `SempError` if the broker does not answer.
    """
    vpn, owner = settings.connection.vpn, settings.connection.username
    if settings.semp is None:
        raise semp_missing()
    access = QueueAccess(owner, await _others_consume(client, vpn, owner))
    return QueueAdmin(client, vpn, access, settings.semp.queue_spool_mb)


async def _others_consume(client: SempClient, vpn: str, owner: str) -> bool:
    if owner == SHARED_USERNAME:
        return True
    path = ("msgVpns", vpn, "clientUsernames", owner)
    return await client.find(SempApi.CONFIG, path, select=("clientUsername",)) is None
