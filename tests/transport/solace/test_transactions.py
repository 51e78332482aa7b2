"""What is particular to transactions on the official client; the conformance suite has what every transport keeps."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from lbg_runtime.broker.engine.accounts import Account, ClientProfile
from lbg_runtime.broker.engine.engine import DEFAULT_VPN
from lbg_runtime.broker.server.server import BrokerServer
from lbg_runtime.config.settings import ClientPathChoice
from lbg_runtime.model.errors import BrokerRefusal, PublishFailed, PublishRefused
from lbg_runtime.model.message import Message
from lbg_runtime.testing.flow_recorder import PATIENCE_S
from lbg_runtime.transport.solace.threads import THREAD_COUNT
from lbg_runtime.transport.solace.transport import SolaceTransport
from tests.transport.solace.steps import eventually, opened

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.parametrize("client_path", [ClientPathChoice.PUBLIC], indirect=True),
]

MakeTransport = Callable[..., SolaceTransport]


async def test_where_transactions_are_not_allowed_they_are_refused_and_all_else_works(
    broker: BrokerServer, make_transport: MakeTransport
) -> None:
    profile = ClientProfile(may_use_transactions=False)
    broker.engine.administration.accounts(DEFAULT_VPN).put(Account("default", profile=profile))
    transport = await opened(make_transport("first"))
    async with asyncio.timeout(PATIENCE_S):
        for _ in range(2):
            with pytest.raises(PublishRefused):
                await transport.send_together([Message("orders/new", b"")])
        await transport.send(Message("orders/new", b""))


async def test_what_waits_at_the_same_time_is_committed_in_few_transactions(
    broker: BrokerServer, transport: SolaceTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits = []
    commit = broker.engine.transactions.commit
    monkeypatch.setattr(
        broker.engine.transactions,
        "commit",
        lambda client, messages, consumed: commits.append(len(messages)) or commit(client, messages, consumed),
    )
    ends = [transport.send_together([Message("orders/new", b"")] * 100) for _ in range(6)]
    ends[3].cancel()
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*(end for end in ends if not end.cancelled()))
    # The first goes at once, the others wait for it; what nobody waits for any more does not go.
    assert commits == [100, 200, 200]


async def test_the_client_is_told_that_a_commit_may_take_longer_than_it_waits_by_itself(
    transport: SolaceTransport,
) -> None:
    """After 10 s without an answer it ended the connection with all flows on it, at each commit of a slow broker."""
    async with asyncio.timeout(PATIENCE_S):
        await transport.send_together([Message("orders/new", b"")])
    session = transport._session
    assert session is not None
    assert session.transactions._session._config["TRANSACTEDSESSION_REQUESTREPLY_TIMEOUT_MS"] == "60000"


async def test_what_breaks_off_on_its_way_leaves_nothing_to_the_next_transaction(
    broker: BrokerServer, transport: SolaceTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await transport.send_together([Message("orders/new", b"")])
        session = transport._session
        assert session is not None
        publisher = session.transactions._publisher
        publish, calls = publisher.publish, []

        def break_off(*message: object) -> None:
            calls.append(message)
            if len(calls) == 2:
                raise RuntimeError
            publish(*message)

        monkeypatch.setattr(publisher, "publish", break_off)
        with pytest.raises(PublishFailed, match="RuntimeError"):
            await transport.send_together([Message("orders/new", b"")] * 2)
        await transport.send_together([Message("orders/new", b"")])
    assert broker.engine.queue_depth(DEFAULT_VPN, "orders/0") == 2


async def test_what_is_cancelled_while_others_are_refused_is_not_tried_alone(
    broker: BrokerServer, transport: SolaceTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits, ends = [], []
    commit = broker.engine.transactions.commit

    def refuse_many(client: object, messages: list[object], consumed: object) -> object:
        commits.append(len(messages))
        if len(messages) > 4:
            # The broker is on this loop too.
            ends[2].cancel()
            raise BrokerRefusal(503, "Spool Over Quota")
        return commit(client, messages, consumed)

    monkeypatch.setattr(broker.engine.transactions, "commit", refuse_many)
    ends += [transport.send_together([Message("orders/new", b"")] * count) for count in (1, 2, 3)]
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*ends[:2])
        await asyncio.gather(ends[2], return_exceptions=True)
        await transport.send_together([Message("orders/new", b"")])
    assert commits == [1, 5, 2, 1]


async def test_what_is_cancelled_while_its_commit_waits_for_a_thread_is_not_published(
    broker: BrokerServer, transport: SolaceTransport
) -> None:
    """Its handler was to be called again, and sent the same once more."""
    may_go_on = threading.Event()
    occupying = [transport._threads.begin(may_go_on.wait, PATIENCE_S) for _ in range(THREAD_COUNT)]
    transport.send_together([Message("orders/new", b"")]).cancel()
    may_go_on.set()
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.wait(occupying)
        await transport.send_together([Message("orders/new", b"")])
    assert broker.engine.queue_depth(DEFAULT_VPN, "orders/0") == 1


@pytest.mark.parametrize("is_tried_at_once", [False, True])
async def test_a_commit_that_is_lost_with_the_connection_does_not_keep_the_client_from_coming_back(
    broker: BrokerServer, transport: SolaceTransport, monkeypatch: pytest.MonkeyPatch, is_tried_at_once: bool
) -> None:
    """Its transacted session was closed while the client opened it again; the member took itself for cut off, for
    good."""
    changes: list[bool] = []
    transport.watch_connection(changes.append)
    commit, lost = broker.engine.transactions.commit, list[Any]()
    session = transport._session
    assert session is not None

    def lose(*asked: Any) -> object:
        if not lost:
            lost.append(session.transactions._session)
            # Answers that take a while, as in any network.
            broker.faults.delay(50)
            broker.faults.drop()
        return commit(*asked)

    monkeypatch.setattr(broker.engine.transactions, "commit", lose)
    with pytest.raises(PublishFailed, match="recreated"):
        await transport.send_together([Message("orders/new", b"")])
    async with asyncio.timeout(PATIENCE_S):
        if is_tried_at_once:
            await transport.send_together([Message("orders/new", b"")])
        await eventually(lambda: changes == [True, False, True])
        await transport.send_together([Message("orders/new", b"")])
    assert not lost[0].is_connected


async def test_closing_ends_what_waits(broker: BrokerServer, transport: SolaceTransport) -> None:
    ends = [transport.send_together([Message("orders/new", b"")] * 200) for _ in range(20)]
    await transport.close()
    async with asyncio.timeout(PATIENCE_S):
        outcomes = await asyncio.gather(*ends, return_exceptions=True)
    assert isinstance(outcomes[-1], PublishFailed)
    committed = sum(outcome is None for outcome in outcomes)
    assert 200 * committed <= broker.engine.queue_depth(DEFAULT_VPN, "orders/0")
