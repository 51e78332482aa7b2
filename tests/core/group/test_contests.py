"""Two members that both say they are fed from a queue."""

import pytest

from lbg_runtime.core.flow.commands import Note
from lbg_runtime.core.group.control_messages import FlowReport, ReportedFlow
from lbg_runtime.core.group.membership_events import OwnFlowsChanged
from lbg_runtime.model.ids import Epoch
from tests.core.group.membership_shell import PEER, QUEUE, Shell, beat, header, pick


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


def test_what_is_taken_back_in_time_is_not_told() -> None:
    shell = Shell()
    shell.tell(OwnFlowsChanged({QUEUE: FlowReport(ReportedFlow.ACTIVE, Epoch(1), 0)}))
    notes = []
    for sequence in range(1, 40):
        shell.wait(1_000)
        state = ReportedFlow.STANDBY if sequence % 4 == 0 else ReportedFlow.ACTIVE
        notes += pick(shell.hear(beat(header(sequence), flows={QUEUE: FlowReport(state, Epoch(1), 0)})), Note)
    assert notes == []
