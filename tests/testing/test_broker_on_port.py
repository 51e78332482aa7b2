"""The broker on a port, with members of ours on the official client."""

import asyncio
import socket
import threading

import pytest

from lbg_runtime.broker.server.server import BrokerServer
from lbg_runtime.config.load import parse_settings
from lbg_runtime.model.errors import BrokerRefusal, UserError
from lbg_runtime.publisher.hashed import HashedPublisher
from lbg_runtime.runtime.app import App
from lbg_runtime.runtime.handlers.registry import Handlers
from lbg_runtime.runtime.session import open_session
from lbg_runtime.testing import BrokerOnPort, NotReached
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.real_time


def test_a_queue_is_looked_at_until_it_is_as_wanted(lbg_broker: BrokerOnPort) -> None:
    lbg_broker.create_queue("q", "q/>")
    assert lbg_broker.wait_until("q", lambda status: status.depth == 0).subscriptions == ("q/>",)
    with pytest.raises(NotReached, match=r"^queue q did not meet the condition within 0.02 s:\n  it is QueueStatus"):
        lbg_broker.wait_until("q", lambda status: status.depth == 1, within_s=0.02)
    with pytest.raises(NotReached, match="it is not there"):
        lbg_broker.wait_until("missing", lambda status: True, within_s=0.02)
    with pytest.raises(BrokerRefusal, match="Endpoint Already Exists"):
        lbg_broker.create_queue("q")


def test_the_port_is_the_same_after_a_failure() -> None:
    with BrokerOnPort() as broker:
        port = broker.port
        assert broker.url == f"tcp://127.0.0.1:{port}"
        broker.create_queue("q")
        broker.fail()
        # Whoever asked the system for a port meanwhile could be given it.
        with socket.socket() as another, pytest.raises(OSError, match="Address already in use"):
            another.bind((broker.host, port))
        with socket.socket() as client, pytest.raises(ConnectionRefusedError):
            client.connect((broker.host, port))
        broker.fail()
        broker.restore()
        assert broker.port == port
        assert broker.queue_status("q").depth == 0


def test_it_may_be_stopped_again_or_before_it_was_started_and_says_so_when_it_is_called_then() -> None:
    """A test that stopped the broker of the fixture failed at its end, and left a coroutine that nobody had awaited."""
    BrokerOnPort().stop()
    with BrokerOnPort() as broker:
        broker.stop()
        with pytest.raises(UserError, match="a call while it does not run"):
            broker.client_names()


def test_a_start_that_fails_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(_: BrokerServer) -> None:
        raise UserError("smf", "no port", "a free one")

    monkeypatch.setattr(BrokerServer, "start", fail)
    before = threading.enumerate()
    with pytest.raises(UserError, match="no port"), BrokerOnPort():
        pass
    assert threading.enumerate() == before


def test_a_port_that_was_taken_meanwhile_is_told() -> None:
    with BrokerOnPort() as broker, BrokerOnPort() as other:
        broker.fail()
        broker._server.port = other.port
        with pytest.raises(UserError, match="Address already in use"):
            broker.restore()


async def test_a_member_on_the_official_client_outlives_a_failure(lbg_broker: BrokerOnPort) -> None:
    handlers, handled = Handlers(), []
    both = asyncio.Event()

    @handlers.handler("orders/>")
    async def on_order(message):
        handled.append(message.payload)
        if len(handled) == 2:
            both.set()

    document = {
        "connection": {"transport": "solace", "host": lbg_broker.url},
        "group": {
            "name": "orders",
            "hash_prefix": "h",
            "hash_count": 4,
            "queue_count": 2,
            "provision": "create_missing",
        },
    }
    settings = parse_settings(document, "test", {})
    app = App(handlers, settings, member_id="only")
    running = asyncio.ensure_future(app.run())
    async with asyncio.timeout(PATIENCE_S), open_session(settings.connection, "publisher") as session:
        shape = settings.group.shape()
        await asyncio.to_thread(_until_bound, lbg_broker)
        async with HashedPublisher(session, shape, settings.group.hash_function, publisher_id="p") as publisher:
            await publisher.publish("orders/new", b"1", key="k")
            lbg_broker.fail()
            lbg_broker.restore()
            await publisher.publish("orders/new", b"2", key="k")
            await both.wait()
        app.stop()
        await running
    assert list(dict.fromkeys(handled)) == [b"1", b"2"]
    assert lbg_broker.client_names() == []


def _until_bound(broker: BrokerOnPort) -> None:
    for queue in ("orders/0", "orders/1"):
        broker.wait_until(queue, lambda status: status.active_flow is not None)
