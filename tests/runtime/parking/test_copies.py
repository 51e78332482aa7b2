"""A copy of which nobody knows whether it has come, of a message that no stamp tells from another."""

import asyncio

from lbg_runtime.core.parking.ledger import ParkingLedger
from lbg_runtime.core.parking.records import (
    OwnerFence,
    ParkedMessage,
    ParkingOwner,
    UnparkAsked,
    decode_entry,
    encode_entry,
    parking_queue,
)
from lbg_runtime.model.errors import PublishRefused
from lbg_runtime.model.message import PARTITION_KEY_PROPERTY, Message
from lbg_runtime.runtime.clock import wall_us
from lbg_runtime.runtime.flow_runner import FlowRunner
from lbg_runtime.runtime.parking.copies import Copies
from lbg_runtime.runtime.parking.stay import COPY_PATIENCE_S
from lbg_runtime.transport.memory.transport import MemoryTransport
from tests.runtime.parking.test_parking_silence import slow_down

PARK = {"failure": {"attempts": 1, "then": "park", "backoff": {"initial": "100ms", "maximum": "1s"}}}
PARKING = parking_queue("orders", 0)


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
        answer = asyncio.get_running_loop().create_future()
        answer.set_exception(PublishRefused(PARKING, "Spool Over Quota"))
        return answer

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


async def test_a_copy_that_is_given_up_before_it_is_sent_is_not_sent(trial, monkeypatch):
    """A fence of somebody else has come, so it is begun afresh: sent all the same, it would count beside the next."""
    flush, send, copies, handled = FlowRunner.flush, MemoryTransport.send, [], []
    is_mended = False

    async def work(message):
        if not is_mended:
            raise ValueError("no")
        handled.append(message.payload)

    def flush_late(runner):
        """As when there is much to settle before the message."""
        flushed = flush(runner)
        late = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(5, lambda: late.done() or late.set_result(flushed.result()))
        return late

    def note(transport, message):
        if is_copy(message):
            copies.append(message)
        return send(transport, message)

    monkeypatch.setattr(FlowRunner, "flush", flush_late)
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
    copies, handling = Copies(ParkingLedger(ParkingOwner(1, "own"))), object()
    copy = copies.of(handling, "key a")
    copies.give_up()
    copies.seen(copy.number)
    assert copy.is_given_up
    assert not copy.has_come
    assert not copies.has_come(handling)
