"""A wait that fails says what is stuck where, and why."""

import asyncio

import pytest

from lbg_runtime import Batch, Handlers, Message, Proceed
from lbg_runtime.model.errors import TerminalFailure
from lbg_runtime.testing import NotReached, running


async def stuck(group, within_s=30) -> list[str]:
    with pytest.raises(NotReached) as failure:
        await group.settled(within_s)
    assert failure.value.what == "not settled"
    assert failure.value.within_s == within_s
    return list(failure.value.why)


async def test_a_handler_that_fails(handlers) -> None:
    async def fail(message):
        raise ValueError("no such order")

    async with running(handlers(fail), members=2) as group:
        await group.publish("orders/new", "1", "2", "3", key="k")
        owner = group.owner("k")
        with pytest.raises(NotReached) as failure:
            await group.settled(30)
        attempts = len(group.attempts("k", 1))
    (line,) = failure.value.why
    expected = f"test/1: k #1 failed {attempts} times at {owner}, at last with ValueError: no such order; next attempt"
    assert line.startswith(expected)
    assert line.endswith(" s, 2 more of its key behind it")
    assert isinstance(failure.value.__cause__, ValueError), "its traceback shows the line of the handler"
    assert str(failure.value).startswith("not settled within 30 s:\n  test/1: k #1 failed")


async def test_a_handler_that_fails_and_whose_next_attempt_is_just_due(handlers) -> None:
    async def fail(message):
        raise TerminalFailure("no such order")

    async with running(handlers(fail)) as group:
        await group.publish("orders/new", "1", key="k")
        # Before what is due at 120 s, and in the same turn of the loop, as its clock cannot tell the two apart.
        (line,) = await stuck(group, 120 - 1e-10)
        assert line == (
            "test/1: k #1 failed 4 times at member-0, at last with TerminalFailure: no such order; next attempt in 0 s"
        )


async def test_a_handler_that_takes_too_long(handlers) -> None:
    """It was said to have failed with CancelledError, which nobody had written."""

    async def hang(message):
        await asyncio.Event().wait()

    async with running(handlers(hang, timeout="10s", backoff=("20s", "20s"))) as group:
        await group.publish("orders/new", "1", key="k")
        (line,) = await stuck(group, 12)
    assert "at member-0, at last with TimeoutError: the handler did not finish within 10 s; next attempt" in line


async def test_middleware_that_fails_behind_its_handler(handlers) -> None:
    """Its failure was not said."""
    registered = handlers()

    @registered.middleware
    async def commit(message: Message, proceed: Proceed) -> None:
        await proceed(message)
        raise ValueError("no commit")

    async with running(registered) as group:
        await group.publish("orders/new", "1", key="k")
        (line,) = await stuck(group)
    assert "at member-0, at last with ValueError: no commit; next attempt" in line


async def test_a_queue_that_a_policy_has_stopped(handlers) -> None:
    async def fail(message):
        raise ValueError("no such order")

    settings = {"group": {"queue_count": 1}, "dispatch": {"runners": 1}}
    async with running(handlers(fail, attempts=1, then="stop"), settings=settings) as group:
        await group.publish("orders/new", "1", "2", key="a")
        await group.publish("orders/new", "1", key="b")
        lines = await stuck(group)
    assert sorted(line.partition(": ")[2] for line in lines) == [
        "a #1 failed once at member-0, at last with ValueError: no such order; its queue is stopped (then: stop),"
        " 1 more of its key behind it",
        "b #1 waits at member-0: its queue is stopped (then: stop)",
    ]


async def test_a_handler_that_does_not_end(handlers) -> None:
    async with running(handlers(seconds=1_000), settings={"failure": {"timeout": "1h"}}) as group:
        await group.publish("orders/new", "1", key="k")
        assert await stuck(group) == ["test/1: k #1 is handled by member-0 for 30 s now, attempt 1"]


async def test_a_topic_that_no_handler_wants(handlers) -> None:
    async with running(handlers()) as group:
        await group.publish("invoices/new", "1", key="k")
        line = "test/1: k #1 is wanted by no handler: its topic is invoices/new, handlers take orders/>"
        assert await stuck(group) == [line]


async def test_a_queue_without_an_owner(handlers) -> None:
    async with running(handlers(), members=2) as group:
        group.kill("member-0")
        group.partition("member-1")
        await group.publish("orders/new", "1", key="k")
        line = "test/1: k #1 waits for an owner of its queue; member-0 is killed, member-1 is partitioned"
        assert await stuck(group) == [line]


async def test_a_group_without_members(handlers) -> None:
    async with running(handlers(), members=0) as group:
        group.start("one")
        await group.balanced()
        await group.stop("one")
        await group.publish("orders/new", "1", key="k")
        assert await stuck(group) == ["test/1: k #1 waits for an owner of its queue; one is stopped"]


async def test_an_owner_that_is_paused(handlers) -> None:
    async with running(handlers(), members=1) as group:
        group.pause("member-0")
        await group.publish("orders/new", "1", key="k")
        assert await stuck(group, 5) == ["test/1: k #1 is with member-0, which is paused"]


async def test_a_settlement_on_its_way(handlers) -> None:
    async with running(handlers()) as group:
        await group.publish("orders/new", "1", key="k")
        await group.until(lambda: bool(group.handled()))
        assert await stuck(group, 0.5) == ["test/1: k #1 was handled by member-0; the settlement is on its way"]


async def test_a_queue_that_waits_for_a_hook(handlers) -> None:
    made = handlers()

    @made.on_drain
    async def on_drain(queue, epoch):
        await asyncio.sleep(0)

    @made.on_assigned
    async def load(queue, epoch):
        await asyncio.sleep(20)

    async with running(made) as group:
        await group.publish("orders/new", "1", key="k")
        assert await stuck(group, 1) == ["test/1: k #1 is on its way to member-0, which owns its queue"]
        await group.settled()


async def test_more_keys_than_runners(handlers) -> None:
    settings = {"dispatch": {"runners": 1}, "failure": {"timeout": "1h"}}
    async with running(handlers(seconds=1_000), settings=settings) as group:
        await group.publish("orders/new", "1", key="a")
        await group.publish("orders/new", "1", key="b")
        lines = await stuck(group)
    assert sorted(line.partition(": ")[2] for line in lines) == [
        "a #1 is handled by member-0 for 30 s now, attempt 1",
        "b #1 waits for a runner at member-0: dispatch.runners is 1",
    ]


async def test_a_message_that_waits_for_its_batch() -> None:
    handlers = Handlers()

    @handlers.batch_handler("orders/>", max_count=2, max_wait="1h")
    async def on_orders(orders: Batch) -> None: ...

    async with running(handlers) as group:
        await group.publish("orders/new", "1", key="k")
        assert await stuck(group) == ["test/1: k #1 waits at member-0 for its batch, or for the turn of that"]


async def test_a_broker_that_was_not_restored(handlers) -> None:
    async with running(handlers()) as group:
        group.broker.fail()
        await group.publish("orders/new", "1", "2", key="k")
        assert await stuck(group) == [
            "the broker has failed, and was not restored: group.broker.restore()",
            "2 published messages have no answer of the broker",
        ]


async def test_of_many_keys_the_first_are_shown(handlers) -> None:
    async with running(handlers()) as group:
        for number in range(15):
            await group.publish("invoices/new", "1", key=f"k{number}")
        lines = await stuck(group)
        assert len(lines) == 11
        assert lines[-1] == "and 5 more keys"


async def test_the_same_stands_below_a_failed_assertion(handlers) -> None:
    async def fail(message):
        raise ValueError("no such order")

    async with running(handlers(fail)) as group:
        await group.publish("orders/new", "1", key="k")
        await group.advance(1)
        with pytest.raises(AssertionError, match=r"(?s)key 'k': expected \[b'1'\], handled \[\].*k #1 failed"):
            group.assert_handled({"k": ["1"]})


async def test_other_waits_say_what_they_wait_for(handlers) -> None:
    async with running(handlers()) as group:
        with pytest.raises(NotReached, match=r"^no handler of k seen running within 120 s"):
            await group.started("k")
        with pytest.raises(NotReached, match=r"^no handler of k #2 seen running within 120 s"):
            await group.started("k", 2)
        with pytest.raises(NotReached, match=r"^no handler seen running within 120 s"):
            await group.started()
        with pytest.raises(NotReached, match=r"^the condition given to until\(\) was not met within 5 s"):
            await group.until(lambda: False, within_s=5)
        group.broker.fail()
        with pytest.raises(
            NotReached, match=r"(?s)not balanced within 120 s:.*test/0 is with nobody, and belongs to member-0"
        ):
            await group.balanced()


async def test_a_handler_that_returned_before_it_could_be_seen_running_is_told_of(handlers) -> None:
    async with running(handlers()) as group:
        await group.publish("orders/new", "1", key="k")
        ended = r"its last call has ended, <k #1 at member-0: done>: attempts\(\) has 1 of them"
        with pytest.raises(NotReached, match=rf"^no handler of k seen running within 120 s:\n  {ended}$"):
            await group.started("k")
        with pytest.raises(NotReached, match=r"^no handler of other seen running within 120 s$"):
            await group.started("other")
