"""What an autoscaler is told: from the broker's administration how much is left, from members how many there are."""

import asyncio
import socket
import time
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from lbg_runtime.broker.engine.effects import Published
from lbg_runtime.broker.semp.server import SempServer
from lbg_runtime.config.settings import SempSettings
from lbg_runtime.core.restripe.striping import Striping
from lbg_runtime.dashboard.board import Presence
from lbg_runtime.model.errors import SempRefused
from lbg_runtime.model.message import Message
from lbg_runtime.transport.memory.broker import MemoryBroker
from tests.dashboard.words import Speaker, heartbeats_of_a_later_version
from tests.patience import PATIENCE_S
from tests.status.asking import ask

pytestmark = pytest.mark.real_time

PATH = "/v1/autoscale"


@asynccontextmanager
async def administered(group, **semp):
    """The group's page, with an administrator's account on its broker."""
    broker = group.trial.broker
    # The answers come from our own loop, which a busy machine keeps waiting.
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("lbg_runtime.dashboard.watch.ANSWER_WITHIN_S", PATIENCE_S)
        async with SempServer(broker.engine, broker.post, port=0) as server:
            account = SempSettings(**{"url": server.url, "password": "admin", **semp})
            group.settings = group.settings.model_copy(update={"semp": account})
            await group.show()
            yield server


async def heard(group):
    """Until the page knows the group; bounded by the test's own time limit."""
    while not group.watch.hears_group:
        await group.watch.news(group.watch.feed.version, 0.05)


async def numbers(group):
    """What is told as soon as numbers are: a page that is held up knows none for a moment. Bounded likewise."""
    while (answer := await ask(group.port, PATH)).status == 503:
        await group.watch.news(group.watch.feed.version, 0.05)
    return answer.told


def nobody_falls_silent(group):
    """However slow the test is."""
    group.watch._board.tick = lambda now_ms: None


def spool(group, age_s, *keys):
    """Messages that came so long ago."""
    engine = group.trial.broker.engine
    client, _ = engine.connect("default", "user", "", f"sender-{age_s}", "127.0.0.1")
    flow = engine.open_publisher(client, "").flow
    for number, key in enumerate(keys, start=1):
        topic = f"h/{number % 8}/orders/new"
        message = Message(topic, b"", {"JMSXGroupID": key})
        at_s = int(time.time()) - age_s
        group.trial.broker.post(engine.publish(flow, number, Published(topic, message, 1, at_s)))


async def test_lag_age_and_members_are_told_until_nothing_is_left(stage, monkeypatch):
    monkeypatch.setattr("lbg_runtime.dashboard.watch.ASK_BROKER_EVERY_S", 0)
    async with stage() as group:
        for queue in range(4):
            topics = [f"h/{shard}/>" for shard in range(8) if shard % 4 == queue]
            group.trial.broker.create_queue(f"orders/{queue}", topics)
        spool(group, 100, "a", "b")
        spool(group, 60, "c")
        async with administered(group):
            told = await numbers(group)
            assert 100 <= told.pop("oldest_age_s") < 130
            assert told == {"group": "orders", "lag": 3, "members": 0, "max_members": 4}
            nobody_falls_silent(group)
            await group.start("a", "b")
            await group.trial.until(lambda: len(group.trial.handled) == 3, within_s=PATIENCE_S)
            async with asyncio.timeout(PATIENCE_S):
                while group.watch.member_count < 2:
                    await group.watch.news(group.watch.feed.version, 20)
            assert await numbers(group) == {
                "group": "orders",
                "lag": 0,
                "oldest_age_s": 0,
                "members": 2,
                "max_members": 4,
            }


async def test_what_no_member_will_handle_is_no_lag_and_without_members_all_is(stage, monkeypatch):
    monkeypatch.setattr("lbg_runtime.dashboard.watch.ASK_BROKER_EVERY_S", 0)
    async with stage() as group:
        for index in range(6):
            group.trial.broker.create_queue(f"orders/{index}", [f"h/{index + 1}/>"])
        spool(group, 100, "a", "b", "c", "d", "e", "f")
        async with administered(group):
            assert (await numbers(group))["lag"] == 6
            nobody_falls_silent(group)
            old, new = Speaker("old"), Speaker("new")
            lags = []
            for message in (
                old.beat({}, striping=Striping(0, 4)),
                new.beat({}, striping=Striping(7, 4, 5)),
                old.beat({}, striping=Striping(8, 5, 3)),
                new.beat({}, striping=Striping(8, 3)),
                old.beat({}, striping=Striping(8, 3)),
                old.leave(),
                new.leave(),
            ):
                group.watch._heard(message)
                lags.append((await numbers(group))["lag"])
            assert lags == [4, 5, 5, 5, 3, 3, 6]


async def test_a_clock_that_is_behind_the_brokers_makes_no_age_below_zero(stage):
    async with stage() as group:
        group.trial.broker.create_queue("orders/0", ["h/1/>"])
        spool(group, -3_600, "a")
        async with administered(group):
            told = await numbers(group)
            assert (told["lag"], told["oldest_age_s"]) == (1, 0)


async def test_no_age_is_told_of_the_records_of_a_re_striping(stage, monkeypatch):
    """They are the oldest until its end, so an autoscaler would take it for a group that gets nothing done."""
    monkeypatch.setattr("lbg_runtime.dashboard.watch.ASK_BROKER_EVERY_S", 0)
    async with stage() as group:
        group.trial.broker.create_queue("orders/0", ["h/1/>"])
        spool(group, 100, "a")
        async with administered(group):
            assert (await numbers(group))["oldest_age_s"] >= 100
            speaker = Speaker("a")
            for striping in (Striping(7, 4, 6), Striping(7, 6)):
                group.watch._heard(speaker.beat({}, striping=striping))
                told = await numbers(group)
                assert told["lag"] == 1
                assert ("oldest_age_s" in told) == (striping.target is None)


async def test_no_lag_is_told_of_another_broker_than_that_of_the_members(stage, monkeypatch):
    """The standby of a pair has the same queues, and says that they are empty: all members but one would be stopped."""
    monkeypatch.setattr("lbg_runtime.dashboard.watch.ASK_BROKER_EVERY_S", 0)
    standby = MemoryBroker()
    standby.create_queue("orders/0", ["h/1/>"])
    async with stage() as group, SempServer(standby.engine, standby.post, port=0) as other:
        group.trial.broker.create_queue("orders/0", ["h/1/>"])
        spool(group, 60, "a")
        async with administered(group, url=other.url):
            await heard(group)
            answer = await ask(group.port, PATH)
            assert answer.status == 503
            reason = f"semp.url: {other.url} is of a broker that does not know client dashboard"
            assert answer.told["error"].startswith(reason)
            with capture_logs() as logged, group.watch.viewing():
                while not (warned := [each for each in logged if each["event"] == "depths_unknown"]):
                    await group.watch.news(group.watch.feed.version, 0.05)
            assert warned[0]["reason"].startswith(reason)


async def test_however_many_ask_the_broker_is_asked_once(stage, monkeypatch):
    monkeypatch.setattr("lbg_runtime.dashboard.watch.ASK_BROKER_EVERY_S", 3_600)
    async with stage() as group, administered(group):
        group.trial.broker.create_queue("orders/0", ["h/1/>"])
        asked = []
        watch = group.watch
        await heard(group)
        find_all = watch._semp.find_all

        async def counted(*arguments, **options):
            asked.append(arguments)
            return await find_all(*arguments, **options)

        monkeypatch.setattr(watch._semp, "find_all", counted)
        assert [told["lag"] for told in await asyncio.gather(*(numbers(group) for _ in range(10)))] == [0] * 10
        assert len(asked) == 1


async def test_members_that_cannot_be_heard_are_not_counted_as_they_were(stage):
    async with stage() as group, administered(group):
        nobody_falls_silent(group)
        await group.start("a")
        assert (await numbers(group))["members"] == 1
        group.session.drop_connection(3_600)
        answer = await ask(group.port, PATH)
        assert (answer.status, list(answer.told)) == (503, ["error"])
        assert "members" in answer.told["error"]


async def test_that_all_members_fell_silent_is_not_told_as_no_members(stage):
    """A connection that is stalled looks like this until the client gives it up, while SEMP answers as before."""
    async with stage() as group, administered(group):
        await group.start("a", "b")
        await heard(group)
        board, seen = group.watch._board, set()
        board.hear = lambda message, now_ms: None
        async with asyncio.timeout(PATIENCE_S):
            while Presence.GONE not in seen:
                await group.watch.news(group.watch.feed.version, 20)
                presences = {member.presence for member in board.members.values()}
                if presences <= {Presence.SILENT, Presence.GONE}:
                    seen |= presences
                    answer = await ask(group.port, PATH)
                    assert (answer.status, list(answer.told)) == (503, ["error"])


async def test_no_count_is_told_while_members_speak_another_version(stage):
    async with stage() as group, administered(group):
        nobody_falls_silent(group)
        await group.start("a")
        await numbers(group)
        feed = group.watch.feed
        async with heartbeats_of_a_later_version(group.trial.broker, group.settings.group.control_topic_name):
            async with asyncio.timeout(PATIENCE_S):
                while feed.since(0, 0)["meta"]["not_understood"] is None:
                    await group.watch.news(feed.version, 20)
            answer = await ask(group.port, PATH)
        assert (answer.status, list(answer.told)) == (503, ["error"])
        assert "they speak control messages of version 2" in answer.told["error"]
        # Five and a half heartbeats later they would be dead.
        async with asyncio.timeout(PATIENCE_S):
            while feed.since(0, 0)["meta"]["not_understood"] is not None:
                await group.watch.news(feed.version, 20)
        assert (await numbers(group))["members"] == 1


async def test_no_number_is_told_that_is_not_known(stage):
    async with stage() as group:
        await group.show()
        answer = await ask(group.port, PATH)
        assert answer.status == 503
        assert answer.told["error"].startswith("semp: not set; expected")


async def test_a_broker_that_stands_still_is_not_waited_for_and_its_lag_is_not_known(stage):
    """As one that is stopped: the system takes the connection, and nobody answers."""
    async with stage() as group:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            url = f"http://127.0.0.1:{silent.getsockname()[1]}"
            group.settings = group.settings.model_copy(update={"semp": SempSettings(url=url, password="admin")})
            await group.show()
            answer = await ask(group.port, PATH)
    told = {"error": f"no SEMP answer from {url}: no answer within 2 s"}
    assert (answer.status, answer.told) == (503, told)


async def test_a_broker_that_says_no_is_told_and_its_password_is_not(stage, monkeypatch):
    monkeypatch.setattr("lbg_runtime.dashboard.watch.ASK_BROKER_EVERY_S", 3_600)
    async with stage() as group, administered(group, password="not-this"):
        for _ in range(2):
            answer = await ask(group.port, PATH)
            assert answer.status == 503
            assert "refused" in answer.told["error"]
            assert b"not-this" not in answer.body
        # What is kept of it for those who ask in the next seconds does not grow with each of them.
        lengths = set()
        for _ in range(3):
            with pytest.raises(SempRefused) as caught:
                await group.watch.backlog.get()
            lengths.add(len(caught.traceback))
        assert len(lengths) == 1
