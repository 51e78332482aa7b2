"""A redundant pair of brokers under load: the active one dies, the other takes over, and gives back what it took.

So it is with a parked key as well, which members take over from each other whose clocks differ by minutes.

Two processes open the same store, one after the other, at the two addresses of a host list. As long as the first is
active, the other address refuses logins, as a standby does. The management API has an address that follows the active.
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import httpx
import orjson
import pytest

from lbg_runtime.admin.backlog import find_shard_queues
from lbg_runtime.admin.sight import member_of, read_sights
from lbg_runtime.broker.engine.surroundings import Asked
from lbg_runtime.core.parking.records import PARKING_PREFIX
from lbg_runtime.journal.reader import read_run
from lbg_runtime.model.hashing import HashFunction, shard_of
from lbg_runtime.model.ids import QueueName
from lbg_runtime.publisher.load import numbered_keys
from lbg_runtime.semp.client import SempAccount, SempClient
from lbg_runtime.validator.findings import VerdictKind
from lbg_runtime.validator.judge import validate
from tests.addresses import OWN_HOST, own_ports
from tests.end_to_end.poisoned import HANDLERS, write_handlers
from tests.patience import PATIENCE_S
from tests.processes import whole_lines
from tests.warm import LBG, Copy, Warm, WarmLbg

PUBLISHED, KEYS = 1_000, 60
QUEUES, SHARDS = 4, 12
POISONED = numbered_keys(KEYS)[0]
PARKED_IN = QueueName(f"{PARKING_PREFIX}orders/{shard_of(HashFunction.CRC32, POISONED, SHARDS) % QUEUES}")

PARKING = {
    "handlers": [HANDLERS],
    "failure": {"attempts": 2, "then": "park", "backoff": {"initial": "10ms", "maximum": "20ms"}},
}
LATER = "import time; now = time.time_ns; time.time_ns = lambda: now() + {} * 10**9\n"
"""Ahead of a program: its wall clock differs by so many seconds from that of the machine."""

pytestmark = [pytest.mark.real_time, pytest.mark.end_to_end]


class Pair:
    """The brokers at both addresses, and who is connected to them; all of it ends with the stack."""

    def __init__(self, lbg: WarmLbg, folder: Path, stack: ExitStack) -> None:
        self._lbg, self._folder, self._stack = lbg, folder, stack
        self.first, self.second, self._semp, self._faults = own_ports(4)
        self.journals = folder / "journals"

    def begin(self, name: str, *words: object) -> Copy:
        log = self._stack.enter_context((self._folder / f"{name}.log").open("ab"))
        running: AbstractContextManager[Copy] = self._lbg.running(self._folder, *words, stdout=log, stderr=log)
        return self._stack.enter_context(running)

    async def activate(self, port: int) -> Copy:
        """The broker at this port, with all that the one before it has stored, once it is ready."""
        return await self._begin_broker("broker", port, "--semp", f"{OWN_HOST}:{self._semp}", "--store", "store")

    async def stand_by(self, port: int) -> Copy:
        """A broker at this port that refuses logins."""
        standby = await self._begin_broker("standby", port, "--faults", f"{OWN_HOST}:{self._faults}")
        said = {"what": Asked.LOGIN.value, "code": 503, "text": "Message VPN Unavailable"}
        async with httpx.AsyncClient(trust_env=False) as client:
            (await client.post(f"http://{OWN_HOST}:{self._faults}/refuse", json=said)).raise_for_status()
        return standby

    async def _begin_broker(self, name: str, port: int, *options: str) -> Copy:
        log = self._folder / f"{name}-{port}.log"
        began = len(whole_lines(log))
        broker = self.begin(log.stem, "broker", "--smf", f"{OWN_HOST}:{port}", *options)
        await until(lambda: " ready: " in "".join(whole_lines(log)[began:]))
        return broker

    def run_member(self, name: str, client_path: str, **more: object) -> Copy:
        """A member whose messages come this way, with more settings."""
        return self.begin(name, "run", "--config", self.settings_of(name, client_path, **more), "--member-id", name)

    def settings_of(self, name: str, client_path: str, **more: object) -> str:
        settings = {
            "connection": {
                "transport": "solace",
                "host": [f"tcp://{OWN_HOST}:{self.first}", f"tcp://{OWN_HOST}:{self.second}"],
            },
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
            "handlers": ["lbg_runtime.cli.live.handlers"],
            "ops": {"journal": {"path": str(self.journals)}},
            **more,
        }
        file = self._folder / f"{name}.yaml"
        file.write_bytes(orjson.dumps(settings))
        return file.name

    def handled(self) -> int:
        """Messages that members have written down."""
        return sum(journal.read_bytes().count(b'"kind":"dispatch"') for journal in self.journals.glob("[ab]-*.jsonl"))

    async def fed(self) -> list[str]:
        """The member of each queue that is fed to one."""
        return [member for member, _ in (await self._look("orders")).values()]

    async def is_empty(self) -> bool:
        """Whether all queues are."""
        return not sum(depth for _, depth in (await self._look("orders")).values())

    async def parked(self) -> tuple[str, int]:
        """The member that is fed from the parking queue of the key that fails, and how much lies there."""
        return (await self._look(f"{PARKING_PREFIX}orders"))[PARKED_IN]

    async def _look(self, queues: str) -> dict[QueueName, tuple[str, int]]:
        async with SempClient(SempAccount(f"http://{OWN_HOST}:{self._semp}", "admin", "admin")) as client:
            sights = await read_sights(client, "default", await find_shard_queues(client, "default", queues))
        return {queue: (str(member_of(sight.fed or "", "orders")), sight.depth) for queue, sight in sights.items()}


async def test_a_group_and_its_publisher_follow_the_active_broker_of_a_pair_and_back(
    lbg: WarmLbg, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        async with asyncio.timeout(2 * PATIENCE_S):
            pair = Pair(lbg, tmp_path, stack)
            active = await pair.activate(pair.first)
            standby = await pair.stand_by(pair.second)
            members = [pair.run_member("a", "auto"), pair.run_member("b", "public")]
            await until_true(lambda: is_balanced(pair))
            load = ("--keys", KEYS, "--rate", "200", "--count", str(PUBLISHED), "--ledger", pair.journals)
            publisher = pair.begin("publisher", "publish", "--config", "a.yaml", "--topic", "orders/new", *load)
            await until(lambda: pair.handled() > PUBLISHED // 5)
            active.kill()
            await ended(active)
            standby.terminate()
            assert await ended(standby) == 0
            active = await pair.activate(pair.second)
            await until(lambda: pair.handled() > PUBLISHED // 2)
            active.terminate()
            assert await ended(active) == 0
            await pair.activate(pair.first)
            assert await ended(publisher) == 0
            await until_true(pair.is_empty)
            await until_true(lambda: is_balanced(pair))
            for member in members:
                member.send_signal(signal.SIGTERM)
            assert [await ended(member) for member in members] == [0, 0]
    verdict = validate(read_run(pair.journals))
    assert verdict.kind is VerdictKind.VALID, verdict
    assert verdict.accounts.published == verdict.accounts.handled_first == PUBLISHED
    assert verdict.accounts.duplicates <= verdict.accounts.duplicate_bound


async def test_a_parked_key_follows_a_pair_of_brokers_from_one_members_clock_to_anothers(
    lbg: WarmLbg, warm: Warm, tmp_path: Path
) -> None:
    write_handlers(tmp_path, POISONED)
    with ExitStack() as stack:
        async with asyncio.timeout(2 * PATIENCE_S):
            pair = Pair(lbg, tmp_path, stack)
            active = await pair.activate(pair.first)
            members = {}
            for name, path, later_s in (("a", "auto", -180), ("b", "public", 240)):
                words = ("run", "--config", pair.settings_of(name, path, **PARKING), "--member-id", name)
                log = stack.enter_context((tmp_path / f"{name}.log").open("ab"))
                running = warm.running(LATER.format(later_s) + LBG, *words, cwd=tmp_path, stdout=log, stderr=log)
                members[name] = stack.enter_context(running)
            await until_true(lambda: is_balanced(pair))
            load = ("--keys", KEYS, "--rate", "200", "--count", str(PUBLISHED), "--ledger", pair.journals)
            publisher = pair.begin("publisher", "publish", "--config", "a.yaml", "--topic", "orders/new", *load)
            await owner_of_parked(pair, 3)
            active.kill()
            await ended(active)
            active = await pair.activate(pair.second)
            # The key goes to the other clock, whichever that is.
            owner = await owner_of_parked(pair, 6)
            members[owner].kill()
            await ended(members.pop(owner))
            assert await ended(publisher) == 0
            await owner_of_parked(pair, 10)
            active.terminate()
            assert await ended(active) == 0
            await pair.activate(pair.first)
            await until_true(pair.is_empty)
            (tmp_path / "mended").touch()
            asked = await asyncio.to_thread(lbg, tmp_path, "parked", "unpark", "--all", "--config", "a.yaml")
            assert asked.returncode == 0, asked.stderr
            # The fence of the owner stays.
            await until_true(lambda: holds(pair, 1))
            ((_, member),) = members.items()
            member.send_signal(signal.SIGTERM)
            assert await ended(member) == 0
    verdict = validate(read_run(pair.journals))
    assert verdict.kind is VerdictKind.VALID, verdict
    assert verdict.accounts.published == verdict.accounts.handled_first == PUBLISHED
    assert verdict.accounts.duplicates <= verdict.accounts.duplicate_bound


async def owner_of_parked(pair: Pair, least: int) -> str:
    """Who is fed from the parking queue of the key that fails, once somebody is and so much lies there."""
    while True:
        owner, depth = await pair.parked()
        if owner in ("a", "b") and depth >= least:
            return owner
        await asyncio.sleep(0.05)


async def holds(pair: Pair, depth: int) -> bool:
    return (await pair.parked())[1] == depth


async def is_balanced(pair: Pair) -> bool:
    return sorted(await pair.fed()) == ["a", "a", "b", "b"]


async def ended(process: Copy) -> int:
    return await asyncio.to_thread(process.wait, 2 * PATIENCE_S)


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110 - neither another process nor a file tells anybody
        await asyncio.sleep(0.05)


async def until_true(ask: Callable[[], Awaitable[bool]]) -> None:
    while not await ask():  # noqa: ASYNC110 - nor does a broker
        await asyncio.sleep(0.05)
