"""One look into a queue of a memory broker. As with a broker on the network, it shows what comes meanwhile, too."""

import asyncio

from lbg_runtime.broker.engine.effects import ClientId, Deliver, FlowId, SingleEffect, one_by_one
from lbg_runtime.broker.engine.engine import Engine
from lbg_runtime.model.errors import BrokerRefusal, TransportError
from lbg_runtime.model.ids import DeliveryId, QueueName
from lbg_runtime.model.message import Message
from lbg_runtime.transport.base import IsLast
from lbg_runtime.transport.memory.flow import WINDOW, message_of


class MemoryBrowse:
    """Made for one `read`, and driven by its `MemoryTransport`."""

    def __init__(self, engine: Engine, client: ClientId, queue: QueueName) -> None:
        """Bind; raises `TransportError`."""
        self._engine = engine
        self._queue = queue
        self._shown = asyncio.Queue[Deliver | str]()
        """What has come: messages, and at last the reason why there will be no more."""
        try:
            self.flow_id: FlowId = engine.bind(client, queue, browser=True)[0].flow
        except BrokerRefusal as refusal:
            raise TransportError(f"cannot browse {queue}: {refusal.text}") from refusal

    async def read(self, quiet_s: float, is_last: IsLast | None) -> list[Message]:
        """See `Browser.browse`."""
        found: list[Message] = []
        self._ask_for_more(DeliveryId(0))
        while (shown := await self._next(quiet_s)) is not None:
            if isinstance(shown, str):
                raise TransportError(f"cannot browse {self._queue}: {shown}")
            found.append(message_of(shown.message))
            if is_last is not None and is_last(found[-1]):
                break
            self._ask_for_more(shown.delivery_id)
        return found

    def take(self, effect: SingleEffect) -> None:
        """Take what the broker has for this flow."""
        if isinstance(effect, Deliver):
            self._shown.put_nowait(effect)

    def end(self, reason: str) -> None:
        """The broker has ended the flow, or the connection is lost."""
        self._shown.put_nowait(reason)

    def close(self) -> None:
        """Give the flow up."""
        self._engine.unbind(self.flow_id)

    def _ask_for_more(self, received: DeliveryId) -> None:
        for effect in one_by_one(self._engine.open_window(self.flow_id, received, WINDOW)):
            self.take(effect)

    async def _next(self, quiet_s: float) -> Deliver | str | None:
        try:
            async with asyncio.timeout(quiet_s):
                return await self._shown.get()
        except TimeoutError:
            return None
