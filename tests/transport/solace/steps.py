"""What the tests of the transport do between its calls."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from lbg_runtime.model.message import Message
from lbg_runtime.testing.flow_recorder import PATIENCE_S
from lbg_runtime.transport.solace.transport import SolaceTransport


async def opened(transport: SolaceTransport) -> SolaceTransport:
    await transport.open()
    return transport


async def publish(transport: SolaceTransport, count: int, topic: str = "orders/new") -> None:
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*(transport.send(Message(topic, str(number).encode())) for number in range(count)))


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait for what the broker has no event for."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.005)


def control_thread_count() -> int:
    """Those of all transports: they end a moment after their transport was closed."""
    return sum(thread.name.startswith("solace-control") for thread in threading.enumerate())


def refuse_threads_after(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the system start so many more control threads of transports, as where there is a limit of them."""
    start, left = threading.Thread.start, [None] * count

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("solace-control"):
            if not left:
                raise RuntimeError("can't start new thread")
            left.pop()
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
