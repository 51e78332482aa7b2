"""A development broker and transports to it, by either receive path."""

from collections.abc import AsyncIterator, Callable

import pytest

from lbg_runtime.broker.server.server import BrokerServer
from lbg_runtime.config.settings import ClientPathChoice
from lbg_runtime.transport.solace.fast import compiled
from lbg_runtime.transport.solace.settings import SolaceSettings
from lbg_runtime.transport.solace.transport import SolaceTransport
from tests.addresses import OWN_HOST
from tests.transport.solace.steps import opened


@pytest.fixture
async def broker() -> AsyncIterator[BrokerServer]:
    async with BrokerServer(OWN_HOST, 0) as server:
        server.create_queue("orders/0", ["orders/>"])
        yield server


@pytest.fixture(params=["compiled", "interpreted", "public"])
def client_path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ClientPathChoice:
    # A test that asks for one path names the choice itself.
    if request.param in ("public", ClientPathChoice.PUBLIC):
        return ClientPathChoice.PUBLIC
    choose_parts(request.param, monkeypatch)
    return ClientPathChoice.FAST


def choose_parts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the fast path do in C what can be done there, or nothing."""
    if name == "interpreted":
        monkeypatch.setattr(compiled, "INTAKE", None)
        monkeypatch.setattr(compiled, "READER", None)
        monkeypatch.setattr(compiled, "SETTLER", None)
        monkeypatch.setattr(compiled, "WRITER", None)
    elif compiled.INTAKE is None:
        pytest.skip("the package was built without a compiler")


@pytest.fixture
def made() -> list[SolaceTransport]:
    """The transports that are to be closed at the end of the test."""
    return []


@pytest.fixture
async def transport(make_transport: Callable[[str], SolaceTransport]) -> SolaceTransport:
    """One that is open."""
    return await opened(make_transport("first"))


@pytest.fixture
async def make_transport(
    broker: BrokerServer, client_path: ClientPathChoice, made: list[SolaceTransport]
) -> AsyncIterator[Callable[[str], SolaceTransport]]:
    def make(
        client_name: str, password: str = "", max_in_flight: int | None = None, *, carries_traces: bool = False
    ) -> SolaceTransport:
        settings = SolaceSettings(
            hosts=(broker.url,),
            client_name=client_name,
            password=password,
            connect_timeout_ms=30_000,
            reconnect_wait_ms=50,
            client_path=client_path,
            max_in_flight=max_in_flight,
            carries_traces=carries_traces,
        )
        made.append(SolaceTransport(settings))
        return made[-1]

    yield make
    for transport in made:
        await transport.close()
