"""Another number of queues for members at work on a memory broker, on virtual time; and what is refused."""

import asyncio
import itertools
from collections import Counter

import pytest
from structlog.testing import capture_logs

from lbg_runtime.core.restripe.records import StripePlan, encode_record, record_topic
from lbg_runtime.model.errors import (
    ConfigError,
    ConnectFailed,
    PublishRefused,
    QueueUnfit,
    SempError,
    SempRefused,
    SempUnreachable,
    UserError,
)
from lbg_runtime.model.ids import Epoch, QueueName
from lbg_runtime.runtime.clock import wall_us
from lbg_runtime.runtime.restripe import restriper as restriper_module
from lbg_runtime.runtime.restripe.restriper import open_restriper
from lbg_runtime.transport.memory.transport import MemoryTransport
from tests.runtime.restripe.restripe_world import (
    GROUP,
    handled,
    in_order_and_once,
    publish_for,
    published_in,
    restripe,
)

CONTROL_TOPIC = "lbg-control/orders"
SECRET = "5ec7e7"


async def test_a_group_grows_and_shrinks_under_load_and_every_message_is_handled_once_in_order(
    trial, settings, queues
) -> None:
    async with trial.at_work(trial.discovered("a", group=GROUP), trial.discovered("b", group=GROUP)):
        publishing = asyncio.ensure_future(publish_for(trial, 60, per_s=20))
        for count in (6, 3, 8, 1, 4):
            done = await restripe(trial, settings, queues, count)
            assert done.moved == done.moving
            assert queues.names() == [f"orders/{index}" for index in range(count)]
        await publishing
        await trial.until(lambda: handled(trial) == published_in(60, per_s=20))
        assert sorted(trial.active()) == [0, 1, 2, 3]
        assert trial.depths() == [0, 0, 0, 0]
    assert in_order_and_once(trial)


async def test_what_the_queues_said_of_it_is_in_the_journals_of_their_owners(trial, settings, queues) -> None:
    async with trial.at_work(trial.discovered("a", group=GROUP), trial.discovered("b", group=GROUP)):
        done = await restripe(trial, settings, queues, 6)
        await asyncio.sleep(1)
    said = [record for record in trial.records() if record["kind"] == "stripes"]
    assert Counter(record["event"] for record in said) == {"planned": 6, "left": done.moving, "finished": 6}
    assert {record["generation"] for record in said} == {done.plan.generation}


async def test_the_depth_of_a_queue_is_asked_for_when_a_step_depends_on_it_and_of_no_other(
    trial, settings, queues
) -> None:
    async with trial.at_work(trial.discovered("a", group=GROUP), trial.discovered("b", group=GROUP)):
        done = await restripe(trial, settings, queues, 6)
        assert len(queues.measured) < 5 * done.moving
        queues.measured.clear()
        done = await restripe(trial, settings, queues, 2)
        assert len(queues.measured) < 5 * done.moving


async def test_slow_handlers_finish_in_the_old_queue_before_the_new_one_goes_on(trial, settings, queues) -> None:
    running: set[str] = set()

    async def work(message):
        assert message.key not in running, "a key is handled twice at a time"
        running.add(message.key)
        await asyncio.sleep(0.7)
        running.discard(message.key)

    async with trial.running(
        trial.discovered("a", work=work, group=GROUP), trial.discovered("b", work=work, group=GROUP)
    ):
        await trial.until(lambda: len(trial.active()) == 4)
        for _ in range(3):
            await trial.publish(8, 8)
        restriping = asyncio.ensure_future(restripe(trial, settings, queues, 3))
        for _ in range(5):
            await trial.publish(8, 8)
            await asyncio.sleep(1)
        await restriping
        await trial.until(lambda: handled(trial) == 8 * 8)
    assert in_order_and_once(trial)


@pytest.mark.parametrize("steps_before_the_end", [1, 2, 3, 5, 8, 13, 20])
async def test_who_conducts_may_fail_after_any_step_and_the_next_one_goes_on(
    trial, settings, queues, steps_before_the_end: int
) -> None:
    async with trial.at_work(trial.discovered("a", group=GROUP), trial.discovered("b", group=GROUP)):
        publishing = asyncio.ensure_future(publish_for(trial, 20))
        for attempt in itertools.count():
            queues.calls_left = steps_before_the_end
            try:
                await restripe(trial, settings, queues, 6)
            except ConnectFailed:
                assert attempt < 60
            else:
                break
        assert queues.names() == [f"orders/{index}" for index in range(6)]
        await publishing
        await trial.until(lambda: handled(trial) == published_in(20))
    assert in_order_and_once(trial)


async def test_a_member_that_dies_and_one_that_joins_in_the_middle_know_what_is_going_on(
    trial, settings, queues
) -> None:
    async with trial.at_work(trial.discovered("a", group=GROUP), trial.discovered("b", group=GROUP)):
        publishing = asyncio.ensure_future(publish_for(trial, 30))
        joined = trial.running(trial.discovered("c", group=GROUP))
        seen = []

        def look(progress):
            seen.append(progress.moved)
            if progress.moved == 2 and "b" in trial.sessions:
                trial.sessions.pop("b").kill()

        restriping = asyncio.ensure_future(restripe(trial, settings, queues, 7, look))
        await joined.__aenter__()
        await restriping
        await publishing
        await trial.until(lambda: sum(map(len, map(set, trial.sequences().values()))) == published_in(30))
        await joined.__aexit__(None, None, None)
    assert 2 in seen
    assert "b" not in trial.sessions
    assert "c" in {member for member, *_ in trial.handled}
    firsts = {key: list(dict.fromkeys(numbers)) for key, numbers in trial.sequences().items()}
    assert all(numbers == list(range(1, len(numbers) + 1)) for numbers in firsts.values())


HOUR_US = 3_600_000_000


async def test_a_clock_that_is_behind_does_not_make_a_plan_that_members_take_for_old(
    trial, settings, queues, monkeypatch
) -> None:
    async with trial.at_work(trial.discovered("a", group=GROUP), trial.discovered("b", group=GROUP)):
        publishing = asyncio.ensure_future(publish_for(trial, 20))
        ahead = await restripe(trial, settings, queues, 6)
        monkeypatch.setattr(restriper_module, "wall_us", lambda: wall_us() - HOUR_US)
        behind = await asyncio.wait_for(restripe(trial, settings, queues, 4), 60)
        assert behind.plan.generation == ahead.plan.generation + 1
        assert behind.moved == behind.moving
        await publishing
        await trial.until(lambda: handled(trial) == published_in(20))
    assert in_order_and_once(trial)


@pytest.mark.parametrize("told", [0, 3, 6])
async def test_a_plan_under_way_that_members_take_for_old_is_renewed_and_goes_on(
    trial, settings, queues, told: int
) -> None:
    """Of an earlier version, by a clock that was behind: it lies in `told` of the queues and no shard has moved."""
    old = StripePlan(7, 6, 4, "s3cr3t")
    topic = record_topic(CONTROL_TOPIC, old)
    async with trial.at_work(trial.discovered("a", group=GROUP), trial.discovered("b", group=GROUP)):
        publishing = asyncio.ensure_future(publish_for(trial, 20))
        ahead = await restripe(trial, settings, queues, 6)
        for index in range(max(told, 1)):
            await queues.subscribe(QueueName(f"orders/{index}"), topic)
        if told:
            sender = MemoryTransport(trial.broker, "somebody")
            await sender.open()
            await sender.send(encode_record(old, topic))
            await sender.close()
        async with trial.running(trial.discovered("c", group=GROUP)):
            await asyncio.sleep(5)
            with capture_logs() as log:
                done = await asyncio.wait_for(restripe(trial, settings, queues, 4), 60)
        assert [each["outdated"] for each in log if each["event"] == "restripe_plan_renewed"] == [7]
        assert done.plan.generation == ahead.plan.generation + 1
        for name in queues.names():
            assert topic not in await queues.subscriptions(QueueName(name))
        await publishing
        await trial.until(lambda: handled(trial) >= published_in(20))
    assert in_order_and_once(trial)


async def test_the_secret_is_in_no_log_and_no_error(trial, settings, queues, monkeypatch) -> None:
    """It is in the topic of the records, which a request for a subscription names, and a broker's refusal quotes."""
    monkeypatch.setattr(restriper_module.secrets, "token_hex", lambda _: SECRET)
    subscribe = queues.subscribe
    refusing = []

    async def refuse(queue, topic):
        if refusing:
            raise refusing.pop()(topic)
        await subscribe(queue, topic)

    queues.subscribe = refuse
    errors = (
        lambda topic: SempRefused(f"POST {topic}", 400, 11, "NOT_ALLOWED", f"no {topic}"),
        lambda topic: SempUnreachable("http://broker", f"HTTP 500 without an answer to {topic}"),
        lambda topic: PublishRefused(topic, "no room"),
    )
    with capture_logs() as told:
        async with trial.at_work(trial.discovered("a", group=GROUP)):
            for error in errors:
                refusing.append(error)
                with pytest.raises((SempError, PublishRefused)) as caught:
                    await restripe(trial, settings, queues, 6)
                assert SECRET not in f"{caught.value} {vars(caught.value)}"
                assert "restripe/" in str(caught.value)
                assert caught.value.__cause__ is None
            assert (await restripe(trial, settings, queues, 6)).moving == 4
    steps = [each for each in told if each["event"] == "restripe_step_done"]
    assert {each["step"] for each in steps} == {"CreateQueue", "Subscribe", "Unsubscribe", "Publish"}
    assert any("StripePlan(generation=" in each.get("record", "") for each in steps)
    assert any(each.get("topic", "").startswith(f"{CONTROL_TOPIC}/restripe/") for each in steps)
    assert SECRET not in str(told)


async def test_a_queue_that_cannot_be_deleted_is_named_until_it_can(trial, settings, queues) -> None:
    """Somebody who is no member, and never hears that it is over, would have the command wait without a word."""
    told = []
    async with trial.at_work(trial.discovered("a", group=GROUP)):
        browser = MemoryTransport(trial.broker, "browser")
        await browser.open()
        browsing = await browser.bind(QueueName("orders/3"), Epoch(1), lambda _: None)
        conducting = asyncio.ensure_future(restripe(trial, settings, queues, 3, told.append))
        waited_for = "a queue to be out of use: queue orders/3 has 0 messages and 1 bound flow left"
        await trial.until(lambda: told and told[-1].waiting_for == waited_for)
        await browsing.unbind()
        assert (await conducting).waiting_for == ""
        await browser.close()


async def test_each_queue_must_show_all_that_it_keeps_until_the_finish(trial, settings, queues) -> None:
    """Otherwise members would never be shown what lies behind the records."""
    queues.unfit = "orders/3"
    with pytest.raises(QueueUnfit):
        await restripe(trial, settings, queues, 3)
    hash_count = settings().group.hash_count
    moving = [shard for shard in range(hash_count) if shard % 4 != shard % 3]
    markers = [sum(index in (shard % 4, shard % 3) for shard in moving) for index in range(4)]
    assert queues.to_show == {f"orders/{index}": count + 3 for index, count in enumerate(markers)}


async def test_more_moves_than_members_can_tell_of_are_refused_before_the_first(
    trial, settings, queues, monkeypatch
) -> None:
    topics = {name: await queues.subscriptions(QueueName(name)) for name in queues.names()}
    monkeypatch.setattr("lbg_runtime.runtime.restripe.fitness.MOST_MOVES", 1)
    with pytest.raises(UserError, match="--queues: 3 instead of 4, so that"):
        await restripe(trial, settings, queues, 3)
    assert {name: await queues.subscriptions(QueueName(name)) for name in queues.names()} == topics


async def test_what_cannot_be_is_refused_before_anything_is_changed(trial, settings, queues) -> None:
    topics = {name: await queues.subscriptions(QueueName(name)) for name in queues.names()}
    assert await restripe(trial, settings, queues, 4) is None
    queues.unfit = "orders/2"
    with pytest.raises(QueueUnfit, match="maxRedeliveryCount"):
        await restripe(trial, settings, queues, 3)
    queues.unfit = None
    odd = QueueName("orders/1")
    await queues.unsubscribe(odd, "h/1/>")
    with pytest.raises(UserError, match="orders/1: no subscription h/1/>; expected what it has as one of 4 queues"):
        await restripe(trial, settings, queues, 3)
    await queues.subscribe(odd, "h/1/>")
    topic = record_topic(CONTROL_TOPIC, StripePlan(7, 4, 2, "s3cr3t"))
    for name in queues.names():
        await queues.subscribe(QueueName(name), topic)
    with pytest.raises(UserError, match="while the group is brought from 4 to 2 queues; expected 2"):
        await restripe(trial, settings, queues, 3)
    for name in queues.names():
        await queues.unsubscribe(QueueName(name), topic)
    assert {name: await queues.subscriptions(QueueName(name)) for name in queues.names()} == topics


@pytest.mark.parametrize(
    ("sections", "where"),
    [
        ({}, "rebind.mode"),
        ({"rebind": {"mode": "cooperative"}, "group": {"provision": "create_missing"}}, "group.provision"),
    ],
)
async def test_settings_that_a_re_striping_would_not_survive_are_refused(settings, sections, where: str) -> None:
    with pytest.raises(ConfigError) as refused:
        async with open_restriper(settings(**sections), 6, lambda _: None):
            pass
    assert refused.value.where == where


async def test_more_queues_than_the_name_of_the_group_has_room_for_are_refused(settings) -> None:
    group = {"name": "o" * 198, "provision": "none"}
    with pytest.raises(UserError, match="--queues: 12, with which"):
        async with open_restriper(settings(rebind={"mode": "cooperative"}, group=group), 12, lambda _: None):
            pass


async def test_a_record_that_nobody_can_read_stops_its_queue_and_no_other(trial, settings, queues) -> None:
    async with trial.at_work(trial.discovered("a", group=GROUP)):
        topic = record_topic(CONTROL_TOPIC, StripePlan(7, 4, 6, "s3cr3t"))
        await queues.subscribe(QueueName("orders/1"), topic)
        sender = MemoryTransport(trial.broker, "somebody")
        await sender.open()
        record = encode_record(StripePlan(7, 4, 6, "s3cr3t"), topic)
        await sender.send(type(record)(topic, b'[2,"plan of the future"]'))
        await sender.close()
        await trial.publish(8, 8)
        await asyncio.sleep(30)
        assert sorted(trial.sequences()) == ["k0", "k2", "k3", "k4", "k6", "k7"]
        assert await queues.depth(QueueName("orders/1")) == 3


@pytest.mark.parametrize("index", [1, 5])
async def test_a_group_with_parking_queues_is_refused_also_with_those_of_queues_that_it_is_to_get(
    trial, settings, queues, index: int
) -> None:
    """These were found when the queues had been made, and stayed behind without a group."""
    queues.adopt(f"lbg-parked/orders/{index}", [f"lbg-parked/orders/{index}"])
    with pytest.raises(UserError, match=f"parking queue lbg-parked/orders/{index}; expected a group without parking"):
        await restripe(trial, settings, queues, 6)
    assert [name for name in queues.names() if name.startswith("orders/")] == [f"orders/{index}" for index in range(4)]


async def test_a_late_request_in_the_cleaning_up_keeps_nobody_waiting_for_a_queue_that_hears_no_more(
    trial, settings, queues
) -> None:
    """All members that knew of the end are gone, so the finish is published again; one queue has lost its topic."""
    ensure_fit, unsubscribe = queues.ensure_fit, queues.unsubscribe
    late = []

    async def be_killed(queue, topic):
        if topic.startswith("h/"):
            return await unsubscribe(queue, topic)
        late.append((queue, topic))
        raise ConnectFailed("semp", "killed")

    async def arrive(queue, unsettled):
        """When the next conductor has read what the queues subscribe to."""
        if late:
            await unsubscribe(*late.pop())
        await ensure_fit(queue, unsettled)

    async with trial.at_work(trial.discovered("a", group=GROUP)):
        queues.unsubscribe = be_killed
        with pytest.raises(ConnectFailed):
            await restripe(trial, settings, queues, 6)
        queues.unsubscribe = unsubscribe
    async with trial.at_work(trial.discovered("b", group=GROUP)):
        queues.ensure_fit = arrive
        async with asyncio.timeout(120):
            await restripe(trial, settings, queues, 6)
    assert not late


async def test_a_queue_that_loses_its_topic_while_shards_move_under_a_second_conductor_is_told_of(
    trial, settings, queues
) -> None:
    """It would get it back otherwise, without the markers that it has missed."""

    async def work(_):
        await asyncio.sleep(60)

    async with trial.at_work(trial.discovered("a", work=work, group=GROUP)):
        await trial.publish(8, 8)
        # Two queues are made, six get the topic, and one its first shard.
        queues.calls_left = 9
        with pytest.raises(ConnectFailed):
            await restripe(trial, settings, queues, 6)
        going_on = asyncio.ensure_future(restripe(trial, settings, queues, 6))
        await asyncio.sleep(10)
        last = QueueName("orders/5")
        (topic,) = [each for each in await queues.subscriptions(last) if not each.startswith("h/")]
        await queues.unsubscribe(last, topic)
        with pytest.raises(UserError, match=r"^orders/5: no subscription for the records .* by hand"):
            await asyncio.wait_for(going_on, 300)
