"""Laws on histories that no machine of ours can make: what they demand of the broker, and of the client."""

from collections.abc import Callable, Iterator, Sequence

import pytest

from lbg_runtime.broker.engine.effects import FlowId
from lbg_runtime.model.ids import DeliveryId, Epoch, QueueName
from lbg_runtime.sim import laws
from lbg_runtime.sim.facts import Facts
from lbg_runtime.sim.history import (
    Delivered,
    FlowClosed,
    Handle,
    Happening,
    Life,
    MessageDropped,
    SpoolSeen,
    Stamp,
)
from lbg_runtime.sim.violation import Breach, violations_of

QUEUE = QueueName("orders/0")
STAMPS = [Stamp("p1", "k", sequence) for sequence in (1, 2, 3)]


def sent(number: int, flow: int = 1, *, redelivered: bool = False, delivery: int | None = None) -> Delivered:
    handle = Handle(Life(f"m{flow}#1"), QUEUE, Epoch(1))
    delivery_id = DeliveryId(number if delivery is None else delivery)
    return Delivered(0, QUEUE, FlowId(flow), handle, delivery_id, STAMPS[number - 1], redelivered)


def left(*numbers: int) -> SpoolSeen:
    return SpoolSeen(0, QUEUE, tuple(STAMPS[number - 1] for number in numbers))


CLOSED = FlowClosed(0, QUEUE, FlowId(1), cut_ms=None)
AGAIN = sent(1, flow=2, redelivered=True, delivery=9)
DROPPED = MessageDropped(0, sent(1).handle, DeliveryId(1))


@pytest.mark.parametrize(
    ("law", "kept", "broken"),
    [
        (laws.broker_feeds_one_flow, [sent(1), CLOSED, sent(2, flow=2)], [sent(1), sent(2, flow=2), CLOSED]),
        (laws.redeliveries_are_flagged, [sent(1), AGAIN], [sent(1), sent(1, flow=2, delivery=9)]),
        (laws.redeliveries_are_flagged, [sent(1)], [sent(1, redelivered=True)]),
        (laws.clients_drop_nothing, [sent(1)], [sent(1), DROPPED]),
        (laws.settled_messages_are_a_prefix, [sent(1), sent(2), left(2, 3)], [sent(1), sent(2), left(1, 3)]),
        # Nothing lies behind the one that was settled too early.
        (laws.settled_messages_are_a_prefix, [sent(1), sent(2), left(1, 2)], [sent(1), sent(2), left(1)]),
        (laws.settled_messages_are_a_prefix, [left(1, 2), left(2)], [left(2), left(1, 2)]),
    ],
    ids=["two fed", "unflagged", "flagged", "dropped", "a gap", "the last one gone", "back"],
)
def test_a_law_holds_for_what_may_be_and_notices_what_may_not(
    law: Callable[[Facts], Iterator[Breach]], kept: Sequence[Happening], broken: Sequence[Happening]
) -> None:
    assert not violations_of(law, Facts(kept))
    assert [violation.law for violation in violations_of(law, Facts(broken))] == [law.__name__]
