"""Messages a second, from counts that members tell now and then."""

from collections.abc import AsyncIterator

import httpx
import pytest

from lbg_runtime.core.group.control_messages import (
    GroupAnswer,
    MemberFacts,
    ParkingWait,
    ParkingWaits,
    QuestionId,
    StoppedQueues,
)
from lbg_runtime.dashboard.rates import (
    FRESH_IN_GROUP_MS,
    FRESH_MS,
    MAX_ANSWER_BYTES,
    FiguresHeard,
    HandlingRates,
    read_handled,
)
from lbg_runtime.model.ids import MemberId
from lbg_runtime.status.objects import handled_as_object
from lbg_runtime.status.picture import HandledPicture, Standstill
from tests.dashboard.words import Speaker, queue


def told(member, counts, incarnation=1):
    return HandledPicture(MemberId(member), incarnation, counts)


def test_a_rate_is_what_came_between_two_answers_and_not_known_after_the_first() -> None:
    rates = HandlingRates()
    rates.take(told("a", {0: 100}), 1_000)
    assert rates.figures(1_000).rates is None
    rates.take(told("a", {0: 150, 1: 10}), 3_000)
    assert rates.figures(3_000).rates == {0: 25.0, 1: 5.0}


def test_parked_keys_of_all_members_that_tell_them_add_up() -> None:
    rates = HandlingRates()
    assert rates.figures(0).keys_parked is None
    rates.take(told("older", {}), 0)
    assert rates.figures(0).keys_parked is None
    for member, count in (("a", 0), ("b", 3), ("c", 1)):
        rates.take(HandledPicture(MemberId(member), 1, {}, count), 0)
    assert rates.figures(0).keys_parked == 4


def test_what_stands_still_is_told_with_its_reason_and_since_when_as_long_as_its_member_tells_it() -> None:
    rates = HandlingRates()
    waits, stopped = Standstill(False, ParkingWait(8_000, "Queue Shutdown")), Standstill(True, None)
    rates.take(HandledPicture(MemberId("a"), 1, {}, 0, {1: waits}), 10_000)
    rates.take(HandledPicture(MemberId("b"), 1, {}, 0, {2: stopped}), 11_000)
    assert rates.figures(11_000).standing_still == {("a", 1): ("Queue Shutdown", 2_000), ("b", 2): (None, None)}
    assert rates.figures(10_000 + FRESH_MS).standing_still == {("b", 2): (None, None)}
    rates.take(HandledPicture(MemberId("b"), 1, {}, 0), 12_000)
    assert rates.figures(12_000).standing_still == {}


def test_what_a_member_tells_often_counts_beside_what_it_tells_seldom() -> None:
    rates = HandlingRates()
    rates.take(told("a", {0: 100}), 0, FRESH_IN_GROUP_MS)
    assert not rates.knows(MemberId("a"), 0)
    rates.take(told("a", {0: 110}), 1_000)
    rates.take(told("a", {0: 9}), 1_001, FRESH_IN_GROUP_MS)
    assert (rates.figures(1_001).rates, rates.knows(MemberId("a"), 1_001)) == ({0: 10.0}, True)
    rates.take(told("a", {0: 310}), 1_000 + FRESH_MS, FRESH_IN_GROUP_MS)
    assert rates.figures(999 + FRESH_MS + FRESH_IN_GROUP_MS).rates == {0: 50.0}
    assert rates.figures(1_000 + FRESH_MS + FRESH_IN_GROUP_MS).rates is None


def test_what_a_member_says_before_its_answer_is_put_together_and_of_an_older_one_what_it_says() -> None:
    a, heard, queues = Speaker("a"), FiguresHeard(), [queue(0), queue(1), queue(2)]
    wait = ParkingWait(8_000, "Queue Shutdown")

    def say(kind, *facts, question="q1"):
        return heard.hear(kind(a.beat({}).header, QuestionId(question), *facts), queues)

    assert say(ParkingWaits, {queue(1): wait, queue(9): wait}) is None
    assert say(StoppedQueues, (queue(2),)) is None
    assert say(MemberFacts, "0.2.0", 4, {0: 10}) is None
    still = {1: Standstill(False, wait), 2: Standstill(True, None)}
    assert say(GroupAnswer, ()) == HandledPicture(MemberId("a"), 1, {0: 10}, 4, still)
    assert say(StoppedQueues, (queue(2),), question="q2") is None
    assert say(GroupAnswer, (), question="q3") == HandledPicture(MemberId("a"), 1, None, None, {}), "not to q2"
    rates = HandlingRates()
    for at_ms in (0, 1_000):
        rates.take(HandledPicture(MemberId("a"), 1, None, None, still), at_ms)
    figures = rates.figures(1_000)
    assert (figures.rates, figures.is_parked_unknown) == (None, True)


def test_two_members_of_a_queue_that_moved_add_up() -> None:
    rates = HandlingRates()
    for member, first, second in (("a", 5, 10), ("b", 0, 20)):
        rates.take(told(member, {3: first}), 0)
        rates.take(told(member, {3: second}), 1_000)
    assert rates.figures(1_000).rates == {3: 25.0}


def test_a_new_life_begins_anew_and_a_member_that_is_gone_handles_nothing() -> None:
    rates = HandlingRates()
    rates.take(told("a", {0: 1_000}), 0)
    rates.take(told("a", {0: 3}, incarnation=2), 1_000)
    assert rates.figures(1_000).rates is None
    rates.take(told("a", {0: 13}, incarnation=2), 2_000)
    assert rates.figures(2_000).rates == {0: 10.0}
    assert rates.figures(2_000 + FRESH_MS).rates is None
    rates.take(told("a", {0: 1}), 3_000)
    rates.take(told("a", {0: 5_000}, incarnation=2), 4_000)
    assert rates.figures(4_000).rates is None, "it had handled more before the first answer"


def test_an_answer_that_comes_twice_at_one_time_is_taken_once() -> None:
    rates = HandlingRates()
    rates.take(told("a", {0: 1}), 1_000)
    rates.take(told("a", {0: 9}), 1_000)
    assert rates.figures(1_000).rates is None


BAD = [
    *(b"", b"[]", b"null", b'{"member": "a"}', b'{"member": "a", "incarnation": 1, "handled": {"x": 1}}', b"\xff"),
    # Numbers that no member tells: the page could not send them on, or not even take a difference of them.
    b'{"member": "a", "incarnation": 1, "handled": {"1": 1e300}}',
    b'{"member": "a", "incarnation": 1, "handled": {"1": %d}}' % 10**300,
    b'{"member": "a", "incarnation": 1, "handled": {"1": -1}}',
    b'{"member": "a", "incarnation": 1, "handled": {"1": true}}',
    b'{"member": "a", "incarnation": 1, "handled": {}, "keys_parked": %d}' % 2**64,
    b'{"member": "a", "incarnation": 1, "handled": {}, "standing_still": {"1": {"stopped": false, "parking_wait": '
    b'{"waited_ms": 18446744073709551615, "reason": ""}}}}',
]


@pytest.mark.parametrize("body", BAD)
async def test_who_answers_something_else_is_no_member(body) -> None:
    transport = httpx.MockTransport(lambda request: httpx.Response(200, content=body))
    async with httpx.AsyncClient(transport=transport, base_url="http://m") as client:
        assert await read_handled(client) is None


class _Endless(httpx.AsyncByteStream):
    def __init__(self) -> None:
        self.told = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            self.told += 1
            yield b" " * 1_000_000


async def test_who_does_not_stop_answering_is_no_member() -> None:
    body = _Endless()
    transport = httpx.MockTransport(lambda request: httpx.Response(200, stream=body))
    async with httpx.AsyncClient(transport=transport, base_url="http://m") as client:
        assert await read_handled(client) is None
    assert body.told == MAX_ANSWER_BYTES // 1_000_000 + 1


async def test_what_stands_still_is_read_as_a_member_tells_it() -> None:
    still = {1: Standstill(False, ParkingWait(8_000, "Queue Shutdown")), 12: Standstill(True, None)}
    picture = HandledPicture(MemberId("a"), 5, {}, 0, still)
    transport = httpx.MockTransport(lambda request: httpx.Response(200, json=handled_as_object(picture)))
    async with httpx.AsyncClient(transport=transport, base_url="http://m") as client:
        assert await read_handled(client) == picture


async def test_a_members_answer_is_read_and_its_refusals_and_absence_are_none() -> None:
    answers = iter(
        (
            httpx.Response(200, json={"member": "a", "incarnation": 5, "handled": {"12": 7}}),
            httpx.Response(200, json={"member": "a", "incarnation": 5, "handled": {}, "keys_parked": 2}),
            httpx.Response(503),
        )
    )

    def answer(request):
        assert request.url.path == "/v1/handled"
        if (found := next(answers, None)) is None:
            raise httpx.ConnectError("nobody there")
        return found

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://m") as client:
        assert await read_handled(client) == told("a", {12: 7}, incarnation=5)
        assert await read_handled(client) == HandledPicture(MemberId("a"), 5, {}, 2)
        assert await read_handled(client) is None
        assert await read_handled(client) is None
