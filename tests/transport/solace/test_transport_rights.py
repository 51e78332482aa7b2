"""A right that was missing at a login and was given back: the client goes by its login, so there is another one."""

import asyncio
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from lbg_runtime.broker.engine.accounts import Account, ClientProfile
from lbg_runtime.broker.engine.engine import DEFAULT_VPN
from lbg_runtime.broker.engine.surroundings import Asked
from lbg_runtime.broker.server.server import BrokerServer
from lbg_runtime.config.settings import ClientPathChoice
from lbg_runtime.model.errors import BindFailed, PublishFailed, PublishRefused
from lbg_runtime.model.ids import Epoch, QueueName
from lbg_runtime.model.message import Message
from lbg_runtime.testing.conformance_steps import SECOND, bind
from lbg_runtime.testing.flow_recorder import PATIENCE_S, FlowRecorder
from lbg_runtime.transport.solace import relogin
from lbg_runtime.transport.solace import transport as transport_module
from lbg_runtime.transport.solace.settings import SolaceSettings
from lbg_runtime.transport.solace.transport import SolaceTransport
from tests.transport.solace.steps import opened, publish

pytestmark = pytest.mark.real_time

MakeTransport = Callable[..., SolaceTransport]
QUEUE = QueueName("orders/0")
NO_RIGHT = "logged in without the right to "


@pytest.fixture(autouse=True)
def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Log in again at once; test_relogin.py has the time between logins."""
    monkeypatch.setattr(relogin, "LOGIN_AGAIN_S", 0.0)


def allow(broker: BrokerServer, **rights: bool) -> None:
    """All rights but those that are False here."""
    profile = ClientProfile(**rights)
    broker.engine.administration.accounts(DEFAULT_VPN).put(Account("default", profile=profile))


async def connections(transport: SolaceTransport) -> "asyncio.Queue[bool]":
    """Whether there is a connection, from the present one on, each time that this changes."""
    told: asyncio.Queue[bool] = asyncio.Queue()
    transport.watch_connection(told.put_nowait)
    assert await told.get()
    return told


async def until_back(told: "asyncio.Queue[bool]") -> None:
    async with asyncio.timeout(PATIENCE_S):
        assert [await told.get(), await told.get()] == [False, True]


async def test_a_right_to_receive_that_was_given_back_is_had_by_another_login(
    broker: BrokerServer, make_transport: MakeTransport
) -> None:
    allow(broker, may_receive=False)
    transport = await opened(make_transport("first"))
    told = await connections(transport)
    allow(broker)
    with capture_logs() as logged:
        with pytest.raises(BindFailed, match=NO_RIGHT + "receive") as failure:
            await transport.bind(QUEUE, Epoch(1), FlowRecorder())
        await until_back(told)
    assert not failure.value.permanent
    (line,) = (each for each in logged if each["event"] == "session_ended")
    again, _, lack = line["reason"].partition(": ")
    assert again == "logs in again"
    assert failure.value.reason.endswith(f": {lack}")
    _, recorder = await bind(transport, SECOND)
    await publish(transport, 3)
    assert [delivery.redelivered for delivery in await recorder.until_received(3)] == [False] * 3


async def test_a_right_to_publish_that_was_given_back_is_had_by_another_login(
    broker: BrokerServer, make_transport: MakeTransport
) -> None:
    allow(broker, may_send=False)
    transport = await opened(make_transport("first"))
    _, first = await bind(transport)
    told = await connections(transport)
    allow(broker)
    with pytest.raises(PublishFailed, match=NO_RIGHT + "publish"):
        await transport.send(Message("orders/new", b""))
    await until_back(told)
    await first.until_down()
    await publish(transport, 3)
    _, second = await bind(transport, SECOND)
    await second.until_received(3)


async def test_what_waits_for_its_confirm_without_the_right_does_not_wait_for_ever(
    broker: BrokerServer, transport: SolaceTransport
) -> None:
    """The client keeps it over the outage; without the right it neither sends it again nor says so."""
    told = await connections(transport)
    waiting = [transport.send(Message("orders/new", bytes(20_000))) for _ in range(600)]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    allow(broker, may_send=False)
    assert broker.faults.drop("first") == 1
    await until_back(told)
    # Whatever was confirmed is spooled; what was not may be, or not.
    async with asyncio.timeout(PATIENCE_S):
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {type(None), PublishFailed}
    assert broker.engine.queue_depth(DEFAULT_VPN, QUEUE) >= outcomes.count(None)
    await until_back(told)
    allow(broker)
    with pytest.raises(PublishFailed, match=NO_RIGHT + "publish"):
        await transport.send(Message("orders/new", b""))
    await until_back(told)
    await publish(transport, 3)


async def test_what_the_broker_refuses_someone_with_the_right_costs_no_session(
    broker: BrokerServer, transport: SolaceTransport
) -> None:
    told = await connections(transport)
    allow(broker, may_receive=False)
    with pytest.raises(BindFailed) as failure:
        await transport.bind(QUEUE, Epoch(1), FlowRecorder())
    assert NO_RIGHT not in failure.value.reason
    allow(broker)
    await transport.bind(QUEUE, Epoch(2), FlowRecorder())
    assert told.empty()


async def test_who_wants_no_reconnects_does_not_log_in_again(broker: BrokerServer) -> None:
    allow(broker, may_send=False)
    transport = SolaceTransport(SolaceSettings((broker.url,), "once", reconnects=False))
    await transport.open()
    try:
        told = await connections(transport)
        with pytest.raises(PublishFailed, match=NO_RIGHT + "publish"):
            await transport.send(Message("orders/new", b""))
        await transport.bind(QUEUE, Epoch(1), FlowRecorder())
        assert told.empty()
    finally:
        await transport.close()


@pytest.mark.parametrize("client_path", [ClientPathChoice.PUBLIC, ClientPathChoice.FAST])
async def test_binds_that_are_refused_side_by_side_all_say_why(
    broker: BrokerServer, client_path: ClientPathChoice
) -> None:
    """The client alone says of some that its own clean-up failed."""
    broker.faults.refuse(Asked.BIND, 403, "Permission Not Allowed", "first")
    host = broker.url
    transport = SolaceTransport(SolaceSettings((host,), "first", client_path=client_path))
    reasons: list[tuple[str, bool]] = []

    async def bind_again_and_again() -> None:
        for _ in range(40):
            with pytest.raises(BindFailed) as failure:
                await transport.bind(QUEUE, Epoch(1), FlowRecorder())
            reasons.append((failure.value.reason, failure.value.permanent))

    await transport.open()
    try:
        await asyncio.gather(*(bind_again_and_again() for _ in range(4)))
    finally:
        await transport.close()
    assert reasons == [("Permission Not Allowed", True)] * 160


@pytest.mark.parametrize("client_path", [ClientPathChoice.PUBLIC], indirect=True)
@pytest.mark.parametrize("right", ["may_use_transactions", "may_send"])
async def test_a_client_that_cannot_have_its_transacted_session_again_does_not_keep_the_member_away(
    broker: BrokerServer, make_transport: MakeTransport, monkeypatch: pytest.MonkeyPatch, right: str
) -> None:
    """It connects and never says so: the member took itself for cut off, also when it would have the right again."""
    monkeypatch.setattr(transport_module, "OUTAGE_LOOK_S", 0.15)
    monkeypatch.setattr("lbg_runtime.transport.solace.settings.KEEP_ALIVE_INTERVAL_MS", 50)
    transport = await opened(make_transport("first"))
    await transport.send_together([Message("orders/new", b"")])
    told = await connections(transport)
    allow(broker, **{right: False})
    broker.faults.drop()
    await until_back(told)


@pytest.mark.parametrize(
    ("right", "what"), [("may_use_transactions", "publish in transactions"), ("may_send", r"publish \(")]
)
async def test_a_right_to_transactions_that_was_given_back_is_had_by_another_login(
    broker: BrokerServer, make_transport: MakeTransport, right: str, what: str
) -> None:
    """Without the one to publish, a commit waited a minute for its answer, and the connection was ended then."""
    allow(broker, **{right: False})
    transport = await opened(make_transport("first"))
    told = await connections(transport)
    allow(broker)
    with pytest.raises(PublishRefused, match=NO_RIGHT + what):
        await transport.send_together([Message("orders/new", b"")])
    await until_back(told)
    await transport.send_together([Message("orders/new", b"")])
