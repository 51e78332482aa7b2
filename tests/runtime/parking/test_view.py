"""What an operator asks of parking queues, and what is said of entries that cannot be read."""

import asyncio

import pytest

from lbg_runtime.config.load import parse_settings
from lbg_runtime.core.parking.records import (
    UNREAD_LANE,
    DropAsked,
    ParkedMessage,
    ParkingOwner,
    RoomKept,
    UnparkAsked,
    decode_entry,
    encode_entry,
    parking_queue,
)
from lbg_runtime.model.errors import PublishRefused
from lbg_runtime.model.message import Message
from lbg_runtime.runtime.parking.room import KEPT_FOR_FENCES_BYTES
from lbg_runtime.runtime.parking.view import RETRY_S, TRIES, ParkedLane, ParkedView

QUEUE = parking_queue("orders", 0)
SETTINGS = parse_settings(
    {"group": {"hash_prefix": "h", "name": "orders", "queue_count": 1, "hash_count": 4}}, "test", {}
)
FILLER = RoomKept(KEPT_FOR_FENCES_BYTES)
OWNER = ParkingOwner(5, "own")


class Desk:
    """A session with one parking queue in which these messages lie; it refuses what is sent so many times."""

    def __init__(self, *messages: Message, refusals: int = 0, reason: str = "Spool Over Quota") -> None:
        self.messages = list(messages)
        self.refusals = refusals
        self.reason = reason
        self.sent: list[object] = []

    async def has_queue(self, queue: str) -> bool:
        return queue == QUEUE

    async def browse(self, queue: str, quiet_s: float, is_last: object) -> list[Message]:
        return self.messages

    def send(self, message: Message) -> "asyncio.Future[None]":
        self.sent.append(decode_entry(message))
        answer = asyncio.get_running_loop().create_future()
        if len(self.sent) > self.refusals:
            answer.set_result(None)
        else:
            answer.set_exception(PublishRefused(QUEUE, self.reason))
        return answer


def lanes(*names: str) -> list[ParkedLane]:
    return [ParkedLane(name, QUEUE, (), is_replaying=False, unread=()) for name in names]


async def test_an_order_is_sent_once_for_each_key_behind_one_filler_for_the_queue() -> None:
    desk = Desk()
    await ParkedView(desk, SETTINGS).unpark(lanes("key a", "key b"))
    assert desk.sent == [FILLER, UnparkAsked("key a"), UnparkAsked("key b")]
    await ParkedView(desk, SETTINGS).drop(lanes("key a"), (OWNER, 7))
    assert desk.sent[3:] == [FILLER, DropAsked("key a", (OWNER, 7))]


async def test_an_order_without_room_is_tried_again_for_a_while() -> None:
    desk = Desk(refusals=TRIES - 1)
    await ParkedView(desk, SETTINGS).unpark(lanes("key a"))
    assert desk.sent == [*TRIES * [FILLER], UnparkAsked("key a")]
    assert asyncio.get_running_loop().time() == pytest.approx((TRIES - 1) * RETRY_S)
    desk = Desk(refusals=TRIES)
    with pytest.raises(PublishRefused, match="raise maxMsgSpoolUsage of queue lbg-parked/orders/0"):
        await ParkedView(desk, SETTINGS).unpark(lanes("key a"))
    assert desk.sent == TRIES * [FILLER]


async def test_an_order_that_is_refused_for_another_reason_is_not_tried_again() -> None:
    desk = Desk(refusals=1, reason="Publish ACL Denied")
    with pytest.raises(PublishRefused, match=r"Publish ACL Denied$"):
        await ParkedView(desk, SETTINGS).unpark(lanes("key a"))
    assert desk.sent == [FILLER]


PARKED = encode_entry(ParkedMessage("key a", OWNER, 7, Message("t", b""), 1, "e", "s", "m", 5), QUEUE)
STAYS = "key a stays parked until a member of the version that wrote it has replayed it, or it is dropped"
REMOVES = f"`lbg parked drop {UNREAD_LANE} --lane --all` removes it for good"


@pytest.mark.parametrize(
    ("changed", "what", "advice"),
    [
        ({"lbg_parked_attempts": "1"}, "cannot read #7 of key a (lbg_parked_attempts '1')", STAYS),
        ({"lbg_parked_number": "1"}, "cannot read of key a (lbg_parked_number '1')", STAYS),
        (
            {"lbg_parked_lane": None},
            "cannot read something that does not say its key (lbg_parked_lane None)",
            f"nothing of the queue is handled until a member can read it; {REMOVES}",
        ),
        (
            None,
            "cannot read something that does not say its key (lbg_parking None)",
            f"no version of lbg has put it there, and it stops nothing; {REMOVES}",
        ),
    ],
)
async def test_it_is_said_what_cannot_be_read_what_that_stops_and_what_ends_it(changed, what, advice) -> None:
    spoilt = Message(QUEUE, b"", {} if changed is None else {**PARKED.properties, **changed})
    view = ParkedView(Desk(spoilt, spoilt, PARKED), SETTINGS)
    found = await view.lanes()
    (unread,) = view.unread
    assert (unread.what, unread.advice) == (f"{QUEUE}: this version {what}", advice), "once"
    assert sum(len(each.messages) for each in found) == 1
