"""Whole members on a memory broker: start, rebind cycle, outages, what they tell."""

import asyncio
import json

import pytest

from lbg_runtime.model.errors import ConfigError, HandlerError, InvariantViolated, RequestRefused, UserError
from lbg_runtime.runtime.app import App
from lbg_runtime.runtime.handlers.registry import Handlers
from lbg_runtime.transport.memory.transport import MemoryTransport

QUICK_CYCLE = {"rebind": {"interval": "5s"}}


async def _wait(_message):
    await asyncio.sleep(0.05)


async def test_a_member_alone_handles_everything_in_order(trial):
    async with trial.at_work(trial.member(work=_wait)) as (task,):
        await trial.publish(100)
        await trial.until(lambda: len(trial.handled) == 100)
    assert trial.sequences() == {f"k{number}": list(range(1, 26)) for number in range(4)}
    assert trial.depths() == [0] * 4
    assert task.result().is_clean
    assert task.result().exit_code == 0


async def test_an_app_is_a_member_once(trial):
    app = trial.member(work=_wait)
    async with trial.at_work(app) as (task,):
        with pytest.raises(InvariantViolated, match="once"):
            await app.run()
        app.stop()
        assert (await task).is_clean
    with pytest.raises(InvariantViolated, match="once"):
        await app.run()


async def test_queues_come_to_their_primary_within_a_cycle_and_nothing_is_repeated(trial):
    first = trial.member(0, 2, work=_wait, **QUICK_CYCLE)
    second = trial.member(1, 2, work=_wait, **QUICK_CYCLE)
    async with trial.at_work(first):
        assert set(trial.active().values()) == {"member-0"}
        publishing = asyncio.ensure_future(_publish_slowly(trial, 300))
        async with trial.running(second) as (task,):
            at_home = {0: "member-0", 1: "member-1", 2: "member-0", 3: "member-1"}
            await trial.until(lambda: trial.active() == at_home, within_s=20)
            await publishing
            await trial.until(lambda: len(trial.handled) == 300)
            second.stop()
            assert (await task).is_clean
        await trial.until(lambda: set(trial.active().values()) == {"member-0"} and len(trial.active()) == 4)
    assert trial.sequences() == {f"k{number}": list(range(1, 76)) for number in range(4)}
    assert {member for member, _, _ in trial.handled} == {"member-0", "member-1"}
    assert not any(record.get("redelivered") for record in trial.records())


async def _publish_slowly(trial, count):
    for _ in range(count // 4):
        await trial.publish(4)
        await asyncio.sleep(0.1)


async def test_a_failing_key_survives_the_cycle_and_stays_in_order(trial):
    good_at_s = asyncio.get_running_loop().time() + 60

    async def work(message):
        if message.key == "k1" and asyncio.get_running_loop().time() < good_at_s:
            raise ValueError("not yet")

    sections = {"rebind": {"interval": "5s", "drain_timeout": "2s"}}
    async with trial.at_work(trial.member(0, 2, work=work, **sections), trial.member(1, 2, work=work, **sections)):
        await trial.publish(40)
        await trial.until(lambda: len(trial.handled) == 30, within_s=30)
        assert "k1" not in trial.sequences()
        await trial.until(lambda: len(trial.handled) == 40)
    assert trial.sequences() == {f"k{number}": list(range(1, 11)) for number in range(4)}


async def test_a_lost_connection_loses_and_reorders_nothing(trial):
    app = trial.member(work=_wait)
    async with trial.at_work(app) as (task,):
        for _ in range(5):
            await trial.publish(40)
            await asyncio.sleep(0.12)
            trial.sessions["member-0"].drop_connection(3)
            await asyncio.sleep(5)
        await trial.until(lambda: sum(trial.depths()) == 0)
    assert task.result().is_clean
    _assert_prefix_order(trial.sequences(), 50)


async def test_a_member_that_dies_is_replaced_and_at_most_what_ran_is_repeated(trial):
    async with (
        trial.at_work(trial.member(0, 2, work=_wait)) as (victim,),
        trial.running(trial.member(1, 2, work=_wait)),
    ):
        await trial.until(lambda: len(trial.broker.engine.queue_flows("default", "orders/0")) == 2)
        await trial.publish(200)
        await trial.until(lambda: len(trial.handled) >= 40)
        trial.sessions["member-0"].kill()
        victim.cancel()
        await trial.until(lambda: sum(trial.depths()) == 0)
    assert 200 <= len(trial.handled) <= 204
    assert {member for member, _, _ in trial.handled} == {"member-0", "member-1"}
    _assert_prefix_order(trial.sequences(), 50)


def _assert_prefix_order(sequences, count):
    """First handlings come in order and none is missing."""
    for key, numbers in sequences.items():
        first = list(dict.fromkeys(numbers))
        assert first == list(range(1, count + 1)), key


async def test_queues_that_are_missing_at_the_start_are_one_line_where_members_may_not_create_them(trial):
    app = trial.member(group={"provision": "none"})
    with pytest.raises(
        ConfigError, match=r"group\.name: queue orders/[0-3]: Unknown Queue; expected queues that exist"
    ):
        await app.run()
    assert trial.broker.engine.queue_names("default") == ()


async def test_a_queue_that_is_deleted_and_made_again_is_bound_again(trial):
    app = trial.member()
    async with trial.at_work(app):
        trial.broker.delete_queue("orders/1")
        await asyncio.sleep(15)
        trial.broker.create_queue("orders/1", app.settings.group.shape().subscriptions(1))
        await trial.until(lambda: len(trial.active()) == 4, within_s=30)
        await trial.publish(8)
        await trial.until(lambda: len(trial.handled) == 8)


async def test_queues_that_are_gone_right_after_they_were_made_are_not_told_to_be_made(trial):
    app = trial.member()

    async def forget(queue, subscriptions, **_):
        """As a broker that is started anew, empty, before the first bind."""

    trial.sessions["member-0"].provision = forget
    with pytest.raises(ConfigError, match=r"Unknown Queue; expected a queue that this user may bind"):
        await app.run()


async def test_a_member_whose_user_may_not_create_queues_says_so(trial):
    trial.broker.is_reachable = True
    app = trial.member()

    async def refuse(queue, subscriptions, **_):
        raise RequestRefused(f"provision {queue}", "Permission Not Allowed")

    trial.sessions["member-0"].provision = refuse
    with pytest.raises(ConfigError, match=r"group\.provision: cannot provision orders/\d: Permission Not Allowed"):
        await app.run()


async def test_handled_messages_are_told_on_the_republish_topic(trial):
    listener, notes = MemoryTransport(trial.broker, "listener"), []
    await listener.open()
    await listener.subscribe("live/>", notes.append)
    async with trial.at_work(trial.member(ops={"journal": {"republish_topic": "live/orders"}})):
        await trial.publish(4)
        await trial.until(lambda: len(notes) == 4)
    assert json.loads(notes[0].payload) == {
        "member": "member-0",
        "queue": "orders/0",
        "shard": 0,
        "key": "k0",
        "seq": 1,
        "publisher": "p",
        "topic": "orders/new",
        "redelivered": False,
    }


async def test_the_journal_tells_the_whole_life(trial):
    async with trial.at_work(trial.member(work=_wait)):
        await trial.publish(8)
        await trial.until(lambda: len(trial.handled) == 8)
        await asyncio.sleep(3)
    records = trial.records()
    assert records[0]["kind"] == "journal"
    assert records[0]["member"] == "member-0"
    assert records[-1] == {
        "written": len(records) - 1, "dropped": 0, "clean": True, "t": records[-1]["t"], "kind": "close",
        "mono_ns": records[-1]["mono_ns"],
    }  # fmt: skip
    dispatches = [record for record in records if record["kind"] == "dispatch"]
    assert [record["local_seq"] for record in sorted(dispatches, key=lambda record: record["start_mono_ns"])] == list(
        range(1, 9)
    )
    assert all(record["t_settle"] is not None and record["outcome"] == "accepted" for record in dispatches)
    changes = [record["event"] for record in records if record["kind"] == "flow" and record["queue"] == 0]
    assert changes == ["bound", "active", "draining", "released"]
    assert sum(record["handled"] for record in records if record["kind"] == "status" and record["queue"] == 0) >= 2


@pytest.mark.parametrize("given", [json, "handlers.orders", App])
def test_an_app_of_something_else_than_handlers_is_refused_when_it_is_made(settings, given):
    with pytest.raises(HandlerError, match=r"handlers: a .*; expected a Handlers, such as `orders.handlers`"):
        App(given, settings())


def test_an_app_without_handlers_is_refused(settings):
    with pytest.raises(HandlerError, match="handlers: none; expected at least one function"):
        App(Handlers(), settings())


async def test_a_process_is_not_begun_where_a_loop_runs_already(trial):
    with pytest.raises(UserError, match=r"a call on a running event loop; expected `await app.run\(\)` there"):
        trial.member(work=_wait).run_sync()


async def test_a_process_is_not_begun_on_a_thread_that_hears_no_signals(trial):
    with pytest.raises(UserError, match=r"a call from another thread; expected the main one"):
        await asyncio.to_thread(trial.member(work=_wait).run_sync)
