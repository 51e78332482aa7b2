"""What each role may do, by the rules alone, and on the wire: the official client and a broker that checks."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

import pytest

from lbg_runtime.admin.account import open_semp
from lbg_runtime.admin.group import GroupAdmin
from lbg_runtime.admin.roles import Login, Role, Topics, grant_of
from lbg_runtime.admin.settings import spec_of
from lbg_runtime.broker.semp.server import SempServer
from lbg_runtime.broker.server.server import BrokerServer
from lbg_runtime.config.load import parse_settings
from lbg_runtime.config.semp_settings import AccountSettings
from lbg_runtime.config.settings import Settings
from lbg_runtime.model.errors import BindFailed, ConfigError, PublishRefused, TransportError
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.ids import Epoch, GroupName, QueueName
from lbg_runtime.model.message import Message
from lbg_runtime.runtime.session import Session, open_session

SHAPE = GroupShape(GroupName("orders"), "h", 4, 2)
TOPICS = Topics("lbg-control/orders", "notes", ("bills/>",))
CONTROL, RECORDS = "lbg-control/orders", "lbg-control/orders/restripe/1/2/3/x"
SHARD, ERRORS = "h/1/new", "lbg-errors/orders"


def test_a_role_gets_what_its_work_needs_and_members_the_rest() -> None:
    def topics(role: Role, *given: Role) -> tuple[tuple[str, ...], tuple[str, ...]]:
        grant = grant_of(role, frozenset(given), SHAPE, TOPICS, creates_queues=False)
        return grant.publish, grant.subscribe

    assert topics(Role.PUBLISHER, *Role) == (("h/>",), ())
    assert topics(Role.CONDUCTOR, *Role) == ((CONTROL, f"{CONTROL}/restripe/>"), (CONTROL, "notes"))
    assert topics(Role.MEMBER, *Role) == ((CONTROL, ERRORS, "lbg-parked/orders/>", "notes", "bills/>"), (CONTROL,))
    assert topics(Role.MEMBER, Role.MEMBER) == (
        (CONTROL, ERRORS, "lbg-parked/orders/>", "notes", "bills/>", "h/>", f"{CONTROL}/restripe/>"),
        (CONTROL, "notes"),
    )


def test_only_members_bind_and_only_those_that_provision_create_queues() -> None:
    given = frozenset(Role)
    for creates in (False, True):
        grants = {role: grant_of(role, given, SHAPE, TOPICS, creates_queues=creates) for role in Role}
        assert [role for role in Role if grants[role].may_receive] == [Role.MEMBER]
        assert [role for role in Role if grants[role].may_create_queues] == ([Role.MEMBER] if creates else [])
        assert ("h/>" in grants[Role.MEMBER].subscribe) is creates


@dataclass
class Stage:
    """A broker with a group on it, and clients in each role."""

    server: BrokerServer
    settings: Settings
    ending: AsyncExitStack

    async def client(self, username: str, password: str) -> Session:
        shown = self.settings.connection.model_copy(
            update={"username": username, "password": type(self.settings.connection.password)(password)}
        )
        return await self.ending.enter_async_context(open_session(shown, f"client-of-{username}"))


@asynccontextmanager
async def made_group(**semp: object) -> AsyncIterator[Stage]:
    async with (
        BrokerServer(port=0) as server,
        SempServer(server.engine, server.carry_out, port=0) as administration,
        AsyncExitStack() as ending,
    ):
        document = {
            "connection": {"transport": "solace", "host": server.url, "username": "members", "password": "m"},
            "group": {"name": "orders", "hash_prefix": "h", "hash_count": 4, "queue_count": 2},
            "semp": {"url": administration.url, "password": "admin", **semp},
        }
        settings = parse_settings(document, "test", {})
        async with open_semp(settings) as client:
            admin = GroupAdmin(client, "default")
            await admin.create(await admin.plan(spec_of(settings), is_new=True))
            assert (await admin.plan(spec_of(settings))).is_clean
        yield Stage(server, settings, ending)


async def may_publish(session: Session, topic: str) -> bool:
    try:
        await session.send(Message(topic, b""))
    except PublishRefused as refused:
        if "ACL" not in refused.reason:
            raise
        return False
    return True


async def may_bind(session: Session, queue: str) -> bool:
    try:
        flow = await session.bind(QueueName(queue), Epoch(1), lambda _: None)
    except BindFailed as refused:
        if not ("Permission" in refused.reason or "not supported by router for this client" in refused.reason):
            raise
        return False
    await flow.unbind()
    return True


async def may_subscribe(session: Session, topic: str) -> bool:
    try:
        await session.subscribe(topic, lambda _: None)
    except TransportError as refused:
        if "ACL" not in str(refused):
            raise
        return False
    return True


PARKED = "lbg-parked/orders/0"
ALL_TOPICS = (SHARD, CONTROL, RECORDS, ERRORS, PARKED, "bills/1", "h2/1", "elsewhere")


@pytest.mark.real_time
async def test_with_accounts_of_their_own_nobody_can_do_anothers_work() -> None:
    accounts = {
        "publisher": {"username": "publishers", "password": "p"},
        "conductor": {"username": "conductor", "password": "c"},
        "publish_topics": ["bills/>"],
    }
    async with made_group(**accounts) as stage:
        for username, password, topics, queues, subscriptions in (
            ("members", "m", [CONTROL, ERRORS, PARKED, "bills/1"], ["orders/0"], [CONTROL]),
            ("publishers", "p", [SHARD], [], []),
            ("conductor", "c", [CONTROL, RECORDS], [], [CONTROL]),
        ):
            session = await stage.client(username, password)
            assert [topic for topic in ALL_TOPICS if await may_publish(session, topic)] == topics
            assert [queue for queue in ("orders/0",) if await may_bind(session, queue)] == queues
            wanted = (CONTROL, ">", "h/>", "lbg-control/>", RECORDS)
            assert [topic for topic in wanted if await may_subscribe(session, topic)] == subscriptions


@pytest.mark.real_time
async def test_what_a_member_says_directly_elsewhere_reaches_nobody() -> None:
    async with made_group(conductor={"username": "conductor", "password": "c"}) as stage:
        member, listener = await stage.client("members", "m"), await stage.client("anybody", "")
        heard: asyncio.Queue[str] = asyncio.Queue()
        await listener.subscribe(">", lambda message: heard.put_nowait(message.topic))
        for topic in ("elsewhere", RECORDS, CONTROL):
            member.send_direct(Message(topic, b""))
        assert await heard.get() == CONTROL


@pytest.mark.real_time
async def test_one_account_for_all_may_do_all_of_the_groups_work_and_no_more() -> None:
    async with made_group() as stage:
        session = await stage.client("members", "m")
        allowed = tuple([topic for topic in ALL_TOPICS if await may_publish(session, topic)])
        assert allowed == (SHARD, CONTROL, RECORDS, ERRORS, PARKED)
        assert await may_bind(session, "orders/1")


@pytest.mark.real_time
async def test_a_wrong_password_of_any_role_is_refused() -> None:
    async with made_group(publisher={"username": "publishers", "password": "p"}) as stage:
        for username in ("members", "publishers"):
            with pytest.raises(ConfigError, match=f"the broker accepts: those of username {username}$"):
                await stage.client(username, "guess")


@pytest.mark.real_time
async def test_roles_come_and_go_with_the_group() -> None:
    async with made_group() as stage:
        assert stage.settings.semp is not None
        spec = spec_of(stage.settings)
        async with open_semp(stage.settings) as client:
            admin = GroupAdmin(client, "default")
            publisher = AccountSettings.model_validate({"username": "publishers", "password": "p"})
            semp = stage.settings.semp.model_copy(update={"publisher": publisher})
            wider = spec_of(stage.settings.model_copy(update={"semp": semp}))
            plan = await admin.plan(wider)
            assert not plan.problems
            await admin.apply(plan)
            assert (await admin.plan(wider)).is_clean
            assert not await may_publish(await stage.client("members", "m"), SHARD)
            assert await may_publish(await stage.client("publishers", "p"), SHARD)
            # The account is on the broker with its rights: it does not vanish from the settings without a word.
            (problem,) = (await admin.plan(spec)).problems
            assert problem.where == "semp.publisher.username"
            renamed = replace(wider, accounts={**wider.accounts, Role.PUBLISHER: Login("others", "p")})
            assert [each.where for each in (await admin.plan(renamed)).problems] == ["semp.publisher.username"]
            (stored,) = await admin.stored_groups()
            await stage.ending.aclose()
            await admin.delete(stored.to_spec(), force=True)
            accounts = stage.server.engine.administration.accounts("default").all()
            assert [account.name for account in accounts] == ["default"]
