"""What cannot be published fails alone, before it reaches the client's sending thread, which would die of it."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from solace.messaging.utils._solace_utilities import _SolaceSingleThreadDispatcher

from lbg_runtime.config.settings import ClientPathChoice
from lbg_runtime.model.errors import MessageUnsendable, PublishFailed
from lbg_runtime.model.message import Message
from lbg_runtime.testing.flow_recorder import PATIENCE_S
from lbg_runtime.transport.solace.transport import SolaceTransport
from tests.transport.solace.steps import opened

pytestmark = pytest.mark.real_time

MakeTransport = Callable[..., SolaceTransport]


@pytest.mark.parametrize(
    "properties",
    [{"x": "y"}, {"text": "\u00e9" * 100_000, "bytes": bytes(70_000), **{f"p{n}": -n for n in range(100)}}],
    ids=["one", "many"],
)
async def test_a_payload_that_only_its_properties_make_too_large_is_refused_and_one_that_fits_is_sent(
    transport: SolaceTransport, properties: dict[str, Any]
) -> None:

    parts = [part.encode() if isinstance(part, str) else part for part in (*properties, *properties.values())]
    own_bytes = sum(len(part) for part in parts if isinstance(part, bytes))

    def message(total_bytes: int) -> Message:
        return Message("attracted/by/no/queue", bytes(total_bytes - own_bytes), properties)

    for total_bytes in (30_000_000 - 10, 30_000_000):
        with pytest.raises(MessageUnsendable, match="30000000"):
            await asyncio.wait_for(transport.send(message(total_bytes)), PATIENCE_S)
    await asyncio.wait_for(transport.send(message(30_000_000 - 100 - 24 * len(properties))), PATIENCE_S)


async def test_a_transport_that_is_not_open_sends_nothing(make_transport: MakeTransport) -> None:
    transport = make_transport("first")
    with pytest.raises(PublishFailed):
        await transport.send(Message("orders/new", b""))
    transport.send_direct(Message("orders/new", b""))


async def test_a_send_that_nobody_waits_for_any_more_does_no_harm(transport: SolaceTransport) -> None:
    transport.send(Message("orders/new", b"")).cancel()
    await asyncio.wait_for(transport.send(Message("orders/new", b"")), PATIENCE_S)


@pytest.mark.parametrize("client_path", [ClientPathChoice.PUBLIC], indirect=True)
async def test_what_is_sent_as_the_sending_thread_ends_is_of_unknown_fate(
    make_transport: MakeTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As its session does, before the loop hears of it: the caller had an error of Python's own and no future."""

    def refuse(*_: object) -> None:
        raise RuntimeError

    transport = await opened(make_transport("first"))
    monkeypatch.setattr(_SolaceSingleThreadDispatcher, "submit", refuse)
    with pytest.raises(PublishFailed, match="RuntimeError"):
        await asyncio.wait_for(transport.send(Message("orders/new", b"")), PATIENCE_S)
