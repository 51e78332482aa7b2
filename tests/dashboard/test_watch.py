"""A watch of a group in virtual time: what it hears, what it asks, and that the group does not notice it."""

import asyncio
from contextlib import nullcontext

import httpx
import pytest
from structlog.testing import capture_logs

from lbg_runtime.broker.engine.accounts import DEFAULT_NAME
from lbg_runtime.config.listen_address import ListenAddress
from lbg_runtime.core.group.control_codec import decode
from lbg_runtime.core.group.control_messages import GroupAnswer, Heartbeat
from lbg_runtime.dashboard import watch as watch_module
from lbg_runtime.model.ids import GroupName
from lbg_runtime.model.version import VERSION
from lbg_runtime.transport.memory.transport import MemoryTransport
from tests.transport.rights import let_subscribe

ADDRESS = ListenAddress("127.0.0.1", 9)


@pytest.fixture
def handled(monkeypatch):
    """Members that answer how much they handled: as many messages of queue 0 as they were asked times."""
    asked = []

    def answer(request):
        asked.append(request.headers.get("authorization"))
        return httpx.Response(200, json={"member": "a", "incarnation": 1, "handled": {"0": 100 * len(asked)}})

    real = httpx.AsyncClient
    monkeypatch.setattr(
        watch_module.httpx, "AsyncClient", lambda **options: real(**options, transport=httpx.MockTransport(answer))
    )
    return asked


def owners(feed):
    told = feed.since(0, 0)
    names = {int(position): row[0] for position, row in told["members"].items()}
    return {index: None if row[0] is None else names[row[0]] for index, row in told["queues"].items()}


async def shown(group, reached, within_s=30):
    """Wait for the feed."""
    async with asyncio.timeout(within_s):
        while not reached():
            await group.watch.news(group.watch.feed.version, within_s)


async def test_a_group_that_runs_is_known_at_once(stage):
    async with stage("a") as group:
        await asyncio.sleep(5)
        await group.show()
        await shown(group, lambda: owners(group.watch.feed) == dict.fromkeys(range(4), "a"), within_s=0.2)


@pytest.mark.parametrize("is_viewed", [False, True])
async def test_a_watch_adds_a_question_now_and_then_while_somebody_looks_and_otherwise_one(stage, is_viewed):
    async with stage() as group:
        await group.start("a", "b")
        await asyncio.sleep(10)
        heard = []
        listener = MemoryTransport(group.trial.broker, "listener")
        await listener.open()
        await listener.subscribe(
            "lbg-control/orders", lambda message: heard.append(decode(message.payload, GroupName("orders")))
        )
        await asyncio.sleep(60)
        alone = len(heard)
        heard.clear()
        before = group.trial.active()
        await group.show()
        with group.watch.viewing() if is_viewed else nullcontext():
            await asyncio.sleep(59)
        assert group.trial.active() == before
        questions = [one for one in heard if one.header.member not in ("a", "b")]
        assert len(questions) == (13 if is_viewed else 1)
        assert len([one for one in heard if isinstance(one, GroupAnswer)]) == 2 * len(questions)
        beats = len([one for one in heard if isinstance(one, Heartbeat)])
        assert abs(beats - 2 * len(questions) - alone) < alone / 20, "as often as before, but for the answers"
        await listener.close()


async def test_members_are_asked_while_somebody_looks_and_not_otherwise(stage, handled):
    async with stage(token="a-token") as group:
        await group.show([ADDRESS])
        await asyncio.sleep(30)
        assert handled == []
        with group.watch.viewing():
            await asyncio.sleep(10.5)
            assert 10 <= len(handled) <= 12
            assert set(handled) == {"Bearer a-token"}
            assert group.watch.feed.since(0, 0)["queues"][0][6] == 100.0
        count = len(handled)
        await asyncio.sleep(30)
        assert len(handled) <= count + 1


async def test_without_addresses_members_tell_in_the_group_how_much_they_handle_and_what_has_stopped(stage):
    """As on a page in a container of its own."""
    async with stage() as group:
        await group.start("a", failure={"attempts": 1, "then": "stop"})
        await group.all_fed()
        await group.show()
        with group.watch.viewing():
            await asyncio.sleep(1)
            feed = group.watch.feed
            assert [row[4] for row in feed.since(0, 0)["members"].values()] == [VERSION]
            assert (feed.since(0, 0)["meta"]["rates"], feed.since(0, 0)["meta"]["parked"]) == (False, 0)
            for _ in range(20):
                await group.trial.publish(4)
                await asyncio.sleep(1)
            told = feed.since(0, 0)
            assert told["meta"]["rates"]
            assert sum(row[6] for row in told["queues"].values()) == pytest.approx(4, abs=0.5)
            supervisor = group.apps["a"]._supervisor
            machine = supervisor.runners[2].machine
            supervisor._dispatcher.stop(machine.queue, machine.epoch)
            await asyncio.sleep(6)
            still = {index: row[8] for index, row in feed.since(0, 0)["queues"].items() if row[8] is not None}
            assert still == {2: (None, None)}
            # Who comes meanwhile is asked as well.
            await group.start("b")
            await asyncio.sleep(6)
            assert [row[4] for row in feed.since(0, 0)["members"].values()] == [VERSION, VERSION]


async def test_members_that_answer_at_their_address_are_not_asked_in_the_group(stage, handled):
    async with stage("a") as group:
        await group.show([ADDRESS])
        asked = []
        group.watch._observer.ask_again = lambda: asked.append(1)
        await asyncio.sleep(1)
        with group.watch.viewing():
            await asyncio.sleep(60)
        assert len(asked) == 1, "as nothing of it was heard when somebody began to look"


async def test_a_connection_that_is_lost_is_told_and_nobody_is_called_dead_for_it(stage):
    async with stage("a") as group:
        await group.show()
        await shown(group, lambda: owners(group.watch.feed) == dict.fromkeys(range(4), "a"))
        session = group.watch._observer._session
        session.drop_connection(reconnect_after_s=60)
        await shown(group, lambda: not group.watch.feed.since(0, 0)["meta"]["connected"])
        await asyncio.sleep(59)
        assert owners(group.watch.feed) == dict.fromkeys(range(4), "a")
        await shown(group, lambda: group.watch.feed.since(0, 0)["meta"]["connected"])
        await asyncio.sleep(1)
        assert group.watch.feed.since(0, 0)["members"][0][1] == "active"


async def test_a_killed_member_is_told_as_silent_with_its_queues_elsewhere_within_a_second(stage):
    async with stage() as group:
        await group.start("a", "b")
        await group.trial.until(lambda: sorted(group.trial.active().values()) == ["a", "a", "b", "b"], within_s=60)
        await group.show()
        await shown(group, lambda: None not in owners(group.watch.feed).values())
        group.trial.sessions["b"].kill()
        await shown(group, lambda: owners(group.watch.feed) == dict.fromkeys(range(4), "a"), within_s=1)
        told = group.watch.feed.since(0, 0)
        assert {row[0]: row[1] for row in told["members"].values()} == {"a": "active", "b": "silent"}
        assert {row[5] for row in told["moves"]} == {"takeover"}


async def test_a_hand_back_is_told_within_a_second_of_its_beginning(stage):
    async with stage("a") as group:
        await group.show()
        await shown(group, lambda: owners(group.watch.feed) == dict.fromkeys(range(4), "a"))
        await group.start("b")
        await group.trial.until(lambda: "b" in group.trial.active().values(), within_s=60)
        await shown(group, lambda: "b" in owners(group.watch.feed).values(), within_s=1)
        assert {row[5] for row in group.watch.feed.since(0, 0)["moves"]} == {"hand-back"}


async def test_a_member_that_stops_gives_its_queues_away_and_leaves(stage):
    async with stage() as group:
        await group.start("a", "b")
        await group.trial.until(lambda: sorted(group.trial.active().values()) == ["a", "a", "b", "b"], within_s=60)
        await group.show()
        await shown(group, lambda: None not in owners(group.watch.feed).values())
        group.apps["b"].stop()
        await shown(group, lambda: owners(group.watch.feed) == dict.fromkeys(range(4), "a"))
        await shown(group, lambda: "left" in [row[1] for row in group.watch.feed.since(0, 0)["members"].values()])
        assert {row[5] for row in group.watch.feed.since(0, 0)["moves"]} == {"stop"}


async def test_what_happens_at_once_is_told_at_once_and_no_more_often_than_need_be(stage):
    async with stage(queues=64) as group:
        await group.start("a")
        await group.all_fed()
        await group.show()
        await shown(group, lambda: None not in owners(group.watch.feed).values())
        before = group.watch.feed.version
        await group.start("b")
        await shown(group, lambda: list(owners(group.watch.feed).values()).count("b") == 32, within_s=120)
        moves = group.watch.feed.since(before, 0)["moves"]
        assert len(moves) == 32
        assert group.watch.feed.version - before < 3 * 32


async def test_who_died_while_nothing_was_heard_is_not_counted_when_the_count_is_known_again(stage):
    async with stage("a", "b") as group:
        await group.show()
        assert not group.watch.hears_group, "who has not spoken yet may live"
        await asyncio.sleep(2)
        assert (group.watch.hears_group, group.watch.member_count) == (True, 2)
        group.session.drop_connection(5)
        assert not group.watch.hears_group
        group.trial.sessions["b"].kill()
        async with asyncio.timeout(10):
            while not group.watch.hears_group:
                # So often that no moment is missed in which a wrong number would be told.
                await group.watch.news(group.watch.feed.version, 0.001)
        assert group.watch.member_count == 1


async def test_members_are_not_known_on_a_connection_on_which_the_page_may_not_listen(stage):
    async with stage("a") as group:
        await group.show()
        engine = group.trial.broker.engine
        let_subscribe(engine, DEFAULT_NAME, is_allowed=False)
        with capture_logs() as told:
            group.session.drop_connection(1)
            await asyncio.sleep(60)
            assert not group.watch.hears_group
            assert not group.watch.feed.since(0, 0)["meta"]["connected"]
            let_subscribe(engine, DEFAULT_NAME, is_allowed=True)
            await asyncio.sleep(60)
        events = [line["event"] for line in told if line["event"].startswith("control_topic_")]
        assert events == ["control_topic_refused", "control_topic_subscribed"]
        assert (group.watch.hears_group, group.watch.member_count) == (True, 1)
        assert group.watch.feed.since(0, 0)["meta"]["connected"]
