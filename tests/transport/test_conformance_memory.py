"""The memory transport guarantees what every transport does; on virtual time."""

from collections.abc import AsyncIterator

import pytest

from lbg_runtime.broker.engine.engine import DEFAULT_VPN
from lbg_runtime.testing.conformance import TransportConformance
from lbg_runtime.testing.transport_harness import PASSWORD, USERNAME, TransportHarness
from lbg_runtime.transport.memory.broker import MemoryBroker
from lbg_runtime.transport.memory.transport import MemoryTransport
from tests.transport.rights import let_subscribe


class MemoryHarness:
    """A memory broker; with an ack timer as the official client has one."""

    def __init__(self) -> None:
        self.broker = MemoryBroker()
        self.broker.engine.add_user(DEFAULT_VPN, USERNAME, PASSWORD)
        self.transports: dict[str, MemoryTransport] = {}

    def make_transport(self, client_name: str, *, password: str = PASSWORD) -> MemoryTransport:
        transport = MemoryTransport(self.broker, client_name, username=USERNAME, password=password, ack_delay_s=1.0)
        self.transports[client_name] = transport
        return transport

    def let_subscribe(self, *, is_allowed: bool) -> None:
        let_subscribe(self.broker.engine, is_allowed=is_allowed)

    def cut(self, client_name: str) -> None:
        self.transports[client_name].drop_connection(reconnect_after_s=0.1)

    async def begin_outage(self) -> None:
        self.broker.is_reachable = False
        for transport in self.transports.values():
            transport.drop_connection(reconnect_after_s=0.1)

    async def end_outage(self) -> None:
        self.broker.is_reachable = True


@pytest.fixture
async def harness() -> AsyncIterator[TransportHarness]:
    harness = MemoryHarness()
    yield harness
    for transport in harness.transports.values():
        await transport.close()


class TestMemoryTransport(TransportConformance):
    """See `TransportConformance`."""
