"""A message that cannot be read, in the stream of members and beside a parked key: what is seen of it, and the way out.

The way out is that of docs/failing.md, by the same requests.
"""

import asyncio
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import orjson
import pytest

from lbg_runtime.broker.engine.effects import Published
from lbg_runtime.broker.engine.engine import DEFAULT_VPN
from lbg_runtime.broker.semp.server import SempServer
from lbg_runtime.broker.server.server import BrokerServer
from lbg_runtime.core.parking.records import PARKING_PREFIX
from lbg_runtime.journal.reader import read_run
from lbg_runtime.model.hashing import HashFunction, shard_of
from lbg_runtime.model.ids import QueueName
from lbg_runtime.model.message import Message
from lbg_runtime.publisher.load import numbered_keys
from lbg_runtime.smf.contents import relay_of
from lbg_runtime.smf.message import Relay
from lbg_runtime.validator.findings import VerdictKind
from lbg_runtime.validator.judge import validate
from tests.addresses import OWN_HOST, own_ports
from tests.end_to_end.poisoned import HANDLERS, write_handlers
from tests.patience import PATIENCE_S
from tests.warm import Copy, WarmLbg

PUBLISHED, KEYS, SHARDS, QUEUES = 400, 30, 8, 2
BLOCKED, OTHER = QueueName("orders/1"), QueueName("orders/0")
POISONED = next(key for key in numbered_keys(KEYS) if shard_of(HashFunction.CRC32, key, SHARDS) % QUEUES == 1)


pytestmark = [pytest.mark.real_time, pytest.mark.end_to_end]


async def test_a_message_that_cannot_be_read_holds_up_its_queue_alone_until_it_is_deleted(
    lbg: WarmLbg, tmp_path: Path
) -> None:
    write_handlers(tmp_path, POISONED)
    async with asyncio.timeout(2 * PATIENCE_S), AsyncExitStack() as stack:
        broker = await stack.enter_async_context(BrokerServer(port=0))
        semp = await stack.enter_async_context(SempServer(broker.engine, broker.carry_out, port=0))
        asking = httpx.AsyncClient(auth=("admin", "admin"), trust_env=False, timeout=PATIENCE_S)
        client = await stack.enter_async_context(asking)

        def begin(name: str, *words: object) -> Copy:
            log = stack.enter_context((tmp_path / f"{name}.log").open("wb"))
            return stack.enter_context(lbg.running(tmp_path, *words, stdout=log, stderr=log))

        def depths(*queues: str) -> list[int]:
            return [broker.engine.queue_depth(DEFAULT_VPN, QueueName(queue)) for queue in queues]

        statuses = [f"{OWN_HOST}:{port}" for port in own_ports(2)]
        members = []
        for name, path, status in zip("ab", ("auto", "public"), statuses, strict=True):
            (tmp_path / f"{name}.yaml").write_bytes(settings(broker.url, path, status))
            members.append(begin(name, "run", "--config", f"{name}.yaml", "--member-id", name))
        await until(lambda: owners(broker) == 2 * QUEUES)
        load = ("--keys", KEYS, "--rate", 200, "--count", PUBLISHED, "--ledger", "journals")
        publisher = begin("publisher", "publish", "--config", "a.yaml", "--topic", "orders/new", *load)
        await until(lambda: depths(f"{PARKING_PREFIX}{BLOCKED}") > [3])
        publish(broker, unreadable())
        assert await ended(publisher) == 0
        await until(lambda: depths(OTHER) == [0] and depths(BLOCKED) > [1])

        # What is seen of it.
        async def lacks() -> str:
            return "".join([(await client.get(f"http://{status}/readyz")).text for status in statuses])

        while "flow lost: a message cannot be read" not in await lacks():  # noqa: ASYNC110 - nor does it
            await asyncio.sleep(0.05)

        # The way out.
        queue = f"msgVpns/{DEFAULT_VPN}/queues/{BLOCKED.replace('/', '%2F')}"
        seen = (await client.get(f"{semp.url}/SEMP/v2/monitor/{queue}")).json()["data"]
        there = (await client.get(f"{semp.url}/SEMP/v2/monitor/{queue}/msgs?count=100")).json()["data"]
        (first, *_) = sorted(int(each["msgId"]) for each in there)
        assert seen["lowestMsgId"] == first
        (await client.put(f"{semp.url}/SEMP/v2/action/{queue}/msgs/{first}/delete", json={})).raise_for_status()

        (tmp_path / "mended").touch()
        await until(lambda: depths(BLOCKED) == [0])
        asked = await asyncio.to_thread(lbg, tmp_path, "parked", "unpark", "--all", "--config", "a.yaml")
        assert asked.returncode == 0, asked.stderr
        # The fence of the owner stays.
        await until(lambda: depths(f"{PARKING_PREFIX}{BLOCKED}") == [1])
        for member in members:
            member.send_signal(signal.SIGTERM)
        assert [await ended(member) for member in members] == [0, 0]
    verdict = validate(read_run(tmp_path / "journals"))
    assert verdict.kind is VerdictKind.VALID, verdict
    assert verdict.accounts.published == verdict.accounts.handled_first == PUBLISHED


def settings(host: str, client_path: str, status: str) -> bytes:
    return orjson.dumps(
        {
            "connection": {"transport": "solace", "host": host},
            "transport": {"client_path": client_path},
            "group": {
                "name": "orders",
                "hash_prefix": "h",
                "hash_count": SHARDS,
                "queue_count": QUEUES,
                "provision": "create_missing",
            },
            "membership": {"settle": "300ms"},
            "rebind": {"min_tenure": "1s"},
            "failure": {"attempts": 2, "then": "park", "backoff": {"initial": "10ms", "maximum": "20ms"}},
            "handlers": [HANDLERS],
            "ops": {"journal": {"path": "journals"}, "status": status},
        }
    )


def unreadable() -> Relay:
    """A message for a shard of that queue, whose key says that it is longer than there is."""
    sound = relay_of(Message("h/3/orders/new", b"x", {"JMSXGroupID": "abcdefg"}))
    body = sound.body.replace(b"\x1c\x0aabcdefg\0", b"\x1c\xf0abcdefg\0")
    assert body != sound.body
    return Relay.of(sound.head, sound.carried, body, sound.contents)


def publish(broker: BrokerServer, relay: Relay) -> None:
    client, _ = broker.engine.connect(DEFAULT_VPN, "default", "", "a publisher of others")
    broker.carry_out(broker.engine.publish_direct(client, Published("h/3/orders/new", relay, relay.size_bytes)))
    broker.engine.disconnect(client)


def owners(broker: BrokerServer) -> int:
    """How many queues, those of parking included, are fed to somebody."""
    names = [name for name in broker.engine.queue_names(DEFAULT_VPN) if name.startswith(("orders/", PARKING_PREFIX))]
    flows = (flow for name in names for flow in broker.engine.queue_flows(DEFAULT_VPN, name))
    return sum(flow.active for flow in flows)


async def ended(process: Copy) -> int:
    return await asyncio.to_thread(process.wait, 2 * PATIENCE_S)


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110 - neither another process nor the broker tells anybody
        await asyncio.sleep(0.05)
