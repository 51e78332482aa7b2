"""Hot keys do not keep others out; they, stuck keys and slow handlers are told of once, and once when that is over."""

import asyncio
from contextlib import asynccontextmanager

from structlog.testing import capture_logs

from lbg_runtime.runtime.dispatch.key_reports import MAX_LINES
from lbg_runtime.runtime.runners.handling import CURRENT_HANDLING


def _told(logs, *events):
    return [(line["event"], line["key"]) for line in logs if line["event"] in events]


@asynccontextmanager
async def reported(made):
    """With the runners at work and their keys watched; what is logged."""
    with capture_logs() as logs:
        async with made.running():
            watching = asyncio.ensure_future(made.dispatcher.key_reports.run())
            yield logs
            watching.cancel()


class _Gate:
    """A handler that holds one key until it is opened."""

    def __init__(self):
        self.is_open = asyncio.Event()

    async def handle(self, message):
        if message.key == "hot":
            await self.is_open.wait()


async def test_a_key_that_keeps_waiting_is_hot_until_half_of_it_is_gone(rig, delivery):
    gate = _Gate()
    made = rig(gate.handle, dispatch={"max_in_flight": 16, "max_waiting_per_key": 4})
    reports = made.dispatcher.key_reports
    with capture_logs() as logs:
        async with made.running():
            beyond = [made.dispatcher.dispatch(delivery(number, "hot")) for number in range(8)]
            assert beyond == [False] * 5 + [True] * 3
            assert not made.dispatcher.dispatch(delivery(8, "other"))
            assert (reports.hot, reports.hot_total) == (1, 1)
            reports.look()
            assert reports.hot == 1
            gate.is_open.set()
            await made.until_ended(9)
            reports.look()
            assert (reports.hot, reports.hot_total) == (0, 1)
    assert _told(logs, "key_hot", "key_cooled") == [("key_hot", "hot"), ("key_cooled", "hot")]
    assert next(line for line in logs if line["event"] == "key_hot")["waiting"] == 5


async def test_a_hot_key_has_cooled_and_was_not_given_back_while_the_rest_of_it_is_handled(rig, delivery):
    turns = asyncio.Semaphore(0)

    async def handle(message):
        await turns.acquire()

    made = rig(handle, dispatch={"max_in_flight": 16, "max_waiting_per_key": 4})
    with capture_logs() as logs:
        async with made.running():
            for number in range(8):
                made.dispatcher.dispatch(delivery(number, "hot"))
            for _ in range(5):
                turns.release()
            await made.until_ended(5)
            made.dispatcher.key_reports.look()
    assert _told(logs, "key_hot", "key_cooled", "key_given_back") == [("key_hot", "hot"), ("key_cooled", "hot")]


async def test_a_hot_key_does_not_keep_the_others_of_its_queue_out(trial):
    gate = asyncio.Event()

    async def work(message):
        if message.key == "k0":
            await gate.wait()

    app = trial.member(work=work, dispatch={"max_in_flight": 8, "max_waiting_per_key": 2, "max_held": 200})
    async with trial.at_work(app):
        # k4 lies in the queue of k0, between the messages of that.
        await trial.publish(200, keys=5)
        others = {f"k{number}": 40 for number in range(1, 5)}
        await trial.until(lambda: {key: len(trial.sequences().get(key, ())) for key in others} == others)
        gate.set()
        await trial.until(lambda: len(trial.handled) == 200)
    assert all(numbers == sorted(numbers) for numbers in trial.sequences().values())
    assert sum(trial.depths()) == 0


async def test_where_all_that_may_be_held_is_of_a_hot_key_the_others_of_its_queue_wait(trial):
    gate = asyncio.Event()

    async def work(message):
        if message.key == "k0":
            await gate.wait()

    app = trial.member(work=work, dispatch={"max_in_flight": 4, "max_waiting_per_key": 1, "max_held": 8})
    async with trial.at_work(app):
        # k4 lies in the queue of k0, and the other three do not.
        await trial.publish(200, keys=5)
        await trial.until(lambda: all(len(trial.sequences().get(f"k{number}", ())) == 40 for number in (1, 2, 3)))
        await asyncio.sleep(60)
        assert len(trial.sequences()["k4"]) < 40
        gate.set()
        await trial.until(lambda: len(trial.handled) == 200)
    assert all(numbers == sorted(numbers) for numbers in trial.sequences().values())


async def test_a_handler_that_takes_long_is_told_of_while_it_runs_and_when_it_has_ended(rig, delivery):
    async def handle(message):
        await asyncio.sleep(25 if message.key == "slow" else 1)

    made = rig(handle)
    async with reported(made) as logs:
        made.dispatcher.dispatch(delivery(1, "slow"))
        for number in range(2, 30):
            made.dispatcher.dispatch(delivery(number, "quick"))
        await asyncio.sleep(14)
        assert made.dispatcher.key_reports.slow == 1
        await made.until_ended(29)
        await asyncio.sleep(5)
        assert made.dispatcher.key_reports.slow == 0
    assert _told(logs, "handler_slow", "handler_slow_ended") == [
        ("handler_slow", "slow"),
        ("handler_slow_ended", "slow"),
    ]
    slow = next(line for line in logs if line["event"] == "handler_slow")
    assert 10_000 <= slow["running_ms"] < 12_600
    assert slow["topic"] == "orders/new"
    assert made.dispatcher.key_reports.slow_total == 1


async def test_what_takes_long_by_a_short_limit_is_told_of_soon(rig, delivery):
    async def handle(message):
        await asyncio.sleep(1)

    made = rig(handle, dispatch={"slow_handler": "400ms"})
    async with reported(made) as logs:
        made.dispatcher.dispatch(delivery(1))
        await made.until_ended(1)
    assert [400 <= line["running_ms"] <= 500 for line in logs if line["event"] == "handler_slow"] == [True]


async def test_what_is_not_watched_is_neither_slow_nor_stuck(rig, delivery):
    async def handle(message):
        await asyncio.sleep(1_000)

    made = rig(handle, dispatch={"slow_handler": "off", "stuck_key": "off"}, options={"timeout": "1h"})
    reports = made.dispatcher.key_reports
    async with made.running():
        reporting = asyncio.ensure_future(reports.run())
        made.dispatcher.dispatch(delivery(1))
        await asyncio.sleep(900)
        assert (reports.slow, reports.slow_total, reports.stuck, reports.stuck_total) == (0, 0, 0, 0)
        assert not reporting.done()
        reporting.cancel()


async def test_a_key_whose_message_always_fails_is_told_of_with_its_attempts_and_when_it_moves_again(rig, delivery):
    broken = [True]

    async def handle(message):
        if message.key == "stuck" and broken:
            raise KeyError

    made = rig(handle, failure={"backoff": {"initial": "1s", "maximum": "2s"}})
    async with reported(made) as logs:
        for number in range(3):
            made.dispatcher.dispatch(delivery(number, "stuck"))
        await asyncio.sleep(66)
        assert made.dispatcher.key_reports.stuck == 1
        broken.clear()
        await made.until_ended(3)
        await asyncio.sleep(5)
        assert (made.dispatcher.key_reports.stuck, made.dispatcher.key_reports.stuck_total) == (0, 1)
    assert _told(logs, "key_stuck", "key_moves_again") == [("key_stuck", "stuck"), ("key_moves_again", "stuck")]
    told = next(line for line in logs if line["event"] == "key_stuck")
    assert (told["waiting"], told["delivery_id"]) == (2, 0)
    assert told["attempts"] > 20
    assert 60_000 <= told["stands_ms"] < 66_000


async def test_a_stuck_and_a_hot_key_whose_flow_is_lost_have_not_gone_on(rig, delivery):
    async def handle(message):
        raise KeyError

    made = rig(handle, dispatch={"max_in_flight": 16, "max_waiting_per_key": 4})
    reports = made.dispatcher.key_reports
    async with reported(made) as logs:
        for number in range(8):
            made.dispatcher.dispatch(delivery(number, "poison"))
        await asyncio.sleep(70)
        assert (reports.stuck, reports.hot) == (1, 1)
        made.dispatcher.return_unstarted("orders/0", 1)
        await asyncio.sleep(5)
        assert (reports.stuck, reports.hot) == (0, 0)
    assert _told(logs, "key_moves_again", "key_cooled") == []
    back = [line for line in logs if line["event"] == "key_given_back"]
    assert {line["was"] for line in back} == {"hot", "stuck"}
    stuck = next(line for line in back if line["was"] == "stuck")
    assert (stuck["key"], stuck["topic"]) == ("poison", "orders/new")
    assert stuck["stood_ms"] >= 60_000


async def test_nor_has_a_key_whose_handler_is_cancelled_with_its_flow(rig, delivery):
    gate = _Gate()
    made = rig(gate.handle, dispatch={"max_in_flight": 16, "max_waiting_per_key": 4}, failure={"timeout": "1h"})
    async with reported(made) as logs:
        for number in range(8):
            made.dispatcher.dispatch(delivery(number, "hot"))
        await asyncio.sleep(70)
        made.dispatcher.return_unstarted("orders/0", 1)
        made.dispatcher.key_reports.look()
        made.dispatcher.cancel_handling("orders/0", 1)
        await made.until_ended(8)
        await asyncio.sleep(5)
    assert _told(logs, "key_moves_again", "key_cooled") == []
    assert [line["was"] for line in logs if line["event"] == "key_given_back"] == ["hot", "stuck"]


async def test_a_hot_key_that_goes_on_is_not_stuck(rig, delivery):
    async def handle(message):
        await asyncio.sleep(5)

    made = rig(handle)
    async with reported(made) as logs:
        for number in range(100):
            made.dispatcher.dispatch(delivery(number, "busy"))
        await made.until_ended(100)
    assert _told(logs, "key_stuck") == []


async def test_many_at_once_are_told_of_in_few_lines(rig, delivery):
    async def handle(message):
        await asyncio.sleep(25)

    made = rig(handle, dispatch={"stuck_key": "off"})
    async with reported(made) as logs:
        for number in range(30):
            made.dispatcher.dispatch(delivery(number, f"k{number}"))
        await asyncio.sleep(20)
    assert len(_told(logs, "handler_slow")) == MAX_LINES
    assert [line["untold"] for line in logs if line["event"] == "handlers_slow"] == [30 - MAX_LINES]


async def test_of_a_kind_the_beginnings_that_are_told_have_their_ends_told_and_the_others_are_counted(rig, delivery):
    gate = asyncio.Event()

    async def handle(message):
        await gate.wait()

    count = 30
    few = {"max_in_flight": 4, "max_waiting_per_key": 1, "runners": 100, "stuck_key": "10s", "slow_handler": "10s"}
    made = rig(handle, dispatch=few)
    async with reported(made) as logs:
        for number in range(4 * count):
            made.dispatcher.dispatch(delivery(number, f"k{number % count}"))
        await asyncio.sleep(20)
        gate.set()
        await made.until_ended(4 * count)
        await asyncio.sleep(10)
    kinds = [
        ("key_hot", "key_cooled", "keys_hot"),
        ("key_stuck", "key_moves_again", "keys_stuck"),
        ("handler_slow", "handler_slow_ended", "handlers_slow"),
    ]
    for began, ended, others in kinds:
        told = [key for _, key in _told(logs, began)]
        assert len(told) == MAX_LINES
        assert sorted(key for _, key in _told(logs, ended)) == sorted(told)
        assert [line["untold"] for line in logs if line["event"] == others] == [count - MAX_LINES]


async def test_an_attempt_that_waits_for_somebody_is_not_slow_and_counts_from_its_beginning_on(rig, delivery):
    async def handle(message):
        handling = CURRENT_HANDLING.get()
        handling.route.attempts.put_off(handling)
        await asyncio.sleep(100)
        handling.route.attempts.begin(handling)
        await asyncio.sleep(25)

    made = rig(handle, dispatch={"stuck_key": "off"}, options={"timeout": "1h"})
    async with reported(made) as logs:
        made.dispatcher.dispatch(delivery(1))
        await asyncio.sleep(109)
        assert made.dispatcher.key_reports.slow == 0
        await made.until_ended(1)
    [slow] = [line for line in logs if line["event"] == "handler_slow"]
    assert 10_000 <= slow["running_ms"] < 12_600
