"""A development broker and transports to it, by either receive path."""

from collections.abc import AsyncIterator, Callable

import pytest

from lbg_runtime.broker.server.server import BrokerServer
from lbg_runtime.config.settings import ReceivePathChoice
from lbg_runtime.transport.solace.settings import SolaceSettings
from lbg_runtime.transport.solace.transport import SolaceTransport


@pytest.fixture
async def broker() -> AsyncIterator[BrokerServer]:
    async with BrokerServer(port=0) as server:
        server.create_queue("orders/0", ["orders/>"])
        yield server


@pytest.fixture(params=[ReceivePathChoice.FAST, ReceivePathChoice.PUBLIC], ids=lambda path: path.value)
def receive_path(request: pytest.FixtureRequest) -> ReceivePathChoice:
    choice: ReceivePathChoice = request.param
    return choice


@pytest.fixture
async def make_transport(
    broker: BrokerServer, receive_path: ReceivePathChoice
) -> AsyncIterator[Callable[[str], SolaceTransport]]:
    made: list[SolaceTransport] = []

    def make(client_name: str, password: str = "") -> SolaceTransport:
        settings = SolaceSettings(
            hosts=(f"tcp://{broker.host}:{broker.port}",),
            client_name=client_name,
            password=password,
            connect_timeout_ms=5_000,
            reconnect_wait_ms=50,
            receive_path=receive_path,
        )
        made.append(SolaceTransport(settings))
        return made[-1]

    yield make
    for transport in made:
        await transport.close()
