"""`open_publisher` against the development broker, with the official client."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from lbg_runtime import open_publisher
from lbg_runtime.admin.stored import Difference
from lbg_runtime.broker.engine.accounts import Account, ClientProfile
from lbg_runtime.broker.engine.engine import DEFAULT_VPN
from lbg_runtime.model.errors import BrokerRefusal, ConfigError, PublisherClosed, UserError
from lbg_runtime.publisher.hashed import HashedPublisher
from lbg_runtime.testing import BrokerOnPort
from tests.addresses import OWN_HOST, own_ports

pytestmark = pytest.mark.real_time

SETTINGS = """
connection: {{transport: solace, host: "{host}"}}
group: {{name: shop, hash_prefix: shop-hash, hash_count: 4, queue_count: 1, key: topic_level:1}}
"""


@pytest.fixture
def settings(tmp_path: Path, lbg_broker: BrokerOnPort) -> Path:
    lbg_broker.create_queue("shop/0", "shop-hash/>")
    file = tmp_path / "config.yaml"
    file.write_text(SETTINGS.format(host=lbg_broker.url))
    return file


async def test_messages_with_and_without_a_key_of_their_own_reach_the_groups_queue(
    settings: Path, lbg_broker: BrokerOnPort, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LBG_RUN_ID", "trial 7")
    async with open_publisher(settings, ledger=tmp_path / "ledgers") as publisher:
        first = await publisher.publish("orders/created", b"two apples", key="customer-7")
        second = await publisher.submit("orders/customer-7", b"three pears")
    assert (first.key_sequence, (await second).key_sequence) == (1, 2)
    assert publisher.counts.confirmed == 2
    assert lbg_broker.queue_status("shop/0").depth == 2
    [ledger] = (tmp_path / "ledgers").iterdir()
    header, confirmed, close = map(json.loads, ledger.read_text().splitlines())
    assert header["run_id"] == "trial 7", "as in the journals of members, without which no verdict is known"
    assert (confirmed["kind"], confirmed["first_seq"], confirmed["last_seq"]) == ("confirmed", 1, 2)
    assert (close["kind"], close["clean"]) == ("close", True)
    with pytest.raises(PublisherClosed):
        await publisher.publish("orders/created", b"", key="customer-7")


async def test_a_broker_that_is_not_there_is_the_settings_mistake(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    (port,) = own_ports(1)
    file.write_text(SETTINGS.format(host=f"tcp://{OWN_HOST}:{port}"))
    with pytest.raises(ConfigError, match=r"connection\.host"):
        async with open_publisher(file):
            pass


async def test_what_is_published_before_the_first_member_lies_in_queues_that_members_may_make(
    tmp_path: Path, lbg_broker: BrokerOnPort
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(SETTINGS.format(host=lbg_broker.url).replace("queue_count: 1", "queue_count: 2"))
    async with open_publisher(file) as publisher:
        await publisher.publish("orders/created", b"nobody keeps this", key="customer-7")
    with pytest.raises(BrokerRefusal):
        lbg_broker.queue_status("shop/0")
    file.write_text(file.read_text().replace("queue_count", "provision: create_missing, queue_count"))
    for _ in range(2):
        async with open_publisher(file) as publisher:
            for customer in range(8):
                await publisher.publish("orders/created", b"two apples", key=f"customer-{customer}")
    depths = [lbg_broker.queue_status(f"shop/{index}").depth for index in range(2)]
    assert sum(depths) == 16
    assert all(depths)


async def test_a_publisher_that_may_not_make_the_queues_is_told_what_to_change(
    tmp_path: Path, lbg_broker: BrokerOnPort
) -> None:
    nobody = Account("default", profile=ClientProfile(may_create_queues=False))
    lbg_broker._call(lambda: lbg_broker._server.engine.administration.accounts(DEFAULT_VPN).put(nobody))
    file = tmp_path / "config.yaml"
    file.write_text(
        SETTINGS.format(host=lbg_broker.url).replace("queue_count", "provision: create_missing, queue_count")
    )
    with pytest.raises(ConfigError, match=r"group\.provision: .*shop/0.*; expected .*`none`"):
        async with open_publisher(file):
            pass


async def test_a_publisher_does_not_bring_an_older_layout_back(tmp_path: Path, lbg_broker: BrokerOnPort) -> None:
    """Its file still says so, and two queues would then have the same shard, and two members its keys."""
    for index in range(3):
        lbg_broker.create_queue(f"shop/{index}", f"shop-hash/{index}/>")
    file = tmp_path / "config.yaml"
    file.write_text(
        SETTINGS.format(host=lbg_broker.url).replace("queue_count: 1", "provision: create_missing, queue_count: 4")
    )
    async with open_publisher(file) as publisher:
        for customer in range(20):
            await publisher.publish("orders/created", b"two apples", key=f"customer-{customer}")
    assert [lbg_broker.queue_status(f"shop/{index}").subscriptions for index in range(3)] == [
        (f"shop-hash/{index}/>",) for index in range(3)
    ]
    with pytest.raises(BrokerRefusal, match="Unknown Queue"):
        lbg_broker.queue_status("shop/3")


class ChangedSoon:
    """A watch that finds another hash count as soon as it runs."""

    def __init__(self, on_changed: Callable[[tuple[Difference, ...]], None]) -> None:
        self._on_changed = on_changed

    async def run(self) -> None:
        self._on_changed((Difference("group.hash_count", "4", "8"),))
        await asyncio.Event().wait()


class FailedSoon:
    """A watch that ends with an error that nobody has foreseen."""

    async def run(self) -> None:
        raise ZeroDivisionError


async def publish_until_closed(settings: Path, counts: list[tuple[int, int]], *, looks_away: bool) -> None:
    async with open_publisher(settings) as publisher:
        try:
            for _ in range(100_000):
                await publisher.publish("orders/created", b"", key="customer-7")
        except PublisherClosed:
            counts.append((publisher.counts.sent, publisher.counts.confirmed))
            if not looks_away:
                raise


@pytest.mark.parametrize("looks_away", [True, False])
async def test_a_publisher_of_a_group_that_hashes_otherwise_by_now_is_closed(
    settings: Path, lbg_broker: BrokerOnPort, monkeypatch: pytest.MonkeyPatch, looks_away: bool
) -> None:
    monkeypatch.setattr("lbg_runtime.admin.stored.watch_of", lambda _, __, on_changed: ChangedSoon(on_changed))
    with pytest.raises(UserError, match=r"group\.hash_count: 4, but the group on the broker now has 8"):
        await publish_until_closed(settings, counts := [], looks_away=looks_away)
    assert counts == [(lbg_broker.queue_status("shop/0").depth,) * 2]


async def test_a_publisher_that_cannot_watch_its_groups_settings_any_more_is_closed(
    settings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lbg_runtime.admin.stored.watch_of", lambda *_: FailedSoon())
    with pytest.raises(ZeroDivisionError):
        await publish_until_closed(settings, counts := [], looks_away=True)
    assert counts


async def test_a_publisher_that_is_closed_under_a_task_group_says_why(
    settings: Path, lbg_broker: BrokerOnPort, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lbg_runtime.admin.stored.watch_of", lambda _, __, on_changed: ChangedSoon(on_changed))

    async def publish(publisher: HashedPublisher) -> None:
        while True:
            await publisher.publish("orders/created", b"", key="customer-7")

    async def publish_side_by_side() -> None:
        async with open_publisher(settings) as publisher, asyncio.TaskGroup() as tasks:
            for _ in range(2):
                tasks.create_task(publish(publisher))

    with pytest.raises(UserError, match=r"group\.hash_count"):
        await publish_side_by_side()
