"""When attempts have ended: moved to the error queue and only then accepted; or parked, or tried for ever.

More than 400 lines, as all ends of a failed delivery are tried on one rig.
"""

import asyncio
import itertools
from dataclasses import replace
from functools import partial

import pytest
import structlog
from structlog.testing import capture_logs

from lbg_runtime.core.parking.ledger import Verdict
from lbg_runtime.metrics.reading import LanesReading
from lbg_runtime.model.errors import ParkingNotReady, PublishFailed, PublishRefused, TerminalFailure
from lbg_runtime.model.failure import Then
from lbg_runtime.model.ids import Epoch, QueueName
from lbg_runtime.model.outcome import Outcome
from lbg_runtime.runtime.handlers.registry import Handlers

QUEUE = QueueName("orders/0")
BACKOFF = {"backoff": {"initial": "100ms", "maximum": "1s"}}
MOVE = {"failure": {"attempts": 3, "then": "error_queue", **BACKOFF}}


class _ErrorQueue:
    """Confirms when the test lets it; `taken` is what it was given, also what failed then, `taken_s` when."""

    def __init__(self, *, confirms=True, refusals=0, error=PublishFailed):
        self.taken = []
        self.taken_s = []
        self.refusals = refusals
        self.error = error
        self.may_confirm = asyncio.Event()
        self.reached = asyncio.Event()
        if confirms:
            self.may_confirm.set()

    async def take(self, handling, report):
        self.taken.append((handling.delivery.delivery_id, report.attempts, report.error))
        self.taken_s.append(asyncio.get_running_loop().time())
        self.reached.set()
        if self.refusals:
            self.refusals -= 1
            raise self.error("lbg-errors/orders", "no room")
        await self.may_confirm.wait()


async def _fail(message):
    if message.key == "bad":
        raise ValueError("never")


async def test_a_message_is_moved_after_its_last_attempt_and_its_successor_handled(rig, delivery):
    seen, queue = [], _ErrorQueue()

    async def handle(message):
        seen.append(message.payload)
        if message.payload == b"1":
            raise ValueError("never")

    made = rig(handle, error_queue=queue, **MOVE)
    with capture_logs() as logs:
        async with made.running():
            await made.handle(delivery(1), delivery(2))
    assert seen == [b"1", b"1", b"1", b"2"]
    assert queue.taken == [(1, 3, "ValueError: never")]
    assert made.outcomes() == {1: Outcome.ACCEPTED, 2: Outcome.ACCEPTED}
    assert made.ends[0].attempts == 3
    assert made.ends[0].end_report.then is Then.ERROR_QUEUE
    assert (made.dispatcher.counts.moved, made.dispatcher.counts.failed_attempts) == (1, 3)
    assert made.dispatcher.held() == LanesReading(0, 0, 0)
    assert [log["key"] for log in logs if log["event"] == "message_moved"] == ["a"]
    assert made.dispatcher.running() == []


class Evil(Exception):
    """Even to ask for its class raises."""

    def __getattribute__(self, name):
        raise RuntimeError(name)


async def test_an_exception_of_which_nothing_can_be_learned_ends_the_attempts_of_its_message_and_no_member(
    rig, delivery
):
    queue = _ErrorQueue()

    async def handle(message):
        if message.payload == b"1":
            raise Evil

    made = rig(handle, error_queue=queue, **MOVE)
    async with made.running():
        await made.handle(delivery(1), delivery(2))
    assert queue.taken == [(1, 3, "StrangeFailure: Evil")]
    assert made.outcomes() == {1: Outcome.ACCEPTED, 2: Outcome.ACCEPTED}


async def test_a_log_that_cannot_tell_of_an_error_does_not_decide_what_follows_it(rig, delivery):
    queue, told = _ErrorQueue(), []

    def render(logger, name, event):
        if event.get("exc_info"):
            raise RecursionError
        told.append((event["event"], event.get("exception")))
        raise structlog.DropEvent

    made = rig(_fail, error_queue=queue, **MOVE)
    configuration = structlog.get_config()
    structlog.configure(processors=[render])
    try:
        async with made.running():
            await made.handle(delivery(1, "bad"))
    finally:
        structlog.configure(**configuration)
    assert queue.taken == [(1, 3, "ValueError: never")]
    assert told == [
        ("handling_failed", "it cannot be told: RecursionError"),
        ("handling_failed", None),
        ("handling_failed", None),
        ("message_moved", None),
    ]


async def test_it_is_accepted_when_the_move_is_confirmed_and_not_before(rig, delivery):
    queue = _ErrorQueue(confirms=False)
    made = rig(_fail, error_queue=queue, **MOVE)
    async with made.running():
        made.dispatcher.dispatch(delivery(1, "bad"))
        made.dispatcher.dispatch(delivery(2, "bad"))
        made.dispatcher.dispatch(delivery(3, "good"))
        await queue.reached.wait()
        # Longer than any time-out: a move has none.
        await asyncio.sleep(1_000)
        assert made.outcomes() == {3: Outcome.ACCEPTED}
        queue.may_confirm.set()
        await made.until_ended(3)
    assert [each for each, _, _ in queue.taken] == [1, 2]


async def test_a_failed_move_is_tried_again_and_the_handler_is_not(rig, delivery):
    calls, queue = [], _ErrorQueue(refusals=4)

    async def handle(message):
        calls.append(message.payload)
        raise ValueError("never")

    made = rig(handle, error_queue=queue, **MOVE)
    with capture_logs() as logs:
        async with made.running():
            await made.handle(delivery(1))
    assert calls == [b"1"] * 3
    assert queue.taken == [(1, 3, "ValueError: never")] * 5
    waits_s = [after - before for before, after in itertools.pairwise(queue.taken_s)]
    for wait_s, longest_s in zip(waits_s, (0.1, 0.2, 0.4, 0.8), strict=True):
        assert longest_s / 2 - 0.001 <= wait_s <= longest_s + 0.001
    assert made.ends[0].attempts == 3
    assert made.dispatcher.counts.moves_failed == 4
    assert made.dispatcher.counts.failed_attempts == 3, "a move that failed is no attempt of a handler"
    assert [log["log_level"] for log in logs if log["event"] == "move_failed"] == ["error"] * 4


async def test_a_message_whose_move_failed_goes_back_to_its_queue_with_the_flow(rig, delivery):
    queue = _ErrorQueue(refusals=1_000_000)
    made = rig(_fail, error_queue=queue, **MOVE)
    async with made.running():
        made.dispatcher.dispatch(delivery(1, "bad"))
        await asyncio.sleep(100)
        assert not made.dispatcher.is_stalled(QUEUE, Epoch(1)), "no hand-back: its copy may have arrived"
        made.dispatcher.return_unstarted(QUEUE, Epoch(1))
        await made.until_ended(1)
    assert made.outcomes() == {1: None}


async def test_a_message_that_no_other_queue_takes_keeps_its_own_with_nobody(rig, delivery):
    """A full error queue: the broker says that it has no copy, so the next owner may go on with the message."""
    queue = _ErrorQueue(refusals=1_000_000, error=PublishRefused)
    made = rig(_fail, error_queue=queue, **MOVE)
    async with made.running():
        made.dispatcher.dispatch(delivery(1, "bad"))
        await asyncio.sleep(100)
        assert made.dispatcher.is_stalled(QUEUE, Epoch(1))
        queue.error = PublishFailed
        await asyncio.sleep(100)
        queue.error = PublishRefused
        await asyncio.sleep(100)
        assert not made.dispatcher.is_stalled(QUEUE, Epoch(1)), "one try may have left a copy"
        made.dispatcher.return_unstarted(QUEUE, Epoch(1))


async def test_what_is_to_be_moved_of_other_flows_does_not_keep_a_flow_from_being_handed_back(rig, delivery):
    """Epochs are counted for each queue: another queue's flow may have the same one."""
    queue, other = _ErrorQueue(refusals=1_000_000), QueueName("orders/1")
    made = rig(_fail, error_queue=queue, **MOVE)
    made.dispatcher.attach(other, made.ends.append)
    async with made.running():
        made.dispatcher.dispatch(replace(delivery(1, "bad"), queue=other))
        await asyncio.sleep(100)
        assert made.dispatcher.is_stalled(QUEUE, Epoch(1))
        assert not made.dispatcher.is_stalled(other, Epoch(1))
        assert made.dispatcher.is_stalled(other, Epoch(2))
        made.dispatcher.return_unstarted(other, Epoch(1))


async def test_a_recall_ends_a_move_without_an_outcome_and_its_key_goes_on(rig, delivery):
    queue = _ErrorQueue(confirms=False)
    made = rig(_fail, error_queue=queue, **MOVE)
    async with made.running():
        made.dispatcher.dispatch(delivery(1, "bad"))
        await queue.reached.wait()
        made.dispatcher.cancel_handling(QUEUE, Epoch(1))
        await made.until_ended(1, within_s=1)
        # The runner lives on.
        made.dispatcher.dispatch(delivery(2, "good"))
        await made.until_ended(2, within_s=1)
        queue.may_confirm.set()
        made.dispatcher.dispatch(delivery(3, "bad", epoch=2))
        await made.until_ended(3, within_s=10)
    assert made.outcomes() == {1: None, 2: Outcome.ACCEPTED, 3: Outcome.ACCEPTED}


async def test_a_message_that_is_being_moved_when_the_dispatcher_is_cancelled_ends_without_an_outcome(rig, delivery):
    queue = _ErrorQueue(confirms=False)
    made = rig(_fail, error_queue=queue, **MOVE)
    async with made.running():
        made.dispatcher.dispatch(delivery(1, "bad"))
        await queue.reached.wait()
    assert made.outcomes() == {1: None}
    assert made.dispatcher.counts.moves_failed == 0


async def test_nothing_is_moved_after_the_flow_took_the_rest_back(rig, delivery):
    queue, may_fail = _ErrorQueue(), asyncio.Event()

    async def handle(message):
        await may_fail.wait()
        raise TerminalFailure("never")

    made = rig(handle, error_queue=queue, **MOVE)
    async with made.running():
        made.dispatcher.dispatch(delivery(1))
        await asyncio.sleep(1)
        made.dispatcher.return_unstarted(QUEUE, Epoch(1))
        may_fail.set()
        await made.until_ended(1)
    assert made.outcomes() == {1: None}
    assert queue.taken == []


async def test_a_terminal_failure_is_moved_after_one_attempt(rig, delivery):
    queue = _ErrorQueue()

    async def handle(message):
        raise TerminalFailure("no such customer")

    made = rig(handle, error_queue=queue, **MOVE)
    async with made.running():
        await made.handle(delivery(1))
    assert queue.taken == [(1, 1, "TerminalFailure: no such customer")]


async def test_a_handler_that_hangs_runs_out_of_attempts_too(rig, delivery):
    queue = _ErrorQueue()

    async def handle(message):
        await asyncio.sleep(1_000_000)

    made = rig(handle, error_queue=queue, options={"timeout": "2s"}, **MOVE)
    async with made.running():
        made.dispatcher.dispatch(delivery(1))
        await made.until_ended(1, within_s=10)
    assert queue.taken == [(1, 3, "TimeoutError: the handler did not finish within 2 s")]


@pytest.mark.parametrize(
    "failure",
    [
        {"attempts": 3, "then": "error_queue"},
        {"attempts": 3, "then": "stop"},
        {"retriable": ["ConnectionError"], "then": "error_queue"},
        {"terminal": ["lbg_runtime.model.errors.HandlerMissing"], "then": "error_queue"},
    ],
)
async def test_a_message_that_nobody_wants_waits_with_its_key_whatever_the_settings_say(rig, delivery, failure):
    """The members of the next version may have its handler."""
    queue = _ErrorQueue()
    made = rig(_fail, error_queue=queue, failure=failure)
    async with made.running():
        made.dispatcher.dispatch(delivery(1, topic="h/0/bills/new"))
        made.dispatcher.dispatch(delivery(2))
        await asyncio.sleep(3_600)
        made.dispatcher.dispatch(delivery(3, "another key"))
        await made.until_ended(1)
        await asyncio.sleep(3_600)
        assert list(made.outcomes()) == [3]
    assert queue.taken == []


async def test_each_handler_has_its_own_policy_and_its_own_time(rig, delivery):
    loop, cut, handlers = asyncio.get_running_loop(), {}, Handlers()

    async def hang(message):
        try:
            await asyncio.sleep(1_000_000)
        finally:
            cut.setdefault(message.topic, []).append(round(loop.time(), 1))

    handlers.handler("orders/quick", timeout="1s", attempts=1, then="error_queue")(hang)
    handlers.handler("orders/slow", timeout="7s", attempts=1, then="error_queue")(hang)
    queue = _ErrorQueue()
    made = rig(handlers=handlers, error_queue=queue)
    async with made.running():
        await made.handle(delivery(1, "a", topic="h/0/orders/slow"), delivery(2, "b", topic="h/0/orders/quick"))
    assert cut == {"h/0/orders/quick": [1.0], "h/0/orders/slow": [7.0]}
    assert [each for each, _, _ in queue.taken] == [2, 1]


class _FullParking:
    """A parking queue without room, until it has had a key replayed."""

    parking = QueueName("lbg-parked/orders/0")
    counts = (0, 0)

    error = ParkingNotReady

    def __init__(self):
        self.tries = []
        self.is_unparked = False
        self.has_room = False

    def concerns(self, handling):
        return False

    def judge(self, handling):
        return Verdict.HANDLE

    def is_replaying(self, handling):
        return self.is_unparked

    def was_parked(self, handling):
        return False

    def finished(self, handling):
        self.is_unparked = False

    async def take(self, handling, report):
        self.tries.append(asyncio.get_running_loop().time())
        if not self.has_room:
            raise self.error(self.parking, "full")


async def test_a_message_that_cannot_be_parked_after_a_replay_of_its_key_went_first_is_tried_again(rig, delivery):
    seen, parking = [], _FullParking()

    async def handle(message):
        seen.append(message.payload)
        if message.payload == b"1":
            raise ValueError("never")

    made = rig(handle, failure={"attempts": 3, "then": "park", **BACKOFF})
    made.dispatcher.park_in(QUEUE, parking)
    async with made.running():
        made.dispatcher.dispatch(delivery(1))
        await asyncio.sleep(20)
        before = len(parking.tries)
        parking.is_unparked = True
        await asyncio.sleep(20)
        assert len(parking.tries) > before + 3, "it is tried as before while the replay is on its way"
        before = len(parking.tries)
        made.dispatcher.dispatch(replace(delivery(2), queue=parking.parking))
        await asyncio.sleep(20)
        assert len(parking.tries) > before + 3, "it is still tried, and no runner has died of it"
        assert seen[-1] == b"2", "the replay did not wait for it"
        parking.has_room = True
        await made.until_ended(1)
    assert seen == [b"1"] * 3 + [b"2"]
    assert made.outcomes() == {1: Outcome.ACCEPTED}


async def test_the_first_start_of_a_handle_is_told_once_and_also_if_it_is_a_replay(rig, delivery):
    made, parking, told = rig(_fail), _FullParking(), []
    made.dispatcher.park_in(QUEUE, parking)
    made.dispatcher.attach(other := QueueName("orders/1"), made.ends.append)
    replays = [replace(delivery(number), queue=parking.parking, epoch=Epoch(2)) for number in (3, 4)]
    async with made.running():
        made.dispatcher.tell_first_start(QUEUE, Epoch(2), told.append)
        made.dispatcher.dispatch(delivery(1))
        made.dispatcher.dispatch(replace(delivery(2), queue=other, epoch=Epoch(2)))
        await asyncio.sleep(1)
        assert told == [], "one of the handle before, and one of another queue"
        for each in replays:
            made.dispatcher.dispatch(each)
        await asyncio.sleep(1)
        assert len(told) == 1
        made.dispatcher.tell_first_start(QUEUE, Epoch(3), told.append)
        made.dispatcher.tell_no_start(QUEUE)
        made.dispatcher.dispatch(replace(delivery(5), epoch=Epoch(3)))
        await asyncio.sleep(1)
    assert len(told) == 1


async def test_a_queue_is_handed_back_with_what_its_full_parking_queue_does_not_take(rig, delivery):
    """Nothing of it was sent, so the next owner may begin anew. The queue stayed, and stood still at each try to move
    it."""
    parking = _FullParking()
    made = rig(_fail, failure={"attempts": 1, "then": "park", **BACKOFF})
    made.dispatcher.park_in(QUEUE, parking)
    async with made.running():
        made.dispatcher.dispatch(delivery(1, "bad"))
        await asyncio.sleep(10)
        assert made.dispatcher.is_stalled(QUEUE, Epoch(1))
        parking.error = partial(ParkingNotReady, was_sent=True)
        await asyncio.sleep(10)
        parking.error = ParkingNotReady
        await asyncio.sleep(10)
        assert not made.dispatcher.is_stalled(QUEUE, Epoch(1)), "one try may have parked it"
        made.dispatcher.return_unstarted(QUEUE, Epoch(1))


class _ScriptedParking(_FullParking):
    """And one that says what it is told to say, its last verdict for ever."""

    def __init__(self, *verdicts, was_parked=False):
        super().__init__()
        self.verdicts = list(verdicts)
        self._was_parked = was_parked

    def concerns(self, handling):
        return self.verdicts[0] is not Verdict.HANDLE

    def judge(self, handling):
        return self.verdicts.pop(0) if len(self.verdicts) > 1 else self.verdicts[0]

    def was_parked(self, handling):
        return self._was_parked


async def test_a_message_whose_key_is_parked_no_more_when_there_is_room_is_handled_as_any_other(rig, delivery):
    made = rig(_fail)
    made.dispatcher.park_in(QUEUE, _ScriptedParking(Verdict.PARK, Verdict.HANDLE))
    async with made.running():
        await made.handle(delivery(1))
    [end] = made.ends
    assert (end.outcome, end.attempts > 0, end.end_report) == (Outcome.ACCEPTED, True, None)


async def test_the_first_wait_for_room_to_park_what_follows_is_the_shortest(rig, delivery):
    made, parking = rig(_fail, failure={"attempts": 3, "then": "park", **BACKOFF}), _ScriptedParking(Verdict.PARK)
    made.dispatcher.park_in(QUEUE, parking)
    async with made.running():
        made.dispatcher.dispatch(delivery(1))
        await asyncio.sleep(10)
    assert 0.05 <= parking.tries[1] - parking.tries[0] <= 0.11


async def test_what_follows_a_parked_message_and_may_be_parked_itself_is_kept_until_that_is_known(rig, delivery):
    """It has not been handled here, and the next owner would handle it before what is parked."""
    made, parking = rig(_fail), _ScriptedParking(Verdict.PARK)
    parking.error = PublishFailed
    made.dispatcher.park_in(QUEUE, parking)
    async with made.running():
        made.dispatcher.dispatch(delivery(1))
        await asyncio.sleep(10)
        assert not made.dispatcher.is_stalled(QUEUE, Epoch(1))
        made.dispatcher.return_unstarted(QUEUE, Epoch(1), keeps_moved=True)
        assert made.ends == []
        parking.has_room = True
        await made.until_ended(1)
    assert (made.ends[0].outcome, made.ends[0].attempts) == (Outcome.ACCEPTED, 0)


async def test_tries_to_park_a_message_are_no_attempts_of_its_handler(rig, delivery):
    """Its key may be parked no more before there was room for it."""
    times, queue = [], _ErrorQueue()

    async def handle(message):
        times.append(asyncio.get_running_loop().time())
        raise ValueError("never")

    made = rig(handle, failure={"attempts": 3, "then": "error_queue", **BACKOFF}, error_queue=queue)
    made.dispatcher.park_in(QUEUE, _ScriptedParking(*[Verdict.PARK] * 4, Verdict.HANDLE))
    async with made.running():
        await made.handle(delivery(1))
    assert (len(times), made.ends[0].attempts, made.ends[0].end_report.attempts) == (3, 3, 3)
    assert times[1] - times[0] < 0.2, "the first wait is the shortest"


async def test_what_is_or_was_parked_already_is_accepted_and_not_handled(rig, delivery):
    made = rig(_fail)
    made.dispatcher.park_in(QUEUE, _ScriptedParking(Verdict.DROP))
    async with made.running():
        await made.handle(delivery(1))
        made.dispatcher.park_in(QUEUE, _ScriptedParking(Verdict.PARK, was_parked=True))
        made.dispatcher.dispatch(delivery(2))
        await asyncio.sleep(10)
        made.dispatcher.return_unstarted(QUEUE, Epoch(1))
        await made.until_ended(2)
    assert [(end.outcome, end.attempts) for end in made.ends] == [(Outcome.ACCEPTED, 0)] * 2


async def test_what_turns_out_to_be_parked_when_it_would_go_back_is_counted_and_told(rig, delivery):
    """Its copy was not confirmed in time; what was parked already when it came is another's, and was told before."""
    made = rig(_fail, failure={"attempts": 1, "then": "park"})
    made.dispatcher.park_in(QUEUE, _ScriptedParking(Verdict.HANDLE, was_parked=True))
    with capture_logs() as lines:
        async with made.running():
            made.dispatcher.dispatch(delivery(1, "bad"))
            await asyncio.sleep(10)
            assert made.dispatcher.counts.parked == 0
            made.dispatcher.return_unstarted(QUEUE, Epoch(1))
            await made.until_ended(1)
            made.dispatcher.park_in(QUEUE, _ScriptedParking(Verdict.DROP))
            await made.handle(delivery(2, "bad"))
    assert made.dispatcher.counts.parked == 1
    [told] = [line for line in lines if line["event"] == "key_parked"]
    assert (told["key"], told["to"]) == ("bad", "lbg-parked/orders/0")


@pytest.mark.parametrize("then", ["error_queue", "stop"])
async def test_a_failure_without_an_end_is_tried_again_for_ever(rig, delivery, then):
    calls = []

    async def handle(message):
        calls.append(message.payload)
        raise ValueError("not yet")

    made = rig(handle, error_queue=_ErrorQueue(), failure={"then": then, **BACKOFF})
    async with made.running():
        made.dispatcher.dispatch(delivery(1))
        await asyncio.sleep(1_000)
        assert made.ends == []
    assert len(calls) > 900
