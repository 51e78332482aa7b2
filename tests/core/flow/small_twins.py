"""Copies of a small queue, and when two of its states are one."""

from collections import deque
from collections.abc import Callable

from lbg_runtime.core.flow import events
from lbg_runtime.core.flow.in_flight import InFlight
from lbg_runtime.core.flow.machine import FlowMachine
from lbg_runtime.core.flow.plan import FlowPlan
from lbg_runtime.core.flow.release import Release
from lbg_runtime.core.lanes import KeyLanes, Lane
from lbg_runtime.model.message import Delivery
from tests.core.flow.small_parts import SETTINGS, Handle, Member
from tests.core.flow.small_queue import SmallQueue
from tests.core.histories import CONTAINERS, T, twin


def twin_queue(queue: SmallQueue) -> SmallQueue:
    """A copy to take a step in."""
    made = _twin(queue)
    made.members = [_twin(member) for member in queue.members]
    return made


def _twin(part: T) -> T:
    return twin(part, COPIES)


def _twin_lanes(lanes: KeyLanes[Delivery]) -> KeyLanes[Delivery]:
    made: KeyLanes[Delivery] = KeyLanes(max_waiting=lanes.max_waiting)
    made._lanes = {key: _twin(lane) for key, lane in lanes._lanes.items()}
    made.ready = deque(made._lanes[lane.key] for lane in lanes.ready)
    made._delayed, made._held_up, made._delay_count = lanes._delayed[:], set(lanes._held_up), lanes._delay_count
    return made


COPIES: dict[type, Callable[..., object]] = {
    **CONTAINERS,
    **dict.fromkeys((FlowMachine, FlowPlan, InFlight, Release, Lane, Handle), _twin),
    KeyLanes: _twin_lanes,
}


def mark(queue: SmallQueue) -> int:
    """Equal for states in which the same can happen: moments count from now, and epochs from the newest."""
    sets = frozenset(queue.started), frozenset(queue.handled)
    lists = tuple(queue.spool), tuple(queue.line), tuple(queue.may_happen)
    members = [_mark_of_member(member, queue.now_ms) for member in queue.members]
    return hash((queue.is_feeding, queue.hung, queue.may_repeat, *sets, *lists, *members))


def _mark_of_member(member: Member, now_ms: int) -> tuple[object, ...]:
    machine, lanes, newest = member.machine, member.lanes, member.machine.epoch
    plan, in_flight, release, handle = machine._plan, machine._in_flight, machine._release, member.handle

    def wait(moment_ms: int | None) -> int | None:
        return None if moment_ms is None else max(moment_ms - now_ms, 0)

    def name(delivery: Delivery) -> tuple[int, int]:
        return delivery.epoch - newest, delivery.delivery_id

    def sign(event: events.MachineEvent) -> tuple[object, ...]:
        match event:
            case events.MessageReceived(delivery):
                return name(delivery)
            case events.StepAsideRequested(until_ms):
                return (until_ms - now_ms,)
            case events.StopRequested() | events.HandBackRequested() | events.PlaceChanged():
                return (event,)
            case events.HandlingFinished(epoch, delivery_id, outcome):
                return epoch - newest, delivery_id, outcome
            case events.DeliveriesHeldUp(epoch, delivery_ids):
                return epoch - newest, delivery_ids
            case _:
                assert not isinstance(event, events.StepAsideCancelled | events.StripingLearned)
                return type(event), event.epoch - newest

    marks: list[object] = [
        (machine.state, plan.place, plan.is_leaving, min(plan.failed_binds, 2)),
        (wait(plan.bind_at_ms), wait(plan.give_way_at_ms), wait(plan._not_before_ms), wait(plan._aside_until_ms)),
        max(plan._bound_at_ms - now_ms, -SETTINGS.bind_backoff_max_ms),
        (in_flight._intake_open, frozenset(in_flight._excused), frozenset(in_flight._current)),
        frozenset((epoch - newest, delivery_id) for epoch, delivery_id in in_flight._outlived),
        (tuple(map(sign, machine._early)), tuple(map(sign, member.inbox))),
        *(
            (lane.key, lane.stage, lane.is_recalled, *map(name, (lane.head, *(lane.rest or ()))))
            for lane in lanes.lanes()
        ),
        tuple(lane.key for lane in lanes.ready),
        tuple((wait(until_ms), key) for until_ms, _, key in sorted(lanes._delayed)),
        (frozenset(lanes._held_up), frozenset(map(name, member.unanswered))),
        (member.link, member.task, *map(name, member.running.values())),
    ]
    if release is not None:
        waits = wait(release.quiet_at_ms), wait(release.drain_until_ms), wait(release.look_at_ms)
        marks.append((release.cause, release.phase, *waits))
    if handle is not None:
        flags = handle.intake, handle.is_told_active, handle.is_lost, handle.is_halted, handle.is_cancelled
        marks.append((handle.epoch - newest, handle.state, handle.binds, *flags))
        marks.append((handle.window, frozenset(handle.held), tuple(handle.acks)))
    return tuple(marks)
