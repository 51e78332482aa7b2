"""`group.backend: partitioned`: every member has one flow on one queue, and the broker moves its partitions."""

import asyncio
from collections import Counter
from contextlib import suppress

import pytest
from structlog.testing import capture_logs

from lbg_runtime.broker.engine.settings import AccessType, QueueSettings
from lbg_runtime.broker.server.server import BrokerServer
from lbg_runtime.config.load import parse_settings
from lbg_runtime.model.errors import ConfigError
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.hashing import HashFunction
from lbg_runtime.model.ids import GroupName
from lbg_runtime.publisher.hashed import HashedPublisher
from lbg_runtime.runtime.app import App
from lbg_runtime.runtime.handlers.registry import Handlers
from lbg_runtime.transport.solace.settings import SolaceSettings
from tests.patience import PATIENCE_S
from tests.runtime.visitors import Visitors, first_handlings

KEYS, ROUNDS = 8, 20
SECTIONS = {
    "group": {"backend": "partitioned", "provision": "none"},
    "rebind": {"mode": "cooperative", "drain_timeout": "4s"},
    "membership": {"mode": "discovered", "index": None, "count": None},
    "failure": {"timeout": "2s", "backoff": {"initial": "50ms", "maximum": "1s"}},
    "dispatch": {"max_in_flight": 8, "runners": 4, "missing_key": "error"},
}
EVERYTHING = {f"k{number}": list(range(1, ROUNDS + 1)) for number in range(KEYS)}


@pytest.fixture(autouse=True)
def _unprinted():
    """To print the traces of handlers that fail takes longer than all the rest."""
    with capture_logs():
        yield


@pytest.fixture
def shared(trial):
    """The trial with a partitioned queue in place of the exclusive ones."""
    settings = QueueSettings(
        AccessType.NON_EXCLUSIVE,
        partition_count=4,
        partition_rebalance_delay_ms=1_000,
        # Above what a handler takes with its attempts: a hand-off then repeats nothing.
        partition_max_handoff_ms=600_000,
    )
    trial.broker.create_queue("orders/0", [f"h/{shard}/>" for shard in range(8)], settings=settings)
    trial.depths = lambda: [trial.broker.engine.queue_depth("default", "orders/0")]
    trial.status = lambda: trial.broker.engine.queue_status("default", "orders/0")
    trial.shares = lambda: sorted(Counter(p.client_name for p in trial.status().partitions if p.flow).values())
    return trial


class Story(Visitors):
    def member(self, index):
        return self.trial.discovered(f"member-{index}", work=self.work, **SECTIONS)


async def test_members_share_the_partitions_and_each_key_is_with_one(shared):
    members = [shared.discovered(f"member-{index}", **SECTIONS) for index in range(3)]
    async with shared.running(*members):
        await shared.until(lambda: shared.shares() == [1, 1, 2])
        await shared.publish(KEYS * ROUNDS, KEYS)
        await shared.until(lambda: shared.depths() == [0])
    assert shared.sequences() == EVERYTHING
    owners = {key: {member for member, k, _ in shared.handled if k == key} for key in EVERYTHING}
    assert all(len(members) == 1 for members in owners.values())
    assert len(set.union(*owners.values())) == 3


@pytest.mark.parametrize("seed", range(4))
async def test_members_that_come_and_go_keep_the_order_without_overlap(shared, seed):
    story = Story(shared, seed)
    async with shared.running(story.member(0)):
        await story.play(ROUNDS, KEYS, with_outages=False)
    assert first_handlings(shared.sequences()) == EVERYTHING
    assert story.overlaps == []
    assert len(shared.handled) == KEYS * ROUNDS, "nothing was handled twice, as nothing was lost from sight"


@pytest.mark.parametrize("seed", range(100, 104))
async def test_outages_cost_repetition_and_never_a_message_or_its_place(shared, seed):
    story = Story(shared, seed)
    async with shared.running(story.member(0)):
        await story.play(ROUNDS, KEYS, with_outages=True)
    assert first_handlings(shared.sequences()) == EVERYTHING


async def test_the_journal_says_that_members_share_the_queue(shared):
    async with shared.running(shared.discovered("member-0", **SECTIONS)):
        await shared.until(lambda: shared.shares() == [4])
    (header,) = [record for record in shared.records() if record["kind"] == "journal"]
    assert (header["backend"], header["queue_count"]) == ("partitioned", 1)


async def test_a_queue_that_is_missing_is_to_be_made_beforehand(trial):
    with pytest.raises(ConfigError, match="orders/0: Unknown Queue; expected a partitioned queue"):
        await trial.discovered("member-0", **SECTIONS).run()


@pytest.mark.parametrize(
    ("section", "setting", "value", "where"),
    [
        ("group", "provision", "create_missing", "group.provision"),
        ("failure", "then", "park", "failure.then"),
    ],
)
async def test_what_needs_queues_of_ones_own_is_refused(shared, section, setting, value, where):
    sections = {**SECTIONS, section: {**SECTIONS[section], setting: value}}
    with pytest.raises(ConfigError) as caught:
        await shared.discovered("member-0", **sections).run()
    assert where in caught.value.where
    assert "partitioned" in str(caught.value), "and not that a queue is missing, which somebody would make"


@pytest.mark.real_time
async def test_members_with_the_official_client_share_a_partitioned_queue():
    """One joins, one leaves in good order: every message is handled once, in the order of its key."""
    # Imported here, because the client starts a thread when it is imported.
    from lbg_runtime.transport.solace.transport import SolaceTransport

    handled, changed = [], asyncio.Event()

    def session(name):
        return SolaceTransport(SolaceSettings(hosts=(server.url,), client_name=name))

    def member(name):
        handlers = Handlers()

        @handlers.handler("orders/>")
        async def handle(message):
            await asyncio.sleep(0.001)
            handled.append((name, message.key, message.key_sequence))
            changed.set()

        group = {"name": "orders", "hash_prefix": "h", "hash_count": 8, "queue_count": 4, "backend": "partitioned"}
        settings = parse_settings({"group": group, "dispatch": {"missing_key": "error"}}, "test", {})
        return App(handlers, settings, session=session(name), member_id=name)

    async def until(reached):
        async with asyncio.timeout(PATIENCE_S):
            while not reached():
                changed.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), 0.05)

    async def publish(count):
        for number in range(count):
            await publisher.publish("orders/new", b"x", key=f"k{number % KEYS}")

    def owners():
        return {p.client_name for p in server.engine.queue_status("default", "orders/0").partitions if p.flow}

    async with BrokerServer(port=0) as server:
        settings = QueueSettings(
            AccessType.NON_EXCLUSIVE,
            partition_count=4,
            partition_rebalance_delay_ms=100,
            partition_max_handoff_ms=600_000,
        )
        server.create_queue("orders/0", [f"h/{shard}/>" for shard in range(8)], settings=settings)
        sending = session("publisher")
        await sending.open()
        shape = GroupShape(GroupName("orders"), "h", 8, 1)
        publisher = HashedPublisher(sending, shape, HashFunction.CRC32, publisher_id="p")
        ann, bob = member("ann"), member("bob")
        first = asyncio.create_task(ann.run())
        await until(lambda: owners() == {"ann"})
        await publish(40)
        second = asyncio.create_task(bob.run())
        await publish(40)
        await until(lambda: owners() == {"ann", "bob"})
        await publish(40)
        ann.stop()
        assert (await first).is_clean
        await publish(40)
        await until(lambda: len(handled) >= 160)
        bob.stop()
        assert (await second).is_clean
        await publisher.close()
        await sending.close()
    assert {member for member, _, _ in handled} == {"ann", "bob"}
    for key in EVERYTHING:
        assert [number for _, k, number in handled if k == key] == list(range(1, 160 // KEYS + 1))
