"""The session that the settings ask for."""

import pytest

from lbg_runtime.broker.engine.engine import DEFAULT_VPN
from lbg_runtime.broker.server.server import BrokerServer
from lbg_runtime.config.settings import Settings
from lbg_runtime.model.errors import ConfigError, UserError
from lbg_runtime.runtime.app import App
from lbg_runtime.runtime.handlers.registry import Handlers
from lbg_runtime.runtime.session import embedded_address


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("tcp://127.0.0.1:0", ("127.0.0.1", 0)),
        ("127.0.0.1:65535", ("127.0.0.1", 65535)),
        ("tcp://localhost", ("localhost", 55555)),
        ("tcp://[::1]:5000", ("::1", 5000)),
        ("[::1]", ("::1", 55555)),
    ],
)
def test_an_embedded_broker_listens_where_the_host_says(host, address):
    assert embedded_address(host) == address


@pytest.mark.parametrize(
    "host",
    ["tcps://127.0.0.1:1", "tcp://a:b", "tcp://a:99999", "ws://a:1", "tcp://:1", "::1", "tcp://ü..b:1", "ü" * 63],
)
def test_what_it_cannot_listen_on_is_one_line(host):
    with pytest.raises(ConfigError, match=r"connection\.host: .* as transport is embedded"):
        embedded_address(host)


@pytest.mark.parametrize(
    ("provision", "queues"),
    [("create_missing", {"orders/0": 3, "orders/1": 2}), ("none", {})],
    ids=["made", "not_made"],
)
async def test_an_embedded_broker_has_the_queues_before_publishers_can_reach_it(monkeypatch, provision, queues):
    """They may have waited for the port, and what they send before there is a queue is confirmed and gone."""
    found = {}

    async def start(server):
        engine = server.engine
        for queue in engine.queue_names(DEFAULT_VPN):
            found[queue] = len(engine.queue_status(DEFAULT_VPN, queue).subscriptions)
        raise UserError("smf", "taken", "a free port")

    monkeypatch.setattr(BrokerServer, "start", start)
    handlers = Handlers()

    @handlers.handler(">")
    async def handle(message):
        """Nothing comes."""

    group = {"name": "orders", "hash_prefix": "orders-hash", "hash_count": 5, "queue_count": 2, "provision": provision}
    settings = Settings.model_validate({"connection": {"transport": "embedded"}, "group": group})

    with pytest.raises(ConfigError, match="taken"):
        await App(handlers, settings).run()

    assert found == queues
