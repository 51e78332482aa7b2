"""What a listener learns is what was said, in whatever order it came."""

import itertools
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from lbg_runtime.core.group.control_messages import (
    FlowReport,
    GroupAnswer,
    Header,
    Heartbeat,
    Leave,
    Life,
    MemberFacts,
    MemberState,
    ParkingWait,
    ParkingWaits,
    QuestionId,
    ReportedFlow,
    SeenMember,
    StoppedQueues,
)
from lbg_runtime.core.group.picture import GroupPicture
from lbg_runtime.core.restripe.striping import Striping, StripingReport
from lbg_runtime.model.ids import Epoch, GroupName, MemberId, QueueName
from tests.core.group.test_control_codec import messages

STRIPING = StripingReport(Striping(0, 4), "")

A, B, C = MemberId("a"), MemberId("b"), MemberId("c")
Q0, Q1 = QueueName("orders/0"), QueueName("orders/1")


def header(member: MemberId, sequence: int = 1, incarnation: int = 1) -> Header:
    return Header(GroupName("orders"), member, Life(incarnation, 7), sequence)


def beat(
    member: MemberId, *owned: QueueName, sequence: int = 1, incarnation: int = 1, settings: dict[str, str] | None = None
) -> Heartbeat:
    flows = {queue: FlowReport(ReportedFlow.ACTIVE, Epoch(1), 3) for queue in owned}
    return Heartbeat(header(member, sequence, incarnation), MemberState.ACTIVE, 1, settings or {}, flows, "0", STRIPING)


def picture_of(*messages: object) -> GroupPicture:
    picture = GroupPicture()
    for message in messages:
        picture.hear(message)  # type: ignore[arg-type]
    return picture


def test_the_newest_word_of_a_member_counts_in_any_order() -> None:
    beats = [beat(A, Q0, sequence=1), beat(A, Q1, sequence=2), beat(B, Q0, sequence=9)]
    for order in itertools.permutations(beats):
        picture = picture_of(*order)
        assert list(picture.members) == [A, B]
        assert picture.owners == {Q0: (B,), Q1: (A,)}


def test_a_queue_that_two_claim_has_two_owners() -> None:
    assert picture_of(beat(A, Q0), beat(B, Q0)).owners == {Q0: (A, B)}


def test_who_left_is_not_there() -> None:
    picture = picture_of(beat(A, Q0), beat(B), Leave(header(A, 2)))
    assert list(picture.members) == [B]
    assert picture.twice == ()


def test_two_lives_of_one_member_are_told_and_the_newer_one_counts() -> None:
    picture = picture_of(beat(A, Q1, incarnation=2), beat(A, Q0, sequence=9, incarnation=1))
    assert picture.twice == (A,)
    assert picture.owners == {Q1: (A,)}


def test_a_restart_while_one_listens_is_no_second_process() -> None:
    picture = picture_of(beat(A, incarnation=1), Leave(header(A, 2, incarnation=1)), beat(A, incarnation=2))
    assert picture.twice == ()
    assert list(picture.members) == [A]


def test_an_older_life_that_leaves_is_no_second_process_any_more_and_takes_nothing_from_the_newer() -> None:
    wait = ParkingWaits(header(A, 2, incarnation=2), QuestionId("q"), {Q1: ParkingWait(5, "")})
    picture = picture_of(beat(A, Q0, incarnation=1), beat(A, Q1, incarnation=2), wait)
    assert picture.twice == (A,)

    picture.hear(Leave(header(A, 9, incarnation=1)))

    assert picture.twice == ()
    assert picture.owners == {Q1: (A,)}
    assert picture.waits == {Q1: (A, ParkingWait(5, ""))}


def test_of_who_left_nothing_is_kept_however_many_come_and_go_and_whatever_became_of_their_former_lives() -> None:
    picture = GroupPicture()
    for number in range(100):
        name = MemberId(f"host-{number}")
        for incarnation in (1, 2):
            picture.hear(beat(name, incarnation=incarnation))
        assert picture.twice == (name,)
        picture.hear(Leave(header(name, 2, incarnation=2)))
        assert picture.twice == ()
    assert not any(vars(picture).values())


def test_suspects_and_the_unheard_are_named_with_those_who_say_so() -> None:
    question = QuestionId("q")
    picture = picture_of(
        beat(A),
        beat(B),
        GroupAnswer(header(A, 2), question, (SeenMember(A, False), SeenMember(B, False), SeenMember(C, True))),
        GroupAnswer(header(B, 2), question, (SeenMember(A, True), SeenMember(B, False), SeenMember(C, False))),
    )
    assert picture.suspects == {A: (B,), C: (A,)}
    assert picture.unheard == {C: (A, B)}


def test_settings_that_are_not_alike_are_named_with_their_values() -> None:
    alike = {"hash_count": "8"}
    picture = picture_of(
        beat(A, settings={**alike, "key": "x"}), beat(B, settings={**alike, "key": "y"}), beat(C, settings=alike)
    )
    (found,) = picture.disagreements
    assert found.name == "key"
    assert found.values == {"x": (A,), "y": (B,), None: (C,)}


def test_who_says_that_a_re_striping_is_over_knows_most_of_it() -> None:
    begun, moved, over, older = Striping(7, 4, 6), Striping(7, 4, 6, frozenset({4})), Striping(7, 6), Striping(5, 4)
    for known in ([older, begun], [begun, moved], [over, moved], [moved, over, begun, older]):
        said = [replace(beat(MemberId(str(at))), striping=StripingReport(each, "")) for at, each in enumerate(known)]
        assert picture_of(*said).striping == max(known, key=[older, begun, moved, over].index)


def test_another_number_of_queues_is_told_unless_a_re_striping_explains_it() -> None:
    """As members do, which then do not hear each other and know no homes."""

    def counted(member: MemberId, queue_count: int, generation: int = 0) -> Heartbeat:
        return replace(beat(member), striping=StripingReport(Striping(generation, queue_count), ""))

    assert picture_of(counted(A, 4), counted(B, 4)).disagreements == ()
    (found,) = picture_of(counted(A, 4), counted(B, 5), counted(C, 4)).disagreements
    assert (found.name, found.values) == ("group.queue_count", {"4": (A, C), "5": (B,)})
    assert picture_of(counted(A, 4), counted(B, 5, generation=7)).disagreements == ()


@given(st.lists(messages, max_size=10))
def test_whatever_is_said_can_be_told(said: list[object]) -> None:
    picture = picture_of(*said)
    assert set(picture.unheard).isdisjoint(picture.members)
    assert {member for owners in picture.owners.values() for member in owners} <= set(picture.members)
    assert all(len(one.values) > 1 for one in picture.disagreements)
    assert isinstance(picture.suspects, dict)
    assert isinstance(picture.twice, tuple)


def test_queues_that_wait_for_their_parking_queue_are_told_until_their_owner_answers_without_them_or_leaves() -> None:
    wait, seen = ParkingWait(5, "Queue Shutdown"), (SeenMember(A, False),)
    told = [ParkingWaits(header(A), QuestionId("q1"), {Q0: wait}), GroupAnswer(header(A), QuestionId("q1"), seen)]
    assert picture_of(beat(A, Q0), *told).waits == {Q0: (A, wait)}
    assert picture_of(beat(A, Q0), *told, GroupAnswer(header(A), QuestionId("q2"), seen)).waits == {}
    assert picture_of(beat(A, Q0), *told, Leave(header(A, sequence=2))).waits == {}


def test_queues_that_have_stopped_are_told_until_their_owner_answers_without_them_or_leaves() -> None:
    seen = (SeenMember(A, False),)
    told = [StoppedQueues(header(A), QuestionId("q1"), (Q1, Q0)), GroupAnswer(header(A), QuestionId("q1"), seen)]
    assert picture_of(beat(A, Q0), *told).stopped == {Q0: A, Q1: A}
    assert picture_of(beat(A, Q0), *told, GroupAnswer(header(A), QuestionId("q2"), seen)).stopped == {}
    assert picture_of(beat(A, Q0), *told, Leave(header(A, sequence=2))).stopped == {}


def test_the_version_of_a_member_is_told_for_the_life_that_has_said_it() -> None:
    told, new = MemberFacts(header(A), QuestionId("q1"), "0.2.0", 0, {}), beat(A, incarnation=2)
    assert picture_of(told).versions == {}, "nobody knows whether it lives"
    assert picture_of(told, beat(A), beat(B)).versions == {A: "0.2.0"}
    another = GroupAnswer(header(A), QuestionId("q2"), (SeenMember(A, False),))
    assert picture_of(beat(A), told, another).versions == {A: "0.2.0"}
    assert picture_of(beat(A), told, Leave(header(A, sequence=2))).versions == {}
    assert picture_of(beat(A), told, new).versions == {}
    assert picture_of(told, new, replace(told, header=new.header, version="1")).versions == {A: "1"}
