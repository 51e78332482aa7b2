"""What is published across a login for a right: in order, none lost, none twice, on a connection that was in use."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from lbg_runtime.broker.engine.accounts import Account, ClientProfile
from lbg_runtime.broker.engine.engine import DEFAULT_VPN
from lbg_runtime.broker.server.server import BrokerServer
from lbg_runtime.model.errors import BindFailed, PublishFailed, TransportError
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.hashing import HashFunction
from lbg_runtime.model.ids import Epoch, GroupName, QueueName
from lbg_runtime.model.message import Message
from lbg_runtime.publisher.confirmation import Confirmation
from lbg_runtime.publisher.hashed import HashedPublisher
from lbg_runtime.testing.conformance_steps import SECOND, bind
from lbg_runtime.testing.flow_recorder import PATIENCE_S, FlowRecorder
from lbg_runtime.transport.solace import native, relogin
from lbg_runtime.transport.solace.publisher import SolacePublisher
from lbg_runtime.transport.solace.session import SolaceSession
from lbg_runtime.transport.solace.threads import THREAD_COUNT
from lbg_runtime.transport.solace.transactions import Transactions
from lbg_runtime.transport.solace.transport import SolaceTransport
from tests.transport.solace.steps import eventually, opened

pytestmark = pytest.mark.real_time

MakeTransport = Callable[..., SolaceTransport]
QUEUE = QueueName("orders/0")


@pytest.fixture(autouse=True)
def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Log in again at once; test_relogin.py has the time between logins."""
    monkeypatch.setattr(relogin, "LOGIN_AGAIN_S", 0.0)


def let_receive(broker: BrokerServer, is_allowed: bool) -> None:
    profile = ClientProfile(may_receive=is_allowed)
    broker.engine.administration.accounts(DEFAULT_VPN).put(Account("default", profile=profile))


@pytest.fixture
async def transport(broker: BrokerServer, make_transport: MakeTransport) -> SolaceTransport:
    """Logged in without the right to receive, which it would have at the next login."""
    let_receive(broker, False)
    transport = await opened(make_transport("first"))
    let_receive(broker, True)
    return transport


async def log_in_again(transport: SolaceTransport) -> None:
    """Begin to; the connection ends a moment later."""
    with pytest.raises(BindFailed, match="logged in without the right to receive"):
        await transport.bind(QUEUE, Epoch(1), FlowRecorder())


async def received(broker: BrokerServer, transport: SolaceTransport) -> list[bytes]:
    _, recorder = await bind(transport, SECOND)
    deliveries = await recorder.until_received(broker.engine.queue_depth(DEFAULT_VPN, QUEUE))
    assert not any(delivery.redelivered for delivery in deliveries)
    return [delivery.message.payload for delivery in deliveries]


async def test_a_publisher_goes_on_across_a_login(broker: BrokerServer, transport: SolaceTransport) -> None:
    told: asyncio.Queue[bool] = asyncio.Queue()
    transport.watch_connection(told.put_nowait)
    assert await told.get()
    shape = GroupShape(GroupName("g"), "orders", 8, 1)
    sent: list[asyncio.Future[Confirmation]] = []

    async def publish_until_ended() -> None:
        while True:
            sent.append(await publisher.submit("new", b"%d" % len(sent), key=str(len(sent) % 7)))
            if not len(sent) % 20:
                await asyncio.sleep(0)

    # There is much to be done.
    async with asyncio.timeout(5 * PATIENCE_S):
        publisher = HashedPublisher(transport, shape, HashFunction.CRC32, publisher_id="p")
        publishing = asyncio.create_task(publish_until_ended())
        # The middle of the stream, behind several windows of the client's.
        while publisher.counts.confirmed < 600:  # noqa: ASYNC110 - it has no event for this
            await asyncio.sleep(0.005)
        await log_in_again(transport)
        assert [await told.get(), await told.get()] == [False, True]
        before = publisher.counts.confirmed
        while publisher.counts.confirmed < before + 600:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.005)
        publishing.cancel()
        await asyncio.wait([publishing])
        counts = await publisher.close()
        numbers = [int(payload) for payload in await received(broker, transport)]
    outcomes = await asyncio.gather(*sent, return_exceptions=True)
    confirmed = {number for number, outcome in enumerate(outcomes) if isinstance(outcome, Confirmation)}
    unknown = {number for number, outcome in enumerate(outcomes) if isinstance(outcome, PublishFailed)}
    assert (len(confirmed), len(unknown), 0) == (counts.confirmed, counts.unknown, counts.unconfirmed)
    # One stretch of unknown fate, at the end of the first session.
    assert len(confirmed) + len(unknown) == len(sent)
    assert max(unknown, default=0) - min(unknown, default=1) + 1 == len(unknown)
    # In order across all keys, each once.
    assert numbers == sorted(set(numbers))
    assert confirmed <= set(numbers) <= confirmed | unknown


async def test_what_waited_for_the_session_goes_before_what_its_watcher_sends(
    broker: BrokerServer, transport: SolaceTransport
) -> None:
    ended, sent = asyncio.Event(), asyncio.get_running_loop().create_future()

    def connection_changed(is_up: bool) -> None:
        if not is_up:
            ended.set()
        elif ended.is_set():
            sent.set_result(transport.send(Message("orders/new", b"second")))

    transport.watch_connection(connection_changed)
    async with asyncio.timeout(PATIENCE_S):
        await log_in_again(transport)
        await ended.wait()
        first = transport.send(Message("orders/new", b"first"))
        await (await sent)
        await first
        assert await received(broker, transport) == [b"first", b"second"]


@pytest.fixture
def has_begun(transport: SolaceTransport, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Whether there has been another connect."""
    has_begun, connect = threading.Event(), SolaceSession.connect

    def connect_noted(*args: Any) -> SolaceSession:
        has_begun.set()
        return connect(*args)

    monkeypatch.setattr(SolaceSession, "connect", connect_noted)
    return has_begun


async def test_a_session_begins_when_the_one_that_it_replaces_has_ended(
    transport: SolaceTransport, has_begun: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else they drive each other out, under one name, and what the old one repeats comes behind newer messages."""
    is_early = asyncio.get_running_loop().create_future()
    close, tell = Transactions.close, asyncio.get_running_loop().call_soon_threadsafe

    def close_slowly(transactions: Transactions) -> None:
        if not is_early.done():
            # As a commit under way does. What is waited for does not come.
            tell(is_early.set_result, has_begun.wait(0.5))
        close(transactions)

    monkeypatch.setattr(Transactions, "close", close_slowly)
    async with asyncio.timeout(PATIENCE_S):
        await log_in_again(transport)
        assert not await is_early
        await transport.send(Message("orders/new", b""))
    assert has_begun.is_set()


@pytest.mark.parametrize("part", [(SolacePublisher, "start"), (SolaceSession, "subscribe_anew")])
async def test_a_session_that_cannot_be_made_for_want_of_a_thread_is_made_later(
    broker: BrokerServer, transport: SolaceTransport, part: tuple[type, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody tried again, and the one that was half made stayed connected."""
    make, failed, may_succeed = getattr(*part), threading.Event(), threading.Event()

    def make_later(*args: Any) -> object:
        if not may_succeed.is_set():
            failed.set()
            raise RuntimeError("can't start new thread")
        return make(*args)

    monkeypatch.setattr(*part, make_later)
    with capture_logs() as logged:
        async with asyncio.timeout(PATIENCE_S):
            await log_in_again(transport)
            assert await asyncio.to_thread(failed.wait, PATIENCE_S)
            await eventually(lambda: not broker.client_names())
            await eventually(lambda: str(transport.why_away).endswith("can't start new thread"))
            may_succeed.set()
            await eventually(lambda: transport.is_connected)
            await transport.send(Message("orders/new", b""))
    reasons = {each["reason"] for each in logged if each["event"] == "session_not_renewed"}
    assert len(reasons) == 1
    assert reasons.pop().endswith("can't start new thread")


async def test_an_unbind_that_its_session_did_not_live_to_make_is_not_known_of(
    broker: BrokerServer, make_transport: MakeTransport
) -> None:
    """The next session was asked, and the broker had read all that this one had sent."""
    transport = await opened(make_transport("first"))
    flow = await transport.bind(QUEUE, Epoch(1), FlowRecorder())
    may_go_on = threading.Event()
    occupying = [transport._threads.begin(may_go_on.wait, PATIENCE_S) for _ in range(THREAD_COUNT)]
    unbinding = asyncio.ensure_future(flow.unbind())
    await asyncio.sleep(0)
    transport._log_in_again("for a test")
    await eventually(lambda: transport.is_connected)
    may_go_on.set()
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.wait(occupying)
        assert not await unbinding
    assert broker.engine.queue_flows(DEFAULT_VPN, QUEUE) == ()


async def test_a_bind_whose_session_ends_says_so(broker: BrokerServer, make_transport: MakeTransport) -> None:
    """The client has a text of its own clean-up for that, or none."""
    transport = await opened(make_transport("first"))
    broker.faults.stall("first")
    binding = asyncio.ensure_future(transport.bind(QUEUE, Epoch(1), FlowRecorder()))
    await asyncio.wait([binding], timeout=0.2)
    transport._log_in_again("for a test")
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(BindFailed, match=r"orders/0: the session ended$"):
            await binding
    broker.faults.clear()


async def test_a_session_begins_although_nobody_answers_the_one_that_it_replaces(
    transport: SolaceTransport, has_begun: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That one is cut off by then, and the library waits for answers that cannot come, on every thread that it got."""
    are_asked, begins = threading.Barrier(THREAD_COUNT + 1), []

    def provision_queue(*_: object) -> None:
        are_asked.wait(PATIENCE_S)
        begins.append(has_begun.wait(PATIENCE_S))

    monkeypatch.setattr(native, "provision_queue", provision_queue)
    provisioning = [asyncio.create_task(transport.provision(QUEUE, ())) for _ in range(THREAD_COUNT)]
    async with asyncio.timeout(2 * PATIENCE_S):
        await asyncio.to_thread(are_asked.wait, PATIENCE_S)
        transport._log_in_again("for a test")
        for each in provisioning:
            with pytest.raises(TransportError, match="cannot provision orders/0: the connection was lost"):
                await each
        assert begins == [True] * THREAD_COUNT
        await transport.send(Message("orders/new", b""))


@pytest.fixture
async def renewed(broker: BrokerServer, transport: SolaceTransport, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Set when the next session is made, and waits for its subscriptions as long as it lasts; later ones do not."""
    is_made, tell = asyncio.Event(), asyncio.get_running_loop().call_soon_threadsafe
    subscribe_anew = SolaceSession.subscribe_anew

    def wait_for_an_answer(session: SolaceSession, *args: Any) -> None:
        monkeypatch.setattr(SolaceSession, "subscribe_anew", subscribe_anew)
        with session.calls.one():
            tell(is_made.set)
            session.calls.over.result(PATIENCE_S)

    monkeypatch.setattr(SolaceSession, "subscribe_anew", wait_for_an_answer)
    transport._log_in_again("for a test")
    return is_made


async def test_an_outage_while_a_session_is_made_costs_that_session_and_no_time(
    broker: BrokerServer, transport: SolaceTransport, renewed: asyncio.Event
) -> None:
    """It waited for the end of the outage, and then passed for connected in the next one."""
    with capture_logs() as logged:
        async with asyncio.timeout(PATIENCE_S):
            await renewed.wait()
            assert broker.faults.drop("first") == 1
            await transport.send(Message("orders/new", b""))
    (line,) = (each for each in logged if each["event"] == "session_not_renewed")
    assert "the connection was lost at once: " in line["reason"]


async def test_closing_does_not_wait_for_the_subscriptions_of_a_session_that_is_made(
    broker: BrokerServer, transport: SolaceTransport, renewed: asyncio.Event
) -> None:
    async with asyncio.timeout(PATIENCE_S / 2):
        await renewed.wait()
        await transport.close()
    await eventually(lambda: not broker.client_names())
