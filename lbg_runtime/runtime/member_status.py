"""What the status API shows of one life of a member, read from the member's parts."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import islice

from lbg_runtime.config.settings import Settings
from lbg_runtime.core.flow.events import ReleaseCause
from lbg_runtime.core.flow.machine import FlowMachine
from lbg_runtime.core.flow.table import FlowState
from lbg_runtime.core.group.control_messages import ParkingWait
from lbg_runtime.core.group.control_plane import ControlPlaneMachine, report_of
from lbg_runtime.core.group.membership import OwnState
from lbg_runtime.core.restripe.striping import Striping, StripingBook
from lbg_runtime.metrics.reading import (
    KeysReading,
    MemberReading,
    QueueReading,
    RestripingReading,
    SidecarReading,
    TroublesReading,
)
from lbg_runtime.model.ids import GroupName, MemberId, QueueName
from lbg_runtime.model.record import OwnerRecord
from lbg_runtime.runtime.clock import now_ms
from lbg_runtime.runtime.dispatch.dispatcher import Dispatcher
from lbg_runtime.runtime.dispatch.key_book import KeyBook
from lbg_runtime.runtime.flight_recorder import FlightRecorder
from lbg_runtime.runtime.flow.runner import FlowRunner
from lbg_runtime.runtime.handlers.resources import MemberResources
from lbg_runtime.runtime.journal import MemberJournal
from lbg_runtime.runtime.meters import MemberMeters
from lbg_runtime.status.health import has_started, lacks
from lbg_runtime.status.picture import (
    FlowPicture,
    HandledPicture,
    KeyPicture,
    MemberPicture,
    Standstill,
    ViewPicture,
    standstill_of,
)
from lbg_runtime.transport.base import Connection

_OWNED = frozenset({FlowState.ACTIVE, FlowState.DRAINING})


class MemberStatus:
    """A `StatusSource`. Reads the member's parts, on its loop, and changes none of them."""

    def __init__(
        self,
        settings: Settings,
        member: MemberId,
        *,
        journal: MemberJournal,
        runners: Sequence[FlowRunner],
        control: ControlPlaneMachine | None,
        keys: KeyBook,
        recorder: FlightRecorder,
        dispatcher: Dispatcher,
        striping: StripingBook,
        connection: Connection,
        resources: MemberResources,
        sidecar: Callable[[], SidecarReading | None] | None,
    ) -> None:
        """`runners` by the index of their queue. `control` is None if members do not talk to each other.

        If the journal has no meters, nothing is counted; the figures are then 0.
        """
        self._settings = settings
        self._member = member
        self._journal = journal
        self._runners = runners
        self._control = control
        self._keys = keys
        self._recorder = recorder
        self._dispatcher = dispatcher
        self._meters = journal.meters or MemberMeters()
        self._striping = striping
        self._connection = connection
        self._resources = resources
        self._sidecar = sidecar
        self.changed_settings: Callable[[], tuple[str, ...]] = tuple
        """Called for every picture; returns the group's settings that differ on the broker by now."""

    def picture(self) -> MemberPicture:
        """The present state of the member."""
        waits = self._dispatcher.parking_waits()
        return MemberPicture(
            group=GroupName(self._settings.group.name),
            member=self._member,
            incarnation=self._journal.incarnation,
            state=self._state(),
            weight=self._weight(),
            flows=tuple(_flow_picture(runner, self._dispatcher, waits) for runner in self._runners),
            view=None if self._control is None else _view_picture(self._control),
            changed_settings=self.changed_settings(),
            is_connected=self._connection.is_connected,
            why_away=self._connection.why_away,
            awaited_lifespan=self._resources.awaited,
        )

    def reading(self) -> MemberReading:
        """The member's figures."""
        picture = self.picture()
        counts = self._dispatcher.counts
        return MemberReading(
            group=picture.group,
            member=picture.member,
            has_started=has_started(picture),
            is_ready=not lacks(picture),
            queues=tuple(
                QueueReading(index, flow.handled, flow.in_flight, flow.state in _OWNED)
                for index, flow in enumerate(picture.flows)
                if flow.place.is_wanted or flow.epoch
            ),
            queue_states=_counted_states(picture),
            lanes=self._dispatcher.held(),
            troubles=TroublesReading(
                counts.failed_attempts,
                counts.moved,
                counts.moves_failed,
                counts.stops,
                sum(flow.standstill is not None for flow in picture.flows),
                counts.late_settlements,
                self._journal.dropped,
            ),
            meters=self._meters.read(),
            group_members=_counted_members(picture),
            disregarded={} if self._control is None else dict(self._control.membership.disregarded),
            restriping=_restriping(self._striping.now, self._settings.group.hash_count),
            keys=self._keys_reading(),
            parking=self._dispatcher.parked(),
            sidecar=None if self._sidecar is None else self._sidecar(),
        )

    def _keys_reading(self) -> KeysReading:
        counts, reports = self._dispatcher.counts, self._dispatcher.key_reports
        return KeysReading(
            hot=reports.hot,
            hot_total=reports.hot_total,
            stuck=reports.stuck,
            stuck_total=reports.stuck_total,
            slow=reports.slow,
            slow_total=reports.slow_total,
            without_key=counts.without_key,
            bodies_refused=counts.bodies_refused,
        )

    def handled(self) -> HandledPicture:
        """How many messages of each queue were handled, how many keys are parked, and what stands still."""
        counts = {runner.queue_index: runner.handled for runner in self._runners if runner.handled}
        return HandledPicture(
            self._member, self._journal.incarnation, counts, self._dispatcher.parked().keys, self._standing_still()
        )

    def _standing_still(self) -> dict[int, Standstill]:
        waits = self._dispatcher.parking_waits()
        if not (waits or self._dispatcher.counts.stops):
            # Nearly always so, and there may be a thousand queues to look at.
            return {}
        found = {
            runner.queue_index: standstill_of(
                waits.get(runner.machine.queue), is_stopped=_is_stopped(runner.machine, self._dispatcher)
            )
            for runner in self._runners
        }
        return {index: still for index, still in found.items() if still is not None}

    def changes(self, limit: int) -> tuple[OwnerRecord, ...]:
        """The newest owner changes of this life, newest first."""
        return tuple(islice(reversed(self._recorder.changes), limit))

    def key(self, key: str) -> KeyPicture:
        """What is known of a key; raises `UserError` if it cannot be hashed."""
        shard, queue = self._keys.place(key)
        machine = next((runner.machine for runner in self._runners if runner.machine.queue == queue), None)
        flow = None if machine is None else report_of(machine)
        owner = self._member if flow is not None and flow.is_owner else None
        if owner is None and self._control is not None:
            owner = self._control.membership.owner_of(queue)
        wait = self._dispatcher.parking_waits().get(queue)
        is_stopped = flow is not None and self._dispatcher.is_stopped(queue, flow.epoch)
        return KeyPicture(self._member, key, shard, queue, owner, flow, self._keys.sight(key), wait, is_stopped)

    def _weight(self) -> int:
        # The weight of a sidecar is 0 while its application is away.
        return self._settings.membership.weight if self._control is None else self._control.membership.identity.weight

    def _state(self) -> OwnState:
        if self._control is not None:
            return self._control.membership.state
        machines = [runner.machine for runner in self._runners]
        is_leaving = any(machine.is_stopped or machine.cause is ReleaseCause.STOP for machine in machines)
        return OwnState.DRAINING if is_leaving else OwnState.ACTIVE


def _flow_picture(runner: FlowRunner, dispatcher: Dispatcher, waits: Mapping[QueueName, ParkingWait]) -> FlowPicture:
    machine = runner.machine
    return FlowPicture(
        queue=machine.queue,
        place=machine.place,
        state=machine.state,
        epoch=machine.epoch,
        cause=machine.cause,
        in_flight=machine.in_flight,
        handled=runner.handled,
        is_stopped=_is_stopped(machine, dispatcher),
        parking_wait=waits.get(machine.queue),
        why_unbound=runner.why_unbound,
    )


def _is_stopped(machine: FlowMachine, dispatcher: Dispatcher) -> bool:
    # A handle that is on its way out, or gone, is not shown as stopped: others have the queue.
    return machine.state in _OWNED and dispatcher.is_stopped(machine.queue, machine.epoch)


def _counted_states(picture: MemberPicture) -> dict[str, int]:
    counts = Counter(flow.state for flow in picture.flows)
    return {state.value: counts[state] for state in FlowState}


def _counted_members(picture: MemberPicture) -> dict[str, int]:
    members = () if picture.view is None else picture.view.group.members
    return Counter("suspect" if one.is_suspect else one.state.value for one in members)


def _restriping(striping: Striping, hash_count: int) -> RestripingReading | None:
    return None if striping.target is None else RestripingReading(*striping.moves(hash_count))


def _view_picture(control: ControlPlaneMachine) -> ViewPicture:
    membership, now = control.membership, now_ms()
    others = membership.hears_other_versions(now)
    return ViewPicture(membership.view, control.rebalance.placement, control.can_hear(now), others)
