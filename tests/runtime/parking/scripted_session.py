"""A session with one handle on a parking queue; the test says what comes there."""

import asyncio
from collections.abc import Callable

from lbg_runtime.core.flow.events import FlowEvent
from lbg_runtime.core.parking.records import LedgerEntry, decode_entry
from lbg_runtime.model.ids import DeliveryId, Epoch, QueueName
from lbg_runtime.model.message import Message
from lbg_runtime.model.outcome import Outcome


class KeptFlow:
    """A handle on a parking queue that is bound again after an outage."""

    def __init__(self) -> None:
        self.settled: list[DeliveryId] = []
        self.flushed = 0
        """How many of them have left."""
        self.is_open = False

    def settle(self, delivery_id: DeliveryId, outcome: Outcome) -> None:
        self.settled.append(delivery_id)

    def flush(self) -> None:
        self.flushed = len(self.settled)

    def start_intake(self) -> None:
        self.is_open = True

    def stop_intake(self) -> None:
        self.is_open = False

    async def unbind(self) -> bool:
        return True


class Session:
    """That of the handle; notes what is sent."""

    def __init__(self) -> None:
        self.flow = KeptFlow()
        self.sent: list[LedgerEntry] = []
        self.sink: Callable[[FlowEvent], None] = lambda _: None
        self.returned: list[tuple[object, ...]] = []
        self.lost: list[Epoch] = []

    async def bind(self, queue: QueueName, epoch: Epoch, sink: Callable[[FlowEvent], None]) -> KeptFlow:
        self.sink = sink
        return self.flow

    def send(self, message: Message) -> "asyncio.Future[None]":
        self.sent.append(decode_entry(message))
        confirm = asyncio.get_running_loop().create_future()
        confirm.set_result(None)
        return confirm
