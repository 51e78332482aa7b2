"""A network that goes silent between a member and its broker: nothing is closed, nothing comes, and both find out late.

What a member settled into the silence comes again, to another one. That is a fault on record, and the verdict valid.
"""

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import orjson
import pytest

from lbg_runtime.broker.engine.engine import DEFAULT_VPN
from lbg_runtime.broker.server.server import BrokerServer
from lbg_runtime.journal.reader import read_run
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.ids import GroupName
from lbg_runtime.validator.findings import VerdictKind
from lbg_runtime.validator.judge import validate
from tests.patience import PATIENCE_S
from tests.warm import Copy, WarmLbg

PUBLISHED = 1_000
SHAPE = GroupShape(GroupName("orders"), hash_prefix="h", hash_count=12, queue_count=4)

pytestmark = [pytest.mark.real_time, pytest.mark.end_to_end]


async def test_what_was_settled_into_a_silent_network_is_a_fault_and_no_violation(lbg: WarmLbg, tmp_path: Path) -> None:
    async with asyncio.timeout(2 * PATIENCE_S), silenced_under_load(lbg, tmp_path) as (broker, members, published):
        assert await published == 0
        # The broker gives the member up when it has heard nothing of it for long enough.
        await until(lambda: list(owners(broker).values()) == [4] and spooled(broker) == 0)
        broker.faults.clear()
        await until(lambda: sorted(owners(broker).values()) == [2, 2])
        for member in members:
            member.send_signal(signal.SIGTERM)
            assert await ended(member) == 0
    verdict = validate(read_run(tmp_path / "journals"))
    assert verdict.kind is VerdictKind.VALID, verdict
    assert verdict.accounts.published == verdict.accounts.handled_first == PUBLISHED
    assert 0 < verdict.accounts.duplicates <= verdict.accounts.duplicate_bound
    assert {move.cause for move in verdict.moves} >= {"inactive"}


async def test_who_leaves_through_a_silent_network_says_that_nobody_answered(lbg: WarmLbg, tmp_path: Path) -> None:
    async with (
        asyncio.timeout(2 * PATIENCE_S),
        silenced_under_load(lbg, tmp_path) as (broker, (a, b), published),
    ):
        a.send_signal(signal.SIGTERM)
        assert await published == 0
        assert await ended(a) == 1
        await until(lambda: list(owners(broker).values()) == [4] and spooled(broker) == 0)
        b.send_signal(signal.SIGTERM)
        assert await ended(b) == 0
    verdict = validate(read_run(tmp_path / "journals"))
    assert verdict.kind is VerdictKind.VALID, verdict
    assert verdict.accounts.published == verdict.accounts.handled_first == PUBLISHED
    assert 0 < verdict.accounts.duplicates <= verdict.accounts.duplicate_bound


@asynccontextmanager
async def silenced_under_load(
    lbg: WarmLbg, folder: Path
) -> AsyncIterator[tuple[BrokerServer, tuple[Copy, Copy], Awaitable[int]]]:
    """A broker, members `a` and `b`, of which `a` has just been cut off in silence, and the end of a publisher."""
    journals = folder / "journals"
    how_much = ("--keys", "60", "--rate", "200", "--count", str(PUBLISHED))
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(BrokerServer(port=0))
        config = config_file(folder, broker.url, journals)
        a, b = [stack.enter_context(begun(lbg, "run", config, "--member-id", name)) for name in "ab"]
        await until(lambda: sorted(owners(broker).values()) == [2, 2])
        publisher = stack.enter_context(
            begun(lbg, "publish", config, "--topic", "orders/new", *how_much, "--ledger", journals)
        )
        # Some of it is not settled yet, so that it will come again.
        await until(lambda: handled(journals, "a") >= max(50, settled(broker, "a") + 1))
        (cut_off,) = (name for name in broker.client_names() if name.startswith("orders/a/"))
        broker.faults.stall(cut_off)
        yield broker, (a, b), ended(publisher)


def config_file(folder: Path, host: str, journals: Path) -> Path:
    settings = {
        "connection": {"transport": "solace", "host": host},
        "group": {
            "name": SHAPE.name,
            "hash_prefix": SHAPE.hash_prefix,
            "hash_count": SHAPE.hash_count,
            "queue_count": SHAPE.queue_count,
            "provision": "create_missing",
        },
        "membership": {"settle": "300ms"},
        "rebind": {"min_tenure": "1s"},
        "handlers": ["lbg_runtime.cli.live.handlers"],
        "ops": {"journal": {"path": str(journals)}},
    }
    file = folder / "config.yaml"
    file.write_bytes(orjson.dumps(settings))
    return file


@contextmanager
def begun(lbg: WarmLbg, command: str, config: Path, *options: object) -> Iterator[Copy]:
    """A process that does not outlive the test."""
    said = config.parent / f"{'-'.join((command, *map(str, options[:2]))).replace('/', '-')}.log"
    with said.open("wb") as log:
        streams = {"stdout": log, "stderr": log}
        with lbg.running(config.parent, command, "--config", config, *options, **streams) as process:
            yield process


async def ended(process: Copy) -> int:
    return await asyncio.to_thread(process.wait, 2 * PATIENCE_S)


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110 - neither the broker nor a file tells anybody
        await asyncio.sleep(0.05)


def handled(journals: Path, member: str) -> int:
    """Messages that a member has written down."""
    (journal,) = journals.glob(f"{member}-*.jsonl")
    return journal.read_bytes().count(b'"kind":"dispatch"')


def owners(broker: BrokerServer) -> Counter[str]:
    """How many queues each client is fed from."""
    names = set(SHAPE.queue_names()) & set(broker.engine.queue_names(DEFAULT_VPN))
    flows = (flow for name in names for flow in broker.engine.queue_flows(DEFAULT_VPN, name))
    return Counter(flow.client_name for flow in flows if flow.active)


def settled(broker: BrokerServer, member: str) -> int:
    """Messages that have been settled in the queues from which a member is fed."""
    queues = (broker.engine.queue_status(DEFAULT_VPN, name) for name in SHAPE.queue_names())
    return sum(
        queue.last_sequence - queue.depth
        for queue in queues
        if any(flow.active and flow.client_name.startswith(f"orders/{member}/") for flow in queue.flows)
    )


def spooled(broker: BrokerServer) -> int:
    return sum(broker.engine.queue_depth(DEFAULT_VPN, name) for name in SHAPE.queue_names())
