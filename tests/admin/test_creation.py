"""What creates a group, and what becomes of a creation that fails, is interrupted or meets somebody else's.

More than 400 lines, as one creation is disturbed at every step and by everybody.
"""

import asyncio
from dataclasses import replace
from functools import partial

import anyio
import httpx
import pytest
from structlog.testing import capture_logs

from lbg_runtime.admin.fills import read_fills
from lbg_runtime.admin.group import GroupAdmin
from lbg_runtime.model.errors import BrokerRefusal, GroupRefused, SempRefused, SempUnreachable
from lbg_runtime.model.ids import QueueName
from lbg_runtime.semp.address import SempApi
from tests.admin.group_steps import (
    PARKING,
    SHARED,
    SPEC,
    Between,
    Distant,
    Killed,
    Standby,
    Wire,
    create,
    events,
    everything,
    kills,
    log_in,
    publish,
)


async def test_a_group_is_created_and_its_members_can_work(broker, client):
    await create(client)
    assert broker.engine.queue_names("default") == ("orders/1", "orders/0"), "publishers may take the first for all"
    assert broker.engine.queue_status("default", QueueName("orders/1")).subscriptions == (
        "orders-hash/1/>",
        "orders-hash/3/>",
    )
    member = log_in(broker)
    broker.engine.bind(member, QueueName("orders/0"))
    publish(broker)
    assert await read_fills(client, "default", ["orders/0", "orders/1"]) == {"orders/0": (0, 1), "orders/1": (1, 0)}
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


ERRORS = QueueName("lbg-errors/orders")


@pytest.mark.parametrize(
    ("limit", "there", "raised"),
    [
        ("maxBindCount", {"orders/0": 0, "orders/1": 3, PARKING[0]: 1}, {"orders/0": 3}),
        (
            "maxMsgSpoolUsage",
            {"orders/0": 99, "orders/1": 500, PARKING[0]: 99, ERRORS: 99},
            {"orders/0": 100, PARKING[0]: 100, ERRORS: 100},
        ),
        (
            "maxDeliveredUnackedMsgsPerFlow",
            {"orders/0": 10, PARKING[0]: 9_999, PARKING[1]: 20_000},
            {PARKING[0]: 10_000},
        ),
    ],
)
async def test_a_limit_of_a_queue_is_raised_where_it_is_too_low_and_never_lowered(client, limit, there, raised):
    spec = replace(SPEC, aside=(*PARKING, ERRORS), binds=3)
    admin = await create(client, spec)
    for queue, value in there.items():
        await client.update(("msgVpns", "default", "queues", queue), {limit: value})
    plan = await admin.plan(spec)
    assert {step.ref.name: (step.attributes, step.before) for step in plan.steps} == {
        queue: ({limit: value}, {limit: there[queue]}) for queue, value in raised.items()
    }
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
    assert (plan.steps, plan.is_clean) == ((), False)
    assert list(map(str, plan.problems)) == [
        "ACL profile lbg-orders: refuses clients from 10.0.0.0/8; expected no client connect exceptions"
    ]


async def test_what_lies_in_an_error_queue_may_end_there(client):
    spec = replace(SPEC, aside=(ERRORS,))
    admin = await create(client, spec)
    await client.update(("msgVpns", "default", "queues", ERRORS), {"respectTtlEnabled": True, "maxTtl": 60})
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


async def test_a_creation_in_a_cancelled_scope_of_anyio_is_taken_back(broker, client):
    before = await everything(client)
    with anyio.CancelScope() as scope:

        async def cancel():
            scope.cancel()

        broker.transport = Between(Distant(broker.transport), "POST", "queues", cancel)
        async with broker.client() as failing:
            with capture_logs() as told:
                await create(failing)
    assert scope.cancelled_caught
    assert [each["reason"] for each in told if each["event"] == "group_creation_failed"] == ["interrupted"]
    assert await everything(client) == before


async def test_a_creation_that_is_interrupted_again_while_it_is_taken_back_names_what_is_left(broker, client):
    async def interrupt():
        making.cancel()

    once = Between(Distant(broker.transport), "POST", "queues", interrupt)
    broker.transport = Between(once, "DELETE", "1", interrupt)
    async with broker.client() as failing:
        making = asyncio.create_task(create(failing))
        with capture_logs() as told, pytest.raises(asyncio.CancelledError):
            await making
    assert (told[-1]["event"], told[-1]["reason"]) == ("group_creation_not_undone", "interrupted")
    assert "queue orders/1" in told[-1]["left"]


async def test_a_creation_of_which_a_queue_is_removed_meanwhile_is_taken_back(broker, client):
    before = await everything(client)

    async def remove():
        await client.delete(("msgVpns", "default", "queues", "orders/1"))

    broker.transport = Between(broker.transport, "POST", "subscriptions", remove)
    async with broker.client() as failing:
        with pytest.raises(SempRefused):
            await create(failing)
    assert await everything(client) == before


async def test_a_creation_of_which_something_cannot_be_taken_back_names_it(broker, client):
    async def use():
        other = {"clientUsername": "other", "enabled": True, "aclProfileName": "lbg-orders"}
        await client.create(("msgVpns", "default", "clientUsernames"), other)

    broker.transport = Between(broker.transport, "POST", "queues", use, httpx.ReadTimeout("gone"))
    async with broker.client() as failing:
        with capture_logs() as told, pytest.raises(SempUnreachable):
            await create(failing)
    assert told[-1]["event"] == "group_creation_not_undone"
    assert told[-1]["left"] == ["ACL profile lbg-orders", "client profile lbg-orders"]
    assert "NOT_ALLOWED" in told[-1]["reason"]


async def test_a_queue_that_may_be_open_is_closed_before_it_is_taken_back(broker, client):
    """What is published between the look at it and its end would be confirmed and lost."""
    is_open, before = [], await everything(client)

    async def look():
        queue = await client.get(SempApi.CONFIG, ("msgVpns", "default", "queues", "orders/1"))
        is_open.append(queue.flag("ingressEnabled"))

    broker.transport = Between(broker.transport, "DELETE", "1", look)
    broker.transport = Between(broker.transport, "PATCH", "1", look, httpx.ReadTimeout("gone"), after=True)
    async with broker.client() as failing:
        with pytest.raises(SempUnreachable):
            await create(failing)
    assert is_open == [True, False]
    assert await everything(client) == before


async def test_a_creation_that_fails_is_not_taken_back_by_the_word_of_a_standby(broker, client):
    """Of two queues that are open by then, it would say that they are empty."""

    async def confirm():
        publish(broker)

    broker.transport = Between(Standby(broker.transport), "POST", "jndiQueues", confirm, httpx.ReadTimeout("gone"))
    async with broker.client() as failing:
        with capture_logs() as told, pytest.raises(SempUnreachable):
            await create(failing)
    assert told[-1]["event"] == "group_creation_not_undone"
    assert "VPN default is standby" in told[-1]["reason"]
    publish(broker)
    assert await read_fills(client, "default", ["orders/1"]) == {"orders/1": (2, 0)}, "its queues take messages again"


async def test_a_creation_takes_back_no_queue_that_was_put_to_use_while_it_stood_still(broker, client):
    """Somebody else may have finished the group meanwhile."""

    async def finish():
        admin = GroupAdmin(client, "default")
        await admin.apply(await admin.plan(SPEC))
        publish(broker)

    failing = Between(broker.transport, "POST", "jndiQueues", partial(asyncio.sleep, 0), httpx.ReadTimeout("gone"))
    broker.transport = Between(failing, "DELETE", "1", finish, after=True)
    async with broker.client() as making:
        with capture_logs() as told, pytest.raises(SempUnreachable):
            await create(making)
    assert told[-1]["event"] == "group_creation_not_undone"
    assert told[-1]["reason"].startswith("queue orders/0 takes messages again")
    assert await read_fills(client, "default", ["orders/1"]) == {"orders/1": (1, 0)}


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
    assert "orders/1 (1 message" in told[-1]["reason"]
    admin = GroupAdmin(client, "default")
    assert await read_fills(client, "default", ["orders/1"]) == {"orders/1": (1, 0)}
    publish(broker)  # Its queues take messages as they did.
    await admin.apply(await admin.plan(SPEC))
    assert (await admin.plan(SPEC)).is_clean
    assert await read_fills(client, "default", ["orders/1"]) == {"orders/1": (2, 0)}


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


async def test_what_was_made_before_the_first_queue_is_taken_back_though_members_make_queues(broker, client):
    before = await everything(client)
    broker.transport = Wire(broker.transport, 5, httpx.ReadTimeout("gone"))
    async with broker.client() as failing:
        with pytest.raises(SempUnreachable):
            await create(failing, replace(SPEC, creates_queues=True))
    assert await everything(client) == before


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
