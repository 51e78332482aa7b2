"""The sender of one subscription's bulks, alone: events that are taken back, and the wait for others."""

import asyncio
import json
import weakref
from contextlib import asynccontextmanager

import pytest

from lbg_runtime.model.ids import QueueName
from lbg_runtime.runtime.runners.batch_turns import BatchTurns
from lbg_runtime.sidecar.answer import Status
from lbg_runtime.sidecar.application import ApplicationFailed, ApplicationUnreachable, NotSent, Response
from lbg_runtime.sidecar.bulk_sender import BulkSender
from lbg_runtime.sidecar.subscriptions import Bulk, Subscription
from tests.sidecar.events import Attempts, attempted, make_event, make_gate


class Slow:
    """Answers when the test lets it."""

    def __init__(self):
        self.bulks = []
        self.may_answer = asyncio.Event()

    async def post(self, route, headers, body, may_send):
        ids = [entry["entryId"] for entry in json.loads(body)["entries"]]
        self.bulks.append(ids)
        await self.may_answer.wait()
        statuses = [{"entryId": entry_id, "status": "SUCCESS"} for entry_id in ids]
        return Response(200, "application/json", json.dumps({"statuses": statuses}).encode())


@asynccontextmanager
async def sending_to(application, turns=None, before_send=lambda: None, gate=None):
    tasks = set()

    def spawn(coroutine):
        before_send()
        task = asyncio.ensure_future(coroutine)
        tasks.add(task)
        return task

    bulk = Bulk(max_count=3, max_wait_ms=1_000)
    gate = gate or make_gate()
    gate.open()
    yield BulkSender(application, Subscription("a", "/a", bulk=bulk), bulk, spawn, gate, turns or BatchTurns(1))
    await asyncio.gather(*tasks)


@pytest.fixture
async def rig():
    application = Slow()
    async with sending_to(application) as sender:
        yield application, sender


def start(sender, *keys):
    return [asyncio.ensure_future(sender.deliver(make_event(key=key))) for key in keys]


async def test_an_event_that_is_taken_back_under_way_harms_no_other(rig):
    application, sender = rig
    first, second, third = start(sender, "a", "b", "c")
    await asyncio.sleep(0.1)
    second.cancel()
    await asyncio.wait([second])
    application.may_answer.set()
    assert [(await each).status for each in (first, third)] == [Status.SUCCESS, Status.SUCCESS]
    assert application.bulks == [["1", "2", "3"]]


class WatchedProperties(dict):
    """Of a message whose end can be seen."""


async def test_nothing_is_kept_of_an_event_that_is_answered(rig):
    application, sender = rig
    application.may_answer.set()
    properties = WatchedProperties()
    seen = weakref.ref(properties)
    delivering = asyncio.ensure_future(sender.deliver(make_event(properties=properties)))
    del properties
    await delivering
    del delivering
    # The loop itself holds them during these turns.
    await asyncio.sleep(1)
    assert seen() is None


async def test_an_event_that_is_taken_back_before_it_is_sent_is_not_sent(rig):
    application, sender = rig
    start(sender, "a")
    await asyncio.sleep(0.1)
    waiting, other = start(sender, "b", "c")
    await asyncio.sleep(0.1)
    waiting.cancel()
    application.may_answer.set()
    await other
    assert application.bulks == [["1"], ["3"]]


async def test_an_event_that_is_taken_back_as_its_bulk_falls_due_is_not_sent(rig):
    """Its application would still be at work on it when it comes again."""
    application, sender = rig
    waiting, other = start(sender, "a", "b")
    await asyncio.sleep(0)
    waiting.cancel()
    application.may_answer.set()
    await other
    assert application.bulks == [["2"]]


async def test_nor_is_one_that_is_taken_back_when_its_bulk_is_made_and_has_not_left():
    application, waiting = Slow(), []
    application.may_answer.set()

    def take_back():
        waiting[0].cancel()

    async with sending_to(application, before_send=take_back) as sender:
        waiting += start(sender, "a", "b")
        await waiting[1]
    assert application.bulks == [["2"]]


class Connecting(Slow):
    """Sends only when there is a connection, and so may not send at all."""

    def __init__(self):
        super().__init__()
        self.is_connected = asyncio.Event()

    async def post(self, route, headers, body, may_send):
        await self.is_connected.wait()
        if not may_send():
            raise NotSent
        return await super().post(route, headers, body, may_send)


async def test_nor_is_one_that_is_taken_back_while_its_bulk_waits_for_a_connection():
    application = Connecting()
    application.may_answer.set()
    async with sending_to(application) as sender:
        first, second, third = start(sender, "a", "b", "c")
        await asyncio.sleep(0.1)
        second.cancel()
        application.is_connected.set()
        await asyncio.gather(first, third)
    assert application.bulks == [["1", "3"]]


async def test_a_bulk_of_which_all_is_taken_back_while_it_waits_for_a_connection_is_not_sent():
    application = Connecting()
    application.may_answer.set()
    async with sending_to(application) as sender:
        gone = start(sender, "a", "b")
        await asyncio.sleep(1.1)
        for each in gone:
            each.cancel()
        application.is_connected.set()
        await asyncio.gather(*start(sender, "c"))
    assert application.bulks == [["3"]]


async def test_the_attempt_of_an_event_begins_when_its_bulk_is_sent_and_without_it_it_is_left_out(rig):
    """What waits for a bulk when the process is stopped may be another member's by now."""
    application, sender = rig
    start(sender, "a")
    await asyncio.sleep(0.1)
    late, next_one = Attempts(is_theirs=True), Attempts()
    waiting = [attempted(each, sender.deliver(make_event())) for each in (late, next_one)]
    await asyncio.sleep(0.1)
    assert next_one.said == ["put off"]
    application.may_answer.set()
    await waiting[1]
    assert next_one.said == ["put off", "begun"]
    assert application.bulks == [["1"], ["3"]]
    waiting[0].cancel()
    await asyncio.wait(waiting)


async def test_an_event_waits_for_others_no_longer_than_it_may(rig):
    application, sender = rig
    loop = asyncio.get_running_loop()
    start(sender, "a")
    await asyncio.sleep(0.1)
    start(sender, "b")
    began_s = loop.time()
    while len(application.bulks) < 2:  # noqa: ASYNC110 - the sender tells nobody
        await asyncio.sleep(0.01)
    assert loop.time() - began_s == pytest.approx(1, abs=0.02)
    application.may_answer.set()


async def test_what_is_of_a_flow_handle_that_is_given_up_waits_for_no_others():
    application, turns = Slow(), BatchTurns(1)
    async with sending_to(application, turns) as sender:
        for key in ("a", "b"):
            start(sender, key)
            await asyncio.sleep(0.1)
        event = make_event()
        turns.leave(QueueName("orders/9"), event.epoch)
        await asyncio.sleep(0.1)
        assert application.bulks == [["1"]]
        turns.leave(event.queue, event.epoch)
        await asyncio.sleep(0.1)
        assert application.bulks == [["1"], ["2"]]
        start(sender, "c")
        await asyncio.sleep(0.1)
        assert application.bulks == [["1"], ["2"], ["3"]]
        turns.stay(event.queue)
        (last,) = start(sender, "d")
        await asyncio.sleep(0.1)
        assert application.bulks == [["1"], ["2"], ["3"]]
        application.may_answer.set()
        await last


async def test_what_waits_goes_as_soon_as_the_bulk_before_it_is_answered(rig):
    """It would otherwise wait for as long as it may, with each bulk."""
    application, sender = rig
    loop = asyncio.get_running_loop()
    for key in ("a", "b", "c"):
        (third,) = start(sender, key)
        await asyncio.sleep(0.1)
    began_s = loop.time()
    application.may_answer.set()
    await third
    (fourth,) = start(sender, "d")
    await fourth
    assert loop.time() - began_s < 0.1
    assert application.bulks == [["1"], ["2", "3"], ["4"]]


@pytest.mark.parametrize("gathered_s", [0, 0.1], ids=["as its bulk falls due", "while it gathers"])
async def test_an_event_that_is_taken_back_keeps_no_other_from_hearing_that_the_application_is_away(gathered_s):
    application, gate = Slow(), make_gate()
    async with sending_to(application, gate=gate) as sender:
        under_way = start(sender, "a") if gathered_s else []
        await asyncio.sleep(gathered_s)
        taken_back, other = start(sender, "b", "c")
        await asyncio.sleep(gathered_s)
        gate.close("away")
        taken_back.cancel()
        with pytest.raises(ApplicationUnreachable, match="away"):
            await asyncio.wait_for(other, 10)
        application.may_answer.set()
        await asyncio.gather(*under_way)
    gate.end()


async def test_what_was_not_sent_to_an_application_that_was_away_has_no_event_wait_for_others_later():
    application, gate, loop = Slow(), make_gate(), asyncio.get_running_loop()
    application.may_answer.set()
    async with sending_to(application, gate=gate) as sender:
        gate.close("away")
        with pytest.raises(ApplicationUnreachable, match="away"):
            await sender.deliver(make_event())
        gate.open()
        before_s = loop.time()
        await sender.deliver(make_event())
        assert loop.time() == before_s
    assert application.bulks == [["2"]]


@pytest.mark.parametrize("failure", [ApplicationFailed("gone"), TypeError("what nobody thought of")])
async def test_a_failure_is_that_of_every_event(rig, failure):
    """What nobody had thought of ended the member."""
    application, sender = rig

    async def fail(*_):
        raise failure

    application.post = fail
    for each in start(sender, "a", "b"):
        with pytest.raises(type(failure)):
            await each


class Narrow(Slow):
    """Its server takes single events, and one of them not at all."""

    def __init__(self, too_large="9"):
        super().__init__()
        self.may_answer.set()
        self.too_large = too_large
        self.on_post = lambda: None

    async def post(self, route, headers, body, may_send):
        answer = await super().post(route, headers, body, may_send)
        self.on_post()
        ids = self.bulks[-1]
        return answer if len(ids) == 1 and self.too_large not in ids else Response(413, "text/html", b"too large")


async def test_a_bulk_that_is_too_large_for_the_application_is_sent_in_halves():
    """It was tried again as a whole until the attempts of all of them had ended."""
    application = Narrow(too_large="3")
    async with sending_to(application) as sender:
        answers = [(await each).status for each in start(sender, "a", "b", "c")]
        assert application.bulks == [["1", "2", "3"], ["1"], ["2", "3"], ["2"], ["3"]]
        assert answers == [Status.SUCCESS, Status.SUCCESS, Status.RETRY]
        # Nothing counts as under way any more, for which the next one would wait.
        (last,) = start(sender, "d")
        async with asyncio.timeout(0.5):
            assert (await last).status is Status.SUCCESS


async def test_an_event_that_is_taken_back_before_its_half_is_sent_is_not_sent():
    application = Narrow()
    async with sending_to(application) as sender:
        first, second, third = start(sender, "a", "b", "c")

        def take_back():
            second.cancel()
            third.cancel()

        application.on_post = take_back
        assert (await first).status is Status.SUCCESS
        assert application.bulks == [["1", "2", "3"], ["1"]]
        await asyncio.wait([second, third])
