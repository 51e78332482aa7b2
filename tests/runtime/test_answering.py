"""What a member answers fits into a message, however much there is to say."""

from types import SimpleNamespace
from typing import cast

import pytest

from lbg_runtime.core.group.control_codec import decode, encode
from lbg_runtime.core.group.control_messages import (
    ControlMessage,
    GroupQuestion,
    Header,
    Inquiry,
    Life,
    ParkingWait,
    ParkingWaits,
    QuestionId,
    StateRequest,
)
from lbg_runtime.core.group.membership import MembershipMachine
from lbg_runtime.metrics.reading import ParkingReading
from lbg_runtime.model.ids import GroupName, MemberId, QueueName
from lbg_runtime.runtime.answering import Answerer
from lbg_runtime.runtime.dispatch.dispatcher import Dispatcher
from lbg_runtime.runtime.dispatch.key_book import KeyBook

HEADER = Header(GroupName("orders"), MemberId("m"), Life(1, 1), 1)
REASON = "something lies there that this version cannot read " * 5


@pytest.mark.parametrize(("count", "told"), [(1, 250), (196, 250), (197, 249), (1_000, 49)])
async def test_reasons_are_shortened_so_that_those_of_a_thousand_queues_are_sent(count: int, told: int) -> None:
    waits = {QueueName(f"orders/{index}"): ParkingWait(10_000, REASON) for index in range(count)}
    # Heartbeats are told elsewhere.
    membership = SimpleNamespace(
        may_speak=True, stamp=lambda: HEADER, heartbeat=lambda _: StateRequest(HEADER), view=SimpleNamespace(members=())
    )
    sent: list[ControlMessage | Inquiry] = []
    answerer = Answerer(
        cast(MembershipMachine, membership),
        dict,
        cast(KeyBook, None),
        cast(Dispatcher, SimpleNamespace(parking_waits=lambda: waits, parked=ParkingReading)),
        dict,
        lambda message: sent.append(decode(encode(message), HEADER.group)),
    )
    answerer.hear(GroupQuestion(HEADER, QuestionId("q")))
    (heard,) = [message for message in sent if isinstance(message, ParkingWaits)]
    assert heard.waits == {queue: ParkingWait(10_000, REASON[:told]) for queue in waits}
