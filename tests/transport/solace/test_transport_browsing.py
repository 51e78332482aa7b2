"""What comes of looking into a queue when the connection is lost meanwhile."""

import asyncio
from collections.abc import Callable

import pytest

from lbg_runtime.broker.engine.surroundings import Asked
from lbg_runtime.broker.server.server import BrokerServer
from lbg_runtime.config.settings import ClientPathChoice
from lbg_runtime.model.errors import TransportError
from lbg_runtime.model.ids import QueueName
from lbg_runtime.model.message import Message
from lbg_runtime.testing.flow_recorder import PATIENCE_S
from lbg_runtime.transport.solace.transport import SolaceTransport
from tests.transport.solace.steps import publish

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.parametrize("client_path", [ClientPathChoice.PUBLIC], indirect=True),
]

MakeTransport = Callable[..., SolaceTransport]
QUEUE = QueueName("orders/0")


async def test_closing_ends_a_browser_that_the_broker_has_not_answered(
    broker: BrokerServer, transport: SolaceTransport
) -> None:
    """Both waited for ever, and kept the process from exiting."""
    broker.faults.stall("first")
    browsing = asyncio.ensure_future(transport.browse(QUEUE, 0.2))
    await asyncio.wait([browsing], timeout=0.2)
    async with asyncio.timeout(PATIENCE_S):
        await transport.close()
        with pytest.raises(TransportError, match="cannot browse orders/0: the session ended"):
            await browsing


async def test_a_look_that_is_cancelled_reads_no_further(transport: SolaceTransport) -> None:
    """It was read to its end, which does not come in a queue that is fed all the time."""
    await publish(transport, 3)
    loop, shown = asyncio.get_running_loop(), list[bytes]()

    async def cancel() -> None:
        browsing.cancel()
        # The turn in which the task learns of it.
        await asyncio.sleep(0)

    def cancel_at_first(message: Message) -> bool:
        shown.append(message.payload)
        asyncio.run_coroutine_threadsafe(cancel(), loop).result(PATIENCE_S)
        return False

    browsing = asyncio.ensure_future(transport.browse(QUEUE, 0.2, cancel_at_first))
    with pytest.raises(asyncio.CancelledError):
        await browsing
    assert len(shown) == 1


@pytest.mark.parametrize("comes_back", [True, False])
async def test_a_queue_is_not_told_as_whole_when_the_connection_was_lost(
    broker: BrokerServer, make_transport: MakeTransport, *, comes_back: bool
) -> None:
    transport, loop = make_transport("first"), asyncio.get_running_loop()
    await transport.open()
    await publish(transport, 3)
    if not comes_back:
        broker.faults.refuse(Asked.LOGIN, 503, "Service Unavailable", "first")
    shown = list[bytes]()

    def cut_once(message: Message) -> bool:
        shown.append(message.payload)
        if len(shown) == 1:
            asyncio.run_coroutine_threadsafe(cut(), loop).result(PATIENCE_S)
        return False

    async def cut() -> None:
        assert broker.faults.drop("first")

    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(TransportError, match="cannot browse orders/0"):
            await transport.browse(QUEUE, 1.0, cut_once)
    assert len(shown) <= 3
