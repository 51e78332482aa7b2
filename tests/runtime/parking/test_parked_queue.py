"""One queue's stays at its parking queue, as its flow runner and its dispatcher lead them, on a scripted session."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import cast

import pytest
from structlog.testing import capture_logs

from lbg_runtime.core.flow.events import FlowActive, MessageReceived
from lbg_runtime.core.flow.table import FlowState
from lbg_runtime.core.parking.ledger import ParkingLedger
from lbg_runtime.core.parking.records import LedgerEntry, ParkedMessage, ParkingOwner, UnparkAsked, encode_entry
from lbg_runtime.model.ids import DeliveryId, Epoch, MemberId, QueueName
from lbg_runtime.model.message import Delivery, Message, PropertyValue
from lbg_runtime.model.outcome import Outcome
from lbg_runtime.runtime.parking import parked_queue
from lbg_runtime.runtime.parking.fence import StayFence
from lbg_runtime.runtime.parking.parked_queue import ParkedQueue, lane_name
from lbg_runtime.runtime.parking.ports import ParkingPorts
from lbg_runtime.runtime.runners.failure_report import FailureReport
from lbg_runtime.runtime.runners.handling import Handling
from lbg_runtime.transport.base import Messenger
from tests.runtime.parking.refusals import refused
from tests.runtime.parking.scripted_session import Session

PARKING = QueueName("parked")
EPOCH = Epoch(1)
EARLIER = ParkingOwner(1, "earlier")


class Owner:
    """A queue of which two messages of a key are parked, and its member."""

    def __init__(self, session: Session, children: asyncio.TaskGroup, seed: int = 1) -> None:
        self.session = session
        self.replays: list[Handling] = []
        self.settleable: list[bool] = []
        self.ended: list[Handling] = []
        self.is_restriped = False
        self.first = Message("orders/new", b"1")
        self.opened = 0
        self.queue = ParkedQueue(PARKING, random.Random(seed))
        self._children = children
        self._numbers = iter(range(1, 100))
        ports = SimpleNamespace(
            queue=QueueName("orders/0"),
            session=session,
            member=MemberId("m"),
            dispatch=lambda delivery: self.replays.append(Handling(delivery, "a", "a", cast("object", None))),
            return_unstarted=lambda *told: session.returned.append(told),
            flush=self._flush,
            lost=session.lost.append,
            replayed=lambda _, can_be_settled: self.settleable.append(can_be_settled),
            ended=self.ended.append,
            is_restriping=lambda: self.is_restriped,
            patience_s=5.0,
        )
        self.queue.connect(cast(ParkingPorts, ports))

    @property
    def replayed(self) -> list[bytes]:
        return [each.delivery.message.payload for each in self.replays]

    def end_replay(self, outcome: Outcome | None, report: FailureReport | None = None) -> None:
        """As the dispatcher does, of the newest one."""
        handling = self.replays[-1]
        handling.outcome, handling.end_report = outcome, report
        self.queue.finished(handling)

    def follow(self, state: FlowState) -> None:
        self.queue.follow(EPOCH, state)

    def show(self, entry: LedgerEntry) -> None:
        """As the broker shows what lies in the parking queue."""
        self._show(encode_entry(entry, PARKING))

    def show_raw(self, properties: dict[str, PropertyValue]) -> None:
        """The same of something that no version has written."""
        self._show(Message(PARKING, b"", properties))

    def _show(self, message: Message) -> None:
        number = DeliveryId(next(self._numbers))
        self.session.sink(MessageReceived(Delivery(PARKING, EPOCH, number, message, False, 0)))

    def begin(self) -> None:
        self.follow(FlowState.ACTIVE)
        assert not self.queue.open_for(EPOCH, self._children, self._open)

    async def open(self) -> None:
        """Have all that is parked read."""
        await asyncio.sleep(1)
        self.session.sink(FlowActive(EPOCH))
        for number in (1, 2):
            original = self.first if number == 1 else Message("orders/new", b"%d" % number)
            self.show(ParkedMessage("key a", EARLIER, number, original, 1, "", "", "m", 0))
        await asyncio.sleep(1)
        self.show(self.session.sent[0])
        await asyncio.sleep(1)

    def _open(self) -> None:
        self.opened += 1

    def _flush(self) -> "asyncio.Future[None]":
        flushed = asyncio.get_running_loop().create_future()
        flushed.set_result(None)
        return flushed


@asynccontextmanager
async def owning(session: Session, seed: int = 1) -> AsyncIterator[Owner]:
    async with asyncio.TaskGroup() as children:
        owner = Owner(session, children, seed)
        owner.begin()
        yield owner
        await owner.queue.leave(EPOCH)


@asynccontextmanager
async def opened() -> AsyncIterator[Owner]:
    """One that has read all that is parked."""
    async with owning(Session()) as owner:
        await owner.open()
        yield owner


async def test_a_hand_back_that_is_given_up_goes_on_with_the_replays_that_it_held_up() -> None:
    async with opened() as owner:
        assert (owner.opened, owner.queue.counts) == (1, (1, 2))
        owner.follow(FlowState.DRAINING)
        owner.show(UnparkAsked("key a"))
        await asyncio.sleep(1)
        assert owner.replayed == []
        owner.follow(FlowState.ACTIVE)
        assert owner.replayed == [b"1"]


async def test_a_queue_that_is_given_up_while_what_is_parked_is_being_read_opens_nothing() -> None:
    """As after a stop of the process: another member may own it by now."""
    async with owning(Session()) as owner:
        await asyncio.sleep(1)
        owner.session.sink(FlowActive(EPOCH))
        await asyncio.sleep(1)
        owner.queue.give_up()
        owner.show(owner.session.sent[0])
        await asyncio.sleep(1)
        assert (owner.opened, owner.session.lost) == (0, [EPOCH])


async def test_owners_that_begin_in_the_same_microsecond_have_different_fences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parked_queue, "wall_us", lambda: 1_700_000_000_000_000)
    fences = []
    for seed in (1, 2):
        session = Session()
        async with owning(session, seed) as owner:
            await owner.open()
        fences += session.sent
    assert len(set(fences)) == 2


class FullSession(Session):
    """There is no room in the parking queue, until there is."""

    is_full = True
    tries = 0

    def send(self, message: Message) -> "asyncio.Future[None]":
        self.tries += 1
        if not self.is_full:
            return super().send(message)
        return refused(PARKING, "Queue Over Quota")


async def test_a_fence_without_room_is_tried_again_once_a_second_until_there_is_some_and_the_reason_told() -> None:
    session = FullSession()
    with capture_logs() as log:
        await _fill_and_empty(session)
    assert [told["event"] for told in log].count("parking_fence_not_sent") == 1
    reason, *_ = [told["reason"] for told in log if told["event"] == "parking_queue_silent"]
    assert "Queue Over Quota" in reason, "not only that it does not come"


async def _fill_and_empty(session: FullSession) -> None:
    async with owning(session) as owner:

        def reason() -> str:
            assert owner.queue.wait is not None
            return owner.queue.wait.reason

        await asyncio.sleep(1)
        session.sink(FlowActive(EPOCH))
        await asyncio.sleep(0.5)
        assert "Queue Over Quota: raise maxMsgSpoolUsage of queue parked" in reason()
        await asyncio.sleep(30)
        assert session.tries == 31, "one after another, also when it is told of"
        assert "Queue Over Quota: raise maxMsgSpoolUsage of queue parked" in reason(), "also after some time"
        session.is_full = False
        await asyncio.sleep(20)
        assert "Quota" not in reason(), "by now the broker has taken it"
        owner.show(session.sent[0])
        tries = session.tries
        await asyncio.sleep(60)
        assert (owner.opened, owner.queue.wait, session.tries) == (1, None, tries)


async def test_a_fence_that_is_published_anew_takes_the_place_of_the_one_that_finds_no_room() -> None:
    session = FullSession()
    fence = StayFence(QueueName("orders/0"), PARKING, EPOCH, ParkingLedger(EARLIER), cast("Messenger", session))
    async with asyncio.TaskGroup() as tasks:
        for _ in range(2):
            fence.publish(tasks)
            await asyncio.sleep(0.1)
        await asyncio.sleep(1)
        assert session.tries == 3, "one fence a second, not two"
        fence.end()


async def test_a_fence_whose_confirm_is_late_is_not_sent_again_and_nothing_is_told_of_it_behind_the_end() -> None:
    """As in an outage."""

    class Silent(Session):
        def send(self, message: Message) -> "asyncio.Future[None]":
            super().send(message)
            return asyncio.get_running_loop().create_future()

    session = Silent()
    async with owning(session) as owner:
        await asyncio.sleep(1)
        session.sink(FlowActive(EPOCH))
        await asyncio.sleep(35)
        assert len(session.sent) == 1
        await owner.queue.leave(EPOCH)
        with capture_logs() as log:
            await asyncio.sleep(35)
        assert log == []


async def test_a_queue_whose_fence_finds_no_room_is_given_up_at_once() -> None:
    session = FullSession()
    async with owning(session) as owner:
        await asyncio.sleep(1)
        session.sink(FlowActive(EPOCH))
        await asyncio.sleep(5)
        async with asyncio.timeout(0.1):
            assert await owner.queue.leave(EPOCH)


@pytest.mark.parametrize(("lane", "key"), [("\0queue orders/0", None), ("\0shard 3", None), ("a\0b", "a\0b")])
def test_the_lane_that_a_parked_message_names_has_no_zero_character_at_which_a_property_ends(lane, key) -> None:
    message = Delivery(QueueName("orders/0"), EPOCH, DeliveryId(1), Message("orders/new", b""), False, 0)
    assert "\0" not in lane_name(Handling(message, lane, key, cast("object", None)))


def test_no_key_shares_the_lane_of_messages_without_one() -> None:
    message = Delivery(QueueName("orders/0"), EPOCH, DeliveryId(1), Message("orders/new", b""), False, 0)
    keyless = lane_name(Handling(message, "\0shard 3", None, cast("object", None)))
    keyed = lane_name(Handling(message, "shard 3", "shard 3", cast("object", None)))
    assert keyless != keyed
