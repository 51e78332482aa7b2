"""What a message says of itself, read back from what a store may have."""

import asyncio

import pytest

from lbg_runtime.broker.engine.changes import MessageKept, QueueKept, QueueNumber
from lbg_runtime.broker.engine.effects import Published
from lbg_runtime.broker.engine.settings import QueueSettings
from lbg_runtime.broker.server.server import BrokerServer
from lbg_runtime.broker.server.traits import LONGEST_LIFE_MS, traits_of
from lbg_runtime.broker.store.store import Store
from lbg_runtime.model.ids import QueueName
from lbg_runtime.smf.frame import Parameter, ParameterKind, encode_parameter
from lbg_runtime.smf.message import Relay, make_relay
from tests.patience import PATIENCE_S


def message(life: bytes) -> Published:
    plain = make_relay("q/a", b"body")
    carried = plain.carried + encode_parameter(Parameter(ParameterKind.TIME_TO_LIVE, life))
    relay = Relay.of(plain.head, carried, plain.body, None)
    return Published("q/a", relay, relay.size_bytes, spooled_at_s=1, number=1)


@pytest.mark.parametrize(
    ("life", "life_ms"), [(b"\1\0", 256), (b"\xff" * 8, LONGEST_LIFE_MS), (b"\x7f" * 200, LONGEST_LIFE_MS)]
)
def test_a_life_is_as_long_as_is_said_and_no_longer_than_there_is_time(life: bytes, life_ms: int) -> None:
    assert traits_of(message(life)).time_to_live_ms == life_ms


@pytest.mark.real_time
async def test_a_store_with_a_life_beyond_all_time_starts(tmp_path) -> None:
    # Earlier versions took such messages.
    store = Store.open(tmp_path / "store")
    settings = QueueSettings(respect_time_to_live=True)
    store.write(
        [QueueKept(QueueNumber(1), "default", QueueName("q"), settings), MessageKept(1, 1, message(b"\x7f" * 200))]
    )
    store.close()
    async with asyncio.timeout(PATIENCE_S), BrokerServer(port=0, store=Store.open(tmp_path / "store")) as server:
        assert server.engine.queue_depth("default", QueueName("q")) == 1
