"""The reasons that are given for a queue that nobody has."""

import pytest

from lbg_runtime.admin.sight import QueueSight
from lbg_runtime.cli.group.text import remarks
from lbg_runtime.cli.group.unowned import why_unowned
from lbg_runtime.core.group.control_messages import FlowReport, Header, Heartbeat, Life, MemberState, ReportedFlow
from lbg_runtime.core.group.picture import GroupPicture
from lbg_runtime.core.restripe.striping import Striping, StripingReport
from lbg_runtime.model.ids import Epoch, GroupName, MemberId, QueueName

QUEUE = QueueName("orders/0")


def heard(*states: MemberState, standby: str = "") -> GroupPicture:
    """Members a, b and so on in these states, of which one stands by."""
    picture = GroupPicture()
    for name, state in zip("abc", states, strict=False):
        header = Header(GroupName("orders"), MemberId(name), Life(1, 1), 1)
        flows = {QUEUE: FlowReport(ReportedFlow.STANDBY, Epoch(1), 0)} if name == standby else {}
        picture.hear(Heartbeat(header, state, 1, {}, flows, "0", StripingReport(Striping(0, 2), "")))
    return picture


ACTIVE, JOINING, DRAINING = MemberState.ACTIVE, MemberState.JOINING, MemberState.DRAINING


@pytest.mark.parametrize(
    ("picture", "sight", "reason"),
    [
        (heard(ACTIVE), QueueSight(5, 0, None), "nobody is bound to it"),
        (heard(ACTIVE), QueueSight(5, 2, None), "no member that was heard is bound to it, and 2 flows of others"),
        (heard(ACTIVE), QueueSight(5, 1, "somebody"), "the broker feeds it to somebody"),
        (heard(ACTIVE), None, "it is not on the broker"),
        (
            heard(ACTIVE),
            QueueSight(5, 0, None, is_shut=True),
            "its egress is switched off on the broker (egressEnabled)",
        ),
        (heard(ACTIVE, ACTIVE, standby="b"), QueueSight(5, 1, None), "bound as standby: b; the broker feeds nobody"),
        (
            heard(JOINING, JOINING),
            QueueSight(5, 0, None),
            "nobody is bound to it: all members that were heard are joining",
        ),
        (heard(DRAINING), QueueSight(5, 0, None), "nobody is bound to it: all members that were heard are leaving"),
        (heard(DRAINING, JOINING), QueueSight(5, 0, None), "nobody is bound to it"),
    ],
)
def test_the_broker_and_the_members_say_why(picture: GroupPicture, sight: QueueSight | None, reason: str) -> None:
    assert why_unowned(picture, QUEUE, {} if sight is None else {QUEUE: sight}) == reason


def test_without_the_broker_the_members_do() -> None:
    assert why_unowned(heard(ACTIVE), QUEUE) == "no member that was heard is bound to it"
    assert why_unowned(heard(ACTIVE, standby="a"), QUEUE) == "bound as standby: a; none says that the broker feeds it"


def test_queues_of_one_reason_are_one_line() -> None:
    queues = [QueueName(f"orders/{index}") for index in range(3)]
    sights = dict.fromkeys(queues, QueueSight(0, 0, None)) | {queues[1]: QueueSight(0, 0, None, is_shut=True)}
    assert list(remarks(GroupPicture(), queues, {}, sights)) == [
        "no owner: orders/0, orders/2: nobody is bound to it",
        "no owner: orders/1: its egress is switched off on the broker (egressEnabled)",
    ]
