"""How a handle ends, mostly at a message that cannot be read, on virtual time: what came before is handled once."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from lbg_runtime.core.flow.events import FlowDown
from lbg_runtime.model.ids import DeliveryId, Epoch, QueueName
from lbg_runtime.model.message import Delivery, Message
from lbg_runtime.model.outcome import Outcome
from lbg_runtime.testing.flow_recorder import FlowRecorder
from lbg_runtime.transport.solace.flow import END_AGAIN_S, OBSTACLE_PATIENCE_S, SolaceFlow
from lbg_runtime.transport.solace.inbound import UnreadableMessage
from lbg_runtime.transport.solace.native import NativeFlowEvent

QUEUE, EPOCH = QueueName("q"), Epoch(1)
UNREADABLE = UnreadableMessage("for a test", DeliveryId(3))


class Path:
    """A receive path that notes what it is asked for."""

    def __init__(self) -> None:
        self.is_open = False
        self.accepted: list[DeliveryId] = []

    def accept(self, delivery_id: DeliveryId) -> bool:
        self.accepted.append(delivery_id)
        return True

    def set_intake(self, *, is_open: bool) -> None:
        self.is_open = is_open

    def end(self) -> None:
        pass


class Threads:
    """Control threads on which nothing is done."""

    def __init__(self) -> None:
        self.left = 0
        """How many calls there is no memory for."""
        self.begun: list[Any] = []
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def begin(self, call: Any) -> asyncio.Future[None]:
        self.left -= 1
        if self.left >= 0:
            raise MemoryError
        self.begun.append(call)
        return self.ended


SECOND = 2


async def heard_in() -> int:
    return SECOND


class Bench:
    """A bound handle with an open window, to which two messages have come."""

    def __init__(self) -> None:
        self.path, self.threads, self.told, nobody = Path(), Threads(), FlowRecorder(), cast(Any, None)
        self.flow = SolaceFlow(
            nobody, cast(Any, self.threads), QUEUE, EPOCH, self.told, lambda *_: cast(Any, self.path), heard_in, 255
        )
        self.flow.handed_over()
        self.flow.start_intake()
        for number in (1, 2):
            self.flow.arrived(Delivery(QUEUE, EPOCH, DeliveryId(number), Message("t", b""), False, 0))

    def settle(self, number: int) -> None:
        self.flow.settle(DeliveryId(number), Outcome.ACCEPTED)

    @property
    def is_down(self) -> bool:
        return any(isinstance(event, FlowDown) for event in self.told.events)


@pytest.fixture
async def bench() -> Bench:
    return Bench()


async def test_the_handle_ends_when_all_that_came_before_is_settled(bench: Bench) -> None:
    bench.flow.refuse(UNREADABLE)
    bench.settle(2)
    assert (bench.is_down, bench.path.is_open) == (False, False)
    bench.settle(1)
    assert await bench.told.until_down() == "a message cannot be read: for a test"


async def test_it_ends_at_once_if_nothing_came_before_that_is_not_settled(bench: Bench) -> None:
    bench.settle(1)
    bench.settle(2)
    assert not bench.is_down
    bench.flow.refuse(UNREADABLE)
    assert bench.is_down


async def test_it_ends_at_once_even_if_no_timer_can_be_made(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def call_later(*_: object) -> None:
        raise MemoryError

    bench.settle(1)
    bench.settle(2)
    monkeypatch.setattr(asyncio.get_running_loop(), "call_later", call_later)
    bench.flow.refuse(UNREADABLE)
    assert bench.is_down


async def test_nothing_opens_the_window_any_more(bench: Bench) -> None:
    """More messages would only be thrown away, and come again with their redelivery count increased."""
    assert bench.path.is_open
    bench.flow.refuse(UNREADABLE)
    for ask in (bench.flow.start_intake, bench.flow.flush, bench.flow.stop_intake, bench.flow.start_intake):
        ask()
        assert not bench.path.is_open


async def test_a_handling_that_does_not_end_is_not_waited_for_without_end(bench: Bench) -> None:
    """The unreadable message may have been deleted meanwhile, and the other keys wait for another look."""
    bench.flow.refuse(UNREADABLE)
    bench.settle(1)
    await asyncio.sleep(OBSTACLE_PATIENCE_S - 1)
    assert not bench.is_down
    await asyncio.sleep(1.1)
    assert bench.is_down


async def test_one_line_tells_which_message_it_is_and_why(bench: Bench) -> None:
    with capture_logs() as logs:
        bench.flow.refuse(UNREADABLE)
    assert logs == [
        {
            "event": "message_unreadable",
            "log_level": "error",
            "queue": "q",
            "epoch": 1,
            "delivery_id": 3,
            "unsettled": 2,
            "reason": "for a test",
        }
    ]
    bench.flow.silence()
    with capture_logs() as logs:
        bench.flow.refuse(UNREADABLE)
    assert logs == []


@pytest.mark.parametrize("ends_first", [False, True])
async def test_a_handle_that_cannot_be_unbound_for_want_of_memory_has_ended_and_is_unbound_later(
    bench: Bench, ends_first: bool
) -> None:
    """Nothing else tells its owner that no more comes, and the broker would go on feeding it."""
    bench.threads.left = 2
    bench.flow._receiver = object()
    bench.flow.give_up("for a test")
    assert bench.is_down
    await asyncio.sleep(1.5 * END_AGAIN_S)
    if ends_first:
        bench.flow.silence()
    await asyncio.sleep(5 * END_AGAIN_S)
    assert bench.threads.begun == ([] if ends_first else [bench.flow.terminate])


@pytest.mark.parametrize(
    ("is_live", "sent_in", "arrived"),
    [(True, SECOND, True), (True, SECOND - 1, False), (True, None, False), (False, SECOND, False)],
)
async def test_of_a_handle_that_has_ended_by_itself_or_with_its_connection_nobody_says_that_its_settlements_arrived(
    bench: Bench, is_live: bool, sent_in: int | None, arrived: bool
) -> None:
    """Whatever the broker answers by then: with a settlement that was not taken, or a lost flow, they did not."""
    # As `terminate` does.
    bench.flow._sent_in = sent_in
    if not is_live:
        bench.flow.give_up("for a test")
    unbinding = asyncio.ensure_future(bench.flow.unbind())
    await asyncio.wait([unbinding], timeout=1)
    assert not unbinding.done()
    bench.threads.ended.set_result(None)
    assert await unbinding is arrived
    assert bench.threads.begun == [bench.flow.terminate]
    assert await bench.flow.unbind() is False


@pytest.mark.parametrize("event", [NativeFlowEvent.DOWN, NativeFlowEvent.REBIND_REFUSED])
async def test_nor_of_one_that_the_broker_had_ended_when_it_was_given_up(bench: Bench, event: NativeFlowEvent) -> None:
    """The loop was busy, so that the news of it came later."""
    unbinding = asyncio.ensure_future(bench.flow.unbind())
    await asyncio.sleep(1)
    bench.flow._event_happened((event, "Queue Shutdown"))
    bench.threads.ended.set_result(None)
    assert await unbinding is False
    assert not bench.is_down, "nothing is reported after unbind"


@pytest.mark.parametrize(
    "end", [partial(SolaceFlow.give_up, reason="x"), partial(SolaceFlow.session_ended, reason="x")]
)
async def test_what_is_settled_on_a_handle_that_is_gone_is_not_sent(
    bench: Bench, end: Callable[[SolaceFlow], None]
) -> None:
    bench.settle(1)
    end(bench.flow)
    bench.settle(2)
    assert bench.path.accepted == [1]
