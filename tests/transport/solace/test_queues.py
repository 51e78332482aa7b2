"""Queues that are made, and looked for: the publishers of a new group depend on what is said of them."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from lbg_runtime.broker.engine.accounts import Account, ClientProfile
from lbg_runtime.broker.engine.engine import DEFAULT_VPN
from lbg_runtime.broker.engine.settings import AccessType, Permission, QueueSettings
from lbg_runtime.broker.server.server import BrokerServer
from lbg_runtime.model.errors import RequestRefused, TransportError
from lbg_runtime.model.ids import QueueName
from lbg_runtime.transport.solace import native
from lbg_runtime.transport.solace.library import PubSubPlusClientError
from lbg_runtime.transport.solace.session import SolaceSession
from lbg_runtime.transport.solace.settings import SolaceSettings
from lbg_runtime.transport.solace.transport import SolaceTransport
from tests.transport.solace.steps import eventually

pytestmark = pytest.mark.real_time

QUEUE = QueueName("orders/1")


@pytest.fixture
async def transport(broker: BrokerServer) -> AsyncIterator[SolaceTransport]:
    made = SolaceTransport(SolaceSettings(hosts=(broker.url,), client_name="publisher"))
    yield made
    await made.close()


@pytest.mark.parametrize(
    "settings",
    [
        QueueSettings(egress_enabled=False),
        QueueSettings(owner="somebody", permission=Permission.NO_ACCESS),
        QueueSettings(max_bind_count=0),
        QueueSettings(AccessType.NON_EXCLUSIVE, partition_count=2),
    ],
)
async def test_a_queue_that_may_not_be_used_or_browsed_is_there(
    broker: BrokerServer, transport: SolaceTransport, settings: QueueSettings
) -> None:
    await transport.open()
    assert not await transport.has_queue(QUEUE)
    broker.create_queue(QUEUE, settings=settings)
    assert await transport.has_queue(QUEUE)


@pytest.mark.parametrize("lost", [1, 3])
async def test_a_reason_that_the_client_has_lost_is_asked_for_again(
    transport: SolaceTransport, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    """It was seen to tell of a bind that had failed with a subcode of 0, as if all was well."""
    start, tried = SolaceSession._start, list[None]()

    def forget(session: SolaceSession, browser: object) -> None:
        tried.append(None)
        try:
            start(session, browser)
        except PubSubPlusClientError:
            if len(tried) > lost:
                raise
            raise PubSubPlusClientError(
                {"return_code": "Unknown (503)", "sub_code": "SOLCLIENT_SUBCODE_OK"}, 0
            ) from None

    monkeypatch.setattr(SolaceSession, "_start", forget)
    await transport.open()
    if lost == 1:
        assert not await transport.has_queue(QUEUE)
    else:
        with pytest.raises(TransportError, match="cannot look for orders/1"):
            await transport.has_queue(QUEUE)
    assert len(tried) == min(lost + 1, 3)


async def test_a_queue_is_subscribed_to_before_anybody_waits_for_an_answer(
    broker: BrokerServer, transport: SolaceTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is sent while it is there and not yet subscribed to is lost, and each answer takes a while."""
    loop, wait_for_answers = asyncio.get_running_loop(), native.native.end_point_provision
    topics = {f"made/{index}/>" for index in range(100)}

    def is_subscribed() -> bool:
        is_there = QUEUE in broker.engine.queue_names(DEFAULT_VPN)
        return is_there and set(broker.engine.queue_status(DEFAULT_VPN, QUEUE).subscriptions) == topics

    def wait_for_the_broker(*args: Any, **options: Any) -> Any:
        asyncio.run_coroutine_threadsafe(eventually(is_subscribed), loop).result()
        return wait_for_answers(*args, **options)

    monkeypatch.setattr(native.native, "end_point_provision", wait_for_the_broker)
    await transport.open()
    await transport.provision(QUEUE, tuple(topics))


async def test_a_user_who_may_not_receive_learns_nothing_of_queues(
    broker: BrokerServer, transport: SolaceTransport
) -> None:
    """Taken for a queue that is there, it would have published into a group without queues."""
    sender = Account("default", profile=ClientProfile(may_receive=False))
    broker.engine.administration.accounts(DEFAULT_VPN).put(sender)
    await transport.open()
    with pytest.raises(RequestRefused, match=r"cannot look for orders/1: .*\(allowGuaranteedMsgReceiveEnabled"):
        await transport.has_queue(QUEUE)
    with pytest.raises(RequestRefused, match=r"cannot browse orders/1: .*\(allowGuaranteedMsgReceiveEnabled"):
        await transport.browse(QUEUE, 0.1)


async def test_without_a_connection_nothing_is_known_of_queues(transport: SolaceTransport) -> None:
    with pytest.raises(TransportError, match="cannot look for orders/1: not connected"):
        await transport.has_queue(QUEUE)


async def test_who_may_not_make_a_queue_is_told_that_it_was_refused(
    broker: BrokerServer, transport: SolaceTransport
) -> None:
    profile = ClientProfile(may_create_queues=False)
    broker.engine.administration.accounts(DEFAULT_VPN).put(Account("default", profile=profile))
    await transport.open()
    with pytest.raises(RequestRefused, match="cannot provision orders/1: "):
        await transport.provision(QUEUE, ("orders/>",))
