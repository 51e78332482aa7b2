"""What a member shows of itself: on a memory broker in virtual time, without a server.

More than 400 lines, as each thing that it shows is brought about by whole members.
"""

import asyncio
import errno
from dataclasses import replace

import pytest

from lbg_runtime.broker.engine.engine import DEFAULT_VPN
from lbg_runtime.broker.engine.settings import AccessType, QueueSettings
from lbg_runtime.core.flow.table import FlowState
from lbg_runtime.core.group.membership import OwnState
from lbg_runtime.core.restripe.striping import Striping
from lbg_runtime.journal import writer
from lbg_runtime.metrics.reading import KeysReading, RestripingReading
from lbg_runtime.model.connection import LONGEST_SILENCE_MS
from lbg_runtime.model.errors import SubscribeFailed, UserError
from lbg_runtime.model.hashing import HashFunction, shard_of
from lbg_runtime.model.ids import QueueName
from lbg_runtime.model.message import Message
from lbg_runtime.runtime.handlers.registry import Handlers
from lbg_runtime.runtime.runners.handling import GivenBack
from lbg_runtime.status.health import has_started, lacks
from lbg_runtime.status.picture import Standstill
from lbg_runtime.transport.memory.transport import MemoryTransport

ON = {"ops": {"status": "127.0.0.1:0"}}


@pytest.fixture
def shown(monkeypatch):
    """What each member shows, by its name; in the place of servers, which would need sockets."""
    sources = {}

    class Window:
        def __init__(self, address, token, waits_for):
            pass

        async def __aenter__(self):
            return self

        async def __aexit__(self, *_):
            pass

        def show(self, source):
            sources[source.picture().member] = source

        def stop(self):
            pass

    monkeypatch.setattr("lbg_runtime.status.server.StatusServer", Window)
    return sources


def states(picture):
    return {flow.queue: flow.state for flow in picture.flows}


def owned(picture):
    return sorted(queue for queue, state in states(picture).items() if state is FlowState.ACTIVE)


async def test_members_show_what_they_own_and_whom_they_see(trial, shown):
    async with trial.running(trial.discovered("a", **ON), trial.discovered("b", **ON, membership={"weight": 1})):
        await asyncio.sleep(30)
        a, b = (shown[name].picture() for name in "ab")
        assert sorted(owned(a) + owned(b)) == [f"orders/{index}" for index in range(4)]
        for picture in (a, b):
            assert (picture.group, picture.state) == ("orders", OwnState.ACTIVE)
            assert owned(picture) == [queue for queue, owner in a.view.group.owners.items() if owner == picture.member]
            assert [flow.queue for flow in picture.flows if flow.place.rank == 0] == owned(picture)
            assert (has_started(picture), lacks(picture)) == (True, ())
        assert a.view.placement == b.view.placement
        assert [one.member for one in a.view.group.members] == ["a", "b"]
        incarnations = {one.member: one.life.incarnation for one in b.view.group.members}
        assert incarnations["a"] == a.incarnation


async def test_a_member_is_started_and_ready_when_it_has_its_queues_and_not_before(trial, shown):
    async with trial.running(trial.discovered("a", **ON)):
        await trial.until(lambda: "a" in shown)
        assert not has_started(shown["a"].picture())
        assert lacks(shown["a"].picture())
        await trial.until(lambda: len(trial.active()) == 4)
        await asyncio.sleep(1)
        assert (has_started(shown["a"].picture()), lacks(shown["a"].picture())) == (True, ())
        trial.sessions["a"].drop_connection(reconnect_after_s=60)
        await asyncio.sleep(1)
        assert [lack.reason for lack in lacks(shown["a"].picture())] == ["the broker is out of reach"]
        assert has_started(shown["a"].picture())
        await asyncio.sleep(90)
        assert lacks(shown["a"].picture()) == ()


async def test_a_member_to_which_the_control_topic_is_forbidden_is_not_ready(trial, shown, monkeypatch):
    """All its queues are its own, and so a rolling update went on to the next."""

    async def refuse(self, subscription, sink):
        raise SubscribeFailed(subscription, "Subscription ACL Denied", permanent=True)

    monkeypatch.setattr(MemoryTransport, "subscribe", refuse)
    async with trial.at_work(trial.discovered("a", **ON)):
        for _ in range(2):
            assert [lack.reason for lack in lacks(shown["a"].picture())] == ["the control topic is out of reach"]
            await asyncio.sleep(LONGEST_SILENCE_MS / 1_000)
        assert len(trial.active()) == 4


async def test_a_member_says_why_a_queue_that_is_shut_is_fed_to_nobody(trial, shown):
    engine, queue = trial.broker.engine, QueueName("orders/0")

    def switch(*, egress):
        changed = replace(engine.queue_status(DEFAULT_VPN, queue).settings, egress_enabled=egress)
        trial.broker.post(engine.administration.change_queue(DEFAULT_VPN, queue, changed))

    async with trial.at_work(trial.discovered("a", **ON)):
        switch(egress=False)
        await trial.until(lambda: [lack.queue for lack in lacks(shown["a"].picture())] == [queue])
        await trial.until(lambda: lacks(shown["a"].picture())[0].reason.endswith("; bind refused: Queue Shutdown"))
        switch(egress=True)
        await trial.until(lambda: not lacks(shown["a"].picture()), within_s=30)


async def test_a_member_shows_whether_it_hears_another_version(trial, shown):
    async with trial.running(trial.discovered("a", **ON)):
        await trial.until(lambda: "a" in shown and has_started(shown["a"].picture()))
        assert not shown["a"].picture().view.hears_other_versions
        old = MemoryTransport(trial.broker, "old")
        await old.open()
        old.send_direct(Message("lbg-control/orders", b'[2,"heartbeat"]'))
        await trial.until(lambda: shown["a"].picture().view.hears_other_versions)
        await asyncio.sleep(10)
        assert not shown["a"].picture().view.hears_other_versions
        await old.close()


async def test_a_home_that_waits_for_its_hand_over_is_ready(trial, shown):
    async with trial.running(trial.discovered("a", **ON)):
        await trial.until(lambda: len(trial.active()) == 4)
        # Its tenure is young: it keeps the queues for some seconds yet.
        async with trial.running(trial.discovered("b", **ON)):
            await trial.until(lambda: "b" in shown and any(flow.place.rank == 0 for flow in shown["b"].picture().flows))
            await asyncio.sleep(1)
            picture = shown["b"].picture()
            assert owned(picture) == []
            assert lacks(picture) == ()


async def test_members_that_are_counted_and_do_not_talk_show_their_places(trial, shown):
    async with trial.running(trial.member(0, 2, **ON), trial.member(1, 2, **ON)):
        await asyncio.sleep(90)
        for index in (0, 1):
            picture = shown[f"member-{index}"].picture()
            assert picture.view is None
            assert owned(picture) == [f"orders/{index}", f"orders/{index + 2}"]
            assert (picture.state, lacks(picture)) == (OwnState.ACTIVE, ())
        reading = shown["member-0"].reading()
        assert (reading.group_members, reading.disregarded, reading.sidecar) == ({}, {}, None)
        # Nobody tells it who has the others.
        found = {shown["member-0"].key(f"k{number}") for number in range(20)}
        assert {(each.queue, each.owner) for each in found} == {
            ("orders/0", "member-0"), ("orders/1", None), ("orders/2", "member-0"), ("orders/3", None),
        }  # fmt: skip


async def test_a_re_striping_is_in_the_figures_while_it_is_under_way(trial, shown):
    app = trial.discovered("a", **ON)
    async with trial.at_work(app):
        assert shown["a"].reading().restriping is None
        app._supervisor._striping.now = Striping(7, 4, 6, left=frozenset({4}))
        assert shown["a"].reading().restriping == RestripingReading(shards_moving=4, shards_left=1)
        app._supervisor._striping.now = Striping(7, 6)
        assert shown["a"].reading().restriping is None


async def test_the_weight_is_that_of_the_member_by_now(trial, shown):
    app = trial.discovered("a", **ON)
    async with trial.at_work(app, trial.discovered("b")):
        app._set_able(is_able=False)
        await asyncio.sleep(5)
        picture = shown["a"].picture()
        assert picture.weight == 0
        assert {one.member: one.weight for one in picture.view.group.members} == {"a": 0, "b": 1}


async def test_who_leaves_is_not_ready(trial, shown):
    release = asyncio.Event()

    async def work(_):
        await release.wait()

    for app, name in ((trial.discovered("a", work=work, **ON), "a"), (trial.member(work=work, **ON), "member-0")):
        async with trial.at_work(app):
            await trial.publish(4)
            await asyncio.sleep(1)
            app.stop()
            await asyncio.sleep(1)
            assert [lack.reason for lack in lacks(shown[name].picture())] == ["the member is draining"]
            release.set()
        release.clear()


async def test_owner_changes_are_shown_as_the_journal_has_them_the_newest_first(trial, shown):
    async with trial.at_work(trial.discovered("a", **ON)), trial.running(trial.discovered("b", **ON)):
        await trial.until(lambda: list(trial.active().values()).count("b") == 2)
        await asyncio.sleep(5)
        records = [
            {name: value for name, value in record.items() if name != "kind"}
            for record in trial.records()
            if record["kind"] == "owner" and record["mono_ns"] and "a" in (record["from_member"], record["to_member"])
        ]
        told = [{name: getattr(one, name) for name in records[0]} for one in shown["a"].changes(100)]
        of_a = [one for one in records if (one["to_member"] if one["event"] == "taken" else one["from_member"]) == "a"]
        assert told == sorted(of_a, key=lambda one: one["mono_ns"], reverse=True)
        assert len(told) == 6
        assert shown["a"].changes(2) == shown["a"].changes(100)[:2]


async def test_no_more_owner_changes_are_kept_than_are_meant_to_be(trial, shown, monkeypatch):
    monkeypatch.setattr("lbg_runtime.runtime.flight_recorder.MAX_CHANGES_REMEMBERED", 3)
    async with trial.at_work(trial.discovered("a", **ON)):
        assert [one.queue for one in shown["a"].changes(100)] == [3, 2, 1]


async def test_a_key_is_shown_by_its_owner_and_by_others(trial, shown):
    release = asyncio.Event()

    async def work(message):
        if message.key == "slow" and message.key_sequence == 2:
            await release.wait()

    async with trial.running(trial.discovered("a", work=work, **ON), trial.discovered("b", work=work, **ON)):
        await asyncio.sleep(30)
        await trial.publish_key("slow", 5)
        await asyncio.sleep(1)
        pictures = {name: shown[name].key("slow") for name in "ab"}
        (owner,) = [name for name, picture in pictures.items() if picture.is_known]
        queue = pictures[owner].queue
        assert trial.active()[int(queue.removeprefix("orders/"))] == owner
        assert {(picture.owner, picture.shard, picture.queue) for picture in pictures.values()} == {
            (owner, shard_of(HashFunction.CRC32, "slow", 8), queue)
        }
        sight = pictures[owner].sight
        assert (sight.head.number, sight.waiting, sight.last.number) == (2, 3, 1)
        release.set()


async def test_a_key_that_cannot_be_hashed_is_refused(trial, shown):
    async with trial.running(trial.discovered("a", **ON, group={"hash_function": "modulo"})):
        await trial.until(lambda: "a" in shown)
        with pytest.raises(UserError, match="a decimal integer"):
            shown["a"].key("no number")
        picture = shown["a"].key("6")
        assert (picture.queue, picture.owner, picture.flow, picture.is_known) == ("orders/2", None, None, False)


async def test_a_member_tells_in_figures_what_it_has_done(trial, shown):
    failures = iter(range(3))

    async def work(message):
        if message.key == "bad" and next(failures, None) is not None:
            raise ValueError("not yet")

    async with trial.at_work(trial.discovered("a", work=work, **ON)):
        before = shown["a"].reading()
        assert before.group_members == {"active": 1}
        assert before.queue_states == {**{state.value: 0 for state in FlowState}, "active": 4}
        assert {change: count for change, count in before.meters.owner_changes.items() if count} == {
            ("taken", "elected"): 4
        }
        assert (before.has_started, before.is_ready, before.restriping) == (True, True, None)
        await trial.publish_key("good", 5)
        await trial.publish_key("bad", 1)
        await trial.until(lambda: len(trial.handled) == 6)
        await asyncio.sleep(1)
        after = shown["a"].reading()
        assert sum(queue.handled for queue in after.queues) == sum(shown["a"].handled().handled.values()) == 6
        assert (after.troubles.failed_attempts, after.meters.retried) == (3, 1)
        assert sum(after.meters.handling.counts) == sum(after.meters.waiting.counts) == 6
        assert sum(after.meters.first_handlings.counts) == sum(bool(queue.handled) for queue in after.queues)


async def test_a_pause_ends_with_the_first_handling_of_a_queue_however_that_ends(trial, shown):
    """Others of the queue may be handled before it has ended; and its message may be parked, of which there is no
    record."""

    async def work(message):
        if message.key == "slow":
            await asyncio.sleep(9)
        if message.key == "bad":
            raise ValueError("never")

    ends, keys = {"failure": {"attempts": 1, "then": "park"}}, ("slow", "bad")
    async with trial.running(*(trial.discovered(key, work=work, **ends, **ON) for key in keys)):
        await asyncio.sleep(30)
        for key in keys:
            await trial.publish_key(key, 1)
        await asyncio.sleep(3)
        firsts = [shown[name].reading().meters.first_handlings for name in keys]
        assert sum(sum(each.counts) for each in firsts) == 2, "nothing has been settled yet"
        await asyncio.sleep(20)
        assert [shown[name].reading().meters.first_handlings for name in keys] == firsts


async def test_lanes_are_told_while_something_is_in_them(trial, shown):
    release = asyncio.Event()

    async def work(message):
        await release.wait()

    async with trial.at_work(trial.discovered("a", work=work, **ON)):
        await trial.publish_key("k", 4)
        await asyncio.sleep(1)
        reading = shown["a"].reading()
        assert (reading.lanes.lanes, reading.lanes.running, reading.lanes.waiting) == (1, 1, 3)
        assert sum(queue.in_flight for queue in reading.queues) == 4
        release.set()


async def test_keys_that_hold_others_up_and_bad_messages_are_in_the_figures(trial, shown):
    release, hooks, bad = asyncio.Event(), Handlers(), {"without_key": 1, "bodies_refused": 1}

    async def work(message):
        await release.wait()

    @hooks.handler("bills/>")
    async def bill(payload: int) -> None:
        pass

    dispatch = {"stuck_key": "5s", "slow_handler": "5s", "max_waiting_per_key": 2, "missing_key": "no_order"}
    async with trial.at_work(trial.discovered("a", work=work, hooks=hooks, dispatch=dispatch, **ON)):
        assert shown["a"].reading().keys == KeysReading()
        await trial.publish_key("k", 4)
        await trial.publish_key("l", 1)
        other = MemoryTransport(trial.broker, "other")
        await other.open()
        await other.send(Message("h/0/bills/new", b"no number"))
        await asyncio.sleep(10)
        assert shown["a"].reading().keys == KeysReading(1, 1, stuck=3, stuck_total=3, slow=2, slow_total=2, **bad)
        release.set()
        await trial.until(lambda: not shown["a"].reading().keys.slow)
        assert shown["a"].reading().keys == KeysReading(0, 1, stuck=1, stuck_total=3, slow=0, slow_total=2, **bad)
        await other.close()


async def test_settings_that_have_changed_on_the_broker_are_shown(trial, shown):
    async with trial.running(trial.discovered("a", **ON)):
        await trial.until(lambda: "a" in shown)
        assert shown["a"].picture().changed_settings == ()
        shown["a"].changed_settings = lambda: ("group.key",)
        assert shown["a"].picture().changed_settings == ("group.key",)


async def test_a_stopped_queue_is_shown_while_it_stands_still(trial, shown):
    async def work(message):
        raise ValueError("never")

    failure = {"attempts": 1, "then": "stop"}
    async with trial.at_work(trial.discovered("a", work=work, failure=failure, **ON)):
        assert shown["a"].reading().troubles.stopped == 0
        await trial.publish_key("k", 1)
        await trial.until(lambda: shown["a"].reading().troubles.stops == 1)
        stopped = [flow.queue for flow in shown["a"].picture().flows if flow.is_stopped]
        assert stopped == [shown["a"].key("k").queue]
        others = [shown["a"].key(f"k{number}") for number in range(12)]
        assert {(other.queue in stopped, other.is_stopped) for other in others} == {(True, True), (False, False)}
        assert shown["a"].reading().troubles.stopped == 1
        still = {f"orders/{index}": each for index, each in shown["a"].handled().standing_still.items()}
        assert still == dict.fromkeys(stopped, Standstill(True, None))


async def test_a_queue_that_went_to_another_member_is_not_said_to_stand_still(trial, shown):
    """One that goes while an application is away was, by the figure to alert on, until it came back."""
    goes, begun = asyncio.Event(), set()

    async def work(message):
        if message.key not in begun:
            begun.add(message.key)
            await goes.wait()
            raise GivenBack

    alone = {"rebind": {"standbys": 0}}
    a, b = trial.discovered("a", work=work, **ON, **alone), trial.discovered("b", work=work, **ON, **alone)
    async with trial.at_work(a):
        await trial.publish(4, 4)
        await trial.until(lambda: len(begun) == 4)
        async with trial.running(b):
            await trial.until(lambda: FlowState.DRAINING in states(shown["a"].picture()).values())
            goes.set()
            await trial.until(lambda: sorted(trial.active().values()) == ["a", "a", "b", "b"])
            assert shown["a"].reading().troubles.stopped == 0


async def test_a_hand_back_is_counted_on_both_sides(trial, shown):
    a, b = trial.discovered("a", **ON), trial.discovered("b", **ON)
    async with trial.at_work(a), trial.running(b):
        await trial.until(lambda: sorted(trial.active().values()) == ["a", "a", "b", "b"], within_s=60)
        await asyncio.sleep(1)
        given, taken = (shown[name].reading().meters for name in "ab")
        assert given.owner_changes["given", "handback"] == taken.owner_changes["taken", "handback"] == 2
        assert sum(given.drains.counts) == 2


@pytest.mark.parametrize("backend", ["exclusive", "partitioned"])
async def test_a_member_that_talks_to_nobody_is_ready_only_while_the_broker_is_in_reach(trial, shown, backend):
    if backend == "partitioned":
        settings = QueueSettings(AccessType.NON_EXCLUSIVE, partition_count=4)
        trial.broker.create_queue("orders/0", [f"h/{shard}/>" for shard in range(8)], settings=settings)
        group = {"backend": backend, "provision": "none"}
        app = trial.discovered("member-0", group=group, dispatch={"missing_key": "error"}, **ON)
    else:
        app = trial.member(**ON)
    async with trial.running(app):
        await trial.until(lambda: "member-0" in shown and not lacks(shown["member-0"].picture()))
        trial.sessions["member-0"].drop_connection(30)
        (lack,) = lacks(shown["member-0"].picture())
        assert lack.reason == "the broker is out of reach"
        trial.broker.engine.add_user(DEFAULT_VPN, "member", "another password")
        await trial.until(lambda: lacks(shown["member-0"].picture())[0].reason != "the broker is out of reach")
        (lack,) = lacks(shown["member-0"].picture())
        assert lack.reason == "the broker is out of reach: Unauthorized"
        trial.broker.engine.add_user(DEFAULT_VPN, "member", "")
        await trial.until(lambda: not lacks(shown["member-0"].picture()))


async def test_what_the_journal_could_not_take_is_counted(trial, shown, monkeypatch):
    """The log says it once, however much was lost, and the journal only when it has ended."""
    async with trial.at_work(trial.discovered("a", **ON)):
        assert shown["a"].reading().troubles.records_dropped == 0
        with monkeypatch.context() as full:
            full.setattr(writer, "_write_all", lambda file, data: (0, OSError(errno.ENOSPC, "No space left on device")))
            await asyncio.sleep(2.5)
        assert (dropped := shown["a"].reading().troubles.records_dropped) >= 8, "a status of each queue every second"
        await asyncio.sleep(2.5)
        assert shown["a"].reading().troubles.records_dropped == dropped
