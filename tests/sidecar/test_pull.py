"""An application that pulls: streams, settling, and everything that may become of a stream.

More than 400 lines, as streams, turns and settlements are tested on the same rig.
"""

import asyncio
import contextlib
import gc
import json
import weakref

import pytest
from structlog.testing import capture_logs

from lbg_runtime.broker.engine.engine import DEFAULT_VPN
from lbg_runtime.model.errors import ConfigError
from lbg_runtime.model.ids import QueueName
from lbg_runtime.runtime.runners.handling import GivenBack
from lbg_runtime.sidecar.answer import Answer, Status
from lbg_runtime.sidecar.application import ApplicationFailed
from lbg_runtime.sidecar.gate import GRACE_S
from lbg_runtime.sidecar.pull import PulledEvents
from tests.sidecar.conftest import SidecarTrial
from tests.sidecar.events import Attempts, attempted, make_event, make_gate

SUCCESS = Answer(Status.SUCCESS)


class Puller:
    """Reads a stream of a member's sidecar as the route does, in this process."""

    def __init__(self, app, capacity=16):
        self.sidecar = app._companion
        self.pulled = self.sidecar._receiver
        self.got = []
        self._stream = self.pulled.stream(capacity)
        self._task = asyncio.ensure_future(self._read())

    async def _read(self):
        async for line in self._stream:
            if line.strip():
                self.got.append(json.loads(line))

    def settle(self, event, status=Status.SUCCESS):
        return self.pulled.settle([(event["id"], Answer(status, "said so"))])

    async def gone(self):
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        await self._stream.aclose()

    @property
    def is_ended(self):
        return self._task.done() and not self._task.cancelled()


@pytest.fixture
def pulling(trial: SidecarTrial):
    """Makes a member for an application that pulls, without a port; wait for its receiver with `begun`."""

    def make(**sections):
        # The port is not opened: `listen` is needed for the setting to make sense, and served by nobody here.
        app = trial.app(None, sidecar={"listen": "127.0.0.1:0"}, **sections)

        async def serve_nothing(*_):
            pass

        app._companion._serve = serve_nothing
        return app

    return make


async def begun(trial, app):
    await trial.until(lambda: app._companion._receiver is not None)


@contextlib.asynccontextmanager
async def begun_member(trial, app):
    async with trial.running(app):
        await begun(trial, app)
        yield app


@contextlib.asynccontextmanager
async def pulled_from(trial, app):
    """A puller of a member that has all queues, and the future of how the member left."""
    async with trial.running(app) as left:
        await begun(trial, app)
        puller = Puller(app)
        await trial.until(lambda: trial.owners() == 2)
        yield puller, left


async def opened(pulled, capacity):
    """A stream whose reader waits, and its first line."""
    stream = pulled.stream(capacity)
    reading = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    return stream, reading


def described(event):
    return event["metadata"]["lbg-key"], int(event["metadata"]["lbg-fencing-token"])


async def test_a_member_takes_no_queue_before_somebody_pulls(trial, pulling):
    async with begun_member(trial, pulling()) as app:
        await asyncio.sleep(60)
        assert trial.owners() == 0
        Puller(app)
        await trial.until(lambda: trial.owners() == 2)


async def test_a_queue_that_went_while_nobody_pulled_is_made_again(trial, pulling):
    async with begun_member(trial, pulling()) as app:
        await asyncio.sleep(3_600)
        trial.broker.delete_queue("orders/0")
        Puller(app)
        await trial.until(lambda: trial.owners() == 2)


@pytest.mark.parametrize(("queue", "found"), [("orders/1", "but no orders/1"), ("orders/2", "a queue orders/2")])
async def test_a_member_whose_group_has_another_number_of_queues_by_the_time_somebody_pulls_makes_none(
    trial, pulling, queue, found
):
    """It may have been re-striped meanwhile."""
    app = pulling()
    member = asyncio.ensure_future(app.run())
    await begun(trial, app)
    if queue == "orders/1":
        trial.broker.delete_queue(queue)
    else:
        trial.broker.create_queue(queue)
    queues = trial.broker.engine.queue_names(DEFAULT_VPN)
    Puller(app)
    with pytest.raises(ConfigError, match=rf"group\.queue_count: 2, and there is .*{found}"):
        await member
    assert trial.broker.engine.queue_names(DEFAULT_VPN) == queues


async def test_the_next_event_of_a_key_comes_when_the_one_before_is_settled(trial, pulling):
    async with pulled_from(trial, pulling()) as (puller, left):
        await trial.publish(20)
        for _ in range(5):
            await trial.until(lambda: len(puller.got) >= 4)
            await asyncio.sleep(5)
            assert len(puller.got) == 4
            batch, puller.got = puller.got, []
            assert len({described(event)[0] for event in batch}) == 4
            for event in batch:
                assert puller.settle(event) == []
        await trial.until(lambda: sum(trial.depths()) == 0)
    assert left.result().is_clean
    assert puller.is_ended


async def test_no_stream_has_more_than_it_asked_for(trial, pulling):
    async with begun_member(trial, pulling()) as app:
        small, large = Puller(app, 1), Puller(app, 2)
        await trial.until(lambda: trial.owners() == 2)
        await trial.publish(10, keys=10)
        handled = 0
        while handled < 10:
            await trial.until(lambda: small.got or large.got)
            assert len(small.got) <= 1
            assert len(large.got) <= 2
            for puller in (small, large):
                while puller.got:
                    assert puller.settle(puller.got.pop()) == []
                    handled += 1
        await trial.until(lambda: sum(trial.depths()) == 0)


async def test_what_is_open_on_a_stream_that_breaks_comes_again_on_another(trial, pulling):
    app = pulling()
    async with pulled_from(trial, app) as (first, _):
        await trial.publish(8)
        await trial.until(lambda: len(first.got) == 4)
        with capture_logs() as log:
            await first.gone()
            second = Puller(app)
            # At once, not when they would have been late.
            await trial.until(lambda: len(second.got) == 4, within_s=1)
        assert [entry["unsettled"] for entry in log if entry["event"] == "pull_ended"] == [4]
        assert sorted(map(described, second.got)) == sorted(map(described, first.got))
        assert {event["metadata"]["lbg-attempt"] for event in second.got} == {"2"}
        late = [first.settle(event) for event in first.got]
        assert late == [[event["id"]] for event in first.got]
        for event in second.got:
            second.settle(event)
        await trial.until(lambda: len(second.got) == 8)
        assert [described(event)[1] for event in second.got[4:]] == [2] * 4
        for event in second.got[4:]:
            second.settle(event)
        await trial.until(lambda: sum(trial.depths()) == 0)


async def test_without_a_stream_nothing_is_tried(trial, pulling):
    app = pulling()
    async with pulled_from(trial, app) as (first, _):
        await first.gone()
        with capture_logs() as log:
            await trial.publish(4)
            await asyncio.sleep(3_600)
        assert not [entry for entry in log if entry["event"] == "handling_failed"]
        second = Puller(app)
        await trial.until(lambda: len(second.got) == 4)
        assert {event["metadata"]["lbg-attempt"] for event in second.got} == {"1"}
        for event in second.got:
            second.settle(event)
        await trial.until(lambda: sum(trial.depths()) == 0)


async def test_what_is_not_settled_in_time_is_tried_again_and_the_late_word_is_refused(trial, pulling):
    async with pulled_from(trial, pulling()) as (puller, _):
        await trial.publish(1)
        with capture_logs() as log:
            await trial.until(lambda: len(puller.got) == 2)
        [line] = [entry for entry in log if entry["event"] == "handling_failed"]
        assert line["reason"].endswith("not settled within 10000 ms")
        first, second = puller.got
        assert described(first) == described(second)
        assert puller.settle(first) == [first["id"]]
        assert puller.settle(second) == []
        assert puller.settle(second) == [second["id"]]
        await trial.until(lambda: sum(trial.depths()) == 0)


async def test_retry_and_drop_are_followed(trial, pulling):
    async with pulled_from(trial, pulling()) as (puller, _):
        await trial.publish(1)
        await trial.until(lambda: len(puller.got) == 1)
        puller.settle(puller.got[0], Status.RETRY)
        await trial.until(lambda: len(puller.got) == 2)
        with capture_logs() as log:
            puller.settle(puller.got[1], Status.DROP)
            await trial.until(lambda: sum(trial.depths()) == 0)
        assert [entry["reason"] for entry in log if entry["event"] == "event_dropped"] == ["said so"]


async def test_a_quiet_stream_shows_that_it_lives(trial, pulling):
    async with begun_member(trial, pulling()) as app:
        stream = app._companion._receiver.stream(1)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        assert await anext(stream) == b"\n"
        assert loop.time() - began_s == pytest.approx(10, abs=0.1)
        await stream.aclose()


async def test_json_on_several_lines_stays_on_one(trial, pulling):
    async with pulled_from(trial, pulling()) as (puller, _):
        await trial.publish(1, payload=b'{\r\n "a": "b\\nc"\n}')
        await trial.until(lambda: len(puller.got) == 1)
        assert puller.got[0]["event"]["data"] == {"a": "b\nc"}
        puller.settle(puller.got[0])
        await trial.until(lambda: sum(trial.depths()) == 0)


async def test_a_member_that_leaves_waits_for_what_is_open(trial, pulling):
    app = pulling()
    async with pulled_from(trial, app) as (puller, left):
        await trial.publish(4)
        await trial.until(lambda: len(puller.got) == 4)
        app.stop()
        await asyncio.sleep(5)
        for event in puller.got:
            assert puller.settle(event) == []
        assert (await left).is_clean
    assert sum(trial.depths()) == 0


async def test_a_reader_that_stands_still_is_not_sent_what_was_taken_back(trial, pulling):
    app = pulling(failure={"timeout": "10s", "backoff": {"initial": "10ms", "maximum": "100ms"}})
    async with trial.running(app):
        await begun(trial, app)
        pulled = app._companion._receiver
        stream = pulled.stream(2)
        reading = asyncio.ensure_future(anext(stream))
        await trial.until(lambda: trial.owners() == 2)
        await trial.publish(2)
        first = json.loads(await reading)
        # For many attempts of both events nobody reads.
        await asyncio.sleep(300)
        assert len(pulled._outboxes[1]._lines) <= 2
        puller = Puller(app)
        await stream.aclose()
        await trial.until(lambda: len(puller.got) == 2)
        assert first["id"] not in {event["id"] for event in puller.got}
        for event in puller.got:
            assert puller.settle(event) == []
        await trial.until(lambda: sum(trial.depths()) == 0)


async def test_a_turn_that_nobody_takes_any_more_is_the_next_ones():
    pulled = PulledEvents(10_000, make_gate())
    first, second = (asyncio.ensure_future(pulled.deliver(make_event(key=key))) for key in "ab")
    await asyncio.sleep(0.1)
    stream, reading = await opened(pulled, 1)
    # It has its turn by now, and has not come to take it.
    first.cancel()
    event = json.loads(await asyncio.wait_for(reading, 1))
    assert event["metadata"]["lbg-key"] == "b"
    pulled.settle([(event["id"], SUCCESS)])
    assert await second == SUCCESS
    await stream.aclose()


async def test_the_application_is_there_until_its_last_stream_ends():
    gate = make_gate()
    pulled = PulledEvents(10_000, gate)
    streams = [pulled.stream(1) for _ in range(2)]
    readings = [asyncio.ensure_future(anext(stream)) for stream in streams]
    await asyncio.sleep(0)
    seen = [gate.is_open]
    for reading in readings:
        reading.cancel()
        await asyncio.wait([reading])
        seen.append(gate.is_open)
    assert seen == [True, True, False]


async def test_a_stream_that_is_opened_after_the_end_ends_and_takes_no_event_that_waits_for_room():
    pulled = PulledEvents(10_000, make_gate())
    streams = [pulled.stream(1) for _ in range(2)]
    reading = asyncio.ensure_future(anext(streams[0]))
    events = [asyncio.ensure_future(pulled.deliver(make_event(key=key))) for key in "ab"]
    await reading
    pulled.close()
    assert [line async for line in streams[1]] == []
    done, waiting = await asyncio.wait(events, timeout=1)
    assert (done, len(waiting)) == (set(), 2)
    for event in events:
        event.cancel()
    await asyncio.wait(events)
    await streams[0].aclose()


async def test_the_end_of_the_sidecar_ends_a_quiet_stream_at_once():
    pulled = PulledEvents(10_000, make_gate())
    stream = pulled.stream(1)
    reading = asyncio.ensure_future(anext(stream, None))
    await asyncio.sleep(0.1)
    pulled.close()
    assert await asyncio.wait_for(reading, 0.1) is None


async def test_events_that_came_while_nobody_pulled_are_given_in_their_order():
    pulled = PulledEvents(10_000, make_gate())
    events = [asyncio.ensure_future(pulled.deliver(make_event(key=key))) for key in "abcdefgh"]
    await asyncio.sleep(0.1)
    stream = pulled.stream(1)
    keys = ""
    while len(keys) < len(events):
        told = json.loads(await anext(stream))
        keys += told["metadata"]["lbg-key"]
        pulled.settle([(told["id"], SUCCESS)])
    assert keys == "abcdefgh"
    assert await asyncio.gather(*events) == [SUCCESS] * 8
    await stream.aclose()


async def test_who_has_waited_for_room_is_before_whoever_comes_just_when_there_is_some():
    """The next event of a runner that has just been told its answer took the room, until there was none of its own."""
    pulled, taken = PulledEvents(10_000, make_gate()), []

    async def take_turns(key):
        for _ in range(3):
            await pulled.deliver(make_event(key=key))
            taken.append(key)

    async def settle_all():
        async with contextlib.aclosing(pulled.stream(1)) as lines:
            async for line in lines:
                pulled.settle([(json.loads(line)["id"], SUCCESS)])

    settling = asyncio.ensure_future(settle_all())
    await asyncio.gather(*map(take_turns, "ab"))
    assert taken == ["a", "b"] * 3
    settling.cancel()
    await asyncio.wait([settling])


async def test_nothing_is_kept_of_an_event_that_is_settled():
    class WatchedAnswer(Answer):
        """One whose end can be seen."""

    pulled = PulledEvents(10_000, make_gate())
    stream, reading = await opened(pulled, 1)
    delivering = asyncio.ensure_future(pulled.deliver(make_event()))
    event_id = json.loads(await reading)["id"]
    answer = WatchedAnswer(Status.SUCCESS)
    seen = weakref.ref(answer)
    pulled.settle([(event_id, answer)])
    del answer
    assert await delivering is seen()
    del delivering
    # The loop itself holds it during this turn.
    await asyncio.sleep(0)
    assert seen() is None
    await stream.aclose()


async def test_nothing_is_kept_of_an_event_that_goes_back_while_nobody_pulls():
    gate = make_gate()
    pulled, event = PulledEvents(10_000, gate), make_event()
    gate.flow_changed(event.queue, event.epoch, is_kept=False)
    delivering = asyncio.ensure_future(pulled.deliver(event))
    await asyncio.wait([delivering])
    seen = weakref.ref(delivering.exception())
    assert isinstance(seen(), GivenBack)
    del delivering
    # Its traceback leads back to it.
    gc.collect()
    assert seen() is None


async def test_an_event_that_is_given_back_in_the_moment_a_stream_begins_leaves_the_room_to_the_next():
    gate, loop = make_gate(), asyncio.get_running_loop()
    pulled, event = PulledEvents(10_000, gate), make_event()
    first = asyncio.ensure_future(pulled.deliver(event))
    second = asyncio.ensure_future(pulled.deliver(make_event(key="b", queue=QueueName("orders/0"))))
    await asyncio.sleep(0.1)
    stream = pulled.stream(1)
    # Before the end of the grace, and with it in one turn of the loop.
    begun = loop.create_future()
    loop.call_at(loop.time() + GRACE_S, lambda: begun.set_result(asyncio.ensure_future(anext(stream))))
    gate.flow_changed(event.queue, event.epoch, is_kept=False)
    with pytest.raises(GivenBack):
        await first
    event_id = json.loads(await asyncio.wait_for(await begun, 1))["id"]
    pulled.settle([(event_id, SUCCESS)])
    assert await second == SUCCESS
    await stream.aclose()


async def test_a_settlement_of_a_former_life_settles_nothing_of_this_one():
    lives = [PulledEvents(10_000, make_gate()) for _ in range(2)]
    streams = [pulled.stream(1) for pulled in lives]
    readings = [asyncio.ensure_future(anext(stream)) for stream in streams]
    await asyncio.sleep(0)
    open_events = [asyncio.ensure_future(pulled.deliver(make_event())) for pulled in lives]
    former, current = [json.loads(await reading)["id"] for reading in readings]
    assert lives[1].settle([(former, SUCCESS)]) == [former]
    assert lives[1].settle([(current, SUCCESS)]) == []
    assert lives[0].settle([(former, SUCCESS)]) == []
    assert [await each for each in open_events] == [SUCCESS, SUCCESS]
    for stream in streams:
        await stream.aclose()


async def test_an_event_that_is_settled_in_the_moment_its_time_ends_is_what_the_application_was_told():
    """It had been told that it was settled, and got the event again."""
    pulled = PulledEvents(10_000, make_gate())
    stream, reading = await opened(pulled, 1)
    given, late = [], []
    loop = asyncio.get_running_loop()
    # In the same turn of the loop as the time-out, and before it.
    loop.call_at(loop.time() + 10, lambda: late.extend(pulled.settle([(given[0], SUCCESS)])))
    delivering = asyncio.ensure_future(pulled.deliver(make_event()))
    given.append(json.loads(await reading)["id"])
    assert await delivering == SUCCESS
    assert late == []
    await stream.aclose()


async def test_of_two_settlements_of_an_event_the_first_counts():
    pulled = PulledEvents(10_000, make_gate())
    stream, reading = await opened(pulled, 1)
    delivering = asyncio.ensure_future(pulled.deliver(make_event()))
    event_id = json.loads(await reading)["id"]
    assert pulled.settle([(event_id, SUCCESS), (event_id, Answer(Status.DROP))]) == [event_id]
    assert await delivering == SUCCESS
    await stream.aclose()


async def test_what_is_settled_just_before_its_stream_ends_is_settled_and_the_rest_fails():
    pulled = PulledEvents(10_000, make_gate())
    stream, reading = await opened(pulled, 2)
    settled, lost = (asyncio.ensure_future(pulled.deliver(make_event(key=key))) for key in "ab")
    event_id = json.loads(await reading)["id"]
    await anext(stream)
    assert pulled.settle([(event_id, SUCCESS)]) == []
    await stream.aclose()
    assert await settled == SUCCESS
    with pytest.raises(ApplicationFailed, match="its stream ended"):
        await lost


async def test_an_event_that_no_line_can_be_made_of_gives_its_place_on_the_stream_back():
    """The place was lost, so that a stream was given nothing more after as many such events as it asked for."""
    pulled = PulledEvents(10_000, make_gate())
    stream, reading = await opened(pulled, 1)
    with pytest.raises(TypeError):
        await pulled.deliver(make_event(properties={"ce_half": "\ud800"}))
    second = asyncio.ensure_future(pulled.deliver(make_event()))
    event = json.loads(await asyncio.wait_for(reading, 1))
    pulled.settle([(event["id"], SUCCESS)])
    assert await second == SUCCESS
    await stream.aclose()


async def test_what_waits_for_room_can_be_cancelled_together_with_what_is_open():
    pulled = PulledEvents(10_000, make_gate())
    stream, reading = await opened(pulled, 1)
    events = [asyncio.ensure_future(pulled.deliver(make_event(key=key))) for key in "abcd"]
    await reading
    for event in events:
        event.cancel()
    await asyncio.wait(events)
    assert [event.cancelled() for event in events] == [True] * 4
    await stream.aclose()


async def test_a_client_that_is_frozen_does_not_keep_events_from_another_one(trial, pulling):
    async with begun_member(trial, pulling()) as app:
        frozen, healthy = Puller(app, 100), Puller(app, 20)
        await trial.until(lambda: trial.owners() == 2)
        done = []
        await trial.publish(40, keys=20)

        def work():
            while healthy.got:
                done.append(healthy.got.pop(0))
                healthy.settle(done[-1])
            return sum(trial.depths()) == 0

        # One time-out for what it took before it was found out, and not one for each event.
        await trial.until(work, within_s=15)
        assert len(done) == 40
        taken = len(frozen.got)
        assert taken >= 20
        await trial.publish(20, keys=20)
        await trial.until(work, within_s=1)
        assert len(frozen.got) == taken


async def test_what_waits_for_room_when_its_flow_is_lost_is_not_given_out(trial, pulling):
    """Others may be further on with its key by the time there is room."""
    async with begun_member(trial, pulling()) as app:
        puller = Puller(app, 1)
        await trial.until(lambda: trial.owners() == 2)
        await trial.publish(2, keys=2)
        await trial.until(lambda: len(puller.got) == 1)
        app._session.drop_connection(2)
        await asyncio.sleep(5)
        puller.settle(puller.got[0])
        await trial.until(lambda: len(puller.got) == 2)
        puller.settle(puller.got[1])
        assert puller.got[0]["metadata"]["lbg-epoch"] == "1"
        assert puller.got[1]["metadata"]["lbg-epoch"] != "1"


async def test_what_nobody_has_read_when_its_flow_is_lost_is_not_sent(trial, pulling):
    """Others may be further on with its key by the time the application reads on: large events lie there for long."""
    async with begun_member(trial, pulling()) as app:
        stream = app._companion._receiver.stream(2)
        reading = asyncio.ensure_future(anext(stream))
        await trial.until(lambda: trial.owners() == 2)
        await trial.publish(2, keys=2)
        await reading
        app._session.drop_connection(2)
        await asyncio.sleep(5)
        assert json.loads(await anext(stream))["metadata"]["lbg-epoch"] != "1"
        await stream.aclose()


async def test_the_attempt_of_an_event_begins_when_its_line_is_sent_and_without_it_no_line_is():
    """What was written down before the process was stopped may be another member's by now."""
    gate = make_gate()
    pulled = PulledEvents(60_000, gate)
    stream, reading = await opened(pulled, 3)
    first, late, next_one = Attempts(), Attempts(is_theirs=True), Attempts()
    handlings = [attempted(first, pulled.deliver(make_event(key="a")))]
    await reading
    assert first.said == ["put off", "begun"]
    handlings += [attempted(each, pulled.deliver(make_event(key=key))) for each, key in ((late, "b"), (next_one, "c"))]
    await asyncio.sleep(0.1)
    assert next_one.said == ["put off"]
    assert json.loads(await anext(stream))["metadata"]["lbg-key"] == "c"
    assert next_one.said == ["put off", "begun"]
    for each in handlings:
        each.cancel()
    await asyncio.wait(handlings)
    await stream.aclose()
    gate.end()
