"""One flow runner between a machine, a scripted transport and a dispatcher: the order of what leaves it."""

import asyncio
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from lbg_runtime.core.flow.events import (
    BindSucceeded,
    FlowDown,
    FlowInactive,
    MessageReceived,
    SettlementsReached,
    StripingLearned,
)
from lbg_runtime.core.restripe.gate import StripeGate
from lbg_runtime.core.restripe.records import (
    ShardMarker,
    StripeFinish,
    StripePlan,
    encode_record,
    record_prefix,
    record_topic,
)
from lbg_runtime.core.restripe.striping import Striping
from lbg_runtime.model.errors import NOT_CONNECTED, BindFailed, InvariantViolated
from lbg_runtime.model.record import DispatchRecord
from tests.runtime.scripted import QUEUE, ScriptedFlow


async def _return(_message):
    pass


async def _work_a_while(_message):
    await asyncio.sleep(1)


async def test_the_records_of_a_batch_are_written_before_any_of_its_settlements(flow_trial, delivery):
    trial = flow_trial(_return)
    async with trial.fed():
        for number in range(1, 601):
            trial.transport.sink(MessageReceived(delivery(number, f"k{number % 7}")))
        await asyncio.sleep(1)
    written = set()
    for entry in trial.log:
        if entry[0] == "records":
            written |= {record.delivery_id for record in entry[1] if isinstance(record, DispatchRecord)}
        elif entry[0] == "settle":
            assert entry[2] in written
    settled = [number for _, number in trial.settled()]
    assert len(settled) == 600
    for key in range(7):
        of_key = [number for number in settled if number % 7 == key]
        assert of_key == sorted(of_key), "several of a key end before their batch"
    assert sorted(trial.owner.settled_ids) == list(range(1, 601)), "each is told of once"
    batches = [entry for entry in trial.log if entry[0] == "records"]
    assert len(batches) < 20, "one write for many records"


async def test_a_message_is_dispatched_as_it_comes_unless_something_waits_before_it(flow_trial, delivery):
    trial = flow_trial(_return)
    dispatcher = trial.rig.dispatcher
    async with trial.fed():
        await trial.runner.flush()
        trial.transport.sink(MessageReceived(delivery(1, "k")))
        assert dispatcher.held().waiting == 1, "no turn of the loop was needed"
        asked = trial.runner.flush()
        trial.transport.sink(MessageReceived(delivery(2, "other")))
        assert dispatcher.held().waiting == 1, "it stands behind what was asked before it"
        await asked
        await asyncio.sleep(1)
    assert [number for _, number in trial.settled()] == [1, 2]


async def test_what_the_transport_brings_in_the_middle_of_a_batch_stands_behind_the_batch(
    flow_trial, delivery, monkeypatch
):
    handled = []

    async def work(message):
        handled.append(message.payload)

    trial = flow_trial(work)

    def start_intake(_):
        trial.transport.sink(MessageReceived(delivery(2, "k")))

    monkeypatch.setattr(ScriptedFlow, "start_intake", start_intake)
    async with trial.running():
        await trial.transport.binds.get()
        # No event said that the flow is active: this message opens the intake, and is dispatched behind that.
        trial.transport.sink(MessageReceived(delivery(1, "k")))
        await trial.transport.settled(2)
    assert handled == [b"1", b"2"]


@pytest.mark.parametrize("takes_turn", [True, False])
async def test_a_message_that_cannot_be_dispatched_ends_the_runner_and_not_the_transport(
    flow_trial, delivery, takes_turn
):
    trial = flow_trial(_return)

    dispatched = []

    def fail(delivery):
        dispatched.append(delivery.delivery_id)
        raise InvariantViolated("no room")

    with pytest.raises(ExceptionGroup) as raised:  # noqa: PT012 - the end of the block raises it
        async with trial.running() as task:
            await trial.activate()
            if not takes_turn:
                await trial.runner.flush()
            trial.rig.dispatcher.dispatch = fail
            trial.transport.sink(MessageReceived(delivery(1, "k")))
            trial.transport.sink(MessageReceived(delivery(2, "k")))
            await asyncio.wait([task], timeout=10)
            assert task.done()
    assert raised.value.subgroup(InvariantViolated) is not None
    assert dispatched == [1], "nothing more is started"


async def test_a_flush_sends_the_settlements_off_and_may_be_abandoned(flow_trial, delivery):
    trial = flow_trial(_return)
    async with trial.fed() as epoch:
        trial.transport.sink(MessageReceived(delivery(1, "k")))
        await trial.transport.settled(1)
        trial.runner.flush().cancel()
        await trial.runner.flush()
        assert trial.log.index(("settle", epoch, 1)) < trial.log.index(("flush", epoch))


async def test_a_probe_is_asked_for_behind_the_settlements_that_it_is_to_prove(flow_trial, settings, delivery):
    """Otherwise a shard would be handled in its new queue while its old one may still show it again."""
    plan = StripePlan(1, 4, 8, "s3cr3t")
    gate = StripeGate(0, settings().group.shape(), record_prefix("control"))
    trial = flow_trial(_work_a_while, gate=gate)
    async with trial.fed() as epoch:
        records = [encode_record(record, record_topic("control", plan)) for record in (plan, ShardMarker(1, 4))]
        leaving = delivery(2, topic="h/4/orders/new")
        first, last = (
            replace(leaving, delivery_id=at, message=record) for at, record in zip((1, 3), records, strict=True)
        )
        for each in (first, leaving, last):
            trial.transport.sink(MessageReceived(each))
        await trial.transport.settled(1)
        await trial.runner.flush()
    order = [trial.log.index((name, epoch, *rest)) for name, *rest in (("settle", 2), ("flush",), ("probe",))]
    assert order == sorted(order)


async def test_a_key_whose_shard_was_away_is_met_anew_in_the_same_epoch(flow_trial, settings, delivery):
    """Another member may have handled it meanwhile, and what is loaded of it here is of the time before."""
    away, back, seen = StripePlan(1, 4, 8, "s3cr3t"), StripePlan(2, 8, 4, "s3cr3t"), []

    async def handle(message):
        seen.append((int(message.payload), message.is_first_of_key))

    trial = flow_trial(handle, gate=StripeGate(0, settings().group.shape(), record_prefix("control")))

    def show(first_id, *records):
        for at, (record, plan) in enumerate(records, first_id):
            message = encode_record(record, record_topic("control", plan))
            trial.transport.sink(MessageReceived(replace(delivery(at), epoch=epoch, message=message)))

    def show_message(at):
        trial.transport.sink(MessageReceived(delivery(at, "k", topic="h/4/orders/new", epoch=epoch)))

    async with trial.fed() as epoch:
        show_message(1)
        show_message(2)
        await trial.transport.settled(2)
        show(3, (away, away), (ShardMarker(1, 4), away), (StripeFinish(1, 4, 8), away))
        await trial.transport.settled(3)
        trial.runner.post(SettlementsReached(epoch, 2))
        show(6, (back, back), (ShardMarker(2, 4), back))
        trial.runner.post(StripingLearned(Striping(2, 8, target=4, left=frozenset({4}))))
        show_message(8)
        show_message(9)
        await trial.transport.settled(2)
    assert seen == [(1, True), (2, False), (8, True), (9, False)]


async def test_a_settlement_that_the_transport_refuses_ends_the_runner(flow_trial, delivery, monkeypatch):
    trial = flow_trial(_return)

    def refuse(*_):
        raise InvariantViolated("settled twice")

    monkeypatch.setattr(ScriptedFlow, "settle", refuse)
    with pytest.raises(ExceptionGroup) as raised:  # noqa: PT012 - the end of the block raises it
        async with trial.running() as task:
            await trial.activate()
            trial.transport.sink(MessageReceived(delivery(1, "k")))
            await asyncio.wait([task], timeout=10)
            assert task.done()
    assert raised.value.subgroup(InvariantViolated) is not None


async def test_a_refused_bind_is_tried_again(flow_trial):
    trial = flow_trial(_return)
    trial.transport.refusals = [BindFailed(QUEUE, "timeout"), BindFailed(QUEUE, "Unknown Queue", permanent=True)]
    async with trial.running():
        assert await trial.activate() == 3
    assert [error.permanent for error in trial.owner.refusals] == [True]


async def test_why_it_has_no_handle_is_known_until_it_has_another(flow_trial):
    """Of a handle that had ended nothing was known: a queue whose first message cannot be read had no reason."""
    trial = flow_trial(_return)
    async with trial.fed() as first:
        trial.transport.sink(FlowDown(first, "a message cannot be read"))
        await asyncio.sleep(0.01)
        assert trial.runner.why_unbound == "flow lost: a message cannot be read"
        second = await trial.activate()
        await asyncio.sleep(0.01)
        assert trial.runner.why_unbound is None
        trial.transport.sink(FlowDown(first, "a late word of the former handle"))
        await asyncio.sleep(0.01)
        assert (trial.runner.machine.epoch, trial.runner.why_unbound) == (second, None)


async def test_that_there_is_no_connection_is_not_told_once_more_by_each_queue_in_turn(flow_trial):
    trial = flow_trial(_return)
    trial.transport.refusals = [BindFailed(QUEUE, NOT_CONNECTED) for _ in range(3)]
    trial.transport.refusals.append(BindFailed(QUEUE, "Queue Shutdown"))
    with capture_logs() as told:
        async with trial.running():
            await trial.activate()
    assert [line["reason"] for line in told if line["log_level"] == "warning"] == ["Queue Shutdown"]


async def test_a_settlement_of_a_dead_handle_is_fenced_and_so_recorded(flow_trial, delivery):
    async def work(_message):
        await asyncio.sleep(1)

    trial = flow_trial(work)
    async with trial.fed() as first:
        trial.transport.sink(MessageReceived(delivery(1, epoch=first)))
        await asyncio.sleep(0.5)
        trial.transport.sink(FlowDown(first, "Queue Shutdown"))
        second = await trial.activate()
        trial.transport.sink(MessageReceived(delivery(1, epoch=second)))
        await asyncio.sleep(5)
    assert trial.settled() == [(second, 1)]
    records = {record.bind_epoch: record for record in trial.dispatch_records()}
    assert (records[first].outcome, records[first].t_settle) == ("accepted", None)
    assert records[second].t_settle is not None
    assert records[first].done_mono_ns < records[second].start_mono_ns, "L2 over the death of a handle"
    assert ("down", "Queue Shutdown") in trial.flow_changes()


async def test_after_an_outage_what_ran_is_settled_on_the_old_handle_and_a_new_one_is_bound(flow_trial, delivery):
    async def work(_message):
        await asyncio.sleep(1)

    trial = flow_trial(work)
    async with trial.fed() as first:
        for number in (1, 2):
            trial.transport.sink(MessageReceived(delivery(number, epoch=first)))
        await asyncio.sleep(0.5)
        trial.transport.sink(FlowInactive(first))
        second = await trial.activate()
        trial.transport.sink(MessageReceived(delivery(2, epoch=second)))
        await asyncio.sleep(5)
    assert trial.settled() == [(first, 1), (second, 2)]
    assert trial.log.index(("settle", first, 1)) < trial.log.index(("unbind", first))
    assert [event for event, _ in trial.flow_changes()][:4] == ["bound", "active", "inactive", "draining"]


async def test_intake_stops_at_the_limit_and_starts_again_at_half_of_it(flow_trial, delivery):
    gate = asyncio.Event()

    async def work(_message):
        await gate.wait()

    trial = flow_trial(work, dispatch={"max_in_flight": 10})
    async with trial.fed() as epoch:
        for number in range(1, 13):
            trial.transport.sink(MessageReceived(delivery(number, f"k{number}")))
        await asyncio.sleep(1)
        assert ("stop_intake", epoch) in trial.log
        assert trial.log.count(("start_intake", epoch)) == 1, "that of becoming active"
        gate.set()
        await asyncio.sleep(1)
    assert trial.log.count(("stop_intake", epoch)) == 2, "the second is that of the drain"
    assert trial.log.count(("start_intake", epoch)) == 2


async def test_activity_that_is_lost_while_the_handle_is_given_up_is_recorded(flow_trial):
    """A replay may still run there: without the record, nobody can excuse that the next owner handles the key."""
    trial = flow_trial(_return)
    trial.transport.unbind_takes_s = 5
    async with trial.fed() as epoch:
        trial.runner.stop()
        await asyncio.sleep(1)
        trial.transport.sink(FlowInactive(epoch))
        await asyncio.sleep(1)
    assert ("inactive", "") in trial.flow_changes()
    assert not trial.runner.is_released, "the broker may have given it to another before"


async def test_late_words_of_a_dead_handle_change_nothing(flow_trial, delivery):
    trial = flow_trial(_return)
    async with trial.fed() as first:
        old_sink = trial.transport.sink
        old_sink(FlowDown(first, "gone"))
        second = await trial.activate()
        old_sink(MessageReceived(delivery(1, epoch=first)))
        old_sink(FlowInactive(first))
        trial.transport.sink(MessageReceived(delivery(1, epoch=second)))
        await asyncio.sleep(1)
    assert trial.settled() == [(second, 1)]
    assert ("inactive", "") not in trial.flow_changes()


async def test_a_long_stream_leaves_other_tasks_their_turn(flow_trial, delivery):
    trial = flow_trial(_return)
    ticks = 0

    async def tick():
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    async with trial.fed():
        ticker = asyncio.ensure_future(tick())
        for number in range(1, 5_001):
            trial.transport.sink(MessageReceived(delivery(number, f"k{number % 100}")))
        await trial.transport.settled(5_000)
        ticker.cancel()
    assert ticks > 5_000 / 256


async def test_a_batch_that_failed_half_way_sends_none_of_its_settlements(flow_trial, delivery):
    async def work(message):
        if message.payload == b"2":
            # Behind the end of the first, in the same batch.
            trial.runner.post(BindSucceeded(trial.runner.machine.epoch))

    async def run():
        async with trial.running() as task:
            await trial.activate()
            await trial.runner.flush()
            for number in (1, 2):
                trial.transport.sink(MessageReceived(delivery(number, f"k{number}")))
            await asyncio.wait([task])

    trial = flow_trial(work)
    with pytest.raises(ExceptionGroup) as raised:
        await run()
    assert raised.value.subgroup(InvariantViolated) is not None
    assert [record.delivery_id for record in trial.dispatch_records()] == [1]
    assert trial.settled() == []


async def test_what_comes_when_the_runner_was_cancelled_is_not_handled_as_nobody_would_record_it(flow_trial, delivery):
    handled = []

    async def work(message):
        handled.append(message)

    trial = flow_trial(work)
    async with trial.running() as task:
        await trial.activate()
        await trial.runner.flush()
        task.cancel()
        await asyncio.wait([task])
        trial.transport.sink(MessageReceived(delivery(1)))
        await asyncio.sleep(1)
    assert handled == []


async def test_a_runner_whose_batch_failed_and_whose_records_then_could_not_be_written_tells_of_the_first(flow_trial):
    """And raises nothing itself, as other runners are told behind it."""

    async def run():
        async with trial.running() as task:
            await trial.activate()
            for text in ("the batch", "the records"):
                trial.runner.fail(OSError(text))
                told.append(text)
            await asyncio.wait([task])

    told = []
    trial = flow_trial(_return)
    with pytest.raises(ExceptionGroup) as raised:
        await run()
    assert [str(each) for each in raised.value.exceptions] == ["the batch"]
    assert told == ["the batch", "the records"]
