"""A queue that is given up while parked messages of it are being replayed waits for what runs, and for nothing else."""

import asyncio

from lbg_runtime.core.parking.records import ParkedMessage, UnparkAsked, decode_entry, encode_entry, parking_queue
from lbg_runtime.transport.memory.flow import MemoryFlow
from lbg_runtime.transport.memory.transport import MemoryTransport

DRAIN_S = 60
SECTIONS = {
    "failure": {"attempts": 2, "then": "park", "backoff": {"initial": "40s", "maximum": "40s"}},
    "rebind": {"drain_timeout": f"{DRAIN_S}s"},
}
PARKING = parking_queue("orders", 1)


class Work:
    """A handler's work that fails on one key until it is mended, and then takes its time for it."""

    def __init__(self):
        self.begun = []
        self.is_mended = False

    async def __call__(self, message):
        if message.key == "k1":
            self.begun.append(message.key_sequence)
            if not self.is_mended:
                raise ValueError("no")
            await asyncio.sleep(5)


async def park_and_replay(trial, work, *, is_mended):
    """Park the key, ask for its replay, and wait until that has begun."""
    await trial.feed(8)
    work.begun.clear()
    work.is_mended = is_mended
    session = MemoryTransport(trial.broker, "operator")
    await session.open()
    await session.send(encode_entry(UnparkAsked("key k1"), PARKING))
    await session.close()
    await trial.until(lambda: bool(work.begun))


async def numbers(trial):
    session = MemoryTransport(trial.broker, "operator")
    await session.open()
    entries = [decode_entry(message) for message in await session.browse(PARKING, 0)]
    await session.close()
    return [entry.original.key_sequence for entry in entries if isinstance(entry, ParkedMessage)]


async def test_a_replay_between_two_tries_does_not_keep_a_member_that_leaves(trial):
    work = Work()
    app = trial.member(work=work, **SECTIONS)
    loop = asyncio.get_running_loop()
    async with trial.running(app) as (task,):
        await park_and_replay(trial, work, is_mended=False)
        asked_at_s = loop.time()
        app.stop()
        report = await task
    assert report.is_clean
    assert loop.time() - asked_at_s < 2
    assert await numbers(trial) == [1, 2]


async def test_a_replay_that_outlives_its_parking_queue_is_not_recorded_as_settled(trial):
    """It comes again: a record of its settlement would make that look like a breach."""
    work = Work()
    async with trial.running(trial.member(work=work, **SECTIONS)):
        await park_and_replay(trial, work, is_mended=True)
        handle = next(each for each in trial.sessions["member-0"]._handles if each.queue == PARKING)
        flow = handle.flow_id
        handle.end("Queue Shutdown")
        trial.broker.post(trial.broker.engine.unbind(flow))
        await trial.until(lambda: trial.sequences().get("k1") == [1, 1, 2])
    replays = [record for record in trial.records() if record["kind"] == "dispatch" and record["key"] == "k1"]
    ended = [(record["seq"], record["outcome"], record["t_settle"] is not None) for record in replays]
    assert ended == [(1, "accepted", False), (1, "accepted", True), (2, "accepted", True)]


async def test_a_parking_queue_whose_unbind_nobody_answers_is_no_clean_leave(trial, monkeypatch):
    """What was settled there may come again, as after an unanswered unbind of any flow."""
    unbind = MemoryFlow.unbind

    async def unanswered(flow):
        is_confirmed = await unbind(flow)
        return is_confirmed and flow.queue != PARKING

    monkeypatch.setattr(MemoryFlow, "unbind", unanswered)
    work = Work()
    app = trial.member(work=work, **SECTIONS)
    async with trial.running(app) as (task,):
        await park_and_replay(trial, work, is_mended=True)
        await trial.until(lambda: trial.sequences().get("k1") == [1, 2])
        app.stop()
        report = await task
    assert not report.is_clean
    ends = [each["event"] for each in trial.records() if each["kind"] == "flow" and each["queue"] == 1]
    assert ends[-1] == "down"
