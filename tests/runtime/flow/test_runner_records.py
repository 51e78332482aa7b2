"""What a flow runner journals and tells of its flow and of replays, and when."""

import asyncio
from dataclasses import replace

import pytest

from lbg_runtime.core.flow.events import FlowDown, HandBackRequested, MessageReceived
from lbg_runtime.model.ids import QueueName
from lbg_runtime.runtime.runners.handling import GivenBack
from tests.runtime.scripted import HOME, STANDBY, ScriptedFlow

PARKING = QueueName("lbg-parked/orders/0")


@pytest.fixture
def replay(delivery):
    """Has a parked message handled, as a stay at the parking queue does, and returns its handling."""

    async def handle(trial, epoch):
        ended = asyncio.get_running_loop().create_future()
        trial.rig.dispatcher.attach(PARKING, ended.set_result)
        trial.rig.dispatcher.dispatch(replace(delivery(7, epoch=epoch), queue=PARKING))
        return await ended

    return handle


async def _return(_message):
    pass


def _told_of_replays(trial):
    """Whether each was recorded as settled, how many were counted, and which were told of."""
    settled = [record.t_settle is not None for record in trial.dispatch_records()]
    return settled, trial.runner.handled, trial.owner.settled_ids


async def test_a_replay_that_is_about_to_be_settled_is_on_record_before_that(flow_trial, replay):
    trial = flow_trial(_return)
    async with trial.running():
        handling = await replay(trial, await trial.activate())
        trial.runner.replayed(handling, is_settled=True)
        assert _told_of_replays(trial) == ([True], 1, [7]), "at once: the caller settles it next"


async def test_a_replay_that_will_not_be_settled_is_not_recorded_as_settled(flow_trial, replay):
    trial = flow_trial(_return)
    async with trial.running():
        handling = await replay(trial, await trial.activate())
        trial.runner.replayed(handling, is_settled=False)
        assert _told_of_replays(trial) == ([False], 0, [])


async def test_a_replay_of_an_earlier_handle_is_not_recorded_as_settled(flow_trial, replay):
    """The next owner of the queue may have handled it meanwhile, wherever this handle was."""
    trial = flow_trial(_return)
    async with trial.fed() as first:
        handling = await replay(trial, first)
        trial.transport.sink(FlowDown(first, "gone"))
        assert await trial.activate() == first + 1
        await trial.runner.flush()
        trial.runner.replayed(handling, is_settled=True)
        assert _told_of_replays(trial) == ([False], 0, [])


async def test_a_replay_is_not_recorded_as_settled_while_its_handle_is_dead_and_there_is_no_other(flow_trial, replay):
    trial = flow_trial(_return)
    async with trial.fed() as epoch:
        handling = await replay(trial, epoch)
        trial.transport.sink(FlowDown(epoch, "gone"))
        await trial.runner.flush()
        assert trial.owner.changes[-1] == ("unbound", epoch, None), "no later epoch tells the two apart"
        trial.runner.replayed(handling, is_settled=True)
        assert _told_of_replays(trial) == ([False], 0, [])


async def _wait_for_the_deadline(trial, _delivery, _epoch):
    await trial.runner.flush()


async def _hand_back(trial, _delivery, _epoch):
    trial.runner.post(HandBackRequested("m"))


async def _give_a_message_back(trial, delivery, epoch):
    # A second one is still running when the first one ends.
    for number in (1, 2):
        trial.transport.sink(MessageReceived(delivery(number, f"k{number}", epoch=epoch)))


@pytest.mark.parametrize(
    ("why", "place", "cause"),
    [
        (_wait_for_the_deadline, replace(HOME, rank=1), "rebind"),
        (_hand_back, STANDBY, "handback"),
        (_give_a_message_back, HOME, "inactive"),
    ],
)
async def test_a_change_is_told_before_the_commands_that_come_of_it(
    flow_trial, delivery, monkeypatch, why, place, cause
):
    """Otherwise parking would begin further replays while the dispatcher already gives the others back."""
    known = []

    async def work(message):
        if message.payload == b"1":
            raise GivenBack
        await asyncio.sleep(1)

    trial = flow_trial(work, place=place, rebind={"interval": "5s"})
    return_unstarted = trial.rig.dispatcher.return_unstarted

    def note(*_):
        known.append(trial.owner.changes[-1])

    def note_and_return(queue, of_epoch):
        note()
        return_unstarted(queue, of_epoch)

    monkeypatch.setattr(ScriptedFlow, "stop_intake", note)
    monkeypatch.setattr(trial.rig.dispatcher, "return_unstarted", note_and_return)
    async with trial.fed() as epoch:
        await trial.runner.flush()
        await why(trial, delivery, epoch)
        await trial.transport.binds.get()
        assert known
        assert known[0] == ("draining", epoch, cause)
