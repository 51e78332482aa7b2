"""What tests of a group's administration have in common: a group, steps of the parties, and what comes between them."""

import asyncio
from dataclasses import replace

import httpx

from lbg_runtime.admin.group import GroupAdmin
from lbg_runtime.admin.objects import PARTS, ObjectKind
from lbg_runtime.admin.roles import Login, Role, Topics
from lbg_runtime.admin.spec import GroupSpec
from lbg_runtime.broker.engine.effects import Published
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.hashing import HashFunction
from lbg_runtime.model.ids import GroupName, QueueName
from lbg_runtime.semp.address import SempApi

CONTROL = "lbg-control/orders"
SPEC = GroupSpec(
    shape=GroupShape(GroupName("orders"), "orders-hash", 5, 2),
    hash_function=HashFunction.CRC32,
    key="topic",
    accounts={Role.MEMBER: Login("members", "secret")},
    queue_spool_mb=100,
    client_profile=None,
    creates_queues=False,
    topics=Topics(CONTROL, more=("#P2P/QUE/#DEAD_MSG_QUEUE",)),
)
SHARED = replace(SPEC, accounts={Role.MEMBER: Login("default", "secret")})
PARKING = (QueueName("lbg-parked/orders/0"), QueueName("lbg-parked/orders/1"))


async def create(client, spec=SPEC):
    admin = GroupAdmin(client, "default")
    await admin.create(await admin.plan(spec, is_new=True))
    return admin


async def everything(client):
    """All objects of the VPN, as the broker tells of them."""
    found = {}
    for kind in ObjectKind:
        if kind not in PARTS:
            for each in await client.find_all(SempApi.CONFIG, ("msgVpns", "default", kind.value)):
                found[kind.value, *sorted(map(str, each.attributes.values()))] = dict(each.attributes)
    for name in [row["queueName"] for key, row in found.items() if key[0] == "queues"]:
        path = ("msgVpns", "default", "queues", name, "subscriptions")
        topics = sorted(each.text("subscriptionTopic") for each in await client.find_all(SempApi.CONFIG, path))
        found["topics", name] = {"topics": topics}
    return found


def events(told):
    """What was logged, but for what the broker says."""
    return [each["event"] for each in told if each["event"] != "semp_changed"]


def log_in(broker, username="members", password="secret", name="ann"):  # noqa: S107
    return broker.engine.connect("default", username, password, name)[0]


def publish(broker):
    client = log_in(broker, "default", "", "publisher")
    flow = broker.engine.open_publisher(client, "").flow
    broker.engine.publish(flow, 1, Published("orders-hash/3/new", 1, 1))


class Wire(httpx.AsyncBaseTransport):
    """Counts the requests that change something; may fail one before or after the broker has it."""

    def __init__(self, inner, fail_at=None, error=None, after=False):
        self._inner = inner
        self._fail_at = fail_at
        self._error = error
        self._after = after
        self.changes = 0

    async def handle_async_request(self, request):
        if request.method == "GET":
            return await self._inner.handle_async_request(request)
        self.changes += 1
        fails = self.changes == self._fail_at
        if fails and not self._after:
            raise self._error
        answer = await self._inner.handle_async_request(request)
        if fails:
            raise self._error
        return answer


class Distant(httpx.AsyncBaseTransport):
    """A broker that is some way off, so that who waits for its answer can be cancelled."""

    def __init__(self, inner):
        self._inner = inner

    async def handle_async_request(self, request):
        answer = await self._inner.handle_async_request(request)
        await asyncio.sleep(0.01)
        return answer


class Between(httpx.AsyncBaseTransport):
    """Does something else before a request that changes something, or after it; may then fail the request."""

    def __init__(self, inner, method, path, act, error=None, after=False):
        self._inner = inner
        self._wanted = (method, path)
        self._act = act
        self._error = error
        self._after = after
        self.is_done = False

    async def handle_async_request(self, request):
        if self.is_done or (request.method, request.url.path.rpartition("/")[2]) != self._wanted:
            return await self._inner.handle_async_request(request)
        self.is_done = True
        if not self._after:
            await self._act()
        answer = await self._inner.handle_async_request(request)
        if self._after:
            await self._act()
        if self._error is not None:
            raise self._error
        return answer


class Standby(httpx.AsyncBaseTransport):
    """The other broker of a pair, where the VPN is not up; or the one, which becomes so at the first change."""

    def __init__(self, inner, *, is_standby=True):
        self._inner = inner
        self._is_standby = is_standby

    async def handle_async_request(self, request):
        answer = await self._inner.handle_async_request(request)
        self._is_standby |= request.method != "GET"
        if self._is_standby and request.url.path.endswith("/monitor/msgVpns/default"):
            return httpx.Response(200, content=(await answer.aread()).replace(b'"up"', b'"standby"'))
        return answer


class Killed(BaseException):
    """Nobody catches it, so nothing is taken back."""


def kills(changes):
    """Before each change, and after the last: who is killed after one leaves what he leaves before the next."""
    return [*((number, False) for number in range(1, changes + 1)), (changes, True)]
