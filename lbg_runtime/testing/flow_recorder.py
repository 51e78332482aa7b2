"""A flow sink for tests: keeps the events that it gets and lets a test wait for them."""

import asyncio
from collections.abc import Callable

from lbg_runtime.core.flow.events import FlowActive, FlowDown, FlowEvent, FlowInactive, MessageReceived
from lbg_runtime.model.message import Delivery

PATIENCE_S = 100.0
"""How long a test waits for what must come: what takes longer hangs, also on the slowest machine."""


class FlowRecorder:
    """Pass it as the sink of a bind. Created and used on one event loop."""

    def __init__(self) -> None:
        self.events: list[FlowEvent] = []
        self._told = asyncio.Event()

    def __call__(self, event: FlowEvent) -> None:
        """Take an event."""
        self.events.append(event)
        self._told.set()

    @property
    def deliveries(self) -> list[Delivery]:
        """What arrived, in order."""
        return [event.delivery for event in self.events if isinstance(event, MessageReceived)]

    @property
    def payloads(self) -> list[bytes]:
        return [delivery.message.payload for delivery in self.deliveries]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until an event makes the condition true; raises `TimeoutError`."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                self._told.clear()
                await self._told.wait()

    async def until_received(self, count: int) -> list[Delivery]:
        """Wait for `count` deliveries in all; return them."""
        await self.until(lambda: len(self.deliveries) >= count)
        return self.deliveries

    async def until_active(self, times: int = 1) -> None:
        """Wait until the flow has become active this many times."""
        await self.until(lambda: self._count(FlowActive) >= times)

    async def until_inactive(self, times: int = 1) -> None:
        """Wait until the flow has become inactive this many times."""
        await self.until(lambda: self._count(FlowInactive) >= times)

    async def until_down(self) -> str:
        """Wait for the end of the flow; return the broker's reason."""
        await self.until(lambda: self._count(FlowDown) > 0)
        return next(event.reason for event in self.events if isinstance(event, FlowDown))

    def _count(self, kind: type[FlowEvent]) -> int:
        return sum(isinstance(event, kind) for event in self.events)
