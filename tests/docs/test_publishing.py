"""The examples of docs/publishing.md do what the page says."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from solace.messaging.messaging_service import MessagingService
from solace.messaging.resources.queue import Queue
from solace.messaging.resources.topic import Topic

from lbg_runtime import open_publisher
from lbg_runtime.model.hashing import HashFunction, shard_of
from lbg_runtime.testing import BrokerOnPort
from tests.docs.pages import ROOT, blocks
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.real_time

SETTINGS = """
connection: {{transport: solace, host: "{host}"}}
group: {{name: shop, hash_prefix: shop-hash, hash_count: 4, queue_count: 1}}
"""


def test_the_example_publishes(tmp_path: Path, lbg_broker: BrokerOnPort) -> None:
    lbg_broker.create_queue("shop/0", "shop-hash/>")
    (tmp_path / "config.yaml").write_text(SETTINGS.format(host=lbg_broker.url))
    example, _ = blocks(ROOT / "docs" / "publishing.md", "python")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", example], cwd=tmp_path, env=environment, timeout=PATIENCE_S, check=True)
    assert lbg_broker.queue_status("shop/0").depth == 1_001


def test_who_hashes_by_other_means_can_compare_with_the_page() -> None:
    page = " ".join((ROOT / "docs" / "publishing.md").read_text().split())
    crc32, java_string = (shard_of(each, "customer-7", 96) for each in (HashFunction.CRC32, HashFunction.JAVA_STRING))
    assert f"of `customer-7`, with 96 shards, it is {crc32} by `crc32` and {java_string} by `java_string`" in page


async def test_what_lies_on_a_plain_queue_is_taken_into_the_group_as_it_is(
    tmp_path: Path, lbg_broker: BrokerOnPort
) -> None:
    lbg_broker.create_queue("shop/0", "shop-hash/>")
    lbg_broker.create_queue("old", "orders/>")
    (tmp_path / "config.yaml").write_text(SETTINGS.format(host=lbg_broker.url))
    _, example = blocks(ROOT / "docs" / "publishing.md", "python")
    names: dict[str, Any] = {}
    exec(example, names)  # noqa: S102  # it is our own page
    service = MessagingService.builder().from_properties(lbg_broker.client_properties()).build().connect()
    try:
        sender = service.create_persistent_message_publisher_builder().build().start()
        build = service.message_builder().with_property("customer", "c").with_property("raw", bytearray(b"\xff")).build
        for payload in ("pêches", bytearray(b"\xfe"), ""):
            sender.publish_await_acknowledgement(build(payload), Topic.of("orders/new"), PATIENCE_S * 1_000)
        builder = service.create_persistent_message_receiver_builder()
        receiver = builder.build(Queue.durable_exclusive_queue("old")).start()
        async with open_publisher(tmp_path / "config.yaml") as publisher:
            taking = names["take_over"](receiver, publisher, lambda old: old.properties["customer"])
            running = asyncio.create_task(taking)
            await asyncio.to_thread(lbg_broker.wait_until, "old", lambda status: status.depth == 0)
            running.cancel()
            await asyncio.wait([running])
        taken = builder.build(Queue.durable_exclusive_queue("shop/0")).start()
        came = [names["read"](taken.receive_message(PATIENCE_S * 1_000)) for _ in range(3)]
    finally:
        service.disconnect()
    assert [message.payload for message in came] == ["pêches".encode(), b"\xfe", b""]
    assert [message.key_sequence for message in came] == [1, 2, 3]
    assert {message.key for message in came} == {"c"}
    assert all(message.topic.endswith("/orders/new") and message.properties["raw"] == b"\xff" for message in came)
