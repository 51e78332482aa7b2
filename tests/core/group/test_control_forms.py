"""Control messages as members of other versions know them, byte by byte: what changes here takes a new version number.

The lines are what the code of 22 November wrote.
"""

import pytest

from lbg_runtime.core.group.control_codec import decode, encode
from lbg_runtime.core.group.control_messages import (
    Accept,
    ControlMessage,
    FlowReport,
    GroupAnswer,
    GroupQuestion,
    Header,
    Heartbeat,
    Inquiry,
    KeyAnswer,
    KeyQuestion,
    KeySight,
    LaneHead,
    LastHandled,
    Leave,
    Life,
    MemberState,
    MoveId,
    Offer,
    QuestionId,
    Reject,
    ReportedFlow,
    SeenMember,
    StateRequest,
    Taken,
)
from lbg_runtime.core.lanes import LaneStage
from lbg_runtime.core.restripe.striping import Striping, StripingReport
from lbg_runtime.model.ids import Epoch, GroupName, MemberId, QueueName

GROUP, MEMBER, OTHER = GroupName("orders"), MemberId("m-1"), MemberId("m-2")
HEADER = Header(GROUP, MEMBER, Life(7, 11), 3)
QUEUE, MOVE, QUESTION = QueueName("orders/1"), MoveId("x-1"), QuestionId("q")
FLOW = FlowReport(ReportedFlow.ACTIVE, Epoch(5), 2)
STANDBY = FlowReport(ReportedFlow.STANDBY, Epoch(1), 0)
MOVING = StripingReport(Striping(9, 4, 8, frozenset({5, 6}), frozenset({2})), "ab12")

FORMS: list[tuple[ControlMessage | Inquiry, str, str]] = [
    (
        Heartbeat(
            HEADER,
            MemberState.ACTIVE,
            100,
            {"group.hash_count": "96", "failure.then": "park"},
            {QUEUE: FLOW, QueueName("orders/0"): STANDBY},
            "00ff",
            MOVING,
        ),
        "heartbeat",
        '"active",100,"48a38e0b00e4215f",[["failure.then","park"],["group.hash_count","96"]],"00ff",'
        '[["orders/0",0,1,0],["orders/1",1,5,2]],9,4,8,[5,6],[2],"ab12"',
    ),
    (
        Heartbeat(HEADER, MemberState.JOINING, 1, {}, {}, "00ff", StripingReport(Striping(0, 4), "")),
        "heartbeat",
        '"joining",1,"71857576257465c7",[],"00ff",[],0,4,null,[],[],""',
    ),
    (StateRequest(HEADER), "state_request", ""),
    (Leave(HEADER), "leave", ""),
    (Offer(HEADER, QUEUE, Epoch(5), MOVE, OTHER), "offer", '"orders/1",5,"x-1","m-2"'),
    (Accept(HEADER, QUEUE, MOVE), "accept", '"orders/1","x-1"'),
    (Reject(HEADER, QUEUE, MOVE, "busy"), "reject", '"orders/1","x-1","busy"'),
    (Taken(HEADER, QUEUE, None, Epoch(6)), "taken", '"orders/1",null,6'),
    (Taken(HEADER, QUEUE, MOVE, Epoch(6)), "taken", '"orders/1","x-1",6'),
    (GroupQuestion(HEADER, QUESTION), "group_question", '"q"'),
    (
        GroupAnswer(HEADER, QUESTION, (SeenMember(MEMBER, is_suspect=False), SeenMember(OTHER, is_suspect=True))),
        "group_answer",
        '"q",[["m-1",0],["m-2",1]]',
    ),
    (KeyQuestion(HEADER, QUESTION, "k"), "key_question", '"q","k"'),
    (
        KeyAnswer(
            HEADER,
            QUESTION,
            17,
            QUEUE,
            FLOW,
            KeySight(3, 1, LaneHead(LaneStage.RUNNING, 2, True, 40, 1200, 900, None), LastHandled(39, 1, 4000)),
        ),
        "key_answer",
        '"q",17,"orders/1",[1,5,2],3,1,[1,2,1,40,1200,900,null],[39,1,4000]',
    ),
    (
        KeyAnswer(HEADER, QUESTION, 17, QUEUE, None, KeySight(0, 0, None, None)),
        "key_answer",
        '"q",17,"orders/1",null,0,0,null,null',
    ),
]


@pytest.mark.parametrize(("message", "kind", "body"), FORMS, ids=[f"{each[1]}-{at}" for at, each in enumerate(FORMS)])
def test_members_of_other_versions_read_what_this_one_says_and_are_read(
    message: ControlMessage | Inquiry, kind: str, body: str
) -> None:
    line = f'[3,"{kind}","orders","m-1",7,11,3{"," + body if body else ""}]'.encode()
    assert encode(message) == line
    assert decode(line, GROUP) == message
