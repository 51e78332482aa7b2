"""What an administrator does with a group, command by command; over 400 lines, as the commands share their steps."""

import asyncio
from contextlib import suppress
from dataclasses import replace

import httpx
import pytest
from structlog.testing import capture_logs

from lbg_runtime.admin.executor import PAUSES_S
from lbg_runtime.admin.group import GroupAdmin
from lbg_runtime.admin.objects import PARTS, ObjectKind, Ref, marker_ref
from lbg_runtime.admin.problems import find_problems, is_own_username
from lbg_runtime.admin.roles import Role, Topics
from lbg_runtime.admin.settings import spec_of
from lbg_runtime.admin.spec import GroupSpec, read_marker
from lbg_runtime.admin.state import read_rights, read_state
from lbg_runtime.broker.engine.effects import ClientEnded, Published
from lbg_runtime.broker.engine.settings import QueueSettings
from lbg_runtime.cli.group.plan_text import plan_as_object, plan_lines
from lbg_runtime.config.load import parse_settings
from lbg_runtime.model.errors import (
    BrokerRefusal,
    ConfigError,
    GroupInUse,
    GroupMissing,
    GroupRefused,
    SempRefused,
    SempUnreachable,
)
from lbg_runtime.model.failure import Then
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.hashing import HashFunction
from lbg_runtime.model.ids import GroupName, QueueName
from lbg_runtime.semp.address import SempApi

CONTROL = "lbg-control/orders"
SPEC = GroupSpec(
    shape=GroupShape(GroupName("orders"), "orders-hash", 5, 2),
    hash_function=HashFunction.CRC32,
    key="topic",
    username="members",
    password="secret",
    queue_spool_mb=100,
    client_profile=None,
    creates_queues=False,
    topics=Topics(CONTROL, more=("#P2P/QUE/#DEAD_MSG_QUEUE",)),
)
SHARED = replace(SPEC, username="default")
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


# -- creation


async def test_a_group_is_created_and_its_members_can_work(broker, client):
    admin = await create(client)
    assert broker.engine.queue_names("default") == ("orders/1", "orders/0"), "publishers may take the first for all"
    assert broker.engine.queue_status("default", QueueName("orders/1")).subscriptions == (
        "orders-hash/1/>",
        "orders-hash/3/>",
    )
    member = log_in(broker)
    broker.engine.bind(member, QueueName("orders/0"))
    publish(broker)
    assert await admin.fills(["orders/0", "orders/1"]) == {"orders/0": (0, 1), "orders/1": (1, 0)}
    with pytest.raises(BrokerRefusal, match="Permission Not Allowed"):
        broker.engine.bind(log_in(broker, "default", "", "stranger"), QueueName("orders/1"))
    with pytest.raises(BrokerRefusal, match="Unauthorized"):
        log_in(broker, password="guess")


async def test_a_created_group_is_as_planned_and_known(client):
    admin = await create(client)
    plan = await admin.plan(SPEC)
    assert plan.is_clean
    assert [group.to_spec().marker() for group in await admin.stored_groups()] == [SPEC.marker()]


@pytest.mark.parametrize("queue", ["orders/1", "lbg-parked/orders/0"])
@pytest.mark.parametrize(
    "unfit",
    [
        {"redeliveryEnabled": False},
        {"maxRedeliveryCount": 1},
        {"respectTtlEnabled": True},
        {"respectMsgPriorityEnabled": True},
    ],
)
async def test_a_queue_that_may_throw_messages_away_is_not_as_it_should_be(client, queue, unfit):
    spec = replace(SPEC, aside=PARKING)
    admin = await create(client, spec)
    await client.update(("msgVpns", "default", "queues", queue), unfit)
    plan = await admin.plan(spec)
    assert [(step.ref.name, dict(step.before)) for step in plan.steps] == [(queue, unfit)]
    await admin.apply(plan)
    assert (await admin.plan(spec)).is_clean


async def test_a_queue_lets_owner_and_standbys_bind(client):
    spec = replace(SPEC, aside=PARKING, binds=3)
    admin = await create(client, spec)
    for queue, count in (("orders/0", 0), ("orders/1", 3), (PARKING[0], 1)):
        await client.update(("msgVpns", "default", "queues", queue), {"maxBindCount": count})
    plan = await admin.plan(spec)
    assert [(step.ref.name, step.attributes, step.before) for step in plan.steps] == [
        ("orders/0", {"maxBindCount": 3}, {"maxBindCount": 0})
    ]
    await admin.apply(plan)
    assert (await admin.plan(spec)).is_clean


@pytest.mark.parametrize("queue", ["orders/0", PARKING[0], "lbg-errors/orders"])
async def test_a_quota_is_raised_and_never_lowered(client, queue):
    spec = replace(SPEC, aside=(*PARKING, QueueName("lbg-errors/orders")))
    admin = await create(client, spec)
    path = ("msgVpns", "default", "queues", queue)
    assert (await client.get(SempApi.CONFIG, path)).attributes["maxMsgSpoolUsage"] == spec.queue_spool_mb
    await client.update(path, {"maxMsgSpoolUsage": 500})
    assert (await admin.plan(spec)).is_clean
    await client.update(path, {"maxMsgSpoolUsage": 99})
    plan = await admin.plan(spec)
    assert [(step.ref.name, step.attributes, step.before) for step in plan.steps] == [
        (queue, {"maxMsgSpoolUsage": 100}, {"maxMsgSpoolUsage": 99})
    ]
    await admin.apply(plan)
    assert (await admin.plan(spec)).is_clean


async def test_a_parking_queue_shows_its_owner_all_that_lies_there(client):
    spec = replace(SPEC, aside=PARKING)
    admin = await create(client, spec)
    for queue, count in (("orders/0", 10), (PARKING[0], 9_999), (PARKING[1], 20_000)):
        await client.update(("msgVpns", "default", "queues", queue), {"maxDeliveredUnackedMsgsPerFlow": count})
    plan = await admin.plan(spec)
    assert [(step.ref.name, step.attributes, step.before) for step in plan.steps] == [
        (PARKING[0], {"maxDeliveredUnackedMsgsPerFlow": 10_000}, {"maxDeliveredUnackedMsgsPerFlow": 9_999})
    ]
    await admin.apply(plan)
    assert (await admin.plan(spec)).is_clean


async def test_a_new_queue_lets_more_bind_than_brokers_let_by_themselves(client):
    spec = replace(SPEC, binds=1_500)
    admin = await create(client, spec)
    assert (await admin.plan(spec)).is_clean


async def test_addresses_that_a_group_refuses_are_told_and_left(client):
    admin = await create(client)
    refused = ("msgVpns", "default", "aclProfiles", "lbg-orders", "clientConnectExceptions")
    await client.create(refused, {"clientConnectExceptionAddress": "10.0.0.0/8"})
    plan = await admin.plan(SPEC)
    assert plan.steps == ()
    assert list(map(str, plan.problems)) == [
        "ACL profile lbg-orders: refuses clients from 10.0.0.0/8; expected no client connect exceptions"
    ]


async def test_what_lies_in_an_error_queue_may_end_there(client):
    errors = QueueName("lbg-errors/orders")
    spec = replace(SPEC, aside=(errors,))
    admin = await create(client, spec)
    await client.update(("msgVpns", "default", "queues", errors), {"respectTtlEnabled": True, "maxTtl": 60})
    assert (await admin.plan(spec)).is_clean


async def test_a_group_of_the_shared_username_has_no_account(broker, client):
    admin = await create(client, SHARED)
    assert (await admin.plan(SHARED)).is_clean
    assert [account.name for account in broker.engine.administration.accounts("default").all()] == ["default"]
    broker.engine.bind(log_in(broker, "anybody", "", "ann"), QueueName("orders/0"))


@pytest.mark.parametrize(
    ("path", "attributes", "where"),
    [
        (("queues",), {"queueName": "orders/1"}, "queue orders/1"),
        (("clientUsernames",), {"clientUsername": "members"}, "client username members"),
        (("aclProfiles",), {"aclProfileName": "lbg-orders"}, "ACL profile lbg-orders"),
        (("clientProfiles",), {"clientProfileName": "lbg-orders"}, "client profile lbg-orders"),
        (("jndiQueues",), {"queueName": "lbg/orders"}, "stored settings lbg/orders"),
    ],
)
async def test_a_name_that_is_taken_stops_a_creation_before_the_first_write(broker, client, path, attributes, where):
    await client.create(("msgVpns", "default", *path), attributes)
    before = await everything(client)
    with pytest.raises(GroupRefused) as caught:
        await create(client)
    assert where in [problem.where for problem in caught.value.problems]
    assert await everything(client) == before


async def test_a_creation_of_a_group_that_is_there_says_so_in_one_line(client):
    admin = await create(client)
    (problem,) = (await admin.plan(SPEC, is_new=True)).problems
    assert str(problem).startswith("group orders: is there already; expected an unused name; `lbg group verify`")


CHANGES = 1 + 7 + 1 + 1 + 2 + 5 + 2 + 1 + 1
"""ACL profile, topics, client profile, username, queues, subscriptions, queues switched on, settings, username on."""


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("number", range(1, CHANGES + 1))
async def test_a_creation_that_fails_is_taken_back(broker, client, number, after):
    before = await everything(client)
    broker.transport = Wire(broker.transport, number, httpx.ReadTimeout("gone"), after)
    async with broker.client() as failing:
        with pytest.raises(SempUnreachable):
            await create(failing)
    assert await everything(client) == before


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (asyncio.CancelledError(), asyncio.CancelledError),
        (UnicodeError("a redirection to nowhere"), SempUnreachable),
        (OSError("no descriptors"), SempUnreachable),
    ],
)
async def test_a_creation_that_is_interrupted_is_taken_back(broker, client, error, raised):
    before = await everything(client)
    broker.transport = Wire(broker.transport, 9, error, after=True)
    async with broker.client() as failing:
        with pytest.raises(raised):
            await create(failing)
    assert await everything(client) == before


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


async def test_a_creation_of_which_a_queue_is_removed_meanwhile_is_taken_back(broker, client):
    before = await everything(client)

    async def remove():
        await client.delete(("msgVpns", "default", "queues", "orders/1"))

    broker.transport = Between(broker.transport, "POST", "subscriptions", remove)
    async with broker.client() as failing:
        with pytest.raises(SempRefused):
            await create(failing)
    assert await everything(client) == before


@pytest.mark.parametrize("error", [httpx.ReadTimeout("gone"), asyncio.CancelledError()])
async def test_a_creation_that_fails_is_not_taken_back_once_a_message_was_confirmed(broker, client, error):
    async def confirm():
        publish(broker)

    broker.transport = Between(broker.transport, "POST", "jndiQueues", confirm, error)
    async with broker.client() as failing:
        with capture_logs() as told, pytest.raises((SempUnreachable, asyncio.CancelledError)):
            await create(failing)
    assert told[-1]["event"] == "group_creation_not_undone"
    assert {"queue orders/0", "queue orders/1"} <= set(told[-1]["left"])
    assert "orders/1 (1 messages" in told[-1]["reason"]
    admin = GroupAdmin(client, "default")
    assert await admin.fills(["orders/1"]) == {"orders/1": (1, 0)}
    publish(broker)  # Its queues take messages as they did.
    await admin.apply(await admin.plan(SPEC))
    assert (await admin.plan(SPEC)).is_clean
    assert await admin.fills(["orders/1"]) == {"orders/1": (2, 0)}


@pytest.mark.parametrize(
    ("kind", "theirs"),
    [
        ("clientUsernames", {"clientUsername": "members", "enabled": True}),
        ("aclProfiles", {"aclProfileName": "lbg-orders", "publishTopicDefaultAction": "allow"}),
        ("jndiQueues", {"queueName": "lbg/orders", "physicalName": "their/queue"}),
    ],
)
async def test_what_another_one_made_while_an_answer_was_lost_is_left_alone(broker, client, kind, theirs):
    async def make():
        await client.create(("msgVpns", "default", kind), theirs)

    await make()
    before = await everything(client)
    await client.delete(("msgVpns", "default", kind, next(iter(theirs.values()))))
    broker.transport = Between(broker.transport, "POST", kind, make, httpx.ReadTimeout("gone"))
    async with broker.client() as failing:
        with capture_logs() as told, pytest.raises(SempUnreachable):
            await create(failing)
    assert events(told) == ["group_creation_failed", "group_creation_met_another"]
    assert await everything(client) == before


THEIRS = (
    {"queueName": "orders/1", "owner": "somebody"},
    {"queueName": "orders/1", "owner": "members", "permission": "no-access", "ingressEnabled": True},
)


async def kept_creation(broker, spec=SPEC, error=SempRefused):
    """Have a creation fail; return why it was not undone."""
    async with broker.client() as failing:
        with capture_logs() as told, pytest.raises(error):
            await create(failing, spec)
    last = told[-1]
    assert last["event"] == "group_creation_not_undone"
    assert last["expected"].startswith("`lbg group apply` to finish it, before anything is published")
    return last["reason"]


@pytest.mark.parametrize("error", [None, httpx.ReadTimeout("gone")])
@pytest.mark.parametrize("theirs", THEIRS)
@pytest.mark.parametrize("spec", [SPEC, SHARED])
async def test_nothing_is_taken_back_once_another_one_has_made_a_queue_of_the_group(
    broker, client, spec, theirs, error
):
    async def make():
        await client.create(("msgVpns", "default", "queues"), theirs)

    broker.transport = Between(broker.transport, "POST", "queues", make, error)
    reason = await kept_creation(broker, spec, SempRefused if error is None else SempUnreachable)
    assert reason == "somebody else is making this group, too, as queue orders/1 shows"
    names = [each.name for each in broker.engine.administration.accounts("default").all()]
    assert ("members" in names) is spec.has_account
    admin = GroupAdmin(client, "default")
    await admin.apply(await admin.plan(spec))
    assert (await admin.plan(spec)).is_clean


@pytest.mark.parametrize("error", [None, asyncio.CancelledError()])
async def test_nothing_is_taken_back_once_another_one_has_subscribed_a_queue_that_was_made(broker, client, error):
    """As a member does that finds the queue, and makes all others next."""

    async def subscribe():
        broker.engine.add_queue_subscription("default", QueueName("orders/1"), "orders-hash/1/>")

    method, path = ("POST", "subscriptions") if error is None else ("POST", "queues")
    broker.transport = Between(broker.transport, method, path, subscribe, error, after=error is not None)
    reason = await kept_creation(broker, SPEC, SempRefused if error is None else asyncio.CancelledError)
    assert reason == "somebody else is making this group, too, as queue orders/1 shows"
    assert broker.engine.queue_names("default") == ("orders/1",)
    admin = GroupAdmin(client, "default")
    await admin.apply(await admin.plan(SPEC))
    assert (await admin.plan(SPEC)).is_clean


@pytest.mark.parametrize("number", range(2, 2 + 5 + 2 + 1 + 1))
async def test_no_queue_is_taken_back_that_members_and_publishers_may_have_found(broker, client, number):
    """Who finds that all is there leaves no trace, and does not look again."""
    spec = replace(SHARED, creates_queues=True)
    broker.transport = Wire(broker.transport, number, httpx.ReadTimeout("gone"))
    assert "create_missing" in await kept_creation(broker, spec, SempUnreachable)
    # The second one comes when the first one has its two subscriptions.
    assert broker.engine.queue_names("default") == ("orders/1", "orders/0")[: 1 if number <= 4 else 2]
    admin = GroupAdmin(client, "default")
    await admin.apply(await admin.plan(spec))
    assert (await admin.plan(spec)).is_clean


class Gateway(httpx.AsyncBaseTransport):
    """Passes one change on to the broker, and says that nobody was there."""

    def __init__(self, inner, number):
        self._inner = inner
        self._left = number

    async def handle_async_request(self, request):
        answer = await self._inner.handle_async_request(request)
        if request.method == "POST":
            self._left -= 1
            if self._left == 0:
                return httpx.Response(503, text="<html>")
        return answer


async def test_what_was_made_by_a_request_that_had_to_be_repeated_is_taken_back(broker, client):
    before = await everything(client)
    broker.transport = Gateway(broker.transport, 14)
    async with broker.client() as unlucky:
        with pytest.raises(SempRefused, match="queues: ALREADY_EXISTS"):
            await create(unlucky)
    assert await everything(client) == before


class Killed(BaseException):
    """Nobody catches it, so nothing is taken back."""


def kills(changes):
    """Before each change, and after the last: who is killed after one leaves what he leaves before the next."""
    return [*((number, False) for number in range(1, changes + 1)), (changes, True)]


@pytest.mark.parametrize(("number", "after"), kills(CHANGES))
async def test_a_creation_that_is_killed_is_finished_by_apply(broker, client, number, after):
    inner = broker.transport
    broker.transport = Wire(inner, number, Killed(), after)
    async with broker.client() as killed:
        with pytest.raises(Killed):
            await create(killed)
    admin = GroupAdmin(client, "default")
    await admin.apply(await admin.plan(SPEC))
    found = await everything(client)
    assert (await admin.plan(SPEC)).is_clean

    await admin.delete(SPEC)
    await create(client)
    assert await everything(client) == found


async def test_there_are_as_many_changes_as_the_tests_of_interruptions_think(broker):
    wire = broker.transport = Wire(broker.transport)
    async with broker.client() as client:
        await create(client)
        assert wire.changes == CHANGES


# -- rights


async def test_an_administrator_of_the_vpn_needs_a_client_profile_that_exists(broker, client):
    async with broker.operator() as operator:
        with pytest.raises(GroupRefused) as caught:
            await create(operator)
        assert [problem.where for problem in caught.value.problems] == ["semp.client_profile"]
        with pytest.raises(GroupRefused, match="no client profile missing"):
            await create(operator, replace(SPEC, client_profile="missing"))
        spec = replace(SPEC, client_profile="default")
        admin = await create(operator, spec)
        assert (await admin.plan(spec)).is_clean
        assert await admin.delete(spec) == []
    assert [
        each.text("clientProfileName")
        for each in await client.find_all(SempApi.CONFIG, ("msgVpns", "default", "clientProfiles"))
    ] == ["default"]


async def test_an_administrator_of_the_vpn_deletes_all_but_a_client_profile(broker, client):
    await create(client)
    async with broker.operator() as operator:
        kept = await GroupAdmin(operator, "default").delete(SPEC)
    assert [str(ref) for ref in kept] == ["client profile lbg-orders"]
    assert broker.engine.queue_names("default") == ()


async def test_who_may_not_write_is_told_before_the_first_write(broker, client):
    async with broker.watcher() as watcher:
        with pytest.raises(GroupRefused, match="may not change the VPN"):
            await create(watcher)
        await create(client)
        with capture_logs() as told, pytest.raises(GroupRefused, match="may not change the VPN"):
            await GroupAdmin(watcher, "default").delete(SPEC, force=True)
        assert not events(told)
        rights = await read_rights(watcher, "default")
        assert (rights.may_write_vpn, rights.may_write_broker) == (False, False)
    async with broker.operator() as operator:
        assert not (await read_rights(operator, "elsewhere")).may_write_vpn


async def test_who_may_not_write_may_look_and_finds_nothing_wrong(broker, client):
    await create(client)
    async with broker.watcher() as watcher:
        assert (await GroupAdmin(watcher, "default").plan(SPEC)).is_clean


# -- drift


async def test_a_deletion_that_is_interrupted_says_that_the_queues_are_closed(broker, client):
    await create(client)
    broker.transport = Wire(broker.transport, 3, httpx.ReadTimeout("gone"))
    async with broker.client() as failing:
        with capture_logs() as told, pytest.raises(SempUnreachable):
            await GroupAdmin(failing, "default").delete(SPEC)
    assert told[-1]["event"] == "group_deletion_interrupted"
    await GroupAdmin(client, "default").apply(await GroupAdmin(client, "default").plan(SPEC))
    assert (await GroupAdmin(client, "default").plan(SPEC)).is_clean


async def test_drift_is_found_and_mended(broker, client):
    admin = await create(client)
    queue = ("msgVpns", "default", "queues", "orders/0")
    await client.update(queue, {"egressEnabled": False, "maxTtl": 5})
    await client.create((*queue, "subscriptions"), {"subscriptionTopic": "others/>"})
    await client.delete((*queue, "subscriptions", "orders-hash/2/>"))
    await client.delete(("msgVpns", "default", "queues", "orders/1"))
    plan = await admin.plan(SPEC)
    assert len(plan.steps) == 1 + 2 + 1 + 1 + 2
    await admin.apply(plan)
    assert (await admin.plan(SPEC)).is_clean
    assert broker.engine.queue_status("default", QueueName("orders/0")).settings.max_ttl_s == 5


async def test_a_queue_that_the_group_should_not_have_is_told_and_left(broker, client):
    admin = await create(client)
    broker.engine.create_queue("default", QueueName("orders/7"), QueueSettings())
    broker.engine.create_queue("default", QueueName("orders/07"), QueueSettings())
    plan = await admin.plan(SPEC)
    assert (plan.steps, plan.surplus, plan.is_clean) == ((), ("orders/7",), False)


async def test_queues_that_members_make_for_a_handler_are_as_they_should_be(broker, client):
    """A handler's own `then` may be `park` or `error_queue` where `failure.then` is neither."""
    admin = await create(client)
    for queue in (*PARKING, QueueName("lbg-errors/orders"), QueueName("lbg-parked/orders/2")):
        broker.engine.create_queue("default", queue, QueueSettings())
    plan = await admin.plan(SPEC)
    assert (plan.steps, plan.surplus) == ((), ("lbg-parked/orders/2",)), "the group has the queues 0 and 1"
    assert plan.remarks == (), "which ends handlers have is not known"


async def test_parking_queues_that_no_member_looks_into_are_told_and_left(broker, client):
    parking = replace(SPEC, aside=PARKING, is_aside_whole=True)
    admin = await create(client, parking)
    assert (await admin.plan(parking)).is_clean
    plan = await admin.plan(replace(parking, aside=()))
    assert (plan.steps, plan.problems, plan.is_clean) == ((), (), False)
    (told,) = map(str, plan.remarks)
    assert told.startswith("queue lbg-parked/orders/0: is there, and 1 more like it, and nobody parks: no member looks")
    broker.engine.delete_queue("default", PARKING[0])
    broker.engine.delete_queue("default", PARKING[1])
    assert (await admin.plan(replace(parking, aside=()))).is_clean


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"shape": GroupShape(GroupName("orders"), "orders-hash", 6, 2)}, "group.hash_count"),
        ({"shape": GroupShape(GroupName("orders"), "other", 5, 2)}, "group.hash_prefix"),
        ({"hash_function": HashFunction.JAVA_STRING}, "group.hash_function"),
        ({"username": "others"}, "connection.username"),
        ({"shape": GroupShape(GroupName("orders"), "orders-hash", 5, 3)}, "queue orders/0"),
    ],
)
async def test_what_would_send_keys_elsewhere_is_no_business_of_apply(client, change, where):
    admin = await create(client)
    before = await everything(client)
    plan = await admin.plan(replace(SPEC, **change))
    assert where in [problem.where for problem in plan.problems]
    with pytest.raises(GroupRefused):
        await admin.apply(plan)
    assert await everything(client) == before


async def test_another_number_of_queues_is_stored_once_the_shards_lie_there(broker, client):
    admin = await create(client)
    wider = replace(SPEC, shape=GroupShape(GroupName("orders"), "orders-hash", 5, 3))
    for index in range(3):
        name = QueueName(f"orders/{index}")
        if index == 2:
            broker.engine.create_queue("default", name, QueueSettings())
        for topic in broker.engine.queue_status("default", name).subscriptions:
            broker.engine.remove_queue_subscription("default", name, topic)
        for topic in wider.shape.subscriptions(index):
            broker.engine.add_queue_subscription("default", name, topic)
    await admin.apply(await admin.plan(wider))
    assert (await admin.plan(wider)).is_clean
    (stored,) = await admin.stored_groups()
    assert stored.shape.queue_count == 3


async def test_a_group_that_is_being_re_striped_is_left_alone_and_its_secret_not_shown(broker, client):
    admin = await create(client)
    topic = f"{CONTROL}/restripe/1/2/3/5ec7e7"
    broker.engine.add_queue_subscription("default", QueueName("orders/0"), topic)
    plan = await admin.plan(SPEC)
    assert "the group is being re-striped from 2 to 3 queues" in str(plan.problems[0])
    assert plan.steps == ()
    assert "5ec7e7" not in f"{plan_as_object(plan)} {list(plan_lines(plan))}"
    move(broker, 2, 0, 1)
    assert [problem.expected for problem in (await admin.plan(SPEC)).problems] == [
        "`lbg group restripe` to end first",
        "`lbg group restripe`, which moves shards without a loss",
    ]


def move(broker, shard, old, new):
    """What somebody does by hand; None where no queue had it, or none gets it."""
    for index, change in (
        (old, broker.engine.remove_queue_subscription),
        (new, broker.engine.add_queue_subscription),
    ):
        if index is not None:
            change("default", QueueName(f"orders/{index}"), f"orders-hash/{shard}/>")


async def test_shards_that_were_moved_by_hand_go_back_by_hand(broker, client):
    admin = await create(client)
    move(broker, 2, 0, 1)
    move(broker, 0, 0, None)
    move(broker, 3, 1, None)
    plan = await admin.plan(SPEC)
    assert list(map(str, plan.problems)) == [
        "queue orders/1: subscribes to orders-hash/2/>, which belongs to orders/0; expected by hand: publishers "
        "stopped until orders/1 is empty, then the subscription taken from it, then `lbg group apply`",
        "queue orders/0: no subscription orders-hash/0/>, and 1 more like it, and no other queue has it: what is "
        "published there is lost; expected at once and by hand: the subscription added to this queue",
    ]
    move(broker, 2, 1, None)
    await admin.apply(await admin.plan(SPEC))
    assert (await admin.plan(SPEC)).is_clean


async def test_with_another_count_than_is_stored_nobody_is_told_to_move_shards(broker, client):
    admin = await create(client)
    move(broker, 2, 0, 1)
    wider = replace(SPEC, shape=GroupShape(GroupName("orders"), "orders-hash", 5, 3))
    (problem,) = (await admin.plan(wider)).problems
    assert str(problem) == (
        "group.queue_count: 3, and the group on the broker has 2, with shards in queues of neither; expected 2, until "
        "`lbg group verify` is content with that"
    )


async def test_a_lost_shard_of_another_count_is_added_where_its_messages_are(client):
    """It was told that shards lay in queues of neither number, or that it belonged where it would be after a
    re-striping: what lies in its old queue would then have been overtaken."""
    wider = replace(SPEC, shape=GroupShape(GroupName("orders"), "orders-hash", 5, 3))
    await create(client, wider)
    state = dict(await read_state(client, "default", SPEC))
    state[marker_ref(SPEC)] = {"physicalName": wider.marker()}
    del state[Ref(ObjectKind.SUBSCRIPTION, "orders-hash/4/>", QueueName("orders/1"))]
    assert list(map(str, find_problems(SPEC, state))) == [
        "queue orders/0: subscribes to orders-hash/3/>, which belongs to orders/1, and 1 more like it; expected "
        "`lbg group restripe`, which moves shards without a loss",
        "queue orders/1: no subscription orders-hash/4/>, and no other queue has it: what is published there is lost; "
        "expected at once and by hand: the subscription added to this queue",
    ]


async def test_what_only_a_wildcard_takes_is_no_lost_shard_of_another_count(client):
    """To take the wildcard away, as for a re-striping, would lose everything that is published after it."""
    wider = replace(SPEC, shape=GroupShape(GroupName("orders"), "orders-hash", 5, 3))
    await create(client, wider)
    state = {
        ref: at for ref, at in (await read_state(client, "default", SPEC)).items() if "orders-hash/" not in ref.name
    }
    state[marker_ref(SPEC)] = {"physicalName": wider.marker()}
    state[Ref(ObjectKind.SUBSCRIPTION, "orders-hash/*/>", QueueName("orders/0"))] = {}
    (problem,) = find_problems(SPEC, state)
    assert problem.where == "group.queue_count"


@pytest.mark.parametrize("stored_count", [2, 3])
async def test_of_two_whole_layouts_the_stored_one_is_the_groups(client, stored_count):
    """The smaller one was taken for it, and the shards of the group were to be taken away."""
    shapes = {count: GroupShape(GroupName("orders"), "orders-hash", 5, count) for count in (2, 3, 4)}
    spec = replace(SPEC, shape=shapes[4])
    await create(client, replace(SPEC, shape=shapes[3]))
    state = dict(await read_state(client, "default", spec))
    state[marker_ref(spec)] = {"physicalName": replace(SPEC, shape=shapes[stored_count]).marker()}
    for index in range(2):
        for topic in shapes[2].subscriptions(index):
            state[Ref(ObjectKind.SUBSCRIPTION, topic, QueueName(f"orders/{index}"))] = {}
    (problem,) = find_problems(spec, state)
    assert problem.found.endswith(f", without which the shards lie as for {stored_count} queues")


@pytest.mark.parametrize("stored_count", [2, 3])
@pytest.mark.parametrize("topic", ["orders-hash/1/>", "orders-hash/*/>", "orders*/>"])
async def test_what_keeps_shards_of_another_count_from_being_moved_goes_before_a_restripe(client, stored_count, topic):
    """It refuses until then; for `lbg group apply`, shards that lie as they should would have to be taken away."""
    wider = replace(SPEC, shape=GroupShape(GroupName("orders"), "orders-hash", 5, 3))
    await create(client, wider)
    state = dict(await read_state(client, "default", SPEC))
    state[marker_ref(SPEC)] = {"physicalName": (SPEC if stored_count == 2 else wider).marker()}
    state[Ref(ObjectKind.SUBSCRIPTION, topic, QueueName("orders/0"))] = {}
    (problem,) = find_problems(SPEC, state)
    assert str(problem) == (
        f"queue orders/0: subscribes to {topic}, without which the shards lie as for 3 queues; expected by hand: "
        "publishers stopped until orders/0 is empty, then the subscription taken from it, then `lbg group restripe`, "
        "which moves shards without a loss"
    )
    state[Ref(ObjectKind.SUBSCRIPTION, topic, QueueName("orders/2"))] = {}
    (problem,) = find_problems(SPEC, state)
    assert problem.found == (f"subscribes to {topic}, and 1 more like it, without which the shards lie as for 3 queues")


async def test_a_shard_in_more_queues_than_there_are_shards_is_told(client):
    await create(client)
    state = await read_state(client, "default", SPEC)
    for index in range(2, 9):
        state[Ref(ObjectKind.SUBSCRIPTION, "orders-hash/1/>", QueueName(f"orders/{index}"))] = {}
    (problem,) = find_problems(SPEC, state)
    assert problem.found == "subscribes to orders-hash/1/>, which belongs to orders/1, and 6 more like it"
    assert "by hand" in problem.expected


@pytest.mark.parametrize("topic", ["orders-hash/*/>", ">", "*/>", "orders*/>", "orders-hash/2*/new", "orders-hash/>"])
async def test_a_wildcard_that_takes_shards_of_other_queues_is_taken_away_by_hand(broker, client, topic):
    """What lies in the queue would be handled after what is published once the shards are in their own."""
    admin = await create(client)
    broker.engine.add_queue_subscription("default", QueueName("orders/1"), topic)
    plan = await admin.plan(SPEC)
    assert list(map(str, plan.problems)) == [
        f"queue orders/1: subscribes to {topic}, which takes shards that belong to other queues; expected by hand: "
        "publishers stopped until orders/1 is empty, then the subscription taken from it, then `lbg group apply`"
    ]
    with pytest.raises(GroupRefused):
        await admin.apply(plan)
    broker.engine.remove_queue_subscription("default", QueueName("orders/1"), topic)
    assert (await admin.plan(SPEC)).is_clean


async def test_a_shard_that_only_a_wildcard_takes_is_not_lost(broker, client):
    admin = await create(client)
    move(broker, 0, 0, None)
    broker.engine.add_queue_subscription("default", QueueName("orders/1"), "orders-hash/*/>")
    assert [problem.where for problem in (await admin.plan(SPEC)).problems] == ["queue orders/1"]
    broker.engine.remove_queue_subscription("default", QueueName("orders/1"), "orders-hash/*/>")
    broker.engine.add_queue_subscription("default", QueueName("orders/1"), "orders-hash/*/new")
    assert [problem.where for problem in (await admin.plan(SPEC)).problems] == ["queue orders/1", "queue orders/0"]


@pytest.mark.parametrize("topic", ["orders-hash/1/new", "others/*/>", "orders-hash/*", "orders-hash/9/>", "order/>"])
async def test_a_subscription_to_no_shard_of_another_queue_is_a_mere_surplus(broker, client, topic):
    admin = await create(client)
    broker.engine.add_queue_subscription("default", QueueName("orders/1"), topic)
    await admin.apply(await admin.plan(SPEC))
    assert (await admin.plan(SPEC)).is_clean
    assert topic not in broker.engine.queue_status("default", QueueName("orders/1")).subscriptions


async def test_a_partitioned_queue_keeps_no_order_and_is_emptied_first(client):
    spec, state = SPEC, await read_state(client, "default", SPEC)
    state[Ref(ObjectKind.QUEUE, "orders/0")] = {"partitionCount": 4}
    (problem,) = find_problems(spec, state)
    assert "a partitioned queue; expected one without partitions" in str(problem)
    assert "publishers stopped until it is empty" in problem.expected


@pytest.mark.parametrize("enabled", [True, False])
async def test_somebody_elses_username_is_not_taken_over(client, enabled):
    await client.create(("msgVpns", "default", "clientUsernames"), {"clientUsername": "members", "enabled": enabled})
    plan = await GroupAdmin(client, "default").plan(SPEC)
    assert [problem.where for problem in plan.problems] == ["client username members"]


async def test_somebody_elses_settings_are_not_overwritten(client):
    entry = {"queueName": "lbg/orders", "physicalName": "their/queue"}
    await client.create(("msgVpns", "default", "jndiQueues"), entry)
    admin = GroupAdmin(client, "default")
    assert [problem.where for problem in (await admin.plan(SPEC)).problems] == [str(marker_ref(SPEC))]
    assert await admin.stored_groups() == []


# -- queues of others


DEAD = QueueName("#DEAD_MSG_QUEUE")


@pytest.mark.parametrize(
    ("unfit", "found"),
    [
        ({"rejectMsgToSenderOnDiscardBehavior": "never"}, "rejectMsgToSenderOnDiscardBehavior never: "),
        ({"rejectMsgToSenderOnDiscardBehavior": "when-queue-enabled"}, "rejectMsgToSenderOnDiscardBehavior when-queue"),
        ({"ingressEnabled": False}, "ingressEnabled False: "),
    ],
)
async def test_a_dead_message_queue_that_may_lose_what_is_moved_there_is_told_and_left(client, unfit, found):
    spec = replace(SPEC, borrowed=(DEAD,))
    admin = await create(client, spec)
    fit = {"queueName": DEAD, "ingressEnabled": True, "rejectMsgToSenderOnDiscardBehavior": "always"}
    await client.create(("msgVpns", "default", "queues"), fit)
    assert (await admin.plan(spec)).is_clean
    await client.update(("msgVpns", "default", "queues", DEAD), unfit)
    plan = await admin.plan(spec)
    assert (plan.steps, plan.problems, plan.is_clean) == ((), (), False)
    assert [(each.where, each.found.startswith(found)) for each in plan.remarks] == [(f"queue {DEAD}", True)]
    assert plan_as_object(plan)["remarks"][0]["where"] == f"queue {DEAD}"
    assert next(iter(plan_lines(plan))).startswith(f"? queue {DEAD}: {found}")
    await admin.apply(plan)
    await admin.delete(spec)
    assert (await client.get(SempApi.CONFIG, ("msgVpns", "default", "queues", DEAD))).attributes["queueName"] == DEAD


async def test_a_dead_message_queue_that_is_missing_is_told(client):
    spec = replace(SPEC, borrowed=(DEAD,))
    admin = await create(client, spec)
    assert [str(each) for each in (await admin.plan(spec)).remarks] == [
        "queue #DEAD_MSG_QUEUE: is missing, and members move messages to it; expected one that exists"
    ]
    assert (await admin.plan(SPEC)).is_clean


# -- deletion


async def test_queues_for_what_is_set_aside_come_and_go_with_the_group(broker, client):
    spec = replace(SPEC, aside=(*PARKING, QueueName("lbg-errors/orders")))
    admin = await create(client, spec)
    for queue in spec.aside:
        assert broker.engine.queue_status("default", queue).subscriptions == (queue,)
    owner = log_in(broker)
    broker.engine.bind(owner, PARKING[0])
    assert (await admin.plan(spec)).is_clean
    with pytest.raises(GroupInUse, match=PARKING[0]) as bound:
        await admin.delete(SPEC)
    assert not bound.value.only_parking
    broker.engine.publish_direct(owner, Published(PARKING[0], None, 1))
    broker.engine.disconnect(owner)
    with pytest.raises(GroupInUse, match="only marks are left: --force"):
        await admin.delete(SPEC)
    await admin.delete(SPEC, force=True)
    assert broker.engine.queue_names("default") == ()


async def test_a_deletion_leaves_what_was_there_before(client):
    before = await everything(client)
    admin = await create(client)
    assert await admin.delete(SPEC) == []
    assert await everything(client) == before
    with pytest.raises(GroupMissing):
        await admin.delete(SPEC)


async def test_a_group_with_messages_or_flows_is_kept_as_it_was(broker, client):
    admin = await create(client)
    before = await everything(client)
    broker.engine.bind(log_in(broker), QueueName("orders/0"))
    publish(broker)
    broker.effects.clear()
    with pytest.raises(GroupInUse) as caught:
        await admin.delete(SPEC)
    assert caught.value.left == {"orders/0": (0, 1), "orders/1": (1, 0)}
    assert await everything(client) == before
    assert broker.effects == []


async def test_force_drops_messages_and_disconnects_members(broker, client):
    admin = await create(client)
    member = log_in(broker)
    broker.engine.bind(member, QueueName("orders/0"))
    publish(broker)
    await admin.delete(SPEC, force=True)
    assert [effect.client for effect in broker.effects if isinstance(effect, ClientEnded)] == [member]
    assert broker.engine.queue_names("default") == ()


async def test_a_message_that_comes_while_a_group_is_deleted_saves_it(broker, client):
    admin = await create(client)
    before = await everything(client)
    looks = 0

    class Late(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request):
            nonlocal looks
            answer = await inner.handle_async_request(request)
            looks += "monitor" in request.url.path
            if looks == 2:  # Every queue has been looked at once.
                looks += 1
                publish(broker)
            return answer

    inner, broker.transport = broker.transport, Late()
    async with broker.client() as watched:
        with pytest.raises(GroupInUse):
            await GroupAdmin(watched, "default").delete(SPEC)
    assert await everything(client) == before
    assert (await admin.plan(SPEC)).is_clean


async def test_a_deletion_that_is_refused_at_its_second_look_leaves_the_group_as_it_was(broker, client):
    admin = await create(client)
    before = await everything(client)
    await client.create(("msgVpns", "default", "queues"), {"queueName": "orders/9", "ingressEnabled": True})

    async def publish_and_remove():
        await client.update(("msgVpns", "default", "queues", "orders/1"), {"ingressEnabled": True})
        publish(broker)
        await client.update(("msgVpns", "default", "queues", "orders/1"), {"ingressEnabled": False})
        await client.delete(("msgVpns", "default", "queues", "orders/9"))

    broker.transport = Between(broker.transport, "PATCH", "9", publish_and_remove)
    async with broker.client() as watched:
        with capture_logs() as told, pytest.raises(GroupInUse):
            await GroupAdmin(watched, "default").delete(SPEC)
    assert events(told) == []
    assert await everything(client) == before
    assert (await admin.plan(SPEC)).is_clean


async def test_a_deletion_that_is_refused_when_part_of_the_group_is_gone_says_so(broker, client):
    await create(client, SHARED)

    async def bind_and_remove():
        broker.engine.bind(log_in(broker, "default", "", "ann"), QueueName("orders/1"))
        await client.delete(("msgVpns", "default", "queues", "orders/0"))

    broker.transport = Between(broker.transport, "DELETE", "orders", bind_and_remove)
    async with broker.client() as watched:
        with capture_logs() as told, pytest.raises(GroupInUse):
            await GroupAdmin(watched, "default").delete(SHARED)
    assert events(told) == ["group_deletion_interrupted"]


DELETIONS = 2 + 1 + 1 + 2 + 2 + 1 + 1 + 1
"""Ingress, username, settings, egress, queues, username, ACL profile, client profile."""


@pytest.mark.parametrize(("number", "after"), kills(DELETIONS))
async def test_a_deletion_that_is_killed_is_finished_by_the_next(broker, client, number, after):
    before = await everything(client)
    await create(client)
    inner = broker.transport
    broker.transport = Wire(inner, number, Killed(), after)
    async with broker.client() as killed:
        with pytest.raises(Killed):
            await GroupAdmin(killed, "default").delete(SPEC)
    try:
        await GroupAdmin(client, "default").delete(SPEC)
    except GroupMissing:
        assert (number, after) == (DELETIONS, True)
    assert await everything(client) == before


@pytest.mark.parametrize("number", range(1, 40))
async def test_who_deletes_what_another_one_deletes_is_told_that_it_is_gone(broker, client, number):
    """The other one does it all at once, before any of our requests."""
    before = await everything(client)
    await create(client)
    requests = 0

    class Overtaken(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request):
            nonlocal requests
            requests += 1
            if requests == number:
                await GroupAdmin(client, "default").delete(SPEC)
            return await inner.handle_async_request(request)

    inner, broker.transport = broker.transport, Overtaken()
    async with broker.client() as late:
        with capture_logs() as told, suppress(GroupMissing):
            await GroupAdmin(late, "default").delete(SPEC)
    assert events(told) == []
    assert await everything(client) == before


@pytest.mark.parametrize("enabled", [True, False])
async def test_a_deletion_does_not_take_a_username_that_is_not_known_to_be_the_groups(client, enabled):
    await client.create(("msgVpns", "default", "clientUsernames"), {"clientUsername": "members", "enabled": enabled})
    before = await everything(client)
    with pytest.raises(GroupMissing):
        await GroupAdmin(client, "default").delete(SPEC)
    assert await everything(client) == before


STRANGE = '{"V":2,"note":"of a newer lbg, or of somebody else"}'


async def test_a_group_whose_settings_cannot_be_read_is_not_deleted(client):
    await client.create(("msgVpns", "default", "jndiQueues"), {"queueName": "lbg/orders", "physicalName": STRANGE})
    await client.create(("msgVpns", "default", "queues"), {"queueName": "orders/0"})
    await client.create(("msgVpns", "default", "clientUsernames"), {"clientUsername": "members", "enabled": True})
    before = await everything(client)
    with pytest.raises(GroupRefused, match="something else is stored there"):
        await GroupAdmin(client, "default").delete(SPEC, force=True)
    assert await everything(client) == before


@pytest.mark.parametrize(
    ("username", "there", "is_own"),
    [
        ("members", {"enabled": True, "aclProfileName": "theirs"}, True),
        ("others", {"enabled": True, "aclProfileName": "lbg-orders"}, False),
        ("others", {"enabled": False, "aclProfileName": "default"}, False),
        ("others", {"enabled": False, "aclProfileName": "lbg-orders"}, True),
    ],
)
def test_a_username_is_the_groups_where_that_is_stored_or_an_interruption_left_it(username, there, is_own):
    stored = read_marker("lbg/orders", SPEC.marker())
    assert is_own_username(replace(SPEC, username=username), Role.MEMBER, stored, there) is is_own


# -- what stands in the way for a moment


async def test_what_is_still_in_use_is_tried_again_for_a_while(broker, client):
    await create(client)
    refusals = 3

    class Slow(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request):
            nonlocal refusals
            if request.method == "DELETE" and "aclProfiles" in request.url.path and refusals:
                refusals -= 1
                error = {"code": 89, "status": "NOT_ALLOWED", "description": "in use"}
                return httpx.Response(400, json={"meta": {"responseCode": 400, "error": error}})
            return await inner.handle_async_request(request)

    inner, broker.transport = broker.transport, Slow()
    loop = asyncio.get_running_loop()
    async with broker.client() as slow:
        began = loop.time()
        await GroupAdmin(slow, "default").delete(SPEC)
        assert loop.time() - began == pytest.approx(sum(PAUSES_S[:3]))


async def test_what_stays_in_use_is_an_error(client):
    await create(client)
    other = {"clientUsername": "other", "enabled": True, "aclProfileName": "lbg-orders"}
    await client.create(("msgVpns", "default", "clientUsernames"), other)
    with pytest.raises(SempRefused) as caught:
        await GroupAdmin(client, "default").delete(SPEC)
    assert caught.value.code == 89


# -- from settings


def test_settings_say_what_a_group_is_to_be():
    sections = {
        "group": {
            "name": "orders",
            "hash_prefix": "orders-hash",
            "hash_count": 5,
            "queue_count": 2,
            "key": "topic",
            "provision": "create_missing",
        },
        "connection": {"username": "members", "password": "secret"},
        "semp": {"url": "http://broker", "queue_spool_mb": 100},
    }
    assert spec_of(parse_settings(sections, "test")) == replace(SPEC, creates_queues=True, binds=3)
    for rebind, binds in (({"standbys": 0}, 1), ({"standbys": "all"}, 1)):
        assert spec_of(parse_settings({**sections, "rebind": rebind}, "test")).binds == binds
    for failure, aside in (
        ({"then": "park"}, PARKING),
        ({"then": "error_queue"}, ("lbg-errors/orders",)),
        ({"then": "error_queue", "error_queue": "others"}, ()),
        ({"then": "dmq"}, ()),
    ):
        assert spec_of(parse_settings({**sections, "failure": failure}, "test")).aside == aside
    settings = parse_settings({**sections, "failure": {"then": "dmq", "attempts": 1}}, "test")
    spec = spec_of(settings, (Then.PARK, Then.ERROR_QUEUE, Then.STOP))
    assert (spec.aside, spec.borrowed) == ((*PARKING, "lbg-errors/orders"), ("#DEAD_MSG_QUEUE",))
    settings = parse_settings({**sections, "failure": {"error_queue": "others"}}, "test")
    spec = spec_of(settings, (Then.ERROR_QUEUE, Then.DMQ))
    assert (spec.aside, spec.borrowed) == ((), ("others", "#DEAD_MSG_QUEUE"))
    assert [spec_of(settings, ends).is_aside_whole for ends in (None, (), (Then.STOP,))] == [False, True, True]
    del sections["semp"]
    with pytest.raises(ConfigError, match="semp"):
        spec_of(parse_settings(sections, "test"))


BY_CERTIFICATE = {"client_certificate": {"certificate": "/run/client.pem"}}
BY_TOKEN = {"oauth": {"token_file": "/run/token"}}


@pytest.mark.parametrize("proof", [BY_CERTIFICATE, BY_TOKEN])
async def test_nobody_knows_the_password_of_an_account_that_needs_none(broker, client, proof):
    """Else its name would be enough wherever the broker takes passwords, too."""
    secured = {"transport": "solace", "host": "tcps://b:1", "tls": {"trust_store": "/trusted"}, "username": "members"}
    sections = {
        "group": {"name": "orders", "hash_prefix": "orders-hash", "hash_count": 5, "queue_count": 2},
        "connection": {**secured, **proof},
        "semp": {
            "url": "http://broker",
            "publisher": {"username": "publishers"},
            "conductor": {"username": "conductors", "password": "given"},
        },
    }
    spec = spec_of(parse_settings(sections, "test"))
    passwords = {role: login.password for role, login in spec.logins.items()}
    assert passwords.pop(Role.CONDUCTOR) == "given"
    assert len(set(passwords.values())) == 2
    assert all(len(password) >= 32 for password in passwords.values())
    admin = await create(client, spec)
    # A broker with accounts asks for their passwords.
    await client.update(("msgVpns", "default"), {"authenticationBasicType": "internal"})
    for name in ("members", "publishers"):
        with pytest.raises(BrokerRefusal):
            log_in(broker, name, "")
    log_in(broker, "conductors", "given")
    assert (await admin.plan(spec_of(parse_settings(sections, "test")))).is_clean, "it is drawn, and not compared"


def test_accounts_that_log_in_by_password_have_the_one_of_the_settings():
    sections = {
        "group": {"name": "orders", "hash_prefix": "orders-hash", "hash_count": 5, "queue_count": 2},
        "connection": {"username": "members"},
        "semp": {"url": "http://broker", "publisher": {"username": "publishers", "password": "p"}},
    }
    spec = spec_of(parse_settings(sections, "test"))
    assert {role: login.password for role, login in spec.logins.items()} == {Role.MEMBER: "", Role.PUBLISHER: "p"}


def test_a_partitioned_queue_is_not_this_groups_to_make() -> None:
    group = {"name": "orders", "hash_prefix": "h", "hash_count": 8, "queue_count": 4, "backend": "partitioned"}
    given = {"group": group, "dispatch": {"missing_key": "error"}, "semp": {"url": "http://broker"}}
    with pytest.raises(ConfigError, match="group\\.backend: partitioned"):
        spec_of(parse_settings(given, "test"))
