"""Copies of a small queue, and when two of its states are one."""

from collections import deque
from collections.abc import Callable, Iterable

from lbg_runtime.core.flow import events
from lbg_runtime.core.flow.in_flight import InFlight
from lbg_runtime.core.flow.machine import FlowMachine
from lbg_runtime.core.flow.plan import FlowPlan
from lbg_runtime.core.flow.release import Release
from lbg_runtime.core.lanes import KeyLanes, Lane
from lbg_runtime.model.ids import DeliveryId
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


def twin_lanes(lanes: KeyLanes[Delivery]) -> KeyLanes[Delivery]:
    """See `histories.twin`."""
    made: KeyLanes[Delivery] = KeyLanes(max_waiting=lanes.max_waiting)
    made._lanes = {key: _twin(lane) for key, lane in lanes._lanes.items()}
    made.ready = deque(made._lanes[lane.key] for lane in lanes.ready)
    made._delayed, made._held_up, made._delay_count = lanes._delayed[:], set(lanes._held_up), lanes._delay_count
    return made


COPIES: dict[type, Callable[..., object]] = {
    **CONTAINERS,
    **dict.fromkeys((FlowMachine, FlowPlan, InFlight, Release, Lane, Handle), _twin),
    KeyLanes: twin_lanes,
}


def mark(queue: SmallQueue) -> int:
    """Equal for states in which the same can happen: moments count from now, and epochs from the newest."""
    sets = frozenset(queue.started), frozenset(queue.handled)
    lists = tuple(queue.spool), tuple(queue.line), tuple(queue.may_happen)
    members = [_mark_of_member(member, queue.now_ms) for member in queue.members]
    return hash((queue.is_feeding, queue.hung, queue.may_repeat, *sets, *lists, *members))


def _mark_of_member(member: Member, now_ms: int) -> tuple[object, ...]:
    newest, handle = member.machine.epoch, member.handle

    def name(delivery: Delivery) -> object:
        return delivery.epoch - newest, delivery.delivery_id

    marks: list[object] = [
        mark_of_machine(member.machine, member.inbox, now_ms, name, lambda delivery_id: delivery_id),
        mark_of_lanes(member.lanes, now_ms, name),
        frozenset(map(name, member.unanswered)),
        (member.link, member.task, *map(name, member.running.values())),
    ]
    if handle is not None:
        flags = handle.intake, handle.is_told_active, handle.is_lost, handle.is_halted, handle.is_cancelled
        marks.append((handle.epoch - newest, handle.state, handle.binds, handle.is_stopped, *flags))
        marks.append((handle.window, frozenset(handle.held), tuple(handle.acks)))
    return tuple(marks)


def mark_of_machine(
    machine: FlowMachine,
    inbox: Iterable[events.MachineEvent],
    now_ms: int,
    name: Callable[[Delivery], object],
    place: Callable[[DeliveryId], object],
) -> tuple[object, ...]:
    """A part of marks: a machine, but for its gate, and what it has not taken."""
    newest, plan, in_flight, release = machine.epoch, machine._plan, machine._in_flight, machine._release

    def sign(event: events.MachineEvent) -> object:
        match event:
            case events.MessageReceived(delivery):
                return name(delivery)
            case events.HandlingStalled(epoch, has_stopped):
                return type(event), epoch - newest, has_stopped
            case events.StepAsideRequested(until_ms):
                return until_ms - now_ms
            case events.StopRequested() | events.HandBackRequested() | events.PlaceChanged() | events.StripingLearned():
                return event
            case events.HandlingFinished(epoch, delivery_id, outcome):
                return epoch - newest, place(delivery_id), outcome
            case events.DeliveriesHeldUp(epoch, delivery_ids):
                return epoch - newest, tuple(map(place, delivery_ids))
            case events.SettlementsReached(epoch, number):
                assert machine._gate is not None
                return epoch - newest, number - machine._gate._probe_count
            case _:
                assert not isinstance(event, events.StepAsideCancelled)
                return type(event), event.epoch - newest

    moments = plan.bind_at_ms, plan.give_way_at_ms, plan._not_before_ms, plan._aside_until_ms
    marks: list[object] = [
        (machine.state, plan.place, plan.is_leaving, min(plan.failed_binds, 2)),
        tuple(_wait(moment, now_ms) for moment in moments),
        max(plan._bound_at_ms - now_ms, -SETTINGS.bind_backoff_max_ms),
        (in_flight._intake_open, frozenset(map(place, in_flight._excused)), frozenset(map(place, in_flight._current))),
        frozenset((epoch - newest, place(delivery_id)) for epoch, delivery_id in in_flight._outlived),
        (tuple(map(sign, machine._early)), tuple(map(sign, inbox))),
    ]
    if release is not None:
        moments_of_release = release.quiet_at_ms, release.drain_until_ms, release.look_at_ms
        marks.append((release.cause, release.phase, *(_wait(moment, now_ms) for moment in moments_of_release)))
    return tuple(marks)


def mark_of_lanes(lanes: KeyLanes[Delivery], now_ms: int, name: Callable[[Delivery], object]) -> tuple[object, ...]:
    """A part of marks."""
    return (
        *(
            (lane.key, lane.stage, lane.is_recalled, *map(name, (lane.head, *(lane.rest or ()))))
            for lane in lanes.lanes()
        ),
        tuple(lane.key for lane in lanes.ready),
        tuple((_wait(until_ms, now_ms), key) for until_ms, _, key in sorted(lanes._delayed)),
        frozenset(lanes._held_up),
    )


def _wait(moment_ms: int | None, now_ms: int) -> int | None:
    return None if moment_ms is None else max(moment_ms - now_ms, 0)
