"""Queues that have a name of the group and are somebody else's: what belongs to neither layout is left alone."""

import pytest
from structlog.testing import capture_logs

from lbg_runtime.model.errors import ConnectFailed, QueueUnfit
from lbg_runtime.model.ids import QueueName
from lbg_runtime.model.message import Message
from lbg_runtime.transport.memory.transport import MemoryTransport
from tests.runtime.restripe.restripe_world import GROUP, made_queues, restripe


@pytest.fixture
def queues(trial, settings):
    return made_queues(trial, settings)


async def topics_of(queues) -> dict[str, frozenset[str]]:
    return {name: await queues.subscriptions(QueueName(name)) for name in queues.names()}


async def test_no_shard_is_moved_to_a_queue_beyond_the_groups_that_is_not_fit(trial, settings, queues) -> None:
    """Of an administrator, closed."""
    trial.broker.create_queue("orders/4")
    queues.adopt("orders/4", [])
    queues.unfit = "orders/4"
    before = await topics_of(queues)
    with pytest.raises(QueueUnfit, match="queue orders/4 has"):
        await restripe(trial, settings, queues, 5)
    assert await topics_of(queues) == before


@pytest.mark.parametrize("topics", [[], ["invoices/>"]])
@pytest.mark.parametrize("count", [3, 5])
async def test_queues_beyond_both_layouts_are_left_alone_and_named_at_the_end(
    trial, settings, queues, count: int, topics: list[str]
) -> None:
    """Somebody else's, with a message in each, and not fit for a group."""
    foreign = [f"orders/{index}" for index in range(max(count, 4), 7)]
    for name in foreign:
        trial.broker.create_queue(name, topics)
        queues.adopt(name, topics)
    queues.unfit = foreign[-1]
    publisher = MemoryTransport(trial.broker, "somebody")
    await publisher.open()
    if topics:
        await publisher.send(Message("invoices/1", b"precious"))
    async with trial.running(trial.discovered("a", group=GROUP)):
        await trial.until(lambda: len(trial.active()) == 4)
        with capture_logs() as told:
            done = await restripe(trial, settings, queues, count)
        assert done.moved == done.moving
        assert [each["queues"] for each in told if each["event"] == "restripe_queues_left"] == [foreign]
        assert queues.names() == [f"orders/{index}" for index in range(count)] + foreign
        for name in foreign:
            assert await queues.subscriptions(QueueName(name)) == frozenset(topics)
            assert await queues.depth(QueueName(name)) == len(topics)
    await publisher.close()


async def test_a_run_that_goes_on_with_fewer_queues_leaves_one_beyond_both_layouts_alone(
    trial, settings, queues
) -> None:
    """The settings are old, so only the topics of the records tell which queues the plan knows."""
    trial.broker.create_queue("orders/4", ["invoices/>"])
    queues.adopt("orders/4", ["invoices/>"])
    async with trial.running(trial.discovered("a", group=GROUP)):
        await trial.until(lambda: len(trial.active()) == 4)
        delete_queue = queues.delete_queue

        async def delete_and_die(queue):
            await delete_queue(queue)
            queues.delete_queue = delete_queue
            raise ConnectFailed("semp", "killed")

        queues.delete_queue = delete_and_die
        with pytest.raises(ConnectFailed):
            await restripe(trial, settings, queues, 2)
        assert queues.names() == ["orders/0", "orders/1", "orders/2", "orders/4"]
        await restripe(trial, settings, queues, 2)
        assert queues.names() == ["orders/0", "orders/1", "orders/4"]
