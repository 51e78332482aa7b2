"""Whole members on a memory broker: a key whose message fails for good is parked, and comes back in order.

More than 400 lines, as its members and what they handle are shared by all of it.
"""

import asyncio

import pytest
from structlog.testing import capture_logs

from lbg_runtime.core.parking.records import (
    DropAsked,
    ParkedMessage,
    UnparkAsked,
    decode_entry,
    encode_entry,
    parking_queue,
)
from lbg_runtime.model.errors import ConfigError
from lbg_runtime.model.message import Message
from lbg_runtime.runtime.handlers.registry import Handlers
from lbg_runtime.transport.memory.flow import MemoryFlow
from lbg_runtime.transport.memory.transport import MemoryTransport
from lbg_runtime.validator.live import parse_note

PARK = {"failure": {"attempts": 2, "then": "park", "backoff": {"initial": "100ms", "maximum": "1s"}}}


class Poison:
    """A handler's work that refuses one message of one key until it is mended."""

    def __init__(self, key="k1", number=3):
        self.key, self.number = key, number
        self.attempts = 0

    async def __call__(self, message):
        await asyncio.sleep(0.01)
        if (message.key, message.key_sequence) == (self.key, self.number):
            self.attempts += 1
            raise ValueError("no")

    def mend(self):
        self.number = None


class Operator:
    """Reads parking queues and asks for things, as `lbg parked` does."""

    def __init__(self, trial):
        self.trial = trial

    async def read(self, index=1):
        """What lies in a parking queue, by browsing it."""
        session = MemoryTransport(self.trial.broker, "operator")
        await session.open()
        found = await session.browse(parking_queue("orders", index), 0)
        await session.close()
        return [decode_entry(message) for message in found]

    async def parked(self, index=1):
        return [entry for entry in await self.read(index) if isinstance(entry, ParkedMessage)]

    async def numbers(self, index=1):
        return [entry.original.key_sequence for entry in await self.parked(index)]

    async def say(self, entry, index=1):
        session = MemoryTransport(self.trial.broker, "operator-2")
        await session.open()
        await session.send(encode_entry(entry, parking_queue("orders", index)))
        await session.close()


@pytest.fixture
def operator(trial):
    return Operator(trial)


async def test_a_key_is_parked_in_order_and_the_others_go_on(trial, operator):
    poison = Poison()
    async with trial.running(trial.member(work=poison, **PARK)) as (task,):
        await trial.feed(40)
    assert task.result().is_clean
    assert trial.sequences()["k1"] == [1, 2]
    assert trial.sequences()["k0"] == list(range(1, 11))
    assert poison.attempts == 2
    first, *others = await operator.parked()
    assert [first.original.key_sequence, *(one.original.key_sequence for one in others)] == list(range(3, 11))
    assert (first.lane, first.attempts, first.error, first.member) == ("key k1", 2, "ValueError: no", "member-0")
    assert first.stack.endswith("__call__")
    assert (first.original.topic, first.original.payload) == ("h/1/orders/new", b"x")
    assert not any(name.startswith("lbg_parked") for name in first.original.properties)
    assert [(one.attempts, one.error) for one in others] == [(0, "")] * 7
    assert [one.number - first.owner.generation for one in (first, *others)] == list(range(1, 9))


async def test_an_unparked_key_is_replayed_before_anything_newer(trial, operator):
    poison = Poison()
    async with trial.running(trial.member(work=poison, **PARK)):
        await trial.feed(40)
        poison.mend()
        publishing = asyncio.ensure_future(trial.publish(40))
        await operator.say(UnparkAsked("key k1"))
        await publishing
        await trial.until(lambda: len(trial.sequences()["k1"]) == 20)
        assert await operator.parked() == []
        await trial.publish(4)
        await trial.until(lambda: len(trial.sequences()["k1"]) == 21)
        await trial.until(lambda: trial.group_depth() == 0)
    assert trial.sequences()["k1"] == list(range(1, 22))
    assert [each for each in await operator.read() if not isinstance(each, ParkedMessage)][1:] == []


async def test_the_note_about_a_replay_names_the_queue_of_its_key(trial, operator):
    poison, notes = Poison(), []
    listener = MemoryTransport(trial.broker, "listener")
    await listener.open()
    await listener.subscribe("live/>", lambda message: notes.append(parse_note(message.payload)))
    noted = {"ops": {"journal": {"republish_topic": "live/orders"}}}
    async with trial.running(trial.member(work=poison, **PARK, **noted)):
        await trial.feed(40)
        poison.mend()
        await operator.say(UnparkAsked("key k1"))
        await trial.until(lambda: len(notes) == 40)
    assert {note.queue for note in notes if note.key == "k1"} == {"orders/1"}


async def test_a_message_that_fails_again_when_it_is_replayed_stays_first_in_its_key(trial, operator):
    poison = Poison()
    async with trial.running(trial.member(work=poison, **PARK)):
        await trial.feed(20)
        with capture_logs() as logs:
            await operator.say(UnparkAsked("key k1"))
            await trial.until(lambda: poison.attempts == 4)
            await asyncio.sleep(5)
        assert [log["event"] for log in logs].count("replay_failed") == 1
        assert await operator.numbers() == [3, 4, 5]
        assert len(await operator.read()) == 4, "the fence, and no order that is done"
        await trial.publish(4)
        await trial.until(lambda: trial.group_depth() == 0)
        assert await operator.numbers() == [3, 4, 5, 6]
        poison.mend()
        await operator.say(UnparkAsked("key k1"))
        await trial.until(lambda: trial.sequences()["k1"] == list(range(1, 7)))
        await asyncio.sleep(1)
        assert await operator.numbers() == []


async def test_one_message_of_a_key_is_dropped_and_the_rest_replayed(trial, operator):
    async with trial.running(trial.member(work=Poison(), **PARK)):
        await trial.feed(20)
        first = (await operator.parked())[0]
        await operator.say(DropAsked("key k1", (first.owner, first.number)))
        await asyncio.sleep(1)
        assert await operator.numbers() == [4, 5]
        await operator.say(UnparkAsked("key k1"))
        await trial.until(lambda: trial.sequences()["k1"] == [1, 2, 4, 5])


async def test_a_key_of_which_all_is_dropped_is_handled_again(trial, operator):
    async with trial.running(trial.member(work=Poison(), **PARK)):
        await trial.feed(20)
        await operator.say(DropAsked("key k1"))
        await asyncio.sleep(1)
        assert len(await operator.read()) == 1
        await trial.publish(8)
        await trial.until(lambda: trial.sequences()["k1"] == [1, 2, 6, 7])


async def test_the_next_owner_knows_what_is_parked_before_it_handles_anything(trial, operator):
    poison = Poison()
    async with trial.running(trial.member(work=poison, **PARK)):
        await trial.feed(20)
    poison.mend()
    await trial.publish(20)
    async with trial.running(trial.member(work=poison, **PARK)):
        await trial.until(lambda: trial.group_depth() == 0)
        assert await operator.numbers() == list(range(3, 11))
        await operator.say(UnparkAsked("key k1"))
        await trial.until(lambda: trial.sequences()["k1"] == list(range(1, 11)))


async def test_an_order_to_unpark_waits_for_the_next_owner(trial, operator):
    poison = Poison()
    async with trial.running(trial.member(work=poison, **PARK)):
        await trial.feed(20)
    poison.mend()
    await operator.say(UnparkAsked("key k1"))
    await trial.publish(20)
    async with trial.running(trial.member(work=poison, **PARK)):
        await trial.until(lambda: len(trial.sequences()["k1"]) == 10)
    assert trial.sequences()["k1"] == list(range(1, 11))


async def test_a_parking_queue_without_its_subscription_keeps_the_queue_waiting_loudly(trial):
    for index in range(4):
        trial.broker.create_queue(f"orders/{index}", [f"h/{index}/>"])
        trial.broker.create_queue(parking_queue("orders", index), [])
    app = trial.member(work=Poison(), **PARK, group={"provision": "none"})
    with capture_logs() as logs:
        async with trial.running(app):
            await trial.until_fed()
            await trial.publish(8)
            await asyncio.sleep(15)
            assert trial.handled == []
            for index in range(4):
                queue = parking_queue("orders", index)
                trial.broker.engine.add_queue_subscription("default", queue, queue)
            trial.sessions["member-0"].drop_connection(1)
            await trial.until(lambda: trial.group_depth() == 0)
    assert [log["event"] for log in logs].count("parking_queue_silent") == 4


async def test_a_missing_parking_queue_stops_the_start(trial):
    for index in range(4):
        trial.broker.create_queue(f"orders/{index}", [])
    with pytest.raises(ConfigError) as caught:
        await trial.member(work=Poison(), **PARK, group={"provision": "none"}).run()
    assert str(caught.value) == (
        "then: park: lbg-parked/orders/0: Unknown Queue; "
        "expected a queue that may be bound, subscribed to lbg-parked/orders/0; "
        "`lbg group apply` makes it, where it can import these handlers"
    )


async def test_outages_lose_and_reorder_nothing(trial, operator):
    poison = Poison()
    app = trial.member(work=poison, **PARK)
    async with trial.running(app):
        await trial.until_fed()
        publishing = asyncio.ensure_future(trial.publish(160))
        for _ in range(6):
            await asyncio.sleep(0.05)
            trial.sessions["member-0"].drop_connection(2)
            await asyncio.sleep(3)
        await publishing
        await trial.until(lambda: trial.group_depth() == 0)
        assert await operator.numbers() == list(range(3, 41))
        poison.mend()
        await operator.say(UnparkAsked("key k1"))
        for _ in range(4):
            await asyncio.sleep(0.05)
            trial.sessions["member-0"].drop_connection(2)
            await asyncio.sleep(3)
        await trial.until(lambda: set(trial.sequences()["k1"]) == set(range(1, 41)))
    numbers = trial.sequences()["k1"]
    assert [n for at, n in enumerate(numbers) if n not in numbers[:at]] == list(range(1, 41))


async def test_a_queue_is_given_up_after_its_parking_queue_which_the_next_owner_finds_free(
    trial, operator, monkeypatch
):
    unbind, given_up = MemoryFlow.unbind, []
    poison, replaying = Poison(), asyncio.Event()

    async def note(flow):
        given_up.append(flow.queue)
        return await unbind(flow)

    async def work(message):
        await poison(message)
        if poison.number is None:
            replaying.set()
            await asyncio.sleep(1)

    monkeypatch.setattr(MemoryFlow, "unbind", note)
    async with trial.running(trial.member(work=work, **PARK)):
        await trial.feed(20)
        poison.mend()
        await operator.say(UnparkAsked("key k1"))
        await replaying.wait()
    assert given_up.index("lbg-parked/orders/1") < given_up.index("orders/1")


async def test_the_parking_queue_lost_alone_gives_the_queue_up_and_takes_it_again(trial, operator):
    poison = Poison()
    async with trial.running(trial.member(work=poison, **PARK)):
        await trial.feed(20)
        session = trial.sessions["member-0"]
        handle = next(each for each in session._handles if each.queue == "lbg-parked/orders/1")
        flow = handle.flow_id
        handle.end("Queue Shutdown")
        trial.broker.post(trial.broker.engine.unbind(flow))
        await asyncio.sleep(1)
        await trial.publish(20)
        await trial.until(lambda: trial.group_depth() == 0)
        assert await operator.numbers() == list(range(3, 11))
    assert trial.sequences()["k0"] == list(range(1, 11))


async def test_a_full_parking_queue_keeps_what_follows_on_its_queue(trial, operator, monkeypatch):
    monkeypatch.setattr("lbg_runtime.runtime.parking.stay.MAX_PARKED", 2)
    poison = Poison()
    with capture_logs() as logs:
        async with trial.running(trial.member(work=poison, **PARK)):
            await trial.until_fed()
            await trial.publish(40)
            await trial.until(lambda: len(trial.handled) == 32)
            await asyncio.sleep(30)
            assert await operator.numbers() == [3, 4]
            assert trial.depths() == [0, 6, 0, 0]
            poison.mend()
            await operator.say(UnparkAsked("key k1"))
            await trial.until(lambda: trial.sequences()["k1"] == list(range(1, 11)))
    assert any(log["event"] == "move_failed" and "all that it takes" in log["reason"] for log in logs)


async def test_a_message_that_nobody_can_read_stays_in_the_parking_queue_and_stops_nothing(trial, operator):
    poison = Poison()
    with capture_logs() as logs:
        async with trial.running(trial.member(work=poison, **PARK)):
            await trial.until_fed()
            session = MemoryTransport(trial.broker, "stranger")
            await session.open()
            await session.send(Message(parking_queue("orders", 1), b"what is this"))
            await session.close()
            await trial.publish(20)
            await trial.until(lambda: trial.group_depth() == 0)
            poison.mend()
            await operator.say(UnparkAsked("key k1"))
            await trial.until(lambda: trial.sequences()["k1"] == [1, 2, 3, 4, 5])
    assert [log["event"] for log in logs].count("parking_entry_kept") == 1
    assert trial.broker.engine.queue_depth("default", parking_queue("orders", 1)) == 2


async def test_a_replay_ends_on_the_error_queue_where_the_settings_say_so_by_then(trial, operator):
    poison = Poison()
    async with trial.running(trial.member(work=poison, **PARK)):
        await trial.feed(20)

    async def handle_others(message): ...

    moves = {"failure": {**PARK["failure"], "then": "error_queue"}}
    parks = Handlers()
    parks.handler("others/>", then="park")(handle_others)
    async with trial.running(trial.member(work=poison, hooks=parks, **moves)):
        await operator.say(UnparkAsked("key k1"))
        await trial.until(lambda: trial.sequences()["k1"] == [1, 2, 4, 5])
    assert trial.broker.engine.queue_depth("default", "lbg-errors/orders") == 1


async def test_a_replay_that_fails_stays_parked_and_the_log_says_so_where_the_settings_stop(trial, operator):
    poison = Poison()
    async with trial.running(trial.member(work=poison, **PARK)):
        await trial.feed(20)

    async def handle_others(message): ...

    stops = {"failure": {**PARK["failure"], "then": "stop"}}
    parks = Handlers()
    parks.handler("others/>", then="park")(handle_others)
    with capture_logs() as logs:
        async with trial.running(trial.member(work=poison, hooks=parks, **stops)):
            await operator.say(UnparkAsked("key k1"))
            await trial.until(lambda: poison.attempts == 4)
            await asyncio.sleep(5)
            assert await operator.numbers() == [3, 4, 5]
    follows = [line.get("then") for line in logs if line["event"] == "handling_failed"]
    assert follows == [None, "park"]
    assert "queue_stopped" not in [line["event"] for line in logs]


async def test_the_figures_say_what_is_parked(trial):
    app = trial.member(work=Poison(), **PARK)
    async with trial.running(app):
        await trial.feed(40)
        sight = app._supervisor.status()
        parked = sight.reading().parking
        assert (parked.keys, parked.messages, parked.parked_total) == (1, 8, 8)
        assert [sight.key(key).sight.parked for key in ("k0", "k1", "k5")] == [0, 8, 0]


async def test_members_of_which_only_one_parks_do_not_go_together(trial):
    async with trial.running(trial.discovered("m1", work=Poison(), **PARK)):
        await trial.until_fed()
        with pytest.raises(ConfigError, match=r"failure.then, or `then` of a handler: .* expected park, as member m1"):
            await trial.discovered("m2", work=Poison()).run()


async def test_a_replay_that_outlives_the_handle_of_its_queue_holds_the_next_one_up_no_longer_than_it_runs(
    trial, operator
):
    poison, replaying = Poison(), asyncio.Event()

    async def work(message):
        await poison(message)
        if message.key == "k1" and poison.number is None:
            replaying.set()
            await asyncio.sleep(5)

    async with trial.running(trial.member(work=work, **PARK)):
        await trial.feed(16)
        poison.mend()
        await operator.say(UnparkAsked("key k1"))
        await replaying.wait()
        handle = next(each for each in trial.sessions["member-0"]._handles if each.queue == "orders/1")
        flow = handle.flow_id
        handle.end("Queue Shutdown")
        trial.broker.post(trial.broker.engine.unbind(flow))
        began = asyncio.get_running_loop().time()
        await trial.publish(4)
        await trial.until(lambda: trial.sequences()["k0"] == [1, 2, 3, 4, 5])
        await trial.until(lambda: trial.group_depth() == 0 and trial.sequences()["k1"][-1] == 5)
        assert asyncio.get_running_loop().time() - began < 25
    numbers = trial.sequences()["k1"]
    assert [n for at, n in enumerate(numbers) if n not in numbers[:at]] == [1, 2, 3, 4, 5]
