"""A copy of which nobody knows whether it has come, of a message that no stamp tells from another."""

import asyncio
import weakref
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from lbg_runtime.core.flow.events import FlowActive, MessageReceived
from lbg_runtime.core.parking.ledger import ParkingLedger
from lbg_runtime.core.parking.orders import PublishDrop
from lbg_runtime.core.parking.records import (
    DropAsked,
    OwnerFence,
    ParkedMessage,
    ParkingOwner,
    UnparkAsked,
    decode_entry,
    encode_entry,
    parking_queue,
)
from lbg_runtime.model.errors import ParkingNotReady
from lbg_runtime.model.ids import DeliveryId, Epoch, MemberId, QueueName
from lbg_runtime.model.message import PARTITION_KEY_PROPERTY, Delivery, Message
from lbg_runtime.runtime.clock import wall_us
from lbg_runtime.runtime.parking.copies import Copies, CopyDrops
from lbg_runtime.runtime.parking.parked_queue import FOLLOWS
from lbg_runtime.runtime.parking.ports import ParkingPorts
from lbg_runtime.runtime.parking.stay import COPY_PATIENCE_S, ParkingStay
from lbg_runtime.runtime.runners.handling import Handling
from lbg_runtime.transport.memory.transport import MemoryTransport
from tests.runtime.parking.refusals import refused
from tests.runtime.parking.scripted_session import Session
from tests.runtime.parking.slowness import settle_late, slow_down

PARK = {"failure": {"attempts": 1, "then": "park", "backoff": {"initial": "100ms", "maximum": "1s"}}}
PARKING = parking_queue("orders", 0)
OWN = ParkingOwner(1, "own")


def is_copy(message):
    return message.topic == PARKING and isinstance(decode_entry(message), ParkedMessage)


async def ready(trial):
    await trial.until_fed()
    await asyncio.sleep(1)


async def test_a_second_copy_that_is_refused_leaves_the_first_one_the_only_one(trial, monkeypatch):
    """The first one is only late. Were it forgotten, another would be sent, and the message handled twice."""
    delay, send, copies, handled = slow_down(monkeypatch, 0), MemoryTransport.send, [], []
    is_mended = False

    async def work(message):
        if not is_mended:
            raise ValueError("no")
        handled.append(message.payload)

    def refuse_the_second(transport, message):
        if not is_copy(message):
            return send(transport, message)
        copies.append(message)
        if len(copies) != 2:
            return send(transport, message)
        return refused(PARKING, "Spool Over Quota")

    async with trial.running(trial.member(work=work, **PARK)):
        await ready(trial)
        delay.delay_s = COPY_PATIENCE_S + 2
        monkeypatch.setattr(MemoryTransport, "send", refuse_the_second)
        visitor = MemoryTransport(trial.broker, "visitor")
        await visitor.open()
        await visitor.send(Message("h/0/orders/new", b"1", {PARTITION_KEY_PROPERTY: "a"}))
        await trial.until(lambda: trial.group_depth() == 0)
        assert len(copies) == 2
        is_mended = True
        await visitor.send(encode_entry(UnparkAsked("key a"), PARKING))
        await asyncio.sleep(3 * delay.delay_s)
        await visitor.close()
    assert handled == [b"1"]


async def test_a_message_that_is_too_large_with_its_error_is_parked_without_it(trial, monkeypatch):
    """It waited for good, where nothing can make the limit larger."""
    send, copies = MemoryTransport.send, []

    async def work(message):
        raise ValueError("no")

    def refuse_what_has_an_error(transport, message):
        if is_copy(message):
            copies.append(decode_entry(message))
            if copies[-1].error:
                return refused(PARKING, "Document Is Too Large")
        return send(transport, message)

    async with trial.running(trial.member(work=work, **PARK)):
        await ready(trial)
        monkeypatch.setattr(MemoryTransport, "send", refuse_what_has_an_error)
        visitor = MemoryTransport(trial.broker, "visitor")
        await visitor.open()
        await visitor.send(Message("h/0/orders/new", b"1", {PARTITION_KEY_PROPERTY: "a"}))
        await trial.until(lambda: trial.group_depth() == 0)
        parked = [decode_entry(message) for message in await visitor.browse(PARKING, 0)]
        await visitor.close()
    full, brief = copies
    assert (full.error, brief.error, brief.stack) == ("ValueError: no", "", "")
    assert replace(brief, error=full.error, stack=full.stack) == full
    assert brief in parked
    assert full not in parked


async def test_a_copy_that_is_given_up_before_it_is_sent_is_not_sent(trial, monkeypatch):
    """A fence of somebody else has come, so it is begun afresh: sent all the same, it would count beside the next."""
    send, copies, handled = MemoryTransport.send, [], []
    is_mended = False

    async def work(message):
        if not is_mended:
            raise ValueError("no")
        handled.append(message.payload)

    def note(transport, message):
        if is_copy(message):
            copies.append(message)
        return send(transport, message)

    settle_late(monkeypatch, 5)
    monkeypatch.setattr(MemoryTransport, "send", note)
    async with trial.running(trial.member(work=work, **PARK)):
        await ready(trial)
        visitor = MemoryTransport(trial.broker, "visitor")
        await visitor.open()
        await visitor.send(Message("h/0/orders/new", b"1", {PARTITION_KEY_PROPERTY: "a"}))
        await asyncio.sleep(2)
        assert copies == [], "it waits for what is to be settled before it"
        await visitor.send(encode_entry(OwnerFence(ParkingOwner(wall_us() + 1, "another")), PARKING))
        await trial.until(lambda: trial.group_depth() == 0)
        is_mended = True
        await visitor.send(encode_entry(UnparkAsked("key a"), PARKING))
        await asyncio.sleep(3 * COPY_PATIENCE_S)
        await visitor.close()
    assert handled == [b"1"]
    assert len(copies) == 1


async def test_a_copy_that_was_given_up_and_comes_nevertheless_is_nobodys():
    copies, handling = Copies(ParkingLedger(OWN)), object()
    copy = copies.of(handling, "key a")
    copies.give_up()
    copies.seen(copy.number)
    assert copy.is_given_up
    assert not copy.has_come
    assert not copies.has_come(handling)


async def test_a_copy_that_has_come_is_known_until_its_message_is_accepted_also_when_the_others_are_given_up():
    """Its message would be handled once more, beside the one that is parked."""
    copies, handling = Copies(ParkingLedger(OWN)), object()
    copy = copies.of(handling, "key a")
    assert copies.of(handling, "key a") is copy, "at each try"
    copies.seen(copy.number)
    copies.seen(copy.number)
    copies.give_up()
    assert copies.has_come(handling)
    copies.forget(handling)
    copies.forget(handling)
    assert not copies.has_come(handling)


async def test_a_message_whose_copy_was_refused_has_another_one_next_time():
    copies, handling = Copies(ParkingLedger(OWN)), object()
    refused = copies.of(handling, "key a")
    assert copies.refused(handling) == []
    assert copies.refused(handling) == [], "it was told already"
    assert copies.of(handling, "key a").number != refused.number


async def test_nothing_is_kept_of_a_copy_whose_message_is_accepted():
    """A stay may last for months, and park millions."""
    copies, handling = Copies(ParkingLedger(OWN)), object()
    came = weakref.ref(copies.of(handling, "key a").came)
    copies.forget(handling)
    assert came() is None


@pytest.mark.parametrize("times", [1, 2])
async def test_only_behind_a_copy_that_was_sent_twice_an_order_to_drop_the_rest_follows(times):
    ledger, handling = ParkingLedger(OWN), object()
    copies = Copies(ledger)
    ledger.take(DeliveryId(1), OwnerFence(OWN))
    copy = copies.of(handling, "key a")
    for _ in range(times):
        copies.about_to_send(copy)
    ledger.take(DeliveryId(2), ParkedMessage("key a", OWN, copy.number, Message("t", b""), 1, "", "", "m", 0))
    orders = ledger.take(DeliveryId(3), DropAsked("key a"))
    drop = PublishDrop(DropAsked("key a", (OWN, copy.number)))
    assert orders.count(drop) == times - 1


class SlowSession:
    """The test answers."""

    def __init__(self) -> None:
        self.sent = []
        self.answers = []

    def send(self, message):
        self.sent.append(decode_entry(message))
        self.answers.append(asyncio.get_running_loop().create_future())
        return self.answers[-1]


async def test_orders_to_drop_are_sent_one_after_another_until_the_end():
    session, told = SlowSession(), []
    drops = CopyDrops(QueueName("parked"), session, lambda: told.append(drops.are_sent))
    first, second, third = asked = [DropAsked("key a", (OWN, number)) for number in range(3)]
    async with asyncio.TaskGroup() as tasks:
        drops.publish(first, tasks)
        drops.publish(second, tasks)
        await asyncio.sleep(1)
        assert session.sent == [first]
        session.answers[0].set_result(None)
        await asyncio.sleep(1)
        assert (session.sent, told) == ([first, second], [])
        session.answers[1].set_result(None)
        await asyncio.sleep(1)
        assert told == [True]
        drops.publish(third, tasks)
        await asyncio.sleep(1)
        assert session.sent == asked
        drops.end()
    # The stay has ended, and a replay that outlived it as well.
    drops.publish(first, tasks)
    assert session.sent == asked


class Parking:
    """An open stay, and a message that is being parked behind others, which are to be settled first."""

    def __init__(self) -> None:
        self.session = Session()
        self.settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_restriped = False
        owner, queue, parking = ParkingOwner(1, "own"), QueueName("orders/0"), QueueName("parked")
        ports = SimpleNamespace(
            queue=queue,
            session=self.session,
            member=MemberId("m"),
            flush=lambda: self.settled,
            return_unstarted=lambda *_: None,
            is_restriping=lambda: self.is_restriped,
            patience_s=5.0,
        )
        self.stay = ParkingStay(parking, Epoch(1), owner, cast(ParkingPorts, ports), lambda: None)
        self.running = asyncio.ensure_future(self.stay.run())
        self._fence = Delivery(parking, Epoch(1), DeliveryId(1), encode_entry(OwnerFence(owner), parking), False, 0)
        original = Delivery(queue, Epoch(1), DeliveryId(1), Message("orders/new", b""), False, 0)
        self._handling = Handling(original, "a", "a", cast("object", None))

    @property
    def is_sent(self) -> bool:
        return any(isinstance(each, ParkedMessage) for each in self.session.sent)

    async def begin(self) -> "asyncio.Future[None]":
        await asyncio.sleep(1)
        self.session.sink(FlowActive(Epoch(1)))
        self.session.sink(MessageReceived(self._fence))
        await asyncio.sleep(1)
        parked = asyncio.ensure_future(self.stay.park(self._handling, "key a", FOLLOWS))
        await asyncio.sleep(1)
        return parked


async def test_what_is_to_be_parked_stays_if_a_re_striping_begins_while_others_are_settled():
    parking = Parking()
    parked = await parking.begin()
    parking.is_restriped = True
    parking.settled.set_result(None)
    with pytest.raises(ParkingNotReady, match="the group is being re-striped"):
        await parked
    assert not parking.is_sent
    parking.stay.end()
    await parking.running


async def test_who_waits_for_a_copy_learns_at_once_that_the_parking_queue_is_given_up():
    parking = Parking()
    parking.settled.set_result(None)
    parked = await parking.begin()
    assert parking.is_sent
    parking.stay.end()
    with pytest.raises(ParkingNotReady, match="it was given up meanwhile"):
        await parked
    await parking.running
