"""Messages that are to be parked, on a scripted session: when they are, when they may be, and what is known of them."""

import asyncio
import random
import time

import pytest

from lbg_runtime.core.flow.events import FlowActive, FlowInactive
from lbg_runtime.core.flow.table import FlowState
from lbg_runtime.core.group.control_messages import ParkingWait
from lbg_runtime.core.parking.ledger import Verdict
from lbg_runtime.core.parking.records import (
    DropAsked,
    OwnerFence,
    ParkedMessage,
    RoomKept,
)
from lbg_runtime.model.errors import ParkingNotReady, PublishRefused
from lbg_runtime.model.ids import Epoch
from lbg_runtime.runtime.parking import stay
from lbg_runtime.runtime.parking.parked_queue import FOLLOWS, ParkedQueue
from lbg_runtime.runtime.parking.room import KEPT_FOR_ORDERS_BYTES, PAUSE_S
from lbg_runtime.runtime.runners.handling import Handling
from tests.runtime.parking.scripted_session import Session
from tests.runtime.parking.test_parked_queue import EPOCH, PARKING, FullSession, Owner, opened, owning
from tests.runtime.parking.test_stay import FAILED, handling_of, stamped


async def parks(owner: Owner, handling: Handling) -> ParkedMessage:
    """What is sent for a message that is being parked; it comes back as the broker shows it."""
    parking = asyncio.ensure_future(owner.queue.take(handling, FAILED))
    await asyncio.sleep(1)
    room, sent = owner.session.sent[-2:]
    assert room == RoomKept(KEPT_FOR_ORDERS_BYTES), "what empties the queue has room, too"
    assert isinstance(sent, ParkedMessage)
    assert not parking.done(), "a confirm proves nothing"
    owner.show(sent)
    assert await parking == PARKING
    return sent


async def test_a_message_is_parked_when_it_has_come_back_and_is_known_to_be_there() -> None:
    async with opened() as owner:
        sent = await parks(owner, handling_of(stamped(3)))
        assert (sent.lane, sent.attempts, sent.error, sent.member) == ("key a", 1, "ValueError: no", "m")
        assert sent.parked_at_ms == pytest.approx(time.time() * 1_000, abs=600_000)
        assert owner.queue.counts == (1, 3)
        assert owner.queue.count_of("a") == 3
        owner.show(owner.session.sent[-2])
        await asyncio.sleep(1)
        assert owner.session.flow.settled == [5], "the filler, as nothing more is being parked"
        for number, verdict in ((3, Verdict.DROP), (4, Verdict.PARK)):
            again = handling_of(stamped(number), redelivered=True)
            assert owner.queue.concerns(again)
            assert owner.queue.judge(again) is verdict
        assert not owner.queue.is_replaying(again)


async def test_a_copy_that_does_not_come_is_sent_again_with_another_filler_as_that_may_lie_nowhere_too() -> None:
    async with opened() as owner:
        handling = handling_of(stamped(3))
        with pytest.raises(ParkingNotReady, match="expected a queue that subscribes to parked") as missed:
            await owner.queue.take(handling, FAILED)
        assert missed.value.was_sent
        first = owner.session.sent[-1]
        assert (await parks(owner, handling)).number == first.number, "a message has one number"
        owner.show(DropAsked("key a", (first.owner, first.number)))
        await asyncio.sleep(1)
        assert owner.session.sent[-1] == DropAsked("key a", (first.owner, first.number)), "whatever else comes of it"


async def test_a_message_whose_copy_comes_while_nobody_waits_for_it_is_accepted_once() -> None:
    async with opened() as owner:
        handling = handling_of(stamped(3))
        parking = asyncio.ensure_future(owner.queue.take(handling, FAILED))
        await asyncio.sleep(1)
        parking.cancel()
        assert not owner.queue.was_parked(handling)
        owner.show(owner.session.sent[-1])
        await asyncio.sleep(1)
        assert owner.queue.judge(handling) is Verdict.PARK
        count = len(owner.session.sent)
        assert await owner.queue.take(handling, FOLLOWS) == PARKING
        assert len(owner.session.sent) == count, "it is there"
        assert not owner.queue.was_parked(handling), "that was told"


async def test_a_message_that_ends_without_an_outcome_is_accepted_if_its_copy_has_come() -> None:
    async with opened() as owner:
        handling = handling_of(stamped(3))
        parking = asyncio.ensure_future(owner.queue.take(handling, FAILED))
        await asyncio.sleep(1)
        parking.cancel()
        owner.show(owner.session.sent[-1])
        await asyncio.sleep(1)
        assert [owner.queue.was_parked(handling) for _ in range(2)] == [True, False]


async def test_nothing_is_parked_while_the_group_is_re_striped_nor_of_another_handle_nor_where_it_is_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with opened() as owner:
        sent = list(owner.session.sent)
        owner.is_restriped = True
        with pytest.raises(ParkingNotReady, match="the group is being re-striped"):
            await owner.queue.take(handling_of(stamped(3)), FAILED)
        owner.is_restriped = False
        with pytest.raises(ParkingNotReady, match="it is not this member's now"):
            await owner.queue.take(handling_of(stamped(3), Epoch(2)), FAILED)
        monkeypatch.setattr(stay, "MAX_PARKED", 2)
        with pytest.raises(ParkingNotReady, match="2 messages are parked there, which is all that it takes") as full:
            await owner.queue.take(handling_of(stamped(3)), FAILED)
        assert not full.value.was_sent
        assert owner.session.sent == sent


async def test_nothing_is_parked_before_it_is_known_what_is_parked() -> None:
    async with owning(Session()) as owner:
        await asyncio.sleep(1)
        owner.session.sink(FlowActive(EPOCH))
        await asyncio.sleep(1)
        with pytest.raises(ParkingNotReady, match="it is not this member's now"):
            await owner.queue.take(handling_of(stamped(3)), FAILED)
        assert [type(each) for each in owner.session.sent] == [OwnerFence]


async def test_who_parks_on_a_handle_that_is_lost_learns_it_at_once_and_nothing_more_is_sent() -> None:
    async with opened() as owner:
        parking = asyncio.ensure_future(owner.queue.take(handling_of(stamped(3)), FAILED))
        await asyncio.sleep(1)
        owner.session.sink(FlowInactive(EPOCH))
        with pytest.raises(ParkingNotReady, match="it was given up meanwhile") as lost:
            await parking
        assert lost.value.was_sent
        assert asyncio.get_running_loop().time() < 5
        sent = list(owner.session.sent)
        with pytest.raises(ParkingNotReady, match="it is not this member's now"):
            await owner.queue.take(handling_of(stamped(4)), FAILED)
        assert owner.session.sent == sent


async def test_a_message_that_was_refused_is_parked_at_the_next_try_as_if_it_were_the_first() -> None:
    session = FullSession()
    session.is_full = False
    async with owning(session) as owner:
        await owner.open()
        handling = handling_of(stamped(3))
        session.is_full = True
        with pytest.raises(PublishRefused, match="raise maxMsgSpoolUsage of queue parked"):
            await owner.queue.take(handling, FAILED)
        session.is_full = False
        await asyncio.sleep(PAUSE_S)
        await parks(owner, handling)
        assert owner.queue.counts == (1, 3)
        owner.show(DropAsked("key a"))
        await asyncio.sleep(1)
        assert not any(isinstance(each, DropAsked) for each in session.sent), "no second copy was sent"


async def test_before_the_first_stay_nothing_is_known_and_all_is_handled() -> None:
    queue, handling = ParkedQueue(PARKING, random.Random(1)), handling_of(stamped(3), redelivered=True)
    queue.give_up()
    queue.follow(EPOCH, FlowState.BINDING)
    assert (queue.concerns(handling), queue.judge(handling)) == (False, Verdict.HANDLE)
    assert (queue.is_replaying(handling), queue.was_parked(handling)) == (False, False)
    assert (queue.counts, queue.count_of("a"), queue.wait) == ((0, 0), 0, None)
    assert await queue.leave(EPOCH)
    with pytest.raises(ParkingNotReady, match="it is not this member's now"):
        await queue.take(handling, FAILED)
    queue.follow(EPOCH, FlowState.ACTIVE)
    assert queue.wait == ParkingWait(0, "`on_assigned` has not returned")


async def test_the_original_of_what_another_owner_parked_is_known_when_nothing_is_parked_any_more() -> None:
    """Its settlement was lost."""
    async with owning(Session()) as owner:
        owner.first = stamped(1)
        await owner.open()
        owner.show(DropAsked("key a"))
        await asyncio.sleep(1)
        assert owner.queue.counts == (0, 0)
        original = handling_of(stamped(1), redelivered=True)
        assert owner.queue.concerns(original)
        assert owner.queue.judge(original) is Verdict.DROP
        assert not owner.queue.concerns(handling_of(stamped(1)))


async def test_a_message_of_another_key_is_none_of_the_parked_ones() -> None:
    async with owning(Session()) as owner:
        other = Handling(handling_of(stamped(3)).delivery, "b", "b", None)
        assert not owner.queue.concerns(other)
        await owner.open()
        assert not owner.queue.concerns(other)
        assert owner.queue.judge(other) is Verdict.HANDLE
        owner.show(DropAsked("key a"))
        await asyncio.sleep(1)
        assert (owner.queue.counts, owner.session.flow.settled) == ((0, 0), [1, 2, 4])
