"""What the tests of the transport do between its calls."""

import asyncio
from collections.abc import Callable

from lbg_runtime.model.message import Message
from lbg_runtime.testing.flow_recorder import PATIENCE_S
from lbg_runtime.transport.solace.transport import SolaceTransport


async def publish(transport: SolaceTransport, count: int, topic: str = "orders/new") -> None:
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*(transport.send(Message(topic, str(number).encode())) for number in range(count)))


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait for what the broker has no event for."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.005)
