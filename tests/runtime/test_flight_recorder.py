"""Both sides of every owner change are in the journals, and the reader brings them together."""

import asyncio
from time import monotonic_ns
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_runtime.core.flow.events import ReleaseCause
from lbg_runtime.core.flow.table import FlowState
from lbg_runtime.journal.reader import read_run
from lbg_runtime.model.ids import MemberId
from lbg_runtime.runtime.flight_recorder import FlightRecorder
from lbg_runtime.runtime.journal import MemberJournal
from lbg_runtime.validator.kernel import examine
from lbg_runtime.validator.moves import find_owner_changes
from tests.core.group.test_control_codec import messages
from tests.runtime.restripe.restripe_world import GROUP, made_queues, restripe


def owner_records(trial, event):
    return [record for record in trial.records() if record["kind"] == "owner" and record["event"] == event]


def names_of_moves(records):
    return {(record["move_id"], record["queue"]) for record in records}


def changes(trial):
    tables = read_run(trial.journals)
    assert not any(tables.journals.column("defect").to_pylist())
    return find_owner_changes(tables, examine(tables).moves)


def owned_by(trial, name):
    return list(trial.active().values()).count(name)


async def publish_all_the_time(trial):
    while True:
        await trial.publish(8, 8)
        await asyncio.sleep(0.05)


async def test_a_hand_over_is_told_by_both_sides_under_one_name(trial):
    async with trial.at_work(trial.discovered("a")):
        publishing = asyncio.ensure_future(publish_all_the_time(trial))
        await asyncio.sleep(12)
        async with trial.running(trial.discovered("b")):
            await trial.until(lambda: owned_by(trial, "b") == 2)
            await asyncio.sleep(5)
            publishing.cancel()
            await asyncio.sleep(5)
            given = owner_records(trial, "given")
            taken = [record for record in owner_records(trial, "taken") if record["move_id"]]
            assert len(given) == len(taken) == 2
            assert names_of_moves(given) == names_of_moves(taken)
            for record in (*given, *taken):
                assert (record["from_member"], record["to_member"]) == ("a", "b")
                assert (record["cause"], record["decided_by"], record["is_leaving"]) == ("handback", "offer", False)
            assert all(50 <= record["drain_ms"] < 1_000 and record["held_ms"] > 10_000 for record in given)
            asked = {record["move_id"]: record["asked_mono_ns"] for record in given}
            noticed = {record["move_id"]: record["mono_ns"] for record in taken}
            assert all(record["asked_mono_ns"] < record["mono_ns"] for record in given)
            assert all(asked[move_id] < noticed[move_id] for move_id in asked)
            found = [change for change in changes(trial) if change.cause != "first"]
            told = [(one.from_member, one.to_member, one.decided_by, one.duplicates) for one in found]
            assert told == [("a", "b", "offer", 0)] * 2
            assert all(one.pause_ms is not None for one in found)


async def test_who_leaves_says_so(trial):
    async with trial.running(trial.discovered("a")):
        async with trial.running(trial.discovered("b")):
            await trial.until(lambda: owned_by(trial, "b") == 2)
        given = [record for record in owner_records(trial, "given") if record["from_member"] == "b"]
        assert [(one["cause"], one["to_member"], one["is_leaving"]) for one in given] == [("handback", "a", True)] * 2
    # The last one has nobody to give its queues to.
    last = [record for record in owner_records(trial, "given") if record["cause"] == "stop"]
    told = [(one["decided_by"], one["from_member"], one["to_member"], one["move_id"]) for one in last]
    assert told == [("stop", "a", None, None)] * 4


async def test_a_takeover_after_a_death_names_the_dead_member_and_the_broker(trial):
    async with trial.running(trial.discovered("a"), trial.discovered("b")):
        await trial.until(lambda: owned_by(trial, "b") == 2)
        await asyncio.sleep(5)
        trial.sessions["b"].kill()
        await trial.until(lambda: owned_by(trial, "a") == 4, within_s=2)
        # When journals are written is up to the flows: each of them once it has taken its events.
        await asyncio.sleep(1)
        taken = [one for one in owner_records(trial, "taken") if (one["from_member"], one["to_member"]) == ("b", "a")]
        assert [(one["cause"], one["decided_by"], one["move_id"]) for one in taken] == [("elected", "broker", None)] * 2


async def test_in_cycle_mode_the_rebind_cycle_decides(trial):
    cycle = {"rebind": {"interval": "5s"}}
    async with trial.at_work(trial.member(0, 2, **cycle)):
        await asyncio.sleep(10)
        publishing = asyncio.ensure_future(publish_all_the_time(trial))
        async with trial.running(trial.member(1, 2, **cycle)):
            await asyncio.sleep(20)
            publishing.cancel()
    assert {one["decided_by"] for one in owner_records(trial, "given")} == {"cycle", "stop"}
    moved = [one for one in changes(trial) if one.cause == "rebind"]
    assert {one.queue for one in moved} == {1, 3}
    assert all(one.decided_by == "cycle" and one.from_member == "member-0" for one in moved)


async def test_a_connection_that_broke_gives_without_an_order_to_give(trial):
    async with trial.running(trial.discovered("a"), trial.discovered("b")):
        await trial.until(lambda: owned_by(trial, "b") == 2)
        await asyncio.sleep(5)
        trial.sessions["b"].drop_connection(reconnect_after_s=3)
        await asyncio.sleep(30)
        given = [one for one in owner_records(trial, "given") if one["decided_by"] == "broker"]
        assert {(one["from_member"], one["cause"], one["to_member"]) for one in given} == {("b", "inactive", None)}
        tenures = [(one["from_member"], one["queue"], one["bind_epoch"]) for one in given]
        assert len(set(tenures)) == len(tenures) == 2


async def test_a_queue_that_a_re_striping_removes_is_not_given_to_another_process_of_our_id(trial, settings):
    queues = made_queues(trial, settings)
    async with trial.running(trial.discovered("a", group=GROUP), trial.discovered("b", group=GROUP)):
        await trial.until(lambda: owned_by(trial, "b") == 2)
        await restripe(trial, settings, queues, 2)
        given = [one for one in owner_records(trial, "given") if one["queue"] >= 2]
    told = [(one["queue"], one["cause"], one["decided_by"], one["to_member"], one["move_id"]) for one in given]
    assert sorted(told) == [(queue, "handback", "restripe", None, None) for queue in (2, 3)]


async def test_an_offer_that_came_to_nothing_is_no_part_of_a_later_takeover(trial):
    over = asyncio.Event()

    async def work(message):
        await over.wait()

    brief = {"rebind": {"drain_timeout": "1s"}, "failure": {"timeout": "1h"}}
    async with trial.at_work(trial.discovered("a", work=work, **brief)):
        await trial.publish(8, 8)
        async with trial.running(trial.discovered("b", **brief)):
            # By now it has accepted several times, and the last offer ended long ago.
            await asyncio.sleep(80)
            assert owned_by(trial, "a") == 4
            trial.sessions["a"].kill()
            await trial.until(lambda: owned_by(trial, "b") == 4)
            await asyncio.sleep(1)
            taken = [one for one in owner_records(trial, "taken") if one["to_member"] == "b"]
            over.set()
    told = [(one["from_member"], one["cause"], one["decided_by"], one["move_id"]) for one in taken]
    assert told == [("a", "elected", "broker", None)] * 4


async def test_a_member_that_loses_a_queue_says_how_much_of_it_had_not_ended(trial):
    over = asyncio.Event()

    async def work(_):
        await over.wait()

    async with trial.at_work(trial.member(work=work)):
        await trial.publish(12, 4)
        trial.broker.delete_queue("orders/0")
        await trial.until(lambda: len(trial.active()) == 3)
        over.set()
    (lost,) = [record for record in owner_records(trial, "given") if record["cause"] == "down"]
    assert (lost["queue"], lost["in_flight"]) == (0, 3)


@pytest.mark.parametrize(("is_given_up", "drain_ms"), [(False, 3_000), (True, 0)])
async def test_a_handle_that_dies_tells_what_was_in_flight_and_how_long_it_had_drained_by_then(is_given_up, drain_ms):
    recorder = FlightRecorder(MemberId("a"), MemberJournal(None, 1))
    flow = SimpleNamespace(queue="orders/0", epoch=7, cause=ReleaseCause.HANDBACK, move_id="m")
    states = [FlowState.ACTIVE, FlowState.DRAINING, *[FlowState.ACTIVE] * is_given_up, FlowState.UNBOUND]
    for flow.state in states:
        recorder.flow_changed(0, flow, 2, is_released=True)
        await asyncio.sleep(3)
    given = recorder.changes[-1]
    assert (given.event, given.cause, given.decided_by) == ("given", "down", "broker")
    assert (given.in_flight, given.drain_ms, given.held_ms) == (2, drain_ms, 3_000 * (len(states) - 1))
    assert given.asked_mono_ns is None


@pytest.mark.parametrize("is_released", [True, False])
async def test_when_the_broker_was_asked_is_told_only_if_it_has_answered(is_released):
    """Otherwise it may have given the queue to another before."""
    recorder = FlightRecorder(MemberId("a"), MemberJournal(None, 1))
    flow = SimpleNamespace(queue="orders/0", epoch=7, cause=ReleaseCause.HANDBACK, move_id="m")
    moments = []
    for flow.state in (FlowState.ACTIVE, FlowState.UNBINDING, FlowState.UNBOUND):
        moments.append(monotonic_ns())
        recorder.flow_changed(0, flow, 0, is_released=is_released and flow.state is FlowState.UNBOUND)
    asked_ns = recorder.changes[-1].asked_mono_ns
    assert (asked_ns is not None and moments[1] <= asked_ns <= moments[2]) == is_released


async def test_a_queue_that_is_given_in_good_order_has_nothing_in_flight_on_record():
    """What failed and goes to the next owner is not lost with the handle."""
    recorder = FlightRecorder(MemberId("a"), MemberJournal(None, 1))
    flow = SimpleNamespace(queue="orders/0", epoch=7, cause=ReleaseCause.HANDBACK, move_id="m")
    for flow.state in (FlowState.ACTIVE, FlowState.DRAINING, FlowState.UNBINDING, FlowState.UNBOUND):
        recorder.flow_changed(0, flow, 2, is_released=True)
        await asyncio.sleep(3)
    given = recorder.changes[-1]
    assert (given.event, given.cause, given.in_flight, given.drain_ms) == ("given", "handback", 0, 3_000)


@given(st.lists(messages, max_size=4))
def test_nothing_that_is_said_on_the_topic_upsets_the_recorder(said):
    recorder = FlightRecorder(MemberId("a"), MemberJournal(None, 1))
    for message in said:
        recorder.said(message)
