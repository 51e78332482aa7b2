"""Owners that lose their parking queue, or hand it over, while replays are under way."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest

from lbg_runtime.broker.engine.engine import DEFAULT_VPN
from lbg_runtime.broker.engine.settings import QueueSettings
from lbg_runtime.core.flow.events import FlowActive, FlowDown, FlowEvent, FlowInactive, MessageReceived
from lbg_runtime.core.group.control_messages import ParkingWait
from lbg_runtime.core.parking.orders import PublishDrop, SettleParked
from lbg_runtime.core.parking.records import (
    KIND_PROPERTY,
    DropAsked,
    OwnerFence,
    ParkingOwner,
    encode_entry,
)
from lbg_runtime.model.errors import BindFailed
from lbg_runtime.model.ids import DeliveryId, Epoch, MemberId, QueueName
from lbg_runtime.model.message import Delivery, Message
from lbg_runtime.runtime.handlers.registry import Handlers
from lbg_runtime.runtime.parking.ports import ParkingPorts
from lbg_runtime.runtime.parking.stay import ParkingStay
from lbg_runtime.testing.group_context import running
from lbg_runtime.transport.memory.flow import MemoryFlow
from tests.runtime.parking.poisoned import parked
from tests.runtime.parking.refusals import refused
from tests.runtime.parking.scripted_session import KeptFlow, Session

SETTINGS = {
    "group": {"queue_count": 1, "hash_count": 4},
    "failure": {"attempts": 1, "then": "park", "backoff": {"initial": "10ms", "maximum": "1s"}},
}


@pytest.mark.parametrize("goes", ["stop", "kill"])
async def test_what_comes_on_a_handle_whose_queue_another_had_meanwhile_is_not_settled(goes: str) -> None:
    """The broker feeds the old handle again when that one goes; it took all that was parked for second copies."""
    is_mended = False
    handlers = Handlers()

    @handlers.handler("orders/>")
    async def handle(message):
        if message.key == "a" and not is_mended:
            raise ValueError("poison")
        await asyncio.sleep(15)

    payloads = [b"%d" % number for number in range(5)]
    async with running(handlers, members=2, settings=SETTINGS) as group:
        await group.publish("orders/new", *payloads, key="a")
        await group.until(lambda: len(parked(group)) == 5)
        await group.settled()
        is_mended = True
        first = group.owner("a")
        (second,) = [name for name in group.members if name != first]
        await group.unpark("a")
        await group.started("a", 1)
        life = next(each for each in group.lives if each.member == first)
        life.cut_off_ns.append(life._moments.next_ns())
        life._session.drop_connection(1)
        await group.until(lambda: group.owner("a") == second)
        await group.advance(5)
        if goes == "kill":
            group.kill(second)
        else:
            await group.stop(second)
        await group.advance(1)
        group.start(second)
        await group.advance(200)
        while parked(group):
            await group.unpark("a")
            await group.advance(100)
        group.assert_handled({"a": payloads})


@pytest.mark.parametrize("other_takes_s", [0.01, 20])
async def test_settlements_of_replays_are_repeated_with_those_of_the_messages_behind_them(
    monkeypatch: pytest.MonkeyPatch, other_takes_s: float
) -> None:
    """What an outage swallows is sent again when a handle is bound again. The parking queue's was given up before that,
    the queue's own was not: the first message was replayed again, behind its successor, which was gone."""
    is_mended = is_dying = False
    flush = MemoryFlow.flush

    def flush_into_what_dies(flow: MemoryFlow) -> None:
        if is_dying:
            flow._disarm()
        else:
            flush(flow)

    monkeypatch.setattr(MemoryFlow, "flush", flush_into_what_dies)
    handled: list[int] = []
    handlers = Handlers()

    @handlers.handler("orders/>")
    async def handle(message):
        if message.key == "other":
            await asyncio.sleep(other_takes_s)
            return
        if message.key_sequence == 1 and not is_mended:
            raise ValueError("poison")
        handled.append(message.key_sequence)

    async with running(handlers, members=1, settings=SETTINGS) as group:
        await group.publish("orders/new", b"1", key="a")
        await group.until(lambda: len(parked(group)) == 1)
        await group.settled()
        is_mended = True
        await group.publish("orders/new", b"x", key="other")
        await group.advance(0.05)
        is_dying = True
        await group.unpark("a")
        await group.advance(0.2)
        await group.publish("orders/new", b"2", key="a")
        await group.advance(0.2)
        group.lives[-1]._session.drop_connection(1.0)
        is_dying = False
        await group.advance(65)
        assert handled in ([1, 2], [1, 2, 1, 2])


async def test_an_order_to_replay_outlives_a_hand_over_while_a_replay_waits_for_another_queue() -> None:
    """That replay was taken for one that had failed, and the order for done."""
    is_mended = False
    handlers = Handlers()

    @handlers.handler("orders/new", attempts=1, then="park")
    async def new(message):
        if not is_mended:
            raise ValueError("poison")

    @handlers.handler("orders/old", attempts=1, then="error_queue")
    async def old(message):
        raise ValueError("never")

    settings = {**SETTINGS, "failure": {"backoff": {"initial": "50ms", "maximum": "2s"}}}
    async with running(handlers, members=2, settings=settings) as group:

        def give_room(quota_bytes: int) -> None:
            room = QueueSettings(quota_bytes=quota_bytes)
            administration = group.broker.engine.administration
            group.broker.post(administration.change_queue(DEFAULT_VPN, QueueName(group.settings.error_queue), room))

        for count, topic in enumerate(("orders/new", "orders/old", "orders/new"), 1):
            await group.publish(topic, b"%d" % count, key="a")
            await group.until(lambda count=count: len(parked(group)) == count)
        give_room(0)
        is_mended = True
        await group.unpark("a")
        await group.advance(5)
        await group.stop(group.owner("a"))
        give_room(10**7)
        await group.advance(60)
        assert parked(group) == []
        assert len(group.error_queue()) == 1


@pytest.mark.parametrize(("takes_s", "others_wait_s", "times"), [(15, 14, 1), (100, 30, 2)])
async def test_a_replay_that_runs_while_a_connection_is_lost_and_back_is_waited_for_and_not_repeated(
    takes_s: float, others_wait_s: float, times: int
) -> None:
    """Within the drain timeout: then it is left to its queue. Nobody else handles it meanwhile, or what follows it."""
    is_mended = False
    others_s: list[float] = []
    ended_s: list[float] = []
    loop = asyncio.get_running_loop()
    handlers = Handlers()

    @handlers.handler("orders/>", timeout="10m")
    async def handle(message):
        if message.key == "other":
            others_s.append(loop.time())
        elif not is_mended:
            raise ValueError("poison")
        else:
            await asyncio.sleep(takes_s)
            ended_s.append(loop.time())

    async with running(handlers, members=1, settings=SETTINGS) as group:
        await group.publish("orders/new", b"1", key="a")
        await group.until(lambda: len(parked(group)) == 1)
        await group.settled()
        is_mended = True
        await group.unpark("a")
        await group.started("a", 1)
        await group.advance(1)
        life = group.lives[-1]
        life.cut_off_ns.append(life._moments.next_ns())
        life._session.drop_connection(0.01)
        cut_at_s = loop.time()
        await group.publish("orders/new", b"2", key="other")
        await group.until(lambda: bool(others_s))
        assert others_s[0] - cut_at_s == pytest.approx(others_wait_s, abs=1)
        await group.advance(250)
        assert len(ended_s) == times


OWNER = ParkingOwner(1, "own")


def stay_on(session: Session) -> ParkingStay:
    ports = SimpleNamespace(
        queue=QueueName("orders/0"),
        session=session,
        member=MemberId("m"),
        lost=session.lost.append,
        return_unstarted=lambda *told: session.returned.append(told),
        patience_s=5.0,
    )
    return ParkingStay(QueueName("parked"), Epoch(1), OWNER, cast(ParkingPorts, ports), lambda: None)


async def fed_stay(session: Session) -> tuple[ParkingStay, "asyncio.Future[None]"]:
    """One whose handle is about to be fed, and its end."""
    stay = stay_on(session)
    running_stay = asyncio.ensure_future(stay.run())
    await asyncio.sleep(1)
    session.sink(FlowActive(Epoch(1)))
    return stay, running_stay


async def test_an_order_to_drop_second_copies_follows_the_settlement_that_an_outage_delays() -> None:
    """The settlement is repeated when the handle is bound again; without the order, the second copy would count."""
    session, drop = Session(), DropAsked("key a", (OWNER, 3))
    stay, running_stay = await fed_stay(session)
    await asyncio.sleep(1)
    assert session.flow.is_open
    session.sink(FlowInactive(Epoch(1)))
    await asyncio.sleep(1)
    assert not session.flow.is_open, "what comes then is another owner's"
    # As the ledger orders for the replay of a message that was sent twice.
    stay._obey([SettleParked(DeliveryId(7)), PublishDrop(drop)])
    await asyncio.sleep(1)
    assert drop not in session.sent
    session.sink(FlowActive(Epoch(1)))
    await running_stay
    assert session.flow.settled == [7]
    assert session.sent[-1] == drop


async def test_an_order_to_drop_second_copies_is_sent_by_an_owner_that_gives_up_what_it_cannot_read() -> None:
    """Its handle is fed, so what it settles counts: the order was kept for when the handle is bound again."""
    session, drop = Session(), DropAsked("key a", (OWNER, 3))
    stay, running_stay = await fed_stay(session)
    unreadable = Message("parked", b"", {KIND_PROPERTY: "of a later version"})
    for number, message in enumerate((encode_entry(OwnerFence(OWNER), "parked"), unreadable), 1):
        delivery = Delivery(QueueName("parked"), Epoch(1), DeliveryId(number), message, False, 0)
        session.sink(MessageReceived(delivery))
    await asyncio.sleep(1)
    assert not session.flow.is_open
    # As the ledger orders at the end of a replay that was running.
    stay._obey([SettleParked(DeliveryId(7)), PublishDrop(drop)])
    stay.end()
    await running_stay
    assert session.flow.settled == [7]
    assert session.sent[-1] == drop


@pytest.mark.parametrize("is_lost", [False, True])
async def test_an_order_to_drop_that_the_broker_never_takes_keeps_the_stay_no_longer_than_its_patience(
    monkeypatch: pytest.MonkeyPatch, *, is_lost: bool
) -> None:
    session = Session()
    stay, running_stay = await fed_stay(session)
    await asyncio.sleep(1)

    def refuse(message: Message) -> "asyncio.Future[None]":
        return refused("parked", "no")

    monkeypatch.setattr(session, "send", refuse)
    stay._obey([PublishDrop(DropAsked("key a", (OWNER, 3)))])
    if is_lost:
        # What it was sent behind does not count.
        session.sink(FlowInactive(Epoch(1)))
        await asyncio.sleep(1)
    stay.end()
    # As long as its ports say, and a little.
    async with asyncio.timeout(0.5 if is_lost else 5.5):
        await running_stay


async def test_a_stay_that_is_given_up_starts_no_further_replay_and_takes_its_queue_for_lost() -> None:
    """As after a stop of the process. At once: a runner may be about to take the next turn."""
    session = Session()
    stay, running_stay = await fed_stay(session)
    await asyncio.sleep(1)
    stay.give_up()
    assert session.returned == [("parked", Epoch(1), False)]
    await asyncio.sleep(1)
    assert not session.flow.is_open
    assert session.lost == [Epoch(1)]
    told = list(session.returned)
    stay.give_up()
    assert session.returned == told
    stay.end()
    await running_stay


class RefusingSession(Session):
    """The handle of the first bind is fed, and dies before the bind has returned."""

    is_refused = False

    async def bind(self, queue: QueueName, epoch: Epoch, sink: Callable[[FlowEvent], None]) -> KeptFlow:
        if not self.is_refused:
            self.is_refused = True
            sink(FlowActive(epoch))
            sink(FlowDown(epoch, "the session ended"))
            raise BindFailed(queue, "the session ended")
        return await super().bind(queue, epoch, sink)


async def test_what_a_handle_reported_that_nobody_got_is_not_taken_for_news_of_the_next_one() -> None:
    """Else a fence would be published while another owner is fed, and the new handle counted as lost."""
    session = RefusingSession()
    running_stay = asyncio.ensure_future((stay := stay_on(session)).run())
    await asyncio.sleep(5)
    assert (session.is_refused, session.sent, session.flow.is_open) == (True, [], False)
    session.sink(FlowActive(Epoch(1)))
    await asyncio.sleep(1)
    assert session.sent == [OwnerFence(OWNER)]
    assert stay.wait == ParkingWait(6_000, "what lies there has not been read yet")
    assert not running_stay.done()
    stay.end()
    await running_stay


async def test_a_parking_queue_that_was_open_has_been_waited_for_only_since_it_is_not() -> None:
    """A handling may keep the queue for long after an outage; the member was called unready for it at once."""
    session = Session()
    stay, running_stay = await fed_stay(session)
    fence = Delivery(QueueName("parked"), Epoch(1), DeliveryId(1), encode_entry(OwnerFence(OWNER), "parked"), False, 0)
    session.sink(MessageReceived(fence))
    await asyncio.sleep(60)
    assert stay.wait is None
    session.sink(FlowInactive(Epoch(1)))
    session.sink(FlowActive(Epoch(1)))
    await running_stay
    await asyncio.sleep(2)
    assert stay.wait == ParkingWait(2_000, "its flow there has ended, and the queue is being given up")


async def test_a_stay_that_is_fed_as_it_leaves_asks_for_nothing() -> None:
    """Its intake was opened, for messages that it did not want and that came to the next owner as redelivered."""
    session = Session()
    stay = stay_on(session)
    running_stay = asyncio.ensure_future(stay.run())
    await asyncio.sleep(0.1)
    session.sink(FlowActive(Epoch(1)))
    stay.end()
    await running_stay
    assert (session.flow.is_open, session.sent) == (False, [])
