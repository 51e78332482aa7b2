"""The transport on the official client guarantees what every transport does; over sockets of this machine."""

from collections.abc import AsyncIterator

import pytest

from lbg_runtime.broker.server.server import BrokerServer
from lbg_runtime.config.settings import ClientPathChoice
from lbg_runtime.testing.conformance import TransportConformance
from lbg_runtime.testing.transport_harness import PASSWORD, USERNAME, TransportHarness
from lbg_runtime.transport.solace.settings import SolaceSettings
from lbg_runtime.transport.solace.transport import SolaceTransport
from tests.addresses import OWN_HOST
from tests.transport.rights import let_subscribe

pytestmark = pytest.mark.real_time


class SolaceHarness:
    """A development broker in this process, on a port that the system chose, and nobody else gets in an outage."""

    def __init__(self, broker: BrokerServer, client_path: ClientPathChoice) -> None:
        self.broker = broker
        self.client_path = client_path
        self.transports: list[SolaceTransport] = []

    def make_transport(self, client_name: str, *, password: str = PASSWORD) -> SolaceTransport:
        settings = SolaceSettings(
            hosts=(f"tcp://{self.broker.host}:{self.broker.port}",),
            client_name=client_name,
            username=USERNAME,
            password=password,
            connect_timeout_ms=30_000,
            reconnect_wait_ms=50,
            client_path=self.client_path,
        )
        transport = SolaceTransport(settings)
        self.transports.append(transport)
        return transport

    def let_subscribe(self, *, is_allowed: bool) -> None:
        let_subscribe(self.broker.engine, is_allowed=is_allowed)

    def cut(self, client_name: str) -> None:
        assert self.broker.faults.drop(client_name) == 1

    async def begin_outage(self) -> None:
        await self.broker.stop()

    async def end_outage(self) -> None:
        await self.broker.start()


@pytest.fixture(params=[ClientPathChoice.FAST, ClientPathChoice.PUBLIC], ids=lambda path: path.value)
async def harness(request: pytest.FixtureRequest) -> AsyncIterator[TransportHarness]:
    async with BrokerServer(OWN_HOST, 0) as broker:
        broker.engine.add_user("default", USERNAME, PASSWORD)
        harness = SolaceHarness(broker, request.param)
        yield harness
        for transport in harness.transports:
            await transport.close()


class TestSolaceTransport(TransportConformance):
    """See `TransportConformance`."""
