"""Spans are made where they are asked for; elsewhere nothing of theirs, nor of the metrics, is even imported."""

import subprocess
import sys

import pytest
from opentelemetry import trace

from lbg_runtime.config.load import parse_settings
from lbg_runtime.config.settings import Tracing
from lbg_runtime.metrics.spans import MessageSpans
from lbg_runtime.metrics.tracing import open_spans
from lbg_runtime.model.errors import ConfigError
from lbg_runtime.model.message import NO_HEADERS
from tests.metrics.kept_spans import KeptSpans
from tests.patience import PATIENCE_S

GROUP = {"name": "orders", "hash_prefix": "h", "hash_count": 8, "queue_count": 4, "provision": "create_missing"}


def settings(**ops):
    return parse_settings({"group": GROUP, "ops": ops}, "test", {})


def begin_and_end(spans):
    spans.begin_publish(
        "h/3/a", key="k", shard=3, message_id="p-1", headers=NO_HEADERS, size_bytes=1, properties={}
    ).end()


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (False, Tracing.OFF),
        ("off", Tracing.OFF),
        ("spans", Tracing.SPANS),
        ("spans_with_keys", Tracing.SPANS_WITH_KEYS),
    ],
)
def test_the_setting_is_a_word_and_off_may_be_what_yaml_makes_of_it(written, meant) -> None:
    assert settings(tracing=written).ops.tracing is meant


def test_another_word_is_told_with_those_that_are_known() -> None:
    with pytest.raises(ConfigError, match=r"ops\.tracing: 'on'; expected one of off, spans or spans_with_keys"):
        settings(tracing="on")


def test_spans_are_opened_where_they_are_asked_for() -> None:
    assert open_spans(settings(), "c") is None
    assert isinstance(open_spans(settings(tracing="spans"), "c"), MessageSpans)


@pytest.mark.parametrize(("tracing", "has_keys"), [("spans", False), ("spans_with_keys", True)])
def test_keys_are_in_spans_only_by_the_setting_of_their_own(tracing, has_keys, monkeypatch) -> None:
    kept = KeptSpans()
    monkeypatch.setattr(trace, "get_tracer", lambda name, version, _: kept.provider.get_tracer(name, version))
    begin_and_end(open_spans(settings(tracing=tracing), "c"))
    assert ("lbg.key" in kept.ended[0].attributes) == has_keys


@pytest.mark.parametrize(
    ("host", "server"),
    [
        ("tcp://broker.example:55555", {"server.address": "broker.example", "server.port": 55555}),
        ("10.1.2.80:443", {"server.address": "10.1.2.80", "server.port": 443}),
        ("tcp://[::1]:55443", {"server.address": "::1", "server.port": 55443}),
        ("broker", {"server.address": "broker"}),
        ("tcp://fe80::1", {}),
        ("tcp://one:1,tcp://other:2", {}),
    ],
)
def test_spans_name_the_client_and_the_broker_if_there_is_one(host, server, monkeypatch) -> None:
    """Of several hosts nobody says here which one answers."""
    kept = KeptSpans()
    monkeypatch.setattr(trace, "get_tracer", lambda name, version, _: kept.provider.get_tracer(name, version))
    connection = {"transport": "solace", "host": host}
    found = parse_settings({"group": GROUP, "connection": connection, "ops": {"tracing": "spans"}}, "test", {})
    begin_and_end(open_spans(found, "orders/a"))
    attributes = kept.ended[0].attributes
    assert attributes["messaging.client.id"] == "orders/a"
    assert {name: value for name, value in attributes.items() if name.startswith("server.")} == server


def test_a_missing_library_is_told_with_what_to_install(monkeypatch) -> None:
    monkeypatch.delitem(sys.modules, "lbg_runtime.metrics.spans")
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ConfigError) as caught:
        open_spans(settings(tracing="spans"), "c")
    assert str(caught.value) == (
        "ops.tracing: spans, and opentelemetry is not installed; expected pip install 'lbg-runtime[otel]'"
    )


MEMBER = f"""
import asyncio, sys
from lbg_runtime import App, Handlers
from lbg_runtime.config.load import parse_settings
from lbg_runtime.model.message import Message
from lbg_runtime.model.hashing import HashFunction
from lbg_runtime.publisher.hashed import HashedPublisher
from lbg_runtime.transport.memory.broker import MemoryBroker
from lbg_runtime.transport.memory.transport import MemoryTransport

handlers, broker = Handlers(), MemoryBroker()

async def main():
    settings = parse_settings({{"group": {GROUP!r}, "membership": {{"settle": "0ms"}}}}, "test", {{}})
    handled = asyncio.Event()

    @handlers.handler(">")
    async def handle(message):
        handled.set()

    app = App(handlers, settings, session=MemoryTransport(broker, "member"))
    running = asyncio.ensure_future(app.run())
    session = MemoryTransport(broker, "publisher")
    await session.open()
    for queue in settings.group.shape().queue_names():
        await session.provision(queue, settings.group.shape().subscriptions(int(queue[-1])))
    async with HashedPublisher(session, settings.group.shape(), HashFunction.CRC32, publisher_id="p") as publisher:
        await publisher.publish("orders/new", b"x", key="k")
    await handled.wait()
    app.stop()
    await running

asyncio.run(main())
print([name for name in sys.modules if name.partition(".")[0] in ("opentelemetry", "prometheus_client")])
"""


@pytest.mark.real_time
def test_nothing_of_it_is_imported_by_a_member_and_a_publisher_that_were_not_asked_for_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", MEMBER], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
