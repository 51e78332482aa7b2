from dataclasses import replace

import pytest

from lbg_runtime.cli.why_text import answer_lines
from lbg_runtime.core.group.control_messages import (
    FlowReport,
    Header,
    KeyAnswer,
    KeySight,
    LaneHead,
    LastHandled,
    LastOutcome,
    Life,
    ParkingWait,
    QuestionId,
    ReportedFlow,
)
from lbg_runtime.core.lanes import LaneStage
from lbg_runtime.model.ids import Epoch, GroupName, MemberId, QueueName

ACTIVE = FlowReport(ReportedFlow.ACTIVE, Epoch(3), 12)


def answer(
    flow: FlowReport | None, head: LaneHead | None, last: LastHandled | None = None, parked: int = 0
) -> KeyAnswer:
    header = Header(GroupName("orders"), MemberId("a"), Life(1, 1), 1)
    return KeyAnswer(header, QuestionId("q"), 9, QueueName("orders/1"), flow, KeySight(4, parked, head, last))


@pytest.mark.parametrize(
    ("head", "line"),
    [
        (
            LaneHead(LaneStage.READY, 0, False, 17, 250, None, None),
            "  in flight: number 17, received 250 ms ago, waits for a runner, its batch or its application",
        ),
        (
            LaneHead(LaneStage.DELAYED, 0, False, 17, 250, None, 500),
            "  in flight: number 17, received 250 ms ago, not handled: it is to be parked, or its queue has stopped",
        ),
        (
            LaneHead(LaneStage.DELAYED, 2, False, 17, 250, 250, None),
            "  in flight: number 17, received 250 ms ago, first tried 250 ms ago, attempt 2 failed",
        ),
        (
            LaneHead(LaneStage.RUNNING, 1, True, None, 12_345, 12_300, None),
            "  in flight: received 12.3 s ago, redelivered, first tried 12.3 s ago, attempt 1 runs",
        ),
        (
            LaneHead(LaneStage.DELAYED, 5, False, 17, 90_000, 90_000, 1_500),
            "  in flight: number 17, received 90.0 s ago, first tried 90.0 s ago, attempt 5 failed, again in 1.5 s",
        ),
    ],
)
def test_what_is_in_flight_is_one_line(head: LaneHead, line: str) -> None:
    assert list(answer_lines(answer(ACTIVE, head))) == [
        "  owner: a, active, epoch 3, 12 in flight on the queue",
        line,
        "  waiting in line behind it: 4",
    ]


def test_a_key_at_rest_shows_what_was_done_last() -> None:
    assert list(answer_lines(answer(ACTIVE, None, LastHandled(16, 2, 13_000)))) == [
        "  owner: a, active, epoch 3, 12 in flight on the queue",
        "  in flight: nothing",
        "  last handled: number 16, 13.0 s ago, after 2 attempts",
    ]


def test_why_the_last_attempt_failed_is_told_with_the_topic() -> None:
    head = LaneHead(LaneStage.DELAYED, 5, False, 17, 90_000, 90_000, 1_500, "orders/new", "ValueError: no such shop")
    assert list(answer_lines(answer(ACTIVE, head)))[1:] == [
        "  in flight: number 17, received 90.0 s ago, first tried 90.0 s ago, attempt 5 failed, again in 1.5 s",
        "  its topic: orders/new",
        "  its last failure: ValueError: no such shop",
        "  waiting in line behind it: 4",
    ]


@pytest.mark.parametrize(
    ("last", "line"),
    [
        (LastHandled(16, 1, 13_000, LastOutcome.HANDLED), "  last handled: number 16, 13.0 s ago"),
        (
            LastHandled(16, 2, 13_000, LastOutcome.ERROR_QUEUE),
            "  last, not handled: number 16, moved to the error queue 13.0 s ago, after 2 attempts",
        ),
        (
            LastHandled(None, 1, 500, LastOutcome.DMQ),
            "  last, not handled: moved to the dead message queue 500 ms ago",
        ),
    ],
)
def test_what_was_settled_without_being_handled_is_not_told_as_handled(last: LastHandled, line: str) -> None:
    assert list(answer_lines(answer(ACTIVE, None, last)))[-1] == line


def test_a_parked_key_is_told_as_such() -> None:
    assert list(answer_lines(answer(ACTIVE, None, parked=3))) == [
        "  owner: a, active, epoch 3, 12 in flight on the queue",
        "  in flight: nothing",
        "  parked: 3, and new messages are parked too; `lbg parked show` says why",
    ]


def test_a_handler_that_outlived_its_flow_is_told_as_such() -> None:
    head = LaneHead(LaneStage.RUNNING, 1, False, 1, 5, 5, None)
    (first, *_) = answer_lines(answer(None, head))
    assert first == "  not its owner, but still has a message of it: a"


def test_what_is_parked_is_not_known_while_the_queue_waits_for_its_parking_queue() -> None:
    waiting = replace(answer(ACTIVE, None, LastHandled(16, 1, 13_000)), wait=ParkingWait(43_210, "Queue Shutdown"))
    assert list(answer_lines(waiting)) == [
        "  owner: a, active, epoch 3, 12 in flight on the queue",
        "  in flight: nothing",
        "  waits for its parking queue, for 43.2 s: Queue Shutdown",
        "  parked: not known; until it is, nothing of the queue is handled",
        "  last handled: number 16, 13.0 s ago",
    ]


def test_a_queue_that_has_stopped_is_told_where_nothing_of_the_key_is_in_flight() -> None:
    assert list(answer_lines(replace(answer(ACTIVE, None), is_stopped=True))) == [
        "  owner: a, active, epoch 3, 12 in flight on the queue",
        "  its queue has stopped: nothing of any key is started; `queue_stopped` in the owner's log says why",
        "  in flight: nothing",
    ]
