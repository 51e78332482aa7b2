"""A stay at a parking queue on a scripted session: what it still does, and does no longer, after what may happen.

In all tests two messages of a key are parked, and the order to replay them has come or comes.
"""

import asyncio
from collections.abc import Callable

import pytest

from lbg_runtime.core.flow.events import FlowActive, FlowDown, FlowEvent, FlowInactive
from lbg_runtime.core.flow.table import FlowState
from lbg_runtime.core.group.control_messages import ParkingWait
from lbg_runtime.core.parking.records import (
    KIND_PROPERTY,
    OwnerFence,
    ParkedMessage,
    ParkingOwner,
    RoomKept,
    UnparkAsked,
)
from lbg_runtime.model.errors import BindFailed
from lbg_runtime.model.failure import Then
from lbg_runtime.model.ids import DeliveryId, Epoch, QueueName
from lbg_runtime.model.message import (
    KEY_SEQUENCE_PROPERTY,
    PARTITION_KEY_PROPERTY,
    PUBLISHER_PROPERTY,
    Delivery,
    Message,
)
from lbg_runtime.model.outcome import Outcome
from lbg_runtime.runtime.parking.room import KEPT_FOR_FENCES_BYTES
from lbg_runtime.runtime.runners.failure_report import FailureReport
from lbg_runtime.runtime.runners.handling import Handling
from tests.runtime.parking.scripted_session import KeptFlow, Session
from tests.runtime.parking.test_parked_queue import EARLIER, EPOCH, PARKING, FullSession, Owner, opened, owning

FAILED = FailureReport(Then.PARK, 1, "ValueError: no", "")
STAMPS = {PARTITION_KEY_PROPERTY: "a", PUBLISHER_PROPERTY: "p"}


def stamped(number: int) -> Message:
    return Message("orders/new", b"", {**STAMPS, KEY_SEQUENCE_PROPERTY: number})


def handling_of(message: Message, epoch: Epoch = EPOCH, *, redelivered: bool = False) -> Handling:
    """A message of the queue that has just failed, and is to be parked."""
    delivery = Delivery(QueueName("orders/0"), epoch, DeliveryId(1), message, redelivered, 0)
    handling = Handling(delivery, "a", "a", None)
    handling.end_report = FAILED
    return handling


async def replaying(owner: Owner) -> None:
    await owner.open()
    owner.show(UnparkAsked("key a"))
    await asyncio.sleep(1)
    assert owner.replayed == [b"1"]


async def test_the_next_of_a_key_is_replayed_as_soon_as_the_one_before_it_is_handled() -> None:
    async with owning(Session()) as owner:
        await replaying(owner)
        owner.end_replay(Outcome.ACCEPTED)
        assert owner.replayed == [b"1", b"2"], "at once: what comes on the queue may be judged next"
        assert (owner.session.flow.settled, owner.settleable) == ([1], [True])
        assert owner.session.flow.flushed == 1, "before a later message of its key is settled"
        owner.end_replay(Outcome.ACCEPTED)
        assert owner.session.flow.settled == [1, 2, 4], "and the order to replay"
        assert (owner.queue.counts, owner.ended) == ((0, 0), owner.replays)


async def test_a_replay_that_fails_again_ends_the_replay_of_its_key() -> None:
    async with owning(Session()) as owner:
        await replaying(owner)
        owner.end_replay(None, FAILED)
        await asyncio.sleep(1)
        assert (owner.replayed, owner.queue.counts) == ([b"1"], (1, 2))
        assert owner.session.flow.settled == [4], "the order"
        assert owner.session.lost == []


@pytest.mark.parametrize("report", [None, FailureReport(Then.ERROR_QUEUE, 1, "ValueError: no", "")])
async def test_a_replay_that_a_hand_back_returned_is_offered_again_only_when_the_queue_is_kept(
    report: FailureReport | None,
) -> None:
    """Also if it was to be moved to another queue by then."""
    async with owning(Session()) as owner:
        await replaying(owner)
        replay = owner.replays[0].delivery
        assert (replay.redelivered, replay.received_at_ns) == (True, 3_000_000_000)
        owner.follow(FlowState.DRAINING)
        assert owner.session.returned == [(PARKING, EPOCH, True)], "what may have been moved is finished"
        owner.end_replay(None, report)
        await asyncio.sleep(1)
        assert (owner.replayed, owner.session.lost) == ([b"1"], [])
        owner.follow(FlowState.ACTIVE)
        assert owner.replayed == [b"1", b"1"]
        owner.end_replay(Outcome.ACCEPTED)


async def test_a_replay_that_was_cancelled_from_outside_has_the_queue_given_up() -> None:
    """It cannot be shown again on this handle."""
    async with owning(Session()) as owner:
        await replaying(owner)
        owner.end_replay(None)
        await asyncio.sleep(1)
        assert (owner.replayed, owner.session.lost) == ([b"1"], [EPOCH])
        assert not owner.session.flow.is_open
        owner.follow(FlowState.ACTIVE)
        assert owner.replayed == [b"1"]


@pytest.mark.parametrize("loss", [FlowInactive(EPOCH), FlowDown(EPOCH, "gone")])
async def test_nothing_is_replayed_or_taken_on_a_handle_that_is_lost(loss: FlowEvent) -> None:
    """Another member may own the parking queue by now."""
    async with opened() as owner:
        owner.follow(FlowState.DRAINING)
        owner.show(UnparkAsked("key a"))
        await asyncio.sleep(1)
        owner.session.sink(loss)
        owner.show(ParkedMessage("key b", EARLIER, 3, Message("orders/new", b"3"), 1, "", "", "m", 0))
        owner.show(RoomKept(KEPT_FOR_FENCES_BYTES))
        await asyncio.sleep(1)
        owner.follow(FlowState.ACTIVE)
        assert (owner.replayed, owner.queue.counts, owner.session.flow.settled) == ([], (1, 2), [])
        assert (PARKING, EPOCH, False) in owner.session.returned
        owner.session.sink(loss)
        await asyncio.sleep(1)
        assert owner.session.lost == [EPOCH], "once"


async def test_a_replay_that_ends_on_a_lost_handle_is_not_called_settled() -> None:
    async with owning(Session()) as owner:
        await replaying(owner)
        owner.session.sink(FlowInactive(EPOCH))
        await asyncio.sleep(1)
        owner.end_replay(Outcome.ACCEPTED)
        assert (owner.settleable, owner.replayed) == ([False], [b"1"])


async def test_a_queue_is_left_when_the_replay_that_runs_has_ended() -> None:
    async with owning(Session()) as owner:
        await replaying(owner)
        leaving = asyncio.ensure_future(owner.queue.leave(EPOCH))
        await asyncio.sleep(3)
        assert not leaving.done()
        owner.end_replay(Outcome.ACCEPTED)
        assert await leaving
        assert asyncio.get_running_loop().time() < 10
        assert (owner.replayed, owner.session.flow.settled) == ([b"1"], [1])


async def test_a_queue_is_left_after_some_time_though_a_replay_still_runs_which_then_settles_nothing() -> None:
    async with owning(Session()) as owner:
        await replaying(owner)
        began = asyncio.get_running_loop().time()
        await owner.queue.leave(EPOCH)
        assert asyncio.get_running_loop().time() - began == pytest.approx(5)
        assert owner.session.returned[-1] == (PARKING, EPOCH, False)
        owner.end_replay(Outcome.ACCEPTED)
        assert (owner.session.flow.settled, owner.settleable, owner.ended) == ([], [], owner.replays)


async def test_what_was_settled_may_come_again_if_nobody_answers_the_unbind() -> None:
    class Unheard(KeptFlow):
        async def unbind(self) -> bool:
            return False

    session = Session()
    session.flow = Unheard()
    async with owning(session) as owner:
        await owner.open()
        assert await owner.queue.leave(Epoch(2)), "of that one nothing is known"
        assert not await owner.queue.leave(EPOCH)


@pytest.mark.parametrize("state", [FlowState.UNBINDING, FlowState.UNBOUND])
async def test_a_stay_ends_with_the_handle_of_its_queue(state: FlowState) -> None:
    async with opened() as owner:
        owner.follow(state)
        await asyncio.sleep(1)
        assert owner.queue.counts == (0, 0)
        assert owner.queue.count_of("a") == 0
        assert owner.queue.wait is None, "it is not fed to this member"


async def test_a_stay_of_the_next_handle_begins_when_the_one_before_has_ended() -> None:
    class Binds(Session):
        def __init__(self) -> None:
            super().__init__()
            self.bound: list[Epoch] = []

        async def bind(self, queue: QueueName, epoch: Epoch, sink: Callable[[FlowEvent], None]) -> KeptFlow:
            self.bound.append(epoch)
            return await super().bind(queue, epoch, sink)

    session = Binds()
    async with asyncio.TaskGroup() as children, owning(session) as owner:
        await replaying(owner)
        assert owner.queue.open_for(EPOCH, children, owner._open)
        assert not owner.queue.open_for(Epoch(2), children, owner._open)
        await asyncio.sleep(1)
        assert session.bound == [1], "the replay still runs"
        owner.end_replay(Outcome.ACCEPTED)
        await asyncio.sleep(1)
        assert session.bound == [1, 2]
        await owner.queue.leave(Epoch(2))


async def test_a_stay_that_finds_no_flow_ends_at_once_when_its_queue_goes() -> None:
    class Refusing(Session):
        async def bind(self, queue: QueueName, epoch: Epoch, sink: Callable[[FlowEvent], None]) -> KeptFlow:
            raise BindFailed(queue, "Queue Shutdown")

    async with owning(Refusing()) as owner:
        await asyncio.sleep(10.5)
        wait = owner.queue.wait
        assert wait is not None
        assert (wait.reason, wait.waited_ms) == ("Queue Shutdown", 10_500)
        began = asyncio.get_running_loop().time()
        assert await owner.queue.leave(EPOCH)
        assert asyncio.get_running_loop().time() == began


async def test_a_replay_that_ends_just_as_its_queue_is_taken_for_lost_is_the_last_one() -> None:
    """As after a stop of the process, when all that was due ends at once."""
    async with owning(Session()) as owner:
        await replaying(owner)
        owner.queue.give_up()
        owner.end_replay(Outcome.ACCEPTED)
        assert owner.replayed == [b"1"]
        await asyncio.sleep(1)
        assert owner.replayed == [b"1"]


async def test_no_fence_is_published_on_a_handle_that_is_lost() -> None:
    session = FullSession()
    async with owning(session) as owner:
        await asyncio.sleep(1)
        session.sink(FlowActive(EPOCH))
        await asyncio.sleep(0.5)
        session.sink(FlowInactive(EPOCH))
        await asyncio.sleep(0.1)
        session.is_full = False
        await asyncio.sleep(30)
        assert session.sent == []
        await owner.queue.leave(EPOCH)


async def test_a_fence_of_another_owner_that_comes_late_is_answered_and_all_is_opened_once() -> None:
    async with opened() as owner:
        (fence,) = owner.session.sent
        assert isinstance(fence, OwnerFence)
        owner.show(OwnerFence(ParkingOwner(fence.owner.generation + 5, "another")))
        await asyncio.sleep(1)
        higher = owner.session.sent[-1]
        assert isinstance(higher, OwnerFence)
        assert higher.owner.generation == fence.owner.generation + 6
        owner.show(UnparkAsked("key a"))
        await asyncio.sleep(1)
        assert owner.replayed == []
        owner.show(higher)
        await asyncio.sleep(1)
        assert (owner.replayed, owner.opened) == ([b"1"], 1)
        owner.end_replay(Outcome.ACCEPTED)


async def test_who_waits_is_told_what_for() -> None:
    async with owning(Session()) as owner:

        def reason() -> str:
            assert owner.queue.wait is not None
            return owner.queue.wait.reason

        await asyncio.sleep(1)
        assert reason() == "what lies there has not been read yet"
        await asyncio.sleep(10)
        assert reason() == "it has not been fed to this member for 10 s: somebody else is bound to it"
        owner.session.sink(FlowActive(EPOCH))
        await asyncio.sleep(1)
        assert reason() == "what lies there has not been read yet"
        await asyncio.sleep(10)
        assert reason() == "its own fence has not come for 10 s"
        owner.show_raw({KIND_PROPERTY: "of a later version"})
        await asyncio.sleep(1)
        assert reason().startswith("something lies there that this version cannot read (lbg_parking 'of a later")
        owner.show(owner.session.sent[0])
        await asyncio.sleep(1)
        assert (owner.opened, owner.session.lost) == (0, [])


async def test_a_stay_ends_when_its_queue_has_another_handle() -> None:
    async with opened() as owner:
        owner.queue.follow(Epoch(2), FlowState.BINDING)
        await asyncio.sleep(1)
        assert owner.queue.counts == (0, 0)
        owner.queue.follow(Epoch(2), FlowState.ACTIVE)
        assert owner.queue.wait == ParkingWait(0, "`on_assigned` has not returned")
