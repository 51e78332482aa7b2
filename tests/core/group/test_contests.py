"""Two members that both say they are fed from a queue."""

import pytest

from lbg_runtime.core.flow.commands import Note
from lbg_runtime.core.group.contests import Contests
from lbg_runtime.core.group.control_messages import FlowReport, ReportedFlow
from lbg_runtime.core.group.membership_events import OwnFlowsChanged
from lbg_runtime.model.ids import Epoch, MemberId, QueueName
from tests.core.group.membership_shell import PEER, QUEUE, Shell, beat, header, pick

B, C = MemberId("b"), MemberId("c")
Q0, Q1 = QueueName("orders/0"), QueueName("orders/1")


def note(queue: QueueName, other: MemberId, for_ms: int) -> Note:
    return Note("queue_fed_to_two", {"queue": queue, "other": other, "for_ms": for_ms})


def test_what_lasts_is_told_once_until_it_is_over() -> None:
    contests = Contests(3_500)
    assert contests.look(B, {Q0}, 0) == []
    assert contests.look(B, {Q0}, 3_499) == []
    assert contests.look(B, {Q0}, 3_500) == [note(Q0, B, 3_500)]
    assert contests.look(B, {Q0}, 9_000) == []
    assert contests.look(B, set(), 10_000) == []
    assert contests.look(B, {Q0}, 11_000) == []
    assert contests.look(B, {Q0}, 15_000) == [note(Q0, B, 4_000)]


def test_what_is_taken_back_in_time_is_not_told() -> None:
    contests = Contests(3_500)
    for began_ms in range(0, 50_000, 5_000):
        assert contests.look(B, {Q0}, began_ms) == []
        assert contests.look(B, {Q0}, began_ms + 3_000) == []
        assert contests.look(B, set(), began_ms + 4_000) == []


def test_each_member_and_queue_has_its_own_time() -> None:
    contests = Contests(3_500)
    contests.look(B, {Q0}, 0)
    contests.look(C, {Q0}, 2_000)
    assert contests.look(B, {Q0, Q1}, 3_500) == [note(Q0, B, 3_500)]
    assert contests.look(C, {Q0}, 5_500) == [note(Q0, C, 3_500)]
    assert contests.look(B, {Q0, Q1}, 7_000) == [note(Q1, B, 3_500)]


@pytest.mark.parametrize(
    ("ours", "theirs", "is_told"),
    [
        (ReportedFlow.ACTIVE, ReportedFlow.ACTIVE, True),
        (ReportedFlow.DRAINING, ReportedFlow.ACTIVE, False),
        (ReportedFlow.ACTIVE, ReportedFlow.DRAINING, False),
        (ReportedFlow.ACTIVE, ReportedFlow.STANDBY, False),
    ],
)
def test_a_member_tells_of_a_queue_that_the_broker_feeds_to_two(
    ours: ReportedFlow, theirs: ReportedFlow, is_told: bool
) -> None:
    shell = Shell()
    shell.tell(OwnFlowsChanged({QUEUE: FlowReport(ours, Epoch(1), 0)}))
    notes = []
    for sequence in range(1, 8):
        shell.wait(1_000)
        notes += pick(shell.hear(beat(header(sequence), flows={QUEUE: FlowReport(theirs, Epoch(1), 0)})), Note)
    assert [(one.name, one.facts["other"]) for one in notes] == [("queue_fed_to_two", PEER)] * is_told
