"""A delivery that its handler gives back: nothing of its key, nor anything new of its handle, comes before it again."""

import asyncio

from lbg_runtime.model.ids import Epoch, QueueName
from lbg_runtime.model.outcome import Outcome
from lbg_runtime.runtime.runners.handling import GivenBack

QUEUE = QueueName("orders/0")


async def test_nothing_more_of_the_handle_is_started_until_it_is_taken_back(rig, delivery):
    handled = []

    async def handle(message):
        handled.append(message.payload)
        if message.payload == b"1" and handled.count(b"1") == 1:
            await asyncio.sleep(1)
            raise GivenBack

    made = rig(handle)
    async with made.running():
        made.dispatcher.dispatch(delivery(1, "a"))
        made.dispatcher.dispatch(delivery(2, "a"))
        made.dispatcher.dispatch(delivery(3, "b"))
        await made.until_ended(2)
        # What was on its way when the flow had not yet heard of it.
        made.dispatcher.dispatch(delivery(4, "c"))
        await asyncio.sleep(100)
        assert handled == [b"1", b"3"]
        assert made.outcomes() == {1: None, 3: Outcome.ACCEPTED}
        attempts = {handling.delivery.delivery_id: handling.attempts for handling in made.ends}
        assert attempts == {1: 0, 3: 1}, "what was not passed on has not been tried"
        made.dispatcher.return_unstarted(QUEUE, Epoch(1))
        assert made.outcomes() == {1: None, 3: Outcome.ACCEPTED, 2: None, 4: None}
        for number, key in ((1, "a"), (2, "a"), (4, "c")):
            made.dispatcher.dispatch(delivery(number, key, epoch=2))
        await made.until_ended(7)
    assert handled[2:] == [b"1", b"4", b"2"] or handled[2:] == [b"1", b"2", b"4"]


async def test_a_member_that_gives_a_message_back_binds_anew_and_handles_all_in_order(trial):
    given = []

    async def work(message):
        if message.key_sequence == 2 and message.key not in given:
            given.append(message.key)
            raise GivenBack

    app = trial.member(work=work)
    async with trial.at_work(app):
        await trial.publish(40)
        await trial.until(lambda: len(trial.handled) == 40)
    assert sorted(given) == ["k0", "k1", "k2", "k3"]
    assert trial.sequences() == {f"k{key}": list(range(1, 11)) for key in range(4)}
    assert sum(trial.depths()) == 0
