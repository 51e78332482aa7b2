"""A parking queue without its subscription, or far behind: the broker confirms, and nothing comes for a while."""

from structlog.testing import capture_logs

from lbg_runtime.broker.engine.engine import DEFAULT_VPN
from lbg_runtime.broker.engine.settings import QueueSettings
from lbg_runtime.core.lanes import LaneStage
from lbg_runtime.core.parking.records import (
    DropAsked,
    OwnerFence,
    UnparkAsked,
    decode_entry,
    encode_entry,
)
from lbg_runtime.runtime.parking.fence import FENCE_PATIENCE_S
from lbg_runtime.runtime.parking.stay import COPY_PATIENCE_S
from lbg_runtime.testing.group_context import running
from lbg_runtime.transport.memory.transport import MemoryTransport
from tests.runtime.parking.poisoned import Poisoned, entries, parked, parking
from tests.runtime.parking.refusals import refused
from tests.runtime.parking.slowness import settle_late, slow_down

SETTINGS = {
    "group": {"queue_count": 1, "hash_count": 4},
    "failure": {"attempts": 1, "then": "park", "backoff": {"initial": "100ms", "maximum": "1s"}},
}
A_WHILE_S = 3 * max(FENCE_PATIENCE_S, COPY_PATIENCE_S)


class Story(Poisoned):
    """And an operator."""

    async def mend(self, group):
        self.is_mended = True
        await self.unpark(group)

    async def unpark(self, group):
        session = group.broker.make_transport("operator")
        await session.open()
        await session.send(encode_entry(UnparkAsked("key a"), parking(group)))
        await session.close()


def deafen(group):
    group.broker.engine.remove_queue_subscription(DEFAULT_VPN, parking(group), parking(group))


def subscribe(group):
    group.broker.engine.add_queue_subscription(DEFAULT_VPN, parking(group), parking(group))


async def test_a_parking_queue_that_does_not_show_all_is_told_by_its_limit():
    story = Story()

    def show(group, count):
        changed = QueueSettings(max_unacked_per_flow=count)
        group.broker.post(group.broker.engine.administration.change_queue(DEFAULT_VPN, parking(group), changed))

    with capture_logs() as logs:
        async with running(story.handlers, members=2, settings=SETTINGS) as group:
            await group.balanced()
            await group.publish("orders/new", b"1", b"2", b"3", key="a")
            await group.until(lambda: len(parked(group)) == 3)
            show(group, 3)
            group.kill(group.owner("a"))
            await group.publish("orders/new", b"1", key="b")
            await group.advance(A_WHILE_S)
            assert not group.handled()
            show(group, 10_000)
            await group.until(lambda: bool(group.handled("b")), within_s=2 * FENCE_PATIENCE_S)
            await story.mend(group)
            await group.settled()
    (told, *_) = [log for log in logs if log["event"] == "parking_queue_silent"]
    assert told["expected"].endswith("a maxDeliveredUnackedMsgsPerFlow of 10000")


async def test_a_fence_that_nothing_attracted_is_published_again():
    story = Story()
    with capture_logs() as logs:
        async with running(story.handlers, members=2, settings=SETTINGS) as group:
            await group.balanced()
            deafen(group)
            group.kill(group.owner("b"))
            await group.publish("orders/new", b"1", key="b")
            await group.advance(A_WHILE_S)
            assert not group.handled()
            subscribe(group)
            await group.until(lambda: bool(group.handled("b")), within_s=2 * FENCE_PATIENCE_S)
            await group.settled()
            await group.until(lambda: [type(entry) for entry in entries(group)] == [OwnerFence])
    assert [log["event"] for log in logs].count("parking_queue_silent") >= 2, "told of as long as it lasts"


async def test_what_was_confirmed_and_attracted_by_nothing_is_sent_again_and_told_of():
    story, payloads = Story(), [b"1", b"2"]
    with capture_logs() as logs:
        async with running(story.handlers, settings=SETTINGS) as group:
            await group.publish("orders/new", b"1", key="b")
            await group.until(lambda: bool(group.handled("b")))
            deafen(group)
            await group.publish("orders/new", *payloads, key="a")
            await group.publish("orders/new", b"2", key="b")
            await group.advance(A_WHILE_S)
            assert parked(group) == []
            assert len(group.handled("b")) == 2
            (life,) = group._latest().values()
            head = life.supervisor.status().key("a").sight.head
            assert (head.stage, head.attempts) == (LaneStage.DELAYED, 1), "its handler does not run"
            subscribe(group)
            await group.until(lambda: len(parked(group)) == 2, within_s=2 * COPY_PATIENCE_S)
            await story.mend(group)
            await group.settled()
            group.assert_handled({"a": payloads, "b": [b"1", b"2"]})
            await group.until(lambda: [type(entry) for entry in entries(group)] == [OwnerFence])
    reasons = [log["reason"] for log in logs if log["event"] == "move_failed"]
    assert reasons
    assert all("has not come for 10 s, though the broker has confirmed it" in reason for reason in reasons)
    assert all("a queue that subscribes to lbg-parked/" in reason for reason in reasons)


async def test_what_comes_late_and_was_sent_twice_is_parked_and_replayed_once(monkeypatch):
    story, payloads = Story(), [b"1", b"2", b"3"]
    slow_down(monkeypatch, 1.5 * COPY_PATIENCE_S)
    async with running(story.handlers, settings=SETTINGS) as group:
        await group.publish("orders/new", *payloads, key="a")
        await group.until(lambda: {entry.original.payload for entry in parked(group)} == set(payloads), within_s=200)
        await story.mend(group)
        await group.settled(within_s=200)
        group.assert_handled({"a": payloads})
        assert [len(group.attempts("a", number)) for number in (1, 2, 3)] == [2, 1, 1]
        await group.until(lambda: [type(entry) for entry in entries(group)] == [OwnerFence])


async def test_a_replay_that_overtakes_the_retry_of_its_original_is_the_only_one(monkeypatch):
    """The copy and the order to replay it come while the message waits for its next try to be parked."""
    story, payloads, sent = Story(), [b"1", b"2"], []
    slow_down(monkeypatch, COPY_PATIENCE_S + 0.5)
    send = MemoryTransport.send

    def note(transport, message):
        sent.append(message)
        return send(transport, message)

    monkeypatch.setattr(MemoryTransport, "send", note)
    failure = {**SETTINGS["failure"], "backoff": {"initial": "5s", "maximum": "5s"}}
    async with running(story.handlers, settings={**SETTINGS, "failure": failure}) as group:
        await group.publish("orders/new", *payloads, key="a")
        await group.until(lambda: len(parked(group)) == 2, within_s=200)
        await story.mend(group)
        await group.settled(within_s=200)
        group.assert_handled({"a": payloads})
        assert [len(group.attempts("a", number)) for number in (1, 2)] == [2, 1]
        copies = [each for each in sent if each.topic == parking(group) and each.payload in payloads]
        assert [each.payload for each in copies] == payloads, "what has come by then is not sent again"


async def begin_slowly(delay, group, delay_s=1.2 * COPY_PATIENCE_S):
    """The owners begin at once, and are shown late what comes then."""
    await group.balanced()
    await group.publish("orders/new", b"0", key="b")
    await group.settled()
    await group.advance(1)
    delay.delay_s = delay_s


async def hurry(delay, group):
    """Whoever owns the queue now is shown at once what lies there."""
    delay.delay_s = 0
    await group.advance(A_WHILE_S)


async def test_what_was_sent_twice_and_is_replayed_stays_done_when_its_owner_leaves_before_the_second_copy(monkeypatch):
    story, payloads, delay = Story(), [b"1", b"2"], slow_down(monkeypatch, 0)
    async with running(story.handlers, members=2, settings=SETTINGS) as group:
        await begin_slowly(delay, group)
        await group.publish("orders/new", payloads[0], key="a")
        await group.advance(5)
        await story.mend(group)
        await group.until(lambda: bool(group.handled("a")), within_s=2 * COPY_PATIENCE_S)
        assert len(parked(group)) == 1, "the second copy, that its owner has not read"
        await group.stop(group.owner("a"))
        await hurry(delay, group)
        assert [type(entry) for entry in entries(group)] == [OwnerFence]
        await group.publish("orders/new", payloads[1], key="a")
        await group.settled()
        group.assert_handled({"a": payloads, "b": [b"0"]})


async def test_nor_does_it_come_again_when_that_owner_is_killed(monkeypatch):
    story, payloads, delay = Story(), [b"1", b"2"], slow_down(monkeypatch, 0)
    async with running(story.handlers, members=2, settings=SETTINGS) as group:
        await begin_slowly(delay, group)
        await group.publish("orders/new", payloads[0], key="a")
        await group.advance(5)
        await story.mend(group)
        await group.until(lambda: bool(group.handled("a")), within_s=2 * COPY_PATIENCE_S)
        await group.advance(0.5)
        group.kill(group.owner("a"))
        await hurry(delay, group)
        await group.publish("orders/new", payloads[1], key="a")
        await group.settled()
        assert [(one.number, one.message.payload) for one in group.handled("a")] == [(1, b"1"), (2, b"2")]


async def test_an_order_to_drop_second_copies_that_cannot_be_sent_holds_a_stop_up_no_longer_than_replays_do(
    monkeypatch,
):
    story, send, delay = Story(), MemoryTransport.send, slow_down(monkeypatch, 0)

    def refuse_drops(transport, message):
        if not message.topic.startswith("lbg-parked/") or not isinstance(decode_entry(message), DropAsked):
            return send(transport, message)
        return refused(message.topic, "Spool Over Quota")

    with capture_logs() as logs:
        async with running(story.handlers, members=2, settings=SETTINGS) as group:
            await begin_slowly(delay, group)
            monkeypatch.setattr(MemoryTransport, "send", refuse_drops)
            await group.publish("orders/new", b"1", key="a")
            await group.advance(5)
            await story.mend(group)
            await group.until(lambda: bool(group.handled("a")), within_s=2 * COPY_PATIENCE_S)
            await group.stop(group.owner("a"))
            await hurry(delay, group)
    events = [log["event"] for log in logs]
    assert events.count("parking_drops_given_up") == 1
    assert events.count("parking_drop_not_sent") == 1, "once, and not each second"
    assert "parking_drop_sent" not in events


async def test_an_order_to_drop_second_copies_that_is_refused_for_a_while_is_told_once_and_so_is_its_end(monkeypatch):
    story, send, delay, refusals = Story(), MemoryTransport.send, slow_down(monkeypatch, 0), []

    def refuse_some(transport, message):
        is_drop = message.topic.startswith("lbg-parked/") and isinstance(decode_entry(message), DropAsked)
        if not is_drop or len(refusals) == 3:
            return send(transport, message)
        refusals.append(message)
        return refused(message.topic, "Spool Over Quota")

    with capture_logs() as logs:
        async with running(story.handlers, members=2, settings=SETTINGS) as group:
            await begin_slowly(delay, group)
            monkeypatch.setattr(MemoryTransport, "send", refuse_some)
            await group.publish("orders/new", b"1", key="a")
            await group.advance(5)
            await story.mend(group)
            await group.until(lambda: bool(group.handled("a")), within_s=2 * COPY_PATIENCE_S)
            await group.until(lambda: any(log["event"] == "parking_drop_sent" for log in logs), within_s=10)
            await hurry(delay, group)
    assert len(refusals) == 3
    (begin,) = (log for log in logs if log["event"] == "parking_drop_not_sent")
    (end,) = (log for log in logs if log["event"] == "parking_drop_sent")
    assert (begin["log_level"], begin["waiting"], end["log_level"], end["waiting"]) == ("warning", 1, "info", 0)
    assert 3_000 <= end["stood_ms"] < 4_000


async def test_an_original_whose_copy_came_between_two_tries_is_not_given_back_by_a_stop(monkeypatch):
    """Without stamps the next owner would park it a second time, and so would it handle it again behind its replay."""
    story, delay = Story(), slow_down(monkeypatch, 0)
    failure = {**SETTINGS["failure"], "backoff": {"initial": "200s", "maximum": "200s"}}
    async with running(story.handlers, settings={**SETTINGS, "failure": failure}) as group:
        await begin_slowly(delay, group, COPY_PATIENCE_S + 0.5)
        await group.publish("orders/new", b"1", key="a")
        await group.advance(COPY_PATIENCE_S + 2)
        (member,) = group.members
        assert len(group.broker.left_on("test/0")) == 1, "it waits for its next try"
        await group.stop(member)
        assert group.broker.left_on("test/0") == []
        assert len(parked(group)) == 1
        await hurry(delay, group)
        story.is_mended = True
        group.start(member)
        await story.unpark(group)
        await group.until(lambda: bool(group.handled("a")))
        group.assert_handled({"a": [b"1"], "b": [b"0"]})


async def test_what_comes_while_it_is_about_to_be_sent_again_is_not(monkeypatch):
    """So all that is sent of a message is sent before it can be replayed, and the order behind it drops the rest."""
    story, sent, delay = Story(), [], slow_down(monkeypatch, 0)
    send = MemoryTransport.send

    def note(transport, message):
        sent.append(message)
        return send(transport, message)

    settle_late(monkeypatch, 1.5)
    async with running(story.handlers, settings=SETTINGS) as group:
        await begin_slowly(delay, group, COPY_PATIENCE_S + 0.5)
        monkeypatch.setattr(MemoryTransport, "send", note)
        await group.publish("orders/new", b"1", key="a")
        await group.until(lambda: len(parked(group)) == 1 and group.attempts("a"))
        await group.advance(2 * COPY_PATIENCE_S)
        assert [each.payload for each in sent if each.topic == parking(group)].count(b"1") == 1
        await story.mend(group)
        await group.until(lambda: bool(group.handled("a")))
        group.assert_handled({"a": [b"1"], "b": [b"0"]})
