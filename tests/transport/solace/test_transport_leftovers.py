"""What was refused, given up or closed leaves no thread and no receiver of the client behind."""

import gc
import os
import threading
import weakref
from collections.abc import Callable

import pytest

from lbg_runtime.broker.server.server import BrokerServer
from lbg_runtime.config.settings import ClientPathChoice
from lbg_runtime.model.errors import BindFailed, ConnectFailed
from lbg_runtime.model.ids import Epoch, QueueName
from lbg_runtime.model.outcome import Outcome
from lbg_runtime.testing.flow_recorder import FlowRecorder
from lbg_runtime.transport.solace.threads import THREAD_COUNT
from lbg_runtime.transport.solace.transport import SESSION_THREADS, SolaceTransport
from tests.transport.solace.steps import control_thread_count, eventually, opened, publish

pytestmark = pytest.mark.real_time

MakeTransport = Callable[..., SolaceTransport]
QUEUE = QueueName("orders/0")


async def test_refused_connections_and_binds_leave_nothing_behind(
    broker: BrokerServer, make_transport: MakeTransport
) -> None:
    others = control_thread_count()
    transport = await opened(make_transport("first"))
    broker.engine.add_user("default", "default", "needed")

    async def fail() -> None:
        with pytest.raises(BindFailed):
            await transport.bind(QueueName("nowhere"), Epoch(1), FlowRecorder())
        refused = make_transport("second", password="wrong")
        with pytest.raises(ConnectFailed):
            await refused.open()
        await refused.close()

    await fail()
    await eventually(lambda: control_thread_count() <= others + THREAD_COUNT + SESSION_THREADS)
    before, receivers = thread_count(), receiver_count()
    for _ in range(4):
        await fail()
    # Threads end a moment after the call that ended them.
    await eventually(lambda: thread_count() <= before)
    await eventually(lambda: receiver_count() <= receivers)


async def test_rebind_cycles_leave_nothing_behind(broker: BrokerServer, transport: SolaceTransport) -> None:

    async def cycle(epoch: int) -> None:
        recorder = FlowRecorder()
        flow = await transport.bind(QUEUE, Epoch(epoch), recorder)
        flow.start_intake()
        await publish(transport, 5)
        for delivery in await recorder.until_received(5):
            flow.settle(delivery.delivery_id, Outcome.ACCEPTED)
        await flow.unbind()
        assert broker.engine.queue_depth("default", QUEUE) == 0
        assert broker.engine.queue_flows("default", QUEUE) == ()

    await cycle(1)
    before, receivers = thread_count(), receiver_count()
    for epoch in range(2, 10):
        await cycle(epoch)
    await eventually(lambda: thread_count() <= before)
    await eventually(lambda: receiver_count() <= receivers)


@pytest.mark.parametrize("client_path", [ClientPathChoice.PUBLIC], indirect=True)
async def test_a_flow_that_gets_no_thread_is_not_bound(
    broker: BrokerServer, transport: SolaceTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the public path, which needs one for each. It stayed bound, so that nobody else was fed."""
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if "MessageReceiver" in type(thread).__name__:
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as refusing:
        refusing.setattr(threading.Thread, "start", refuse)
        with pytest.raises(BindFailed, match="can't start new thread"):
            await transport.bind(QUEUE, Epoch(1), FlowRecorder())
    await eventually(lambda: broker.engine.queue_flows("default", QUEUE) == ())
    recorder = FlowRecorder()
    await transport.bind(QUEUE, Epoch(2), recorder)
    await recorder.until_active()


async def test_closing_leaves_no_thread_of_the_session(make_transport: MakeTransport) -> None:
    others = control_thread_count()
    first = make_transport("first")
    await first.open()
    await first.close()
    await eventually(lambda: control_thread_count() <= others)
    before = thread_count()
    for number in range(5):
        transport = make_transport(f"next-{number}")
        await transport.open()
        (await transport.bind(QUEUE, Epoch(1), FlowRecorder())).start_intake()
        await publish(transport, 1)
        await transport.close()
    # Threads end a moment after the call that ended them.
    await eventually(lambda: thread_count() <= before + 1)


async def test_a_transport_that_was_closed_is_gone(make_transport: MakeTransport, made: list[object]) -> None:
    """The client kept every session for the life of the process, and each kept its transport."""
    gone = []
    for number in range(3):
        transport = make_transport(f"next-{number}")
        await transport.open()
        (await transport.bind(QUEUE, Epoch(1), FlowRecorder())).start_intake()
        await publish(transport, 1)
        await transport.close()
        gone.append(weakref.ref(transport))
        del transport
    made.clear()

    def are_gone() -> bool:
        gc.collect()
        return [each() for each in gone] == [None] * 3

    await eventually(are_gone)


async def test_sessions_that_were_refused_or_have_ended_are_not_kept(
    broker: BrokerServer, make_transport: MakeTransport, made: list[SolaceTransport]
) -> None:
    """Each was, 0.05 MB and more: a member that tries to open a session once a second grew by 0.2 GB an hour."""
    before = session_count()
    for number in range(3):
        transport = make_transport(f"next-{number}")
        await transport.open()
        await transport.subscribe("news/>", FlowRecorder())
        await publish(transport, 1)
        await transport.close()
    broker.engine.add_user("default", "default", "needed")
    refused = make_transport("refused", password="wrong")
    for _ in range(3):
        with pytest.raises(ConnectFailed):
            await refused.open()
    await refused.close()
    del transport, refused
    made.clear()
    await eventually(lambda: session_count() <= before)


def session_count() -> int:
    """Sessions of the client that something still holds."""
    from lbg_runtime.transport.solace.library import ClientSession

    gc.collect()
    return sum(type(thing) is ClientSession for thing in gc.get_objects())


def receiver_count() -> int:
    """Receivers of the client that something still holds."""
    from lbg_runtime.transport.solace.library import PersistentReceiver

    gc.collect()
    return sum(type(thing) is PersistentReceiver for thing in gc.get_objects())


def thread_count() -> int:
    """Native ones included."""
    return len(os.listdir("/proc/self/task"))
