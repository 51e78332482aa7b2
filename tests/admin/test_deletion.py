"""What a deletion takes and leaves, what saves a group from it, and what becomes of one that is interrupted.

More than 400 lines, as all of it is told of the same groups on the same broker.
"""

import asyncio
from contextlib import suppress
from dataclasses import replace
from itertools import count

import httpx
import pytest
from structlog.testing import capture_logs

from lbg_runtime.admin.executor import PAUSES_S
from lbg_runtime.admin.fills import LOOK_COUNTS_S, read_fills
from lbg_runtime.admin.group import GroupAdmin
from lbg_runtime.admin.problems import is_own_username
from lbg_runtime.admin.roles import Login, Role
from lbg_runtime.admin.spec import read_marker
from lbg_runtime.broker.engine.effects import ClientEnded, Published
from lbg_runtime.broker.engine.settings import QueueSettings
from lbg_runtime.model.errors import (
    GroupInUse,
    GroupMissing,
    GroupRefused,
    GroupReopened,
    MembersNotSeen,
    SempRefused,
    SempUnreachable,
    VpnNotUp,
)
from lbg_runtime.model.ids import QueueName
from lbg_runtime.model.semp_code import SempCode
from lbg_runtime.semp.address import SempApi
from tests.admin.group_steps import (
    PARKING,
    SHARED,
    SPEC,
    Between,
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


@pytest.mark.parametrize(
    ("error", "raised", "reason"),
    [
        (httpx.ReadTimeout("gone"), SempUnreachable, "no answer within 10 s"),
        (asyncio.CancelledError(), asyncio.CancelledError, "interrupted"),
    ],
)
@pytest.mark.parametrize("number", [2, 3], ids=["with one queue closed", "with all closed"])
async def test_a_deletion_that_is_interrupted_says_that_queues_are_closed(
    broker, client, error, raised, reason, number
):
    await create(client)
    broker.transport = Wire(broker.transport, number, error)
    async with broker.client() as failing:
        with capture_logs() as told, pytest.raises(raised):
            await GroupAdmin(failing, "default").delete(SPEC)
    assert told[-1]["event"] == "group_deletion_interrupted"
    assert reason in told[-1]["reason"]
    await GroupAdmin(client, "default").apply(await GroupAdmin(client, "default").plan(SPEC))
    assert (await GroupAdmin(client, "default").plan(SPEC)).is_clean


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
    begun = []
    with pytest.raises(GroupInUse) as caught:
        await admin.delete(SPEC, on_step=begun.append)
    assert begun == [], "publishers are not even refused for a moment"
    assert caught.value.left == {"orders/0": (0, 1), "orders/1": (1, 0)}
    assert await everything(client) == before
    assert broker.effects == []


async def test_messages_in_a_queue_of_the_group_are_not_said_to_be_marks(broker, client):
    """With --force they would be lost."""
    admin = await create(client, replace(SPEC, aside=PARKING))
    broker.engine.publish_direct(log_in(broker), Published(PARKING[0], None, 1))
    publish(broker)
    with pytest.raises(GroupInUse) as caught:
        await admin.delete(SPEC)
    assert set(caught.value.left) == {PARKING[0], "orders/1"}
    assert not caught.value.only_parking


@pytest.mark.parametrize("from_the_start", [True, False])
async def test_a_standby_is_not_believed_that_queues_are_empty(broker, client, from_the_start):
    """What is deleted there is deleted at the active one, too, with the messages that only that one knows of."""
    await create(client)
    before = await everything(client)
    broker.transport = Standby(broker.transport, is_standby=from_the_start)
    async with broker.client() as misled:
        admin = GroupAdmin(misled, "default")
        with pytest.raises(VpnNotUp, match=r"semp\.url: http://broker .* VPN default is standby; expected up"):
            await admin.delete(SPEC)
        assert await everything(client) == before
        await admin.delete(SPEC, force=True)
    assert broker.engine.queue_names("default") == ()


def use_up(broker):
    """A member takes what was published, and leaves."""
    member = log_in(broker)
    broker.engine.bind(member, QueueName("orders/1"))
    publish(broker)
    broker.engine.administration.delete_messages("default", QueueName("orders/1"))
    broker.engine.disconnect(member)


def take_over(broker):
    """Count anew, as a broker does that was started again, or took over from the other one of its pair."""
    for queue in broker.engine.queue_names("default"):
        broker.engine.administration.clear_counts("default", queue)


async def test_a_group_whose_members_may_still_be_on_their_way_back_is_kept(broker, client):
    """Right behind a fail-over, no flow is bound to the queues of a group at work."""
    admin = await create(client)
    before = await everything(client)
    use_up(broker)
    take_over(broker)
    with pytest.raises(MembersNotSeen, match=r"^orders/1: there were messages, and nobody has been bound .* --force"):
        await admin.delete(SPEC)
    assert await everything(client) == before
    # One has come back, to whichever of the queues, and has left.
    member = log_in(broker)
    broker.engine.bind(member, QueueName("orders/0"))
    broker.engine.disconnect(member)
    await admin.delete(SPEC)
    assert broker.engine.queue_names("default") == ()


async def test_a_fail_over_while_a_group_is_deleted_saves_it(broker, client):
    admin = await create(client)
    before = await everything(client)
    use_up(broker)

    class Closing(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request):
            answer = await inner.handle_async_request(request)
            if request.method == "PATCH":
                take_over(broker)
            return answer

    inner, broker.transport = broker.transport, Closing()
    async with broker.client() as watched:
        with pytest.raises(MembersNotSeen):
            await GroupAdmin(watched, "default").delete(SPEC)
    assert await everything(client) == before
    assert (await admin.plan(SPEC)).is_clean


@pytest.mark.parametrize("is_used", [True, False])
async def test_a_group_whose_members_have_left_or_that_nobody_used_is_deleted(broker, client, is_used):
    admin = await create(client)
    if is_used:
        use_up(broker)
    else:
        take_over(broker)
    await admin.delete(SPEC)
    assert broker.engine.queue_names("default") == ()


async def test_force_deletes_a_group_whose_members_were_not_seen(broker, client):
    admin = await create(client)
    use_up(broker)
    take_over(broker)
    await admin.delete(SPEC, force=True)
    assert broker.engine.queue_names("default") == ()


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
    left = await client.get(SempApi.CONFIG, ("msgVpns", "default", "queues", "orders/1"))
    assert not left.flag("ingressEnabled"), "a group without one of its queues takes no messages"


@pytest.mark.parametrize("is_closed_again", [False, True])
async def test_a_deletion_takes_no_queue_that_was_put_to_use_again_while_it_stood_still(
    broker, client, is_closed_again
):
    """Its process may be stopped, or its host asleep, for as long as it takes somebody else to bring the group back."""
    await create(client, SHARED)

    async def bring_back():
        admin = GroupAdmin(client, "default")
        await admin.apply(await admin.plan(SHARED))
        publish(broker)
        if is_closed_again:
            await client.update(("msgVpns", "default", "queues", "orders/1"), {"ingressEnabled": False})

    broker.transport = Between(broker.transport, "DELETE", "0", bring_back, after=True)
    async with broker.client() as watched:
        with capture_logs() as told, pytest.raises(GroupInUse if is_closed_again else GroupReopened, match="orders/1"):
            await GroupAdmin(watched, "default").delete(SHARED)
    assert events(told) == ["group_deletion_interrupted"]
    assert await read_fills(client, "default", ["orders/0", "orders/1"]) == {"orders/0": (0, 0), "orders/1": (1, 0)}


async def test_a_look_at_a_queue_that_is_over_for_long_does_not_let_it_be_deleted(broker, client):
    """As when the process is stopped behind the look."""
    await create(client, SHARED)
    now_s = 0.0

    class Stopped(httpx.AsyncBaseTransport):
        """Once the queues are closed for good, the group is brought back behind the first look at one."""

        def __init__(self, inner):
            self._inner, self._is_deleting, self.is_done = inner, False, False

        async def handle_async_request(self, request):
            nonlocal now_s
            answer = await self._inner.handle_async_request(request)
            self._is_deleting |= request.method == "DELETE"
            if self._is_deleting and not self.is_done and "/monitor/" in request.url.path:
                self.is_done = True
                admin = GroupAdmin(client, "default")
                await admin.apply(await admin.plan(SHARED))
                now_s += LOOK_COUNTS_S
            return answer

    broker.transport = Stopped(broker.transport)
    async with broker.client() as watched:
        with pytest.raises(GroupReopened, match="orders/0"):
            await GroupAdmin(watched, "default", lambda: now_s).delete(SHARED)
    assert {*broker.engine.queue_names("default")} == {"orders/0", "orders/1"}


async def test_a_broker_that_takes_long_to_tell_of_a_queue_has_none_deleted(broker, client):
    await create(client)
    seconds = count(step=LOOK_COUNTS_S)
    with pytest.raises(SempUnreachable, match="it takes longer than 5 s"):
        await GroupAdmin(client, "default", lambda: next(seconds)).delete(SPEC)
    assert {*broker.engine.queue_names("default")} == {"orders/0", "orders/1"}


async def test_a_queue_of_others_that_is_named_as_the_account_keeps_no_group_from_being_deleted(broker, client):
    admin = await create(client)
    broker.engine.create_queue("default", QueueName("members"), QueueSettings())
    broker.engine.add_queue_subscription("default", QueueName("members"), "theirs")
    flow = broker.engine.open_publisher(log_in(broker, "default", "", "publisher"), "").flow
    broker.engine.publish(flow, 1, Published("theirs", 1, 1))
    assert await read_fills(client, "default", ["members"]) == {"members": (1, 0)}
    await admin.delete(SPEC)
    assert broker.engine.queue_names("default") == ("members",)


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
    stored = read_marker("orders", SPEC.marker())
    spec = replace(SPEC, accounts={Role.MEMBER: Login(username, "x")})
    assert is_own_username(spec, Role.MEMBER, stored, there) is is_own


@pytest.mark.parametrize("code", [SempCode.NOT_ALLOWED, SempCode.CONFIGDB_OBJECT_DEPENDENCY])
async def test_what_is_still_in_use_is_tried_again_for_a_while(broker, client, code):
    await create(client)
    refusals = 3

    class Slow(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request):
            nonlocal refusals
            if request.method == "DELETE" and "aclProfiles" in request.url.path and refusals:
                refusals -= 1
                error = {"code": code, "status": code.name, "description": "in use"}
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
