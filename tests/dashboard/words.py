"""What members of a group say, for a board to hear."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from lbg_runtime.core.group.control_messages import (
    Accept,
    FlowReport,
    Header,
    Heartbeat,
    Leave,
    Life,
    MemberState,
    MoveId,
    Offer,
    ReportedFlow,
)
from lbg_runtime.core.restripe.striping import Striping, StripingReport
from lbg_runtime.model.ids import Epoch, GroupName, MemberId, QueueName
from lbg_runtime.model.message import Message
from lbg_runtime.transport.memory.broker import MemoryBroker
from lbg_runtime.transport.memory.transport import MemoryTransport

GROUP = GroupName("orders")

ACTIVE = ReportedFlow.ACTIVE
DRAINING = ReportedFlow.DRAINING
STANDBY = ReportedFlow.STANDBY


def queue(index: int) -> QueueName:
    return QueueName(f"orders/{index}")


class Speaker:
    """One member; every message has the next number of its life."""

    def __init__(self, name: str, incarnation: int = 1) -> None:
        self.name = MemberId(name)
        self._incarnation = incarnation
        self._sequence = 0

    def _header(self) -> Header:
        self._sequence += 1
        return Header(GROUP, self.name, Life(self._incarnation, 1), self._sequence)

    def beat(
        self,
        flows: dict[int, ReportedFlow],
        *,
        state: MemberState = MemberState.ACTIVE,
        in_flight: int = 0,
        epoch: int = 1,
        weight: int = 1,
        striping: Striping | None = None,
    ) -> Heartbeat:
        reports = {queue(index): FlowReport(flow, Epoch(epoch), in_flight) for index, flow in flows.items()}
        report = StripingReport(striping or Striping(0, 4), "")
        return Heartbeat(self._header(), state, weight, {}, reports, "digest", report)

    def offer(self, index: int, to: str, move: str = "m1") -> Offer:
        return Offer(self._header(), queue(index), Epoch(1), MoveId(move), MemberId(to))

    def accept(self, index: int, move: str = "m1") -> Accept:
        return Accept(self._header(), queue(index), MoveId(move))

    def leave(self) -> Leave:
        return Leave(self._header())


@asynccontextmanager
async def heartbeats_of_a_later_version(broker: MemoryBroker, topic: str) -> AsyncIterator[None]:
    """Sent within this context, often: a page forgets one after five and a half heartbeats."""
    session = MemoryTransport(broker, "later")
    await session.open()

    async def send() -> None:
        while True:
            session.send_direct(Message(topic, b'[2,"heartbeat"]'))
            await asyncio.sleep(0.1)

    sending = asyncio.ensure_future(send())
    try:
        yield
    finally:
        sending.cancel()
        await session.close()
