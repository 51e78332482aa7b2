"""Queues over SEMP, as a re-striping makes, changes and deletes them.

More than 400 lines, because each call is tried with an answer that is refused, late or lost.
"""

import asyncio

import httpx
import pytest

from lbg_runtime.admin.account import open_semp
from lbg_runtime.admin.queues import QueueAccess, QueueAdmin, queue_admin
from lbg_runtime.broker.engine.effects import Published
from lbg_runtime.broker.engine.engine import Engine
from lbg_runtime.broker.engine.settings import AccessType, Permission, QueueSettings, RejectOnDiscard
from lbg_runtime.broker.semp.server import SempServer
from lbg_runtime.config.load import parse_settings
from lbg_runtime.model.errors import BrokerRefusal, ConfigError, QueueInUse, QueueMissing, QueueUnfit, SempRefused
from lbg_runtime.model.ids import DeliveryId, QueueName
from lbg_runtime.semp.address import SempApi
from lbg_runtime.semp.client import SempAccount, SempClient

QUEUE = QueueName("orders/0")
TOPIC = "orders-hash/0/>"
GROUP = {"name": "orders", "hash_prefix": "orders-hash", "hash_count": 8, "queue_count": 2}


@pytest.fixture
def admin(client):
    return QueueAdmin(client, "default", QueueAccess("members"), 100)


class Traffic:
    def __init__(self, broker):
        self.engine = broker.engine
        self.client, _ = self.engine.connect("default", "members", "", "ann")
        self.publisher = self.engine.open_publisher(self.client, "").flow
        self.sent = 0

    def publish(self):
        self.sent += 1
        return self.engine.publish(self.publisher, self.sent, Published("orders-hash/0/new", self.sent, 1))

    def bind(self):
        flow = self.engine.bind(self.client, QUEUE)[0].flow
        self.engine.open_window(flow, DeliveryId(0), 255)
        return flow


@pytest.fixture
def traffic(broker):
    return Traffic(broker)


async def test_a_new_queue_is_ready_for_a_group(broker, admin):
    await admin.create_queue(QUEUE)
    settings = broker.engine.queue_status("default", QUEUE).settings
    assert settings.access_type is AccessType.EXCLUSIVE
    assert (settings.owner, settings.permission) == ("members", Permission.CONSUME)
    assert settings.ingress_enabled
    assert settings.egress_enabled
    assert settings.reject_on_discard is RejectOnDiscard.ALWAYS


async def test_a_new_queue_is_as_large_as_the_settings_say(client):
    await QueueAdmin(client, "default", QueueAccess("members"), 50).create_queue(QUEUE)
    there = await client.get(SempApi.CONFIG, ("msgVpns", "default", "queues", QUEUE))
    assert there.attributes["maxMsgSpoolUsage"] == 50


async def test_a_queue_can_be_closed_to_everybody_but_its_owner(broker, client):
    admin = QueueAdmin(client, "default", QueueAccess("members", others_consume=False), 100)
    await admin.create_queue(QUEUE)
    assert broker.engine.queue_status("default", QUEUE).settings.permission is Permission.NO_ACCESS


async def test_a_queue_that_is_there_and_fit_is_left_as_it_is(broker, admin):
    there = QueueSettings(owner="other", max_bind_count=3, reject_on_discard=RejectOnDiscard.ALWAYS)
    broker.engine.create_queue("default", QUEUE, there)
    for _ in range(2):
        await admin.create_queue(QUEUE)
    assert broker.engine.queue_status("default", QUEUE).settings == there


@pytest.mark.parametrize(
    "there",
    [
        QueueSettings(AccessType.NON_EXCLUSIVE, reject_on_discard=RejectOnDiscard.ALWAYS),
        QueueSettings(ingress_enabled=False, reject_on_discard=RejectOnDiscard.ALWAYS),
        QueueSettings(reject_on_discard=RejectOnDiscard.NEVER),
    ],
)
async def test_a_queue_that_is_there_and_not_fit_is_refused_and_left_as_it_is(broker, admin, there):
    broker.engine.create_queue("default", QUEUE, there)
    with pytest.raises(QueueUnfit):
        await admin.create_queue(QUEUE)
    assert broker.engine.queue_status("default", QUEUE).settings == there


@pytest.mark.parametrize(
    ("attributes", "found"),
    [
        ({"redeliveryEnabled": False}, "redeliveryEnabled False"),
        ({"maxRedeliveryCount": 3}, "maxRedeliveryCount 3"),
        ({"respectTtlEnabled": True}, "respectTtlEnabled True"),
        ({"respectMsgPriorityEnabled": True}, "respectMsgPriorityEnabled True"),
        (
            {"rejectMsgToSenderOnDiscardBehavior": "never"},
            "queue orders/0 has rejectMsgToSenderOnDiscardBehavior never; expected "
            "rejectMsgToSenderOnDiscardBehavior always",
        ),
        (
            # As brokers make queues: silent as soon as somebody closes it.
            {"rejectMsgToSenderOnDiscardBehavior": "when-queue-enabled"},
            "rejectMsgToSenderOnDiscardBehavior when-queue-enabled",
        ),
        ({"ingressEnabled": False}, "ingressEnabled False; expected ingressEnabled True"),
        ({"egressEnabled": False}, "egressEnabled False"),
        ({"maxMsgSize": 1_023}, "maxMsgSize 1023; expected maxMsgSize 1024 or more"),
        ({"maxDeliveredUnackedMsgsPerFlow": 6}, "expected maxDeliveredUnackedMsgsPerFlow 7 or more"),
    ],
)
async def test_a_queue_that_is_closed_or_may_lose_or_reorder_messages_is_not_fit(client, admin, attributes, found):
    await admin.create_queue(QUEUE)
    limits = {"maxMsgSize": 1_024, "maxDeliveredUnackedMsgsPerFlow": 7}
    await client.update(("msgVpns", "default", "queues", QUEUE), limits)
    await admin.ensure_fit(QUEUE, 7)
    await client.update(("msgVpns", "default", "queues", QUEUE), attributes)
    with pytest.raises(QueueUnfit, match=found) as refused:
        await admin.ensure_fit(QUEUE, 7)
    assert refused.value.is_limit == (attributes.keys() <= {"maxMsgSize", "maxDeliveredUnackedMsgsPerFlow"})


@pytest.mark.parametrize(
    ("attributes", "size_bytes", "reason"),
    [
        ({"maxMsgSize": 1_024, "maxMsgSpoolUsage": 1}, 1_024, None),
        ({"ingressEnabled": False}, 1_024, "ingressEnabled False"),
        ({"maxMsgSize": 1_023}, 1_024, "maxMsgSize 1023"),
        ({"maxMsgSpoolUsage": 1}, 999_999, None),
        ({"maxMsgSpoolUsage": 1}, 1_000_000, "maxMsgSpoolUsage 1, and holds 1 bytes"),
        ({"maxMsgSpoolUsage": 2}, 1_000_000, None),
    ],
)
async def test_a_queue_shows_why_it_takes_no_message(client, admin, traffic, attributes, size_bytes, reason):
    await admin.create_queue(QUEUE)
    await admin.subscribe(QUEUE, TOPIC)
    traffic.publish()
    await client.update(("msgVpns", "default", "queues", QUEUE), attributes)
    assert await admin.refusal(QUEUE, size_bytes) == reason


async def test_a_queue_that_is_gone_shows_no_reason(admin):
    with pytest.raises(QueueMissing):
        await admin.refusal(QUEUE, 1)


async def test_who_may_not_make_a_queue_is_told_so_and_not_that_it_is_missing(broker):
    async with broker.watcher() as watcher:
        with pytest.raises(SempRefused):
            await QueueAdmin(watcher, "default", QueueAccess("members"), 100).create_queue(QUEUE)


async def test_only_a_queue_that_exists_can_be_fit(admin):
    with pytest.raises(QueueMissing):
        await admin.ensure_fit(QUEUE)


async def test_a_new_queue_is_like_a_new_one(client):
    for others_consume in (True, False):
        admin = QueueAdmin(client, "default", QueueAccess("members", others_consume=others_consume), 100)
        with pytest.raises(QueueMissing):
            await admin.ensure_like_new(QUEUE)
        await admin.create_queue(QUEUE)
        await admin.subscribe(QUEUE, TOPIC)
        await admin.ensure_like_new(QUEUE)
        await admin.delete_queue(QUEUE)


@pytest.mark.parametrize(
    ("attributes", "found"),
    [
        ({"owner": "somebody"}, "queue orders/0 has owner somebody; expected owner members"),
        ({"owner": ""}, "queue orders/0 has no owner; expected owner members"),
        ({"permission": "no-access"}, "permission no-access; expected permission consume"),
        ({"permission": "delete"}, "permission delete; expected permission consume"),
    ],
)
async def test_a_queue_with_other_rights_is_not_like_a_new_one(client, admin, attributes, found):
    await admin.create_queue(QUEUE)
    await client.update(("msgVpns", "default", "queues", QUEUE), attributes)
    with pytest.raises(QueueUnfit, match=found):
        await admin.ensure_like_new(QUEUE)


async def test_a_queue_with_messages_is_not_like_a_new_one(admin, traffic):
    await admin.create_queue(QUEUE)
    await admin.subscribe(QUEUE, TOPIC)
    traffic.publish()
    with pytest.raises(QueueUnfit, match="queue orders/0 has 1 message; expected none in a queue that the group"):
        await admin.ensure_like_new(QUEUE)


async def test_subscriptions_come_and_go_any_number_of_times(admin, traffic):
    assert await admin.subscriptions(QUEUE) is None
    await admin.create_queue(QUEUE)
    assert await admin.subscriptions(QUEUE) == frozenset()
    for _ in range(2):
        await admin.subscribe(QUEUE, TOPIC)
    traffic.publish()
    assert await admin.subscriptions(QUEUE) == {TOPIC}
    for _ in range(2):
        await admin.unsubscribe(QUEUE, TOPIC)
    traffic.publish()
    assert await admin.subscriptions(QUEUE) == frozenset()
    assert await admin.depth(QUEUE) == 1


async def test_many_subscriptions_are_all_seen(admin):
    await admin.create_queue(QUEUE)
    wanted = {f"orders-hash/{shard}/>" for shard in range(230)}
    for topic in sorted(wanted):
        await admin.subscribe(QUEUE, topic)
    assert await admin.subscriptions(QUEUE) == wanted


async def test_what_needs_a_queue_says_that_there_is_none(admin):
    with pytest.raises(QueueMissing, match="orders/0"):
        await admin.subscribe(QUEUE, TOPIC)
    with pytest.raises(QueueMissing):
        await admin.depth(QUEUE)
    await admin.unsubscribe(QUEUE, TOPIC)
    await admin.delete_queue(QUEUE)


async def test_the_depth_counts_what_members_hold(admin, traffic):
    await admin.create_queue(QUEUE)
    await admin.subscribe(QUEUE, TOPIC)
    traffic.bind()
    traffic.publish()
    assert await admin.depth(QUEUE) == 1


async def test_a_queue_is_deleted_when_nothing_is_left(broker, admin):
    await admin.create_queue(QUEUE)
    await admin.delete_queue(QUEUE)
    assert broker.engine.queue_names("default") == ()


async def test_a_queue_with_messages_is_kept_as_it_was(broker, admin, traffic):
    await admin.create_queue(QUEUE)
    await admin.subscribe(QUEUE, TOPIC)
    traffic.publish()
    with pytest.raises(QueueInUse) as caught:
        await admin.delete_queue(QUEUE)
    assert (caught.value.message_count, caught.value.flow_count) == (1, 0)
    assert broker.engine.queue_status("default", QUEUE).settings.ingress_enabled


async def test_a_queue_with_flows_is_kept_and_they_notice_nothing(broker, admin, traffic):
    await admin.create_queue(QUEUE)
    traffic.bind()
    broker.effects.clear()
    with pytest.raises(QueueInUse) as caught:
        await admin.delete_queue(QUEUE)
    assert (caught.value.message_count, caught.value.flow_count) == (0, 1)
    assert broker.effects == []


class BetweenLooks(httpx.AsyncBaseTransport):
    """Lets something happen after a look at a queue, the first unless told otherwise."""

    def __init__(self, inner, act, look=1):
        self._inner = inner
        self._act = act
        self._looks_left = look

    async def handle_async_request(self, request):
        answer = await self._inner.handle_async_request(request)
        if "monitor" in request.url.path:
            self._looks_left -= 1
            if self._looks_left == 0:
                self._act()
        return answer


async def test_a_message_that_comes_between_look_and_deletion_saves_the_queue(broker, admin, traffic):
    await admin.create_queue(QUEUE)
    await admin.subscribe(QUEUE, TOPIC)
    broker.transport = BetweenLooks(broker.transport, traffic.publish)
    async with broker.client() as client:
        with pytest.raises(QueueInUse):
            await QueueAdmin(client, "default", QueueAccess("members"), 100).delete_queue(QUEUE)
    settings = broker.engine.queue_status("default", QUEUE).settings
    assert (settings.ingress_enabled, settings.egress_enabled) == (True, True)
    traffic.publish()
    assert await admin.depth(QUEUE) == 2


async def test_nothing_is_confirmed_between_the_last_look_and_the_deletion(broker, admin, traffic):
    await admin.create_queue(QUEUE)
    await admin.subscribe(QUEUE, TOPIC)
    refusals = []

    def publish():
        with pytest.raises(BrokerRefusal) as refused:
            traffic.publish()
        refusals.append(refused.value)

    broker.transport = BetweenLooks(broker.transport, publish, look=2)
    async with broker.client() as client:
        await QueueAdmin(client, "default", QueueAccess("members"), 100).delete_queue(QUEUE)
    assert len(refusals) == 1
    assert broker.engine.queue_names("default") == ()


async def test_a_deletion_that_was_cut_off_is_ended_by_the_next_one(broker, admin):
    await admin.create_queue(QUEUE)

    def interrupt():
        raise asyncio.CancelledError

    broker.transport = BetweenLooks(broker.transport, interrupt, look=2)
    async with broker.client() as client:
        with pytest.raises(asyncio.CancelledError):
            await QueueAdmin(client, "default", QueueAccess("members"), 100).delete_queue(QUEUE)
    assert not broker.engine.queue_status("default", QUEUE).settings.ingress_enabled
    await admin.delete_queue(QUEUE)
    assert broker.engine.queue_names("default") == ()


async def test_a_publisher_is_told_when_a_queue_is_about_to_go(admin, client, traffic):
    await admin.create_queue(QUEUE)
    await admin.subscribe(QUEUE, TOPIC)
    await client.update(("msgVpns", "default", "queues", QUEUE), {"ingressEnabled": False})
    with pytest.raises(BrokerRefusal, match="Queue Shutdown"):
        traffic.publish()


async def test_an_administrator_of_the_vpn_is_enough(broker):
    async with broker.operator() as client:
        admin = QueueAdmin(client, "default", QueueAccess("members"), 100)
        await admin.create_queue(QUEUE)
        await admin.subscribe(QUEUE, TOPIC)
        assert broker.engine.queue_status("default", QUEUE).subscriptions == (TOPIC,)
        await admin.delete_queue(QUEUE)
        assert broker.engine.queue_names("default") == ()


async def test_other_refusals_are_passed_on(broker):
    async with broker.operator() as client:
        admin = QueueAdmin(client, "elsewhere", QueueAccess("members"), 100)
        for call in (admin.create_queue(QUEUE), admin.subscriptions(QUEUE), admin.unsubscribe(QUEUE, "a")):
            with pytest.raises(SempRefused, match="UNAUTHORIZED"):
                await call


@pytest.mark.real_time
@pytest.mark.parametrize(
    ("username", "permission"),
    [
        ("default", Permission.CONSUME),
        ("members", Permission.NO_ACCESS),
        ("stranger", Permission.CONSUME),
    ],
)
async def test_it_is_made_from_settings(username, permission):
    engine = Engine()
    async with SempServer(engine, lambda effects: None, port=0) as server:
        async with SempClient(SempAccount(server.url, "admin", "admin")) as client:
            await client.create(("msgVpns", "default", "clientUsernames"), {"clientUsername": "members"})
        sections = {
            "group": GROUP,
            "connection": {"username": username},
            "semp": {"url": server.url, "password": "admin"},
        }
        settings = parse_settings(sections, "test")
        async with open_semp(settings) as client:
            await (await queue_admin(client, settings)).create_queue(QUEUE)
    made = engine.queue_status("default", QUEUE).settings
    assert (made.owner, made.permission) == (username, permission)


async def test_settings_without_an_administrator_are_refused(client):
    settings = parse_settings({"group": GROUP}, "test")
    with pytest.raises(ConfigError, match="semp: not set"):
        open_semp(settings)
    with pytest.raises(ConfigError, match="semp: not set"):
        await queue_admin(client, settings)


@pytest.mark.parametrize(
    "url", ["broker:8080", "ftp://broker", "http://admin:admin@broker", "http://broker/SEMP", 8080]
)
def test_an_address_that_cannot_be_is_refused_without_showing_a_password(url):
    with pytest.raises(ConfigError, match=r"semp\.url") as caught:
        parse_settings({"group": GROUP, "semp": {"url": url}}, "test")
    assert "admin:admin" not in str(caught.value)


async def test_certificates_that_cannot_be_read_are_a_setting_to_mend(tmp_path):
    (tmp_path / "broken.pem").write_text("nothing")
    tls = {"trust_store": str(tmp_path)}
    settings = parse_settings({"group": GROUP, "semp": {"url": "https://broker:943", "tls": tls}}, "test")
    with pytest.raises(ConfigError, match=r"semp\.tls\.trust_store"):
        open_semp(settings)
