"""Queues that have a name of the group and are somebody else's: what belongs to neither layout is left alone, and what
belongs to the new one is not taken over."""

import pytest
from structlog.testing import capture_logs

from lbg_runtime.model.errors import ConnectFailed, QueueUnfit
from lbg_runtime.model.ids import QueueName
from lbg_runtime.model.message import Message
from lbg_runtime.transport.memory.transport import MemoryTransport
from tests.runtime.restripe.restripe_world import GROUP, restripe, topics_of


async def test_no_shard_is_moved_to_a_queue_beyond_the_groups_that_is_not_fit(trial, settings, queues) -> None:
    """Of an administrator, closed."""
    trial.broker.create_queue("orders/4")
    queues.adopt("orders/4", [])
    queues.unfit = "orders/4"
    before = await topics_of(queues)
    with pytest.raises(QueueUnfit, match="queue orders/4 has"):
        await restripe(trial, settings, queues, 5)
    assert await topics_of(queues) == before


async def claim(trial, queues, name: str, how: str) -> None:
    """Somebody uses a queue that exists, and that nobody has subscribed to more than the group's own."""
    if how == "a right":
        queues.of_others = name
        return
    await queues.subscribe(name, "invoices/>")
    if how == "a message":
        publisher = MemoryTransport(trial.broker, "somebody")
        await publisher.open()
        await publisher.send(Message("invoices/1", b"precious"))
        await publisher.close()
        await queues.unsubscribe(name, "invoices/>")


CLAIMS = [
    ("a subscription", r"queue orders/5 has subscription invoices/>; expected none in a queue that the group takes"),
    ("a message", "queue orders/5 has 1 message; expected none"),
    ("a right", "queue orders/5 has owner somebody; expected owner members"),
]


@pytest.mark.parametrize(("how", "said"), CLAIMS)
async def test_a_queue_that_somebody_else_uses_is_not_taken_over(trial, settings, queues, how: str, said: str) -> None:
    for name in ("orders/4", "orders/5"):
        await queues.create_queue(name)
    await claim(trial, queues, "orders/5", how)
    # Otherwise it would be told to make somebody else's queue fit.
    queues.unfit = "orders/5"
    before = await topics_of(queues)
    async with trial.at_work(trial.discovered("a", group=GROUP)):
        with pytest.raises(QueueUnfit, match=said):
            await restripe(trial, settings, queues, 6)
    assert await topics_of(queues) == before


@pytest.mark.parametrize(("how", "said"), CLAIMS)
async def test_a_queue_that_somebody_takes_into_use_before_the_plan_keeps_it_from_being_published(
    trial, settings, queues, how: str, said: str
) -> None:
    before, create_queue = await topics_of(queues), queues.create_queue

    async def create_and_claim(queue):
        await create_queue(queue)
        if queue == "orders/5":
            await claim(trial, queues, queue, how)

    queues.create_queue = create_and_claim
    async with trial.at_work(trial.discovered("a", group=GROUP)):
        with capture_logs() as told, pytest.raises(QueueUnfit, match=said):
            await restripe(trial, settings, queues, 6)
    assert not [each for each in told if each.get("step") == "Publish"]
    left = frozenset({"invoices/>"} if how == "a subscription" else ())
    assert await topics_of(queues) == {**before, "orders/4": frozenset(), "orders/5": left}


@pytest.mark.parametrize("count", [6, 8])
async def test_what_a_growth_left_that_never_began_is_taken_over(trial, settings, queues, count: int) -> None:
    """By the same growth, with the topics of its records, and by another."""
    async with trial.at_work(trial.discovered("a", group=GROUP)):
        queues.calls_left = 4 + 3  # the topic on the group's own, a new queue, its topic, and one more new queue
        with pytest.raises(ConnectFailed):
            await restripe(trial, settings, queues, 8)
        queues.calls_left = None
        done = await restripe(trial, settings, queues, count)
        assert (done.moved, queues.names()) == (done.moving, [f"orders/{index}" for index in range(count)])


async def test_a_run_that_goes_on_with_a_published_plan_finds_its_own_records_and_goes_on(
    trial, settings, queues
) -> None:
    """They lie unsettled in the new queues while the run before it is killed, before any shard has moved."""
    subscribe = queues.subscribe

    async def be_killed(queue, topic):
        if topic.startswith("h/"):
            queues.subscribe = subscribe
            raise ConnectFailed("semp", "killed")
        await subscribe(queue, topic)

    queues.subscribe = be_killed
    async with trial.at_work(trial.discovered("a", group=GROUP)):
        with pytest.raises(ConnectFailed):
            await restripe(trial, settings, queues, 6)
        assert await queues.depth(QueueName("orders/5"))
        done = await restripe(trial, settings, queues, 6)
        assert done.moved == done.moving


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
    async with trial.at_work(trial.discovered("a", group=GROUP)):
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
    async with trial.at_work(trial.discovered("a", group=GROUP)):
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
