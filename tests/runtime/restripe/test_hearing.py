"""What proves to a conductor that nobody has replaced it: its own questions that come back, by when they left."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from lbg_runtime.core.group.control_codec import encode
from lbg_runtime.core.group.control_messages import (
    GroupQuestion,
    Header,
    Heartbeat,
    Life,
    MemberState,
    QuestionId,
    StoppedQueues,
)
from lbg_runtime.core.group.membership_timing import MembershipTiming
from lbg_runtime.core.restripe.records import StripePlan
from lbg_runtime.core.restripe.striping import Striping, StripingBook, StripingReport
from lbg_runtime.model.errors import ConductorCutOff, UserError
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.ids import GroupName, MemberId, QueueName
from lbg_runtime.model.message import Message
from lbg_runtime.runtime.restripe.hearing import (
    ASK_AGAIN_S,
    LOOK_AGAIN_S,
    PROOF_PATIENCE_S,
    PROOF_S,
    STOPPED_S,
    Hearing,
)

GROUP, TOPIC = GroupName("orders"), "lbg-control/orders"


class HeldSession:
    """Keeps what is published; nothing arrives but what a test lets arrive."""

    def __init__(self) -> None:
        self.left: list[Message] = []

    def watch_connection(self, sink: Callable[[bool], None]) -> None:
        self.tell = sink

    async def subscribe(self, topic: str, sink: Callable[[Message], None]) -> None:
        self.arrive = sink

    def send_direct(self, message: Message) -> None:
        self.left.append(message)


@asynccontextmanager
async def asking() -> AsyncIterator[tuple[HeldSession, Hearing]]:
    """One that has just asked its first question, on this session."""
    session = HeldSession()
    hearing = Hearing(GroupShape(GROUP, "h", 16, 4), TOPIC, session, MembershipTiming())  # type: ignore[arg-type]
    await hearing.begin()
    task = asyncio.create_task(hearing.ask_now_and_then())
    try:
        await asyncio.sleep(ASK_AGAIN_S / 2)
        assert len(session.left) == 1
        yield session, hearing
    finally:
        task.cancel()


async def seconds_until_sure(hearing: Hearing) -> float:
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    await hearing.insist_on_connection()
    return loop.time() - began_s


async def test_the_question_of_another_with_the_number_of_ours_proves_nothing() -> None:
    async with asking() as (session, hearing):
        question = GroupQuestion(Header(GROUP, MemberId("another"), Life(1, 1), 1), QuestionId("another/1"))
        session.arrive(Message(TOPIC, encode(question)))
        with pytest.raises(UserError, match="does not come back"):
            await hearing.insist_on_connection()


async def test_an_older_question_that_comes_back_later_takes_nothing_from_the_proof_of_a_newer_one() -> None:
    async with asking() as (session, hearing):
        await asyncio.sleep(ASK_AGAIN_S)
        older, newer = session.left
        session.arrive(newer)
        session.arrive(older)
        await asyncio.sleep(PROOF_S - ASK_AGAIN_S)
        assert await seconds_until_sure(hearing) == 0


async def test_a_question_proves_by_when_it_left_and_not_by_when_it_came_back() -> None:
    async with asking() as (session, hearing):
        await asyncio.sleep(PROOF_S)
        session.arrive(session.left[0])
        asyncio.get_running_loop().call_later(1, lambda: session.arrive(session.left[-1]))
        assert await seconds_until_sure(hearing) == pytest.approx(1, abs=2 * LOOK_AGAIN_S)


async def test_what_was_proved_before_the_host_slept_proves_nothing(monkeypatch) -> None:
    """Another one may have taken over meanwhile, and the clock of the loop stood still."""
    asleep_s = 0.0
    monkeypatch.setattr("lbg_runtime.runtime.clock.slept_s", lambda: asleep_s)
    async with asking() as (session, hearing):
        session.arrive(session.left[0])
        assert await seconds_until_sure(hearing) == 0
        asleep_s = 3_600.0
        asyncio.get_running_loop().call_later(1, lambda: session.arrive(session.left[-1]))
        assert await seconds_until_sure(hearing) == pytest.approx(1, abs=2 * LOOK_AGAIN_S)


async def test_who_hears_itself_no_more_is_cut_off_and_waits_no_longer_than_that_is_said() -> None:
    async with asking() as (session, hearing):
        session.arrive(session.left[0])
        assert await seconds_until_sure(hearing) == 0
        await asyncio.sleep(PROOF_S)
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(ConductorCutOff):
            await hearing.insist_on_connection()
        assert asyncio.get_running_loop().time() - began_s == pytest.approx(PROOF_PATIENCE_S, abs=2 * LOOK_AGAIN_S)


async def test_what_a_member_has_said_is_taken_in_once_and_not_with_every_message(monkeypatch) -> None:
    """To look at the proofs of all members each time would leave a conductor of thousands of shards no other time."""
    taken: list[object] = []
    monkeypatch.setattr(StripingBook, "hear", lambda _, report: taken.append(report))
    async with asking() as (session, hearing):
        for number, name in enumerate("abc"):
            header = Header(GROUP, MemberId(name), Life(1, 1), 1)
            said = StripingReport(Striping(number, 4), "")
            session.arrive(Message(TOPIC, encode(Heartbeat(header, MemberState.ACTIVE, 1, {}, {}, "0", said))))
        session.arrive(session.left[0])
        assert hearing.is_heard
        assert list(hearing.picture.members) == ["a", "b", "c"]
    assert [report.striping.generation for report in taken] == [0, 1, 2]


async def test_a_connection_that_is_known_to_be_gone_outweighs_every_proof() -> None:
    async with asking() as (session, hearing):
        session.arrive(session.left[0])
        session.tell(False)
        with pytest.raises(ConductorCutOff):
            await hearing.insist_on_connection()


async def test_members_have_two_heartbeats_to_say_by_which_number_of_queues_they_go() -> None:
    """One of them may have spoken just before."""
    async with asking() as (session, hearing):
        session.arrive(session.left[0])
        loop = asyncio.get_running_loop()
        began_s = loop.time() - ASK_AGAIN_S / 2
        assert not await hearing.hears_of_another(4)
        assert loop.time() - began_s == pytest.approx(2, abs=2 * LOOK_AGAIN_S)


@pytest.mark.parametrize(
    ("count", "before", "after", "is_fit"),
    [
        ("5", 6, 5, True),
        ("6", 6, 5, False),
        pytest.param("6", 4, 5, True, id="it is no worse afterwards"),
        pytest.param("6", 5, 5, True, id="nothing moves"),
        pytest.param("", 6, 1, True, id="not counted"),
        pytest.param("many", 6, 1, True, id="no number"),
    ],
)
async def test_members_that_are_counted_do_not_fit_fewer_queues(
    count: str, before: int, after: int, is_fit: bool
) -> None:
    async with asking() as (session, hearing):
        header = Header(GROUP, MemberId("a"), Life(1, 1), 1)
        said = StripingReport(Striping(0, before), "")
        beat = Heartbeat(header, MemberState.ACTIVE, 1, {"membership.count": count}, {}, "0", said)
        session.arrive(Message(TOPIC, encode(beat)))
        assert list(hearing.picture.members) == ["a"]
        plan = StripePlan(7, before, after, "s3cr3t")
        if is_fit:
            hearing.insist_on_fit_members(plan)
        else:
            with pytest.raises(UserError, match=f"{after}, and member a is one of {count} by"):
                hearing.insist_on_fit_members(plan)


async def test_what_waits_for_a_queue_that_has_stopped_says_so_for_as_long_as_its_owner_does() -> None:
    """Nothing else would say why a re-striping goes on no more."""
    what = "shard 7 to be handled up to its marker in queue orders/1"
    async with asking() as (session, hearing):
        queues = (QueueName("orders/1"), QueueName("orders/3"))
        told = StoppedQueues(Header(GROUP, MemberId("a"), Life(1, 1), 1), QuestionId("ours/1"), queues)
        session.arrive(Message(TOPIC, encode(told)))
        expected = f"{what} (have stopped, as `lbg group status` says: orders/1, orders/3)"
        assert hearing.with_hindrance(what) == expected
        assert hearing.with_hindrance("") == ""
        await asyncio.sleep(STOPPED_S)
        assert hearing.with_hindrance(what) == what
