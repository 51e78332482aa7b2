"""Whole members that find each other on a memory broker: they share the queues, hand them back, and lose nothing.

More than 400 lines, as all of it is played by the same members.
"""

import asyncio
import itertools
import random
from collections import Counter

import pytest
from structlog.testing import capture_logs

from lbg_runtime.broker.engine.accounts import DEFAULT_NAME
from lbg_runtime.core.group.control_codec import encode
from lbg_runtime.core.group.control_messages import Header, Leave, Life, MoveId, Offer
from lbg_runtime.core.group.placement import Candidate, place
from lbg_runtime.model.connection import LONGEST_SILENCE_MS
from lbg_runtime.model.errors import ConfigError, MemberSuperseded, SubscribeFailed
from lbg_runtime.model.ids import Epoch, GroupName, MemberId, QueueName
from lbg_runtime.model.message import Message
from lbg_runtime.transport.memory.transport import MemoryTransport
from tests.transport.rights import let_subscribe

CONTROL_TOPIC = "lbg-control/orders"


def balanced(trial, members):
    """Whether every queue is fed to one of the members, and no two differ by more than one queue."""
    active = trial.active()
    counts = Counter(active.values())
    return (
        len(active) == 4
        and set(counts) <= set(members)
        and all(4 // len(members) <= counts[name] <= -(-4 // len(members)) for name in members)
    )


def owner_changes(trial):
    """Member and cause of every release, but for hops, which touch no message."""
    return [
        (record["event"], record["cause"])
        for record in trial.records()
        if record["kind"] == "flow" and record["event"] == "released" and record["cause"] not in ("hop", "unwanted")
    ]


async def publish_for(trial, seconds, keys=8):
    """Publish a message of every key, four times a second."""
    for _ in range(seconds * 4):
        await trial.publish(keys, keys)
        await asyncio.sleep(0.25)


def in_order_and_once(trial):
    return all(numbers == list(range(1, len(numbers) + 1)) for numbers in trial.sequences().values())


async def test_one_member_alone_takes_everything(trial):
    async with trial.running(trial.discovered("a")):
        await trial.until(lambda: trial.active() == dict.fromkeys(range(4), "a"), within_s=5)


async def test_nobody_takes_a_queue_before_its_group_has_been_the_same_for_as_long_as_the_settings_say(trial):
    async with trial.running(trial.discovered("a", membership={"settle": "20s"})):
        await asyncio.sleep(20)
        assert trial.active() == {}
        await trial.until(lambda: balanced(trial, ["a"]), within_s=5)


async def test_members_that_start_together_share_the_queues(trial):
    async with trial.running(trial.discovered("a"), trial.discovered("b")):
        await trial.until(lambda: balanced(trial, ["a", "b"]), within_s=5)
        await asyncio.sleep(60)
    assert [cause for _, cause in owner_changes(trial)].count("handback") <= 4, "only those of the end"


async def test_a_joiner_gets_its_share_without_a_duplicate(trial):
    async with trial.running(trial.discovered("a")):
        await trial.until(lambda: balanced(trial, ["a"]))
        publishing = asyncio.ensure_future(publish_for(trial, 30))
        await asyncio.sleep(12)
        async with trial.running(trial.discovered("b")):
            await trial.until(lambda: balanced(trial, ["a", "b"]), within_s=10)
            await publishing
            await trial.until(lambda: sum(trial.depths()) == 0)
            before = owner_changes(trial)
            assert before == [("released", "handback")] * 2
            await asyncio.sleep(600)
            assert owner_changes(trial) == before, "a settled group stays as it is"
    assert in_order_and_once(trial)


async def test_no_queue_is_given_away_before_it_was_kept_for_as_long_as_the_settings_say(trial):
    sections = {"rebind": {"min_tenure": "40s"}}
    async with trial.running(trial.discovered("a", **sections)):
        await trial.until(lambda: balanced(trial, ["a"]))
        async with trial.running(trial.discovered("b", **sections)):
            await asyncio.sleep(39)
            assert balanced(trial, ["a"])
            await trial.until(lambda: balanced(trial, ["a", "b"]), within_s=20)


async def test_no_more_queues_are_handed_over_at_a_time_than_the_settings_say(trial):
    is_done = asyncio.Event()

    async def work(_):
        await is_done.wait()

    sections = {"rebind": {"min_tenure": "0s", "max_moves": 1}}
    async with trial.running(trial.discovered("a", work=work, **sections)):
        await trial.until(lambda: balanced(trial, ["a"]))
        await trial.publish(8, 8)
        async with trial.running(trial.discovered("b", **sections)):
            await asyncio.sleep(20)
            flows = [record for record in trial.records() if record["kind"] == "flow"]
            assert [record["event"] for record in flows].count("draining") == 1
            is_done.set()
            await trial.until(lambda: balanced(trial, ["a", "b"]), within_s=10)


async def test_who_leaves_gives_each_queue_to_its_new_home_and_nothing_else_moves(trial):
    async with trial.running(trial.discovered("a"), trial.discovered("c")):
        async with trial.running(trial.discovered("b")):
            await trial.until(lambda: balanced(trial, ["a", "b", "c"]))
            publishing = asyncio.ensure_future(publish_for(trial, 20))
            await asyncio.sleep(5)
            held = list(trial.active().values()).count("b")
        await trial.until(lambda: balanced(trial, ["a", "c"]), within_s=1)
        await publishing
        await trial.until(lambda: sum(trial.depths()) == 0)
        await asyncio.sleep(60)
        assert owner_changes(trial) == [("released", "handback")] * held
    assert in_order_and_once(trial)


async def test_a_rolling_restart_moves_a_queue_out_and_back_and_duplicates_nothing(trial):
    names = ["a", "b", "c", "d"]
    members = {name: trial.running(trial.discovered(name)) for name in names}
    for member in members.values():
        await member.__aenter__()
    await trial.until(lambda: balanced(trial, names))
    publishing = asyncio.ensure_future(publish_for(trial, 100))
    for name in names:
        before = len(owner_changes(trial))
        await members[name].__aexit__(None, None, None)
        members[name] = trial.running(trial.discovered(name))
        await members[name].__aenter__()
        await trial.until(lambda: balanced(trial, names), within_s=30)
        await asyncio.sleep(15)
        assert owner_changes(trial)[before:] == [("released", "handback")] * 2, "its queue, out and back"
    await publishing
    await trial.until(lambda: sum(trial.depths()) == 0)
    for member in members.values():
        await member.__aexit__(None, None, None)
    assert in_order_and_once(trial)


async def test_the_queues_of_a_dead_member_go_to_their_first_standbys_at_once(trial):
    names = ["a", "b", "c", "d"]
    async with trial.running(*map(trial.discovered, names)):
        await trial.until(lambda: balanced(trial, names))
        await asyncio.sleep(5)
        owners = {QueueName(f"orders/{queue}"): MemberId(name) for queue, name in trial.active().items()}
        ranks = place(list(owners), [Candidate(MemberId(name)) for name in names], owners, {}).ranks
        orphans = [queue for queue, owner in owners.items() if owner == "b"]
        trial.sessions["b"].kill()
        await trial.until(lambda: len(trial.active()) == 4, within_s=1.5)
        active = {QueueName(f"orders/{queue}"): name for queue, name in trial.active().items()}
        assert [active[queue] for queue in orphans] == [ranks[queue][1] for queue in orphans]


async def test_a_slow_handler_keeps_its_queue_and_the_others_move(trial):
    hanging = asyncio.Event()

    async def work(message):
        if message.key == "k0" and not hanging.is_set():
            hanging.set()
            await asyncio.sleep(100)

    sections = {"rebind": {"drain_timeout": "2s", "min_tenure": "0s"}, "failure": {"timeout": "1h"}}
    async with trial.running(trial.discovered("a", work=work, **sections)):
        await trial.until(lambda: balanced(trial, ["a"]))
        await trial.publish(8, 8)
        await asyncio.wait_for(hanging.wait(), 10)
        async with trial.running(*(trial.discovered(name, **sections) for name in "bcd")):
            await asyncio.sleep(30)
            assert trial.active()[0] == "a", "the queue of the key that takes so long"
            await trial.until(lambda: balanced(trial, ["a", "b", "c", "d"]), within_s=150)
    assert in_order_and_once(trial)


async def test_a_drain_that_takes_nearly_as_long_as_it_may_hands_the_queue_over(trial):
    begun = set()

    async def work(message):
        if message.key not in begun:
            begun.add(message.key)
            await asyncio.sleep(55)

    sections = {"rebind": {"drain_timeout": "60s", "min_tenure": "0s", "max_moves": 4}, "failure": {"timeout": "1h"}}
    async with trial.running(trial.discovered("a", work=work, **sections)):
        await trial.until(lambda: balanced(trial, ["a"]))
        await trial.publish(8, 8)
        await trial.until(lambda: len(begun) == 8)
        async with trial.running(trial.discovered("b", **sections)):
            await trial.until(lambda: balanced(trial, ["a", "b"]), within_s=60)
            await trial.until(lambda: sum(trial.depths()) == 0)
            await asyncio.sleep(60)
            assert owner_changes(trial) == [("released", "handback")] * 2
            owners = [record for record in trial.records() if record["kind"] == "owner"]
            taken = [(one["from_member"], one["decided_by"]) for one in owners if one["to_member"] == "b"]
            assert taken == [("a", "offer")] * 4, "given, and taken"
    assert in_order_and_once(trial)


async def test_two_processes_of_one_id_become_one(trial):
    with pytest.raises(MemberSuperseded):  # noqa: PT012 - the end of the block raises it
        async with trial.running(trial.discovered("a")):
            await trial.until(lambda: trial.active_clients() == {"a-0"})
            async with trial.running(trial.discovered("a")):
                await trial.until(lambda: trial.active_clients() == {"a-1"} and len(trial.active()) == 4, within_s=30)
                await asyncio.sleep(60)
                assert trial.active_clients() == {"a-1"}
    assert [record["clean"] for record in trial.records() if record.get("kind") == "close"] == [True, True]


async def test_who_stood_aside_for_a_process_that_has_left_ends_and_may_be_started_again(trial):
    with pytest.raises(MemberSuperseded, match="member a: another process with this id took its place and has"):  # noqa: PT012 - the end of the block raises it
        async with trial.running(trial.discovered("a")) as [first]:
            await trial.until(lambda: trial.active_clients() == {"a-0"} and len(trial.active()) == 4)
            publishing = asyncio.ensure_future(publish_for(trial, 60))
            async with trial.running(trial.discovered("a")):
                await trial.until(lambda: trial.active_clients() == {"a-1"} and len(trial.active()) == 4, within_s=30)
                await asyncio.sleep(20)
                assert not first.done()
            await asyncio.wait_for(first, 1)
    async with trial.running(trial.discovered("a")):
        await publishing
        await trial.until(lambda: sum(trial.depths()) == 0)
    assert in_order_and_once(trial)
    assert len(trial.handled) == 60 * 4 * 8


async def test_who_stood_aside_ends_although_a_key_of_it_always_fails(trial):
    """Such a queue is never handed back, so nothing may wait for that."""
    failed = asyncio.Event()

    async def work(message):
        failed.set()
        raise ValueError(message.key)

    sections = {"rebind": {"drain_timeout": "5s"}}
    with pytest.raises(MemberSuperseded):  # noqa: PT012 - the end of the block raises it
        async with trial.at_work(trial.discovered("a", work=work, **sections)) as [first]:
            await trial.publish(1, 1)
            await asyncio.wait_for(failed.wait(), 10)
            async with trial.running(trial.discovered("a", work=work, **sections)):
                await asyncio.sleep(20)
                assert not first.done()
                assert "a-0" in trial.active_clients(), "it holds the queue of that key"
            await asyncio.wait_for(first, 10)
    async with trial.running(trial.discovered("a")):
        await trial.until(lambda: sum(trial.depths()) == 0)


async def test_who_is_asked_to_leave_while_it_stands_aside_leaves_as_any_member(trial):
    first = trial.discovered("a")
    async with trial.running(first) as [task]:
        await trial.until(lambda: trial.active_clients() == {"a-0"})
        async with trial.running(trial.discovered("a")):
            await trial.until(lambda: trial.active_clients() == {"a-1"}, within_s=30)
            first.stop()
            assert (await asyncio.wait_for(task, 30)).is_clean


@pytest.mark.parametrize(
    ("others", "is_cut_short", "is_clean", "longest_s"),
    [("b", False, True, 5), ("b", True, False, 2), ("", False, False, 22), ("", True, False, 2)],
)
async def test_who_leaves_waits_for_a_failing_key_no_longer_than_its_bounds(
    trial, others, is_cut_short, is_clean, longest_s
):
    """Whoever is there goes on with it. With nobody there it is tried while there is time, and not at all if the
    leaving is cut short."""

    async def fail(message):
        raise ValueError(message.key)

    app = trial.discovered("a", work=fail, rebind={"drain_timeout": "20s"})
    async with trial.running(app, *(trial.discovered(name, work=fail) for name in others)) as [task, *_]:
        await trial.until(lambda: balanced(trial, ["a", *others]))
        await trial.publish(8, 8)
        await asyncio.sleep(2)
        began_s = asyncio.get_running_loop().time()
        app.stop()
        if is_cut_short:
            app.stop_now()
        assert (await asyncio.wait_for(task, 100)).is_clean is is_clean
        assert asyncio.get_running_loop().time() - began_s < longest_s


async def test_where_the_control_topic_is_dead_members_take_turns(trial):
    apps = [trial.discovered("a", rebind={"interval": "5s"}), trial.discovered("b", rebind={"interval": "5s"})]
    for name in "ab":
        trial.sessions[name].send_direct = lambda message: None
    async with trial.at_work(*apps):
        owners = set()
        for _ in range(60):
            await asyncio.sleep(1)
            owners |= set(trial.active().values())
        assert owners == {"a", "b"}


async def test_a_silence_that_may_be_that_of_a_dead_connection_moves_nothing(trial):
    apps = [trial.discovered(name, rebind={"interval": "1s"}) for name in "ab"]
    async with trial.running(*apps):
        await trial.until(lambda: balanced(trial, ["a", "b"]))
        before = owner_changes(trial)
        for name in "ab":
            trial.sessions[name].send_direct = lambda message: None
        await asyncio.sleep(LONGEST_SILENCE_MS / 1_000 - 1)
        assert owner_changes(trial) == before
        await trial.until(lambda: owner_changes(trial) != before, within_s=10)


async def test_members_that_seldom_speak_are_not_taken_for_silent(trial):
    sections = {"membership": {"heartbeat": "30s"}, "rebind": {"interval": "1s"}}
    apps = [trial.discovered(name, **sections) for name in "ab"]
    said = []
    for name in "ab":
        trial.sessions[name].send_direct = overheard(trial.sessions[name].send_direct, said)
    async with trial.running(*apps):
        await trial.until(lambda: balanced(trial, ["a", "b"]), within_s=300)
        before = owner_changes(trial)
        said.clear()
        await asyncio.sleep(600)
        assert owner_changes(trial) == before
        assert 2 * 600 / 30 <= len(said) <= 2 * 600 / 20


def overheard(send, said):
    def hear_and_send(message):
        said.append(message)
        send(message)

    return hear_and_send


async def test_who_disagrees_with_its_group_is_refused_by_name_and_value(trial):
    async with trial.running(trial.discovered("a")):
        await trial.until(lambda: balanced(trial, ["a"]))
        stranger = trial.discovered("b", group={"provision": "none", "hash_function": "java_string"})
        with capture_logs() as told, pytest.raises(ConfigError) as refusal:
            await stranger.run()
        assert str(refusal.value) == "group.hash_function: 'java_string'; expected 'crc32', as member a has it"
        # `member` is whose line it is.
        lines = [line for line in told if line["event"] == "settings_disagree"]
        assert {(line["other"], line.get("member")) for line in lines} == {("a", None), ("b", None)}
        assert balanced(trial, ["a"])


COOPERATIVE = {"rebind": {"mode": "cooperative"}}


async def test_counted_members_that_find_each_other_have_their_queues_by_number(trial):
    by_number = {0: "member-0", 1: "member-1", 2: "member-2", 3: "member-0"}
    async with trial.running(*(trial.member(index, 3, **COOPERATIVE) for index in range(3))):
        await trial.until(lambda: trial.active() == by_number, within_s=60)


async def test_a_member_that_counts_otherwise_is_refused(trial):
    async with trial.at_work(trial.member(0, 2, **COOPERATIVE)):
        expected = r"membership\.count: '3'; expected '2', as member member-0 has it"
        with pytest.raises(ConfigError, match=expected):
            await asyncio.wait_for(trial.member(1, 3, **COOPERATIVE).run(), 60)


async def test_of_those_that_begin_a_group_with_different_settings_the_last_does_not_get_it(trial):
    """The one before was refused first and left, and nobody was left to say that the last one may be wrong."""
    first = trial.discovered("a")
    last = trial.discovered("b", group={"provision": "none", "hash_function": "java_string"})
    tasks = [asyncio.create_task(first.run())]
    await asyncio.sleep(0.3)
    tasks.append(asyncio.create_task(last.run()))
    ended = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)
    assert [type(each) for each in ended] == [ConfigError, ConfigError]


async def test_a_member_works_without_a_control_topic_that_it_may_not_use(trial, monkeypatch):
    async def refuse(self, subscription, sink):
        raise SubscribeFailed(subscription, "Subscription ACL Denied", permanent=True)

    monkeypatch.setattr(MemoryTransport, "subscribe", refuse)
    with capture_logs() as told:
        async with trial.running(trial.discovered("a")):
            await trial.until(lambda: balanced(trial, ["a"]), within_s=20)
            await asyncio.sleep(600)
    assert [line["reason"] for line in told if line["event"] == "control_topic_refused"] == ["Subscription ACL Denied"]


async def test_who_gets_the_right_to_the_control_topic_later_takes_part_from_then_on(trial):
    app, session = trial.discovered("a"), trial.sessions["a"]
    allowed = session.subscribe

    async def refuse(subscription, sink):
        raise SubscribeFailed(subscription, "Subscription ACL Denied", permanent=True)

    session.subscribe = refuse
    async with trial.running(app):
        await trial.until(lambda: balanced(trial, ["a"]), within_s=20)
        await asyncio.sleep(100)
        session.subscribe = allowed
        async with trial.running(trial.discovered("b")):
            await trial.until(lambda: balanced(trial, ["a", "b"]), within_s=60)
            await asyncio.sleep(60)
            assert balanced(trial, ["a", "b"])


async def test_who_loses_the_right_to_the_control_topic_in_an_outage_says_so_and_takes_part_with_it_again(trial):
    engine = trial.broker.engine
    with capture_logs() as told:
        async with trial.running(trial.discovered("a")):
            await trial.until(lambda: balanced(trial, ["a"]))
            let_subscribe(engine, DEFAULT_NAME, is_allowed=False)
            trial.sessions["a"].drop_connection(1)
            await asyncio.sleep(100)
            let_subscribe(engine, DEFAULT_NAME, is_allowed=True)
            async with trial.running(trial.discovered("b")):
                await trial.until(lambda: balanced(trial, ["a", "b"]), within_s=60)
                await asyncio.sleep(60)
                assert balanced(trial, ["a", "b"])
    events = [line["event"].removeprefix("control_topic_") for line in told if line["event"].startswith("control_")]
    assert events == ["refused", "silent", "subscribed", "heard"]


async def test_who_starts_while_its_connection_is_lost_hears_its_group_when_it_is_back(trial):
    async with trial.running(trial.discovered("a")):
        await trial.until(lambda: balanced(trial, ["a"]))
        late = trial.discovered("b")
        session, subscribe = trial.sessions["b"], trial.sessions["b"].subscribe

        async def lose_the_connection(subscription, sink):
            session.subscribe = subscribe
            session.drop_connection(3)
            await subscribe(subscription, sink)

        session.subscribe = lose_the_connection
        with capture_logs() as told:
            async with trial.running(late):
                await trial.until(lambda: balanced(trial, ["a", "b"]), within_s=60)
                await asyncio.sleep(60)
                assert balanced(trial, ["a", "b"])
        events = [line["event"] for line in told if line["event"].startswith("control_topic_")]
        assert events == ["control_topic_out_of_reach", "control_topic_subscribed"]


async def test_forged_and_foreign_words_move_nothing(trial):
    async with trial.running(trial.discovered("a"), trial.discovered("b")):
        await trial.until(lambda: balanced(trial, ["a", "b"]))
        before = trial.active()
        forger = MemoryTransport(trial.broker, "forger")
        await forger.open()
        numbers = itertools.count(1)

        def header(member, group="orders", incarnation=1):
            return Header(GroupName(group), MemberId(member), Life(incarnation, 1), next(numbers))

        for message in [
            Leave(header("a")),
            Leave(header("a", group="other", incarnation=1 << 60)),
            *(Offer(header("x"), QueueName(f"orders/{q}"), Epoch(1), MoveId("m"), MemberId("b")) for q in range(4)),
        ]:
            forger.send_direct(Message(CONTROL_TOPIC, encode(message)))
        for payload in (b"", b"\xff", b"[]", b"[9]", b"{}" * 100_000):
            forger.send_direct(Message(CONTROL_TOPIC, payload))
        await asyncio.sleep(60)
        assert trial.active() == before
        await forger.close()


@pytest.mark.parametrize("seed", range(4))
async def test_members_that_come_and_go_keep_the_order_and_handle_nothing_twice(trial, seed):
    chance = random.Random(seed)

    async def work(message):
        await asyncio.sleep(chance.uniform(0, 0.05))

    async def come_and_go(name):
        for _ in range(3):
            await asyncio.sleep(chance.uniform(0, 10))
            async with trial.running(trial.discovered(name, work=work)):
                await asyncio.sleep(chance.uniform(0, 20))

    async with trial.running(trial.discovered("a", work=work)):
        await trial.until(lambda: balanced(trial, ["a"]))
        publishing = asyncio.ensure_future(publish_for(trial, 60))
        await asyncio.gather(*(come_and_go(name) for name in "bcd"))
        await publishing
        await trial.until(lambda: sum(trial.depths()) == 0)
    assert in_order_and_once(trial)
