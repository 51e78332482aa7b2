"""A member's answer about a key, as lines for people. Pure: the caller prints."""

from collections.abc import Iterator

from lbg_runtime.core.group.control_messages import KeyAnswer, LaneHead, LastHandled, LastOutcome
from lbg_runtime.core.lanes import LaneStage

_ELSEWHERE = {
    LastOutcome.ERROR_QUEUE: "moved to the error queue",
    LastOutcome.DMQ: "moved to the dead message queue",
}


def answer_lines(answer: KeyAnswer) -> Iterator[str]:
    """The member that answers, what is in flight since when and why it failed, what waits, what was settled last."""
    flow, sight = answer.flow, answer.sight
    if flow is not None and flow.is_owner:
        yield (
            f"  owner: {answer.header.member}, {flow.state.value}, epoch {flow.epoch}, "
            f"{flow.in_flight} in flight on the queue"
        )
        if answer.is_stopped:
            yield "  its queue has stopped: nothing of any key is started; `queue_stopped` in the owner's log says why"
    else:
        yield f"  not its owner, but still has a message of it: {answer.header.member}"
    if sight.head is not None:
        yield f"  {_head_line(sight.head)}"
        if sight.head.topic is not None:
            yield f"  its topic: {sight.head.topic}"
        if sight.head.error is not None:
            yield f"  its last failure: {sight.head.error}"
        yield f"  waiting in line behind it: {sight.waiting}"
    else:
        yield "  in flight: nothing"
    if (wait := answer.wait) is not None:
        yield f"  waits for its parking queue, for {_seconds(wait.waited_ms)}: {wait.reason}"
        yield "  parked: not known; until it is, nothing of the queue is handled"
    elif sight.parked:
        yield f"  parked: {sight.parked}, and new messages are parked too; `lbg parked show` says why"
    if (last := sight.last) is not None:
        yield f"  {_last_line(last)}"


def _head_line(head: LaneHead) -> str:
    again = ", redelivered" if head.redelivered else ""
    received = f"received {_seconds(head.received_ms)} ago{again}"
    if head.started_ms is None:
        is_kept = head.stage is LaneStage.DELAYED
        why = "waits for a runner, its batch or its application"
        if is_kept:
            why = "not handled: it is to be parked, or its queue has stopped"
        return f"in flight: {_named(head.number)}{received}, {why}"
    tried = f"first tried {_seconds(head.started_ms)} ago, attempt {head.attempts}"
    if head.stage is LaneStage.RUNNING:
        return f"in flight: {_named(head.number)}{received}, {tried} runs"
    when = "" if head.retry_in_ms is None else f", again in {_seconds(head.retry_in_ms)}"
    return f"in flight: {_named(head.number)}{received}, {tried} failed{when}"


def _last_line(last: LastHandled) -> str:
    after = "" if last.attempts == 1 else f", after {last.attempts} attempts"
    when = f"{_seconds(last.ended_ms)} ago{after}"
    if (elsewhere := None if last.outcome is None else _ELSEWHERE.get(last.outcome)) is not None:
        return f"last, not handled: {_named(last.number)}{elsewhere} {when}"
    return f"last handled: {_named(last.number)}{when}"


def _named(number: int | None) -> str:
    return "" if number is None else f"number {number}, "


def _seconds(duration_ms: int) -> str:
    return f"{duration_ms} ms" if duration_ms < 1_000 else f"{duration_ms / 1_000:.1f} s"
