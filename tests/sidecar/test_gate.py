"""Where events wait for an application that is away: for how long, and what becomes of them and of their queues."""

import asyncio
import weakref

import pytest
from structlog.testing import capture_logs

from lbg_runtime.model.ids import Epoch, QueueName
from lbg_runtime.runtime.log_facts import add_handling
from lbg_runtime.runtime.runners.handling import GivenBack
from lbg_runtime.sidecar.gate import GRACE_S, UNABLE_AFTER_S, Gate
from tests.sidecar.conftest import RETRY, SUCCESS, ScriptedApplication
from tests.sidecar.events import make_event

QUEUE, EPOCH = QueueName("orders/1"), Epoch(2)


def _gate():
    told = []
    return Gate(told.append, lambda: None), told


async def test_events_wait_while_it_is_closed_and_go_on_when_it_opens():
    gate, _ = _gate()
    passing = [asyncio.ensure_future(gate.passed(make_event(key=key))) for key in "ab"]
    await asyncio.sleep(1_000)
    assert not any(each.done() for each in passing)
    gate.open()
    await asyncio.wait_for(asyncio.gather(*passing), 0.1)


async def test_those_of_a_queue_that_is_given_up_go_back_after_a_grace_and_no_others():
    gate, _ = _gate()
    mine = asyncio.ensure_future(gate.passed(make_event()))
    others = asyncio.ensure_future(gate.passed(make_event(queue=QueueName("orders/0"))))
    await asyncio.sleep(0)
    gate.flow_changed(QUEUE, EPOCH, is_kept=False)
    await asyncio.sleep(GRACE_S - 0.1)
    assert not mine.done()
    await asyncio.sleep(0.2)
    with pytest.raises(GivenBack):
        mine.result()
    assert not others.done()
    others.cancel()


async def test_an_event_that_comes_later_has_a_grace_of_its_own_and_another_epoch_none():
    gate, _ = _gate()
    gate.flow_changed(QUEUE, EPOCH, is_kept=False)
    await asyncio.sleep(10)
    late = asyncio.ensure_future(gate.passed(make_event()))
    newer = asyncio.ensure_future(gate.passed(make_event(epoch=Epoch(3))))
    await asyncio.sleep(GRACE_S + 0.1)
    assert isinstance(late.exception(), GivenBack)
    gate.flow_changed(QUEUE, Epoch(3), is_kept=True)
    # Of a handle that is gone, while the next one is there.
    older = asyncio.ensure_future(gate.passed(make_event()))
    await asyncio.sleep(10)
    assert isinstance(older.exception(), GivenBack)
    assert not newer.done()
    newer.cancel()


async def test_each_event_of_a_queue_that_stays_given_up_goes_back_after_a_grace():
    gate, _ = _gate()
    gate.flow_changed(QUEUE, EPOCH, is_kept=False)
    for _ in range(2):
        event = asyncio.ensure_future(gate.passed(make_event()))
        await asyncio.sleep(GRACE_S + 0.1)
        assert isinstance(event.exception(), GivenBack)


async def test_the_grace_begins_when_the_queue_is_given_up_however_long_its_event_has_waited():
    gate, _ = _gate()
    waiting = asyncio.ensure_future(gate.passed(make_event()))
    await asyncio.sleep(GRACE_S - 0.2)
    gate.flow_changed(QUEUE, EPOCH, is_kept=False)
    await asyncio.sleep(GRACE_S - 0.1)
    assert not waiting.done()
    await asyncio.sleep(0.2)
    assert isinstance(waiting.exception(), GivenBack)


async def test_an_application_that_comes_back_within_the_grace_gets_its_events():
    gate, _ = _gate()
    passing = asyncio.ensure_future(gate.passed(make_event()))
    gate.flow_changed(QUEUE, EPOCH, is_kept=False)
    await asyncio.sleep(GRACE_S / 2)
    gate.open()
    await asyncio.wait_for(passing, 0.1)
    gate.close("gone")
    again = asyncio.ensure_future(gate.passed(make_event()))
    await asyncio.sleep(GRACE_S * 3 / 4)
    assert not again.done(), "by now the first grace would have ended"
    again.cancel()


async def test_what_waits_goes_back_only_while_the_application_is_away():
    """As what waits for room on a stream, which is no end of waiting when the gate opens."""
    gate, _ = _gate()
    turn, later = (asyncio.get_running_loop().create_future() for _ in range(2))
    with gate.waiting(turn, make_event()):
        gate.flow_changed(QUEUE, EPOCH, is_kept=False)
        await asyncio.sleep(GRACE_S / 2)
        with gate.waiting(later, make_event()):
            gate.open()
            await asyncio.sleep(3 * GRACE_S)
            assert not any(each.done() for each in (turn, later))
            gate.close("gone")
            await asyncio.sleep(GRACE_S + 0.1)
    assert isinstance(turn.exception(), GivenBack)
    assert isinstance(later.exception(), GivenBack)


async def test_an_event_that_is_taken_back_as_the_gate_opens_keeps_no_other():
    gate, _ = _gate()
    first, second = (asyncio.ensure_future(gate.passed(make_event(key=key))) for key in "ab")
    await asyncio.sleep(0.1)
    first.cancel()
    gate.open()
    await asyncio.wait_for(second, 0.1)
    assert first.cancelled()


async def test_an_event_that_is_taken_back_as_the_grace_ends_keeps_no_other():
    gate, _ = _gate()
    first, second = (asyncio.ensure_future(gate.passed(make_event(key=key))) for key in "ab")
    await asyncio.sleep(0.1)
    loop = asyncio.get_running_loop()
    # In the same turn of the loop as the end of the grace, and before it.
    loop.call_at(loop.time() + GRACE_S, first.cancel)
    gate.flow_changed(QUEUE, EPOCH, is_kept=False)
    await asyncio.sleep(GRACE_S + 0.1)
    assert first.cancelled()
    assert isinstance(second.exception(), GivenBack)


async def test_a_grace_at_whose_end_nothing_waits_any_more_is_not_told_of():
    gate, _ = _gate()
    gate.flow_changed(QUEUE, EPOCH, is_kept=False)
    passing = asyncio.ensure_future(gate.passed(make_event()))
    await asyncio.sleep(GRACE_S / 2)
    passing.cancel()
    with capture_logs() as logs:
        await asyncio.sleep(GRACE_S)
    assert logs == []


async def test_nothing_is_kept_of_an_event_that_has_passed(monkeypatch):
    gate, _ = _gate()
    loop, turns = asyncio.get_running_loop(), weakref.WeakSet()
    create_future = loop.create_future

    def watched():
        turn = create_future()
        turns.add(turn)
        return turn

    with monkeypatch.context() as watching:
        watching.setattr(loop, "create_future", watched)
        passing = asyncio.ensure_future(gate.passed(make_event()))
        await asyncio.sleep(0.1)
        assert turns
        gate.open()
        await passing
    await asyncio.sleep(0.1)
    assert not turns


async def test_after_the_end_nothing_is_told_and_nothing_goes_back():
    gate, told = _gate()
    gate.end()
    waiting = asyncio.ensure_future(gate.passed(make_event()))
    gate.close("gone")
    gate.flow_changed(QUEUE, EPOCH, is_kept=False)
    await asyncio.sleep(2 * UNABLE_AFTER_S)
    assert (told, waiting.done()) == ([], False)
    waiting.cancel()


async def test_nor_of_what_had_begun_before_the_end():
    gate, told = _gate()
    waiting = asyncio.ensure_future(gate.passed(make_event()))
    await asyncio.sleep(0)
    gate.close("gone")
    gate.flow_changed(QUEUE, EPOCH, is_kept=False)
    gate.end()
    await asyncio.sleep(2 * UNABLE_AFTER_S)
    assert (told, waiting.done()) == ([], False)
    waiting.cancel()


async def test_who_is_away_for_long_is_said_to_be_unable_and_able_when_it_is_back():
    gate, told = _gate()
    gate.open()
    gate.close("gone")
    await asyncio.sleep(UNABLE_AFTER_S - 1)
    gate.open()
    gate.close("gone")
    await asyncio.sleep(UNABLE_AFTER_S - 1)
    assert told == []
    gate.close("gone")
    await asyncio.sleep(2)
    assert told == [False]
    gate.close("gone")
    await asyncio.sleep(100)
    gate.open()
    gate.open()
    assert told == [False, True]
    gate.close("gone again")
    await asyncio.sleep(UNABLE_AFTER_S + 1)
    assert told == [False, True, False]


@pytest.mark.parametrize("others_take_queues", [True, False])
async def test_queues_are_left_to_others_only_where_others_take_them(others_take_queues):
    told = []
    gate = Gate(told.append, lambda: None, others_take_queues=others_take_queues)
    with capture_logs() as log:
        gate.close("nobody listens")
        await asyncio.sleep(UNABLE_AFTER_S + 1)
        gate.open()
    assert told == [False, True] * others_take_queues
    events = ["queues_left_to_others", "queues_wanted_again"]
    assert [entry["event"] for entry in log] == events * others_take_queues


async def test_in_a_cycle_no_member_says_that_others_get_its_queues(trial):
    application = ScriptedApplication(_succeed)
    with capture_logs() as log:
        async with trial.at_work(trial.app(application, rebind={"mode": "cycle"})):
            application.is_up = False
            await trial.publish(1)
            await asyncio.sleep(UNABLE_AFTER_S + 5)
            application.is_up = True
            await trial.until(lambda: sum(trial.depths()) == 0)
    assert "application_away" in {entry["event"] for entry in log}
    assert "queues_left_to_others" not in {entry["event"] for entry in log}


async def test_a_member_whose_application_has_gone_first_leaves_at_once_and_nothing_is_lost(trial):
    async def work(posted):
        if posted.number == 2:
            application.is_up = False
            return RETRY
        return SUCCESS

    application = ScriptedApplication(work)
    with capture_logs([add_handling]) as log:
        async with trial.at_work(trial.app(application, rebind={"mode": "cooperative"})) as left:
            await trial.publish(20)
            await trial.until(lambda: not application.is_up)
            await asyncio.sleep(UNABLE_AFTER_S + 1)
            began_s = asyncio.get_running_loop().time()
        took_s = asyncio.get_running_loop().time() - began_s
    assert took_s < 5, "the drain timeout is 30 s"
    assert left.result().still_bound == 0
    taken = len(application.taken)
    assert sum(trial.depths()) == 20 - taken > 0
    of_all = [entry for entry in log if entry["event"] in ("application_away", "queues_left_to_others")]
    assert len(of_all) == 2
    assert not any("key" in entry for entry in of_all), "they are about no single event"
    assert [entry["events"] > 0 for entry in log if entry["event"] == "events_given_back"] == [True]
    # Another life goes on where this one was, in the order of each key.
    other = ScriptedApplication(_succeed)
    async with trial.running(trial.app(other)):
        await trial.until(lambda: sum(trial.depths()) == 0)
    both = {f"k{key}": [1, 2, 3, 4, 5] for key in range(4)}
    assert {key: application.numbers().get(key, []) + other.numbers().get(key, []) for key in other.numbers()} == {
        key: both[key] for key in other.numbers()
    }


async def _succeed(_):
    return SUCCESS


async def test_what_waits_of_a_handle_that_is_lost_is_not_sent_when_others_may_be_further_on(trial):
    application = ScriptedApplication(_succeed)
    app = trial.app(application)
    async with trial.at_work(app):
        application.is_up = False
        await trial.publish(20)
        await asyncio.sleep(5)
        app._session.drop_connection(2)
        await asyncio.sleep(30)
        application.is_up = True
        await trial.until(lambda: sum(trial.depths()) == 0)
    assert application.numbers() == {f"k{key}": [1, 2, 3, 4, 5] for key in range(4)}
    assert all(posted.headers["lbg-epoch"] != "1" for posted in application.posted)


COOPERATIVE = {"rebind": {"mode": "cooperative"}}


async def test_a_member_whose_application_is_away_for_long_leaves_its_queues_to_the_others_and_gets_them_back(trial):
    async def succeed(posted):
        await asyncio.sleep(0.01)
        return SUCCESS

    first, second = ScriptedApplication(succeed), ScriptedApplication(succeed)
    members = [
        trial.app(each, membership={"mode": "discovered", "id": name}, **COOPERATIVE)
        for each, name in ((first, "a"), (second, "b"))
    ]
    async with trial.running(members[0]), trial.running(members[1]):
        await trial.until(lambda: trial.owned() == {"member-1": 1, "member-2": 1})
        await asyncio.sleep(30)
        first.is_up = False
        await trial.publish(40)
        # It finds out when it is to send, and after the time for a restart others get the queue.
        await trial.until(lambda: trial.owned() == {"member-2": 2})
        await trial.until(lambda: sum(trial.depths()) == 0)
        first.is_up = True
        await trial.until(lambda: trial.owned() == {"member-1": 1, "member-2": 1})
        await trial.publish_settled(20)
    taken = sorted((each.key, each.number) for each in (*first.taken, *second.taken))
    assert taken == [(f"k{key}", number) for key in range(4) for number in range(1, 16)]
    for application in (first, second):
        assert all(numbers == sorted(numbers) for numbers in application.numbers().values())


async def test_where_no_member_has_an_application_the_queues_stay_where_they_are(trial):
    application = ScriptedApplication(_succeed)
    app = trial.app(application, membership={"mode": "discovered", "id": "a"}, **COOPERATIVE)
    async with trial.at_work(app):
        application.is_up = False
        await trial.publish(8)
        await asyncio.sleep(120)
        assert trial.owners() == 2
        application.is_up = True
        await trial.until(lambda: sum(trial.depths()) == 0)
    assert application.numbers() == {f"k{key}": [1, 2] for key in range(4)}
    assert all(posted.attempt == 1 for posted in application.posted)


async def test_a_member_that_has_left_says_nothing_of_its_application_any_more(trial):
    application = ScriptedApplication(lambda _: SUCCESS)
    application.is_up = False
    with capture_logs() as log:
        async with trial.running(trial.app(application, rebind={"mode": "cooperative"})):
            await asyncio.sleep(UNABLE_AFTER_S / 2)
        await asyncio.sleep(2 * UNABLE_AFTER_S)
    told = [entry["event"] for entry in log]
    assert "application_away" in told
    assert "queues_left_to_others" not in told


async def test_a_member_says_what_it_waits_for_before_its_application_was_heard_and_when_it_has_gone(trial):
    app = trial.app()
    async with trial.running(app):
        await trial.until(lambda: app._companion._receiver is not None)
        assert app._companion.waits_for() == "its application is away: it has not been heard yet"
        stream = app._companion._receiver.stream(1)
        first = asyncio.ensure_future(anext(stream))
        await trial.until(lambda: app._companion.waits_for() == "")
        await trial.until(lambda: trial.owners() == 2)
        await trial.publish(1)
        await first
        await stream.aclose()
        assert app._companion.waits_for() == "its application is away: its last stream has ended"


async def test_a_member_without_a_stream_leaves_at_once_too(trial):
    app = trial.app()
    async with trial.running(app):
        await trial.until(lambda: app._companion._receiver is not None)
        stream = app._companion._receiver.stream(1)
        first = asyncio.ensure_future(anext(stream))
        await trial.until(lambda: trial.owners() == 2)
        await trial.publish(8)
        await first
        await stream.aclose()
        await asyncio.sleep(3)
        began_s = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - began_s < 5
    assert sum(trial.depths()) == 8
