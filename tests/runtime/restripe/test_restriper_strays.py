"""What others have left, or do meanwhile: no plan is published that does not fit, and no group is left without a way
out.

More than 400 lines, as one re-striping is disturbed by each of them.
"""

import asyncio

import pytest
from structlog.testing import capture_logs

from lbg_runtime.core.group.control_codec import encode
from lbg_runtime.core.group.control_messages import Header, Heartbeat, Life, MemberState
from lbg_runtime.core.restripe.records import StripePlan, plan_of_topic, record_topic
from lbg_runtime.core.restripe.striping import Striping, StripingReport
from lbg_runtime.model.errors import ConnectFailed, QueueUnfit, UserError
from lbg_runtime.model.ids import GroupName, MemberId, QueueName
from lbg_runtime.model.message import Message
from lbg_runtime.runtime.restripe.restriper import HELD_S
from lbg_runtime.transport.memory.transport import MemoryTransport
from tests.runtime.restripe.restripe_world import (
    GROUP,
    handled,
    in_order_and_once,
    publish_for,
    published_in,
    restripe,
    topics_of,
)

CONTROL_TOPIC = "lbg-control/orders"
FIRST = QueueName("orders/0")
PARKING_QUEUE = "lbg-parked/orders/1"


def told_of(topics) -> set[StripePlan]:
    named = {topic for of_queue in topics.values() for topic in of_queue}
    return {plan for topic in named if (plan := plan_of_topic(CONTROL_TOPIC, topic)) is not None}


def published(told) -> list[str]:
    return [each["record"] for each in told if each["event"] == "restripe_step_done" and each["step"] == "Publish"]


@pytest.mark.parametrize("count", [4, 3, 6])
async def test_a_plan_that_others_left_and_that_does_not_fit_is_taken_away_by_whichever_number(
    trial, settings, queues, count: int
) -> None:
    """It came late, from somebody who was replaced: 2 to 6 queues, on a group that has 4."""
    left = StripePlan(7, 2, 6, "s3cr3t")
    async with trial.at_work(trial.discovered("a", group=GROUP)):
        publishing = asyncio.ensure_future(publish_for(trial, 40))
        await queues.subscribe(FIRST, record_topic(CONTROL_TOPIC, left))
        with capture_logs() as told:
            done = await restripe(trial, settings, queues, count)
        assert (done is None) == (count == 4)
        assert [each["generation"] for each in told if each["event"] == "restripe_leftover_cleared"] == [7]
        assert not [record for record in published(told) if "generation=7," in record]
        assert told_of(await topics_of(queues)) == set()
        assert queues.names() == [f"orders/{index}" for index in range(count)]
        await publishing
        await trial.until(lambda: handled(trial) == published_in(40))
    assert in_order_and_once(trial)


async def test_a_plan_under_way_whose_shards_others_have_moved_is_not_published(trial, settings, queues) -> None:
    plan = StripePlan(7, 2, 4, "s3cr3t")
    for name in queues.names():
        await queues.subscribe(QueueName(name), record_topic(CONTROL_TOPIC, plan))
    await queues.subscribe(QueueName("orders/1"), "h/2/>")
    before = await topics_of(queues)
    with capture_logs() as told, pytest.raises(UserError, match=r"h/2/>: .* by orders/1 and orders/2, .* by hand"):
        await restripe(trial, settings, queues, 4)
    assert published(told) == []
    assert await topics_of(queues) == before


async def disturb_before_the_plan(trial, settings, queues, disturb) -> list[dict[str, object]]:
    """A re-striping to 3, beside which somebody does something when the last queue gets the topic of its records."""
    subscribe = queues.subscribe

    async def subscribe_and_disturb(queue, topic):
        await subscribe(queue, topic)
        if queue == "orders/3" and plan_of_topic(CONTROL_TOPIC, topic) is not None:
            await disturb(subscribe)

    queues.subscribe = subscribe_and_disturb
    async with trial.at_work(trial.discovered("a", group=GROUP)):
        with capture_logs() as told:
            try:
                await restripe(trial, settings, queues, 3)
            finally:
                queues.subscribe = subscribe
                assert told_of(await topics_of(queues)) == set()
    return told


async def test_a_late_request_of_another_before_the_plan_keeps_it_from_being_published(trial, settings, queues) -> None:
    async def take_a_shard(_):
        await queues.unsubscribe(QueueName("orders/1"), "h/1/>")

    with capture_logs() as told, pytest.raises(UserError, match=r"h/1/>: no queue.* 4: `lbg group app"):
        await disturb_before_the_plan(trial, settings, queues, take_a_shard)
    assert published(told) == []


async def test_parking_queues_that_come_before_the_plan_keep_it_from_being_published(trial, settings, queues) -> None:
    async def turn_parking_on(_):
        queues.adopt(PARKING_QUEUE, [PARKING_QUEUE])

    with capture_logs() as told, pytest.raises(UserError, match=f"parking queue {PARKING_QUEUE}"):
        await disturb_before_the_plan(trial, settings, queues, turn_parking_on)
    assert published(told) == []


async def test_a_queue_that_is_closed_before_the_plan_keeps_it_from_being_published(trial, settings, queues) -> None:
    async def close(_):
        queues.unfit = "orders/2"

    with capture_logs() as told, pytest.raises(QueueUnfit, match="queue orders/2 has"):
        await disturb_before_the_plan(trial, settings, queues, close)
    assert published(told) == []


async def test_a_queue_that_was_closed_to_be_deleted_is_deleted_by_the_next_run(trial, settings, queues) -> None:
    delete_queue = queues.delete_queue

    async def close_and_die(queue):
        queues.unfit, queues.delete_queue = queue, delete_queue
        raise ConnectFailed("semp", "killed")

    async with trial.at_work(trial.discovered("a", group=GROUP)):
        queues.delete_queue = close_and_die
        with pytest.raises(ConnectFailed):
            await restripe(trial, settings, queues, 3)
        assert queues.unfit == "orders/3"
        await restripe(trial, settings, queues, 3)
        assert queues.names() == [f"orders/{index}" for index in range(3)]


async def test_queues_that_a_plan_left_that_never_began_are_named(trial, settings, queues) -> None:
    async with trial.at_work(trial.discovered("a", group=GROUP)):
        queues.calls_left = 4 + 3  # the topic on the group's own, a new queue, its topic, and one more new queue
        with pytest.raises(ConnectFailed):
            await restripe(trial, settings, queues, 8)
        queues.calls_left = None
        with capture_logs() as told:
            assert await restripe(trial, settings, queues, 4) is None
        assert [each["queues"] for each in told if each["event"] == "restripe_queues_left"] == [
            ["orders/4", "orders/5"]
        ]
        with capture_logs() as told:
            assert (await restripe(trial, settings, queues, 6)) is not None
            assert await restripe(trial, settings, queues, 6) is None
        assert not [each for each in told if each["event"] == "restripe_queues_left"]


async def test_the_topic_of_another_plan_that_comes_before_ours_is_published_is_taken_away(
    trial, settings, queues
) -> None:
    async def begin_another(subscribe):
        await subscribe(QueueName("orders/2"), record_topic(CONTROL_TOPIC, StripePlan(7, 4, 6, "s3cr3t")))

    told = await disturb_before_the_plan(trial, settings, queues, begin_another)
    assert queues.names() == [f"orders/{index}" for index in range(3)]
    steps = [each.get("record", each.get("topic", "")) for each in told if each["event"] == "restripe_step_done"]
    plan = next(step for step in steps if step.startswith("StripePlan("))
    assert steps.index(f"{CONTROL_TOPIC}/restripe/7/4/6") < steps.index(plan)


async def test_a_late_request_of_who_was_killed_finds_nothing_to_change(trial, settings, queues) -> None:
    """It takes a shard from its old queue, while another has gone on, and is to go back to that very queue."""
    unsubscribe = queues.unsubscribe
    late = []

    async def hold(queue, topic):
        queues.unsubscribe = unsubscribe
        late.append((queue, topic, asyncio.get_running_loop().time()))
        raise ConnectFailed("semp", "killed")

    async def arrive():
        queue, topic, sent_s = late[0]
        await asyncio.sleep(sent_s + HELD_S - 1 - asyncio.get_running_loop().time())
        await unsubscribe(queue, topic)

    async with trial.at_work(trial.discovered("a", group=GROUP), trial.discovered("b", group=GROUP)):
        publishing = asyncio.ensure_future(publish_for(trial, 60))
        queues.unsubscribe = hold
        with pytest.raises(ConnectFailed):
            await restripe(trial, settings, queues, 6)
        assert late[0][:2] == ("orders/0", "h/4/>")
        arriving = asyncio.ensure_future(arrive())
        for count in (6, 4):
            await restripe(trial, settings, queues, count)
        await arriving
        await publishing
        await trial.until(lambda: handled(trial) == published_in(60))
    assert in_order_and_once(trial)


@pytest.mark.parametrize("counts", [(6,), (4, 6)], ids=["another number", "the same one again, and then another"])
async def test_a_late_request_to_store_the_count_of_who_found_nothing_to_move_replaces_no_newer_one(
    trial, settings, queues, counts
) -> None:
    """It was killed, and has left nothing that shows that it was there but the number that it was to set right."""
    store, late = queues.store_count, []

    async def hold(count):
        late.append((count, asyncio.get_running_loop().time()))
        raise ConnectFailed("semp", "killed")

    async def arrive():
        count, sent_s = late[0]
        await asyncio.sleep(sent_s + HELD_S - 1 - asyncio.get_running_loop().time())
        await store(count)

    queues.stored_count, queues.store_count = 3, hold
    async with trial.at_work(trial.discovered("a", group=GROUP)):
        with pytest.raises(ConnectFailed):
            await restripe(trial, settings, queues, 4)
        queues.store_count = store
        arriving = asyncio.ensure_future(arrive())
        for count in counts:
            await restripe(trial, settings, queues, count)
        await arriving
    assert (late[0][0], queues.stored_count) == (4, 6)


async def test_who_follows_nobody_waits_for_no_late_request(trial, settings, queues) -> None:
    async with trial.at_work(trial.discovered("a", group=GROUP)):
        began_s = asyncio.get_running_loop().time()
        await restripe(trial, settings, queues, 6)
        assert asyncio.get_running_loop().time() - began_s < HELD_S


async def test_a_shard_that_has_lost_its_queue_meanwhile_is_told_of_at_the_end(trial, settings, queues) -> None:
    async with trial.at_work(trial.discovered("a", group=GROUP)):
        unsubscribe = queues.unsubscribe

        async def lose_another(queue, topic):
            await unsubscribe(queue, topic)
            if queue == FIRST and plan_of_topic(CONTROL_TOPIC, topic) is not None:
                await unsubscribe(QueueName("orders/5"), "h/5/>")

        queues.unsubscribe = lose_another
        with pytest.raises(UserError, match=r"h/5/>: no queue .* with group\.queue_count 6: `lbg group apply`"):
            await restripe(trial, settings, queues, 6)
        assert queues.stored_count == 6
        assert told_of(await topics_of(queues)) == set(), "nothing keeps `apply` from it"


async def test_the_count_is_stored_while_nobody_can_begin_another_re_striping(trial, settings, queues) -> None:
    seen = []

    async def store(count):
        seen.append((count, told_of({name: await queues.subscriptions(QueueName(name)) for name in queues.names()})))

    queues.store_count = store
    async with trial.at_work(trial.discovered("a", group=GROUP)):
        done = await restripe(trial, settings, queues, 6)
    assert seen == [(6, {done.plan})]


async def test_nothing_is_begun_before_a_member_is_heard(trial, settings, queues) -> None:
    """Its generation decides that of the plan."""
    before, waits_for = await topics_of(queues), []
    restriping = asyncio.ensure_future(
        restripe(trial, settings, queues, 6, lambda progress: waits_for.append(progress.waiting_for))
    )
    await asyncio.sleep(10)
    assert list(dict.fromkeys(waits_for)) == [
        "the members to say how far they are",
        "a member: none is heard, and without one no shard can move",
    ]
    assert await topics_of(queues) == before
    restriping.cancel()
    await asyncio.wait([restriping])


async def test_parking_that_is_turned_on_while_no_member_is_heard_is_refused(trial, settings, queues) -> None:
    before = await topics_of(queues)
    is_waiting = asyncio.Event()
    restriping = asyncio.ensure_future(restripe(trial, settings, queues, 6, lambda _: is_waiting.set()))
    await is_waiting.wait()
    queues.adopt(PARKING_QUEUE, [PARKING_QUEUE])
    async with trial.running(trial.discovered("a", group=GROUP)):
        with pytest.raises(UserError, match=f"parking queue {PARKING_QUEUE}; expected a group without parking queues"):
            await restriping
    assert await topics_of(queues) == {**before, PARKING_QUEUE: {PARKING_QUEUE}}


async def test_members_that_park_are_refused_by_what_they_say(trial, settings, queues) -> None:
    before = await topics_of(queues)
    is_waiting = asyncio.Event()
    restriping = asyncio.ensure_future(restripe(trial, settings, queues, 6, lambda _: is_waiting.set()))
    await is_waiting.wait()
    header = Header(GroupName("orders"), MemberId("a"), Life(1, 1), 1)
    said = {"failure.then": "park"}
    beat = Heartbeat(header, MemberState.ACTIVE, 1, said, {}, "0", StripingReport(Striping(0, 4), ""))
    member = MemoryTransport(trial.broker, "member")
    await member.open()
    member.send_direct(Message(CONTROL_TOPIC, encode(beat)))
    with pytest.raises(UserError, match="member a runs with it; expected a group without parking queues"):
        await restriping
    await member.close()
    assert await topics_of(queues) == before


async def test_parking_is_refused_as_long_as_no_shard_of_a_plan_under_way_has_moved(trial, settings, queues) -> None:
    plan = StripePlan(7, 4, 3, "s3cr3t")
    for name in queues.names():
        await queues.subscribe(QueueName(name), record_topic(CONTROL_TOPIC, plan))
    queues.adopt(PARKING_QUEUE, [PARKING_QUEUE])
    with pytest.raises(UserError, match=f"parking queue {PARKING_QUEUE}"):
        await restripe(trial, settings, queues, 3)


@pytest.mark.parametrize("what", ["parking", "a shard"])
async def test_a_plan_that_may_be_published_is_looked_at_again_while_no_shard_has_moved(
    trial, settings, queues, what: str
) -> None:
    plan = StripePlan(7, 4, 3, "s3cr3t")
    for name in queues.names():
        await queues.subscribe(QueueName(name), record_topic(CONTROL_TOPIC, plan))
    waiting = asyncio.Event()
    with capture_logs() as told:
        running = asyncio.ensure_future(restripe(trial, settings, queues, 3, lambda _: waiting.set()))
        # No member is there to be heard.
        await waiting.wait()
        if what == "parking":
            queues.adopt(PARKING_QUEUE, [PARKING_QUEUE])
        else:
            await queues.unsubscribe(QueueName("orders/1"), "h/1/>")
        async with trial.running(trial.discovered("a", group=GROUP)):
            with pytest.raises(UserError, match="parking queue" if what == "parking" else "h/1/>: no queue"):
                await running
    assert published(told) == []
    assert told_of(await topics_of(queues)) == {plan}, "somebody may have published it"


@pytest.mark.parametrize("held_s", [2.2, HELD_S - 1])
async def test_a_late_request_takes_its_topic_from_no_queue_that_is_to_have_the_plan(
    trial, settings, queues, held_s: float
) -> None:
    """An earlier conductor gave up as parking came, and its last request is held on."""
    subscribe, unsubscribe = queues.subscribe, queues.unsubscribe
    loop = asyncio.get_running_loop()
    late: list[asyncio.Task[None]] = []

    async def subscribe_until_parking_comes(queue, topic):
        await subscribe(queue, topic)
        if queue == "orders/5" and plan_of_topic(CONTROL_TOPIC, topic):
            queues.adopt(PARKING_QUEUE, [PARKING_QUEUE])

    async def arrive(queue, topic):
        await asyncio.sleep(held_s)
        await unsubscribe(queue, topic)

    async def hold(queue, topic):
        queues.unsubscribe = unsubscribe
        late.append(loop.create_task(arrive(queue, topic)))
        raise ConnectFailed("semp", "no answer")

    async with trial.at_work(trial.discovered("a", group=GROUP), trial.discovered("b", group=GROUP)):
        publishing = asyncio.ensure_future(publish_for(trial, 60))
        queues.subscribe, queues.unsubscribe = subscribe_until_parking_comes, hold
        with pytest.raises(ConnectFailed):
            await restripe(trial, settings, queues, 6)
        queues.subscribe = subscribe
        queues.forget(PARKING_QUEUE)
        # Published before that, it would wait for ever for a queue that hears of it no more.
        async with asyncio.timeout(120):
            await restripe(trial, settings, queues, 6)
        await late[0]
        await publishing
        await trial.until(lambda: handled(trial) == published_in(60))
    assert in_order_and_once(trial)


async def test_a_plan_in_the_middle_of_its_way_is_no_leftover_where_a_queue_lacks_its_topic(
    trial, settings, queues
) -> None:
    unsubscribe = queues.unsubscribe

    async def be_killed(queue, topic):
        await unsubscribe(queue, topic)
        if topic.startswith("h/"):
            queues.unsubscribe = unsubscribe
            raise ConnectFailed("semp", "killed")

    async with trial.at_work(trial.discovered("a", group=GROUP)):
        queues.unsubscribe = be_killed
        with pytest.raises(ConnectFailed):
            await restripe(trial, settings, queues, 6)
        (plan,) = told_of(await topics_of(queues))
        taken = QueueName("orders/5"), record_topic(CONTROL_TOPIC, plan)
        await queues.unsubscribe(*taken)
        before = await topics_of(queues)
        with pytest.raises(UserError, match="expected 6, to end that first"):
            await restripe(trial, settings, queues, 4)
        with pytest.raises(UserError, match=r"^orders/5: no subscription for the records .* by hand"):
            await restripe(trial, settings, queues, 6)
        assert await topics_of(queues) == before
        # As it says, and nobody publishes.
        await queues.subscribe(*taken)
        await restripe(trial, settings, queues, 6)
        assert queues.names() == [f"orders/{index}" for index in range(6)]
