"""Machines that are broken on purpose are found out: each mutant breaks a rule, and the laws name it.

The mutants override private methods, because they stand for edits of the machine itself.
"""

from dataclasses import replace

import pytest

from lbg_runtime.broker.engine.answers import BoundQueue
from lbg_runtime.config.rebind_mode import RebindMode
from lbg_runtime.core.flow.commands import Command, Note, ReturnUnstarted, Settle, StartIntake
from lbg_runtime.core.flow.events import FlowInactive, HandlingFinished, MachineEvent, ReleaseCause
from lbg_runtime.core.flow.machine import FlowMachine
from lbg_runtime.core.flow.table import FlowState
from lbg_runtime.core.lanes import KeyLanes, Lane, LaneKey
from lbg_runtime.model.ids import DeliveryId
from lbg_runtime.model.message import Delivery
from lbg_runtime.model.outcome import Outcome
from lbg_runtime.sim.campaign import Scope
from lbg_runtime.sim.chance import SeededChance
from lbg_runtime.sim.handle import SimHandle
from lbg_runtime.sim.link import Link
from lbg_runtime.sim.parts import Parts
from lbg_runtime.sim.settings import FaultKind, draw_settings
from lbg_runtime.sim.simulation import simulate
from tests.sim.old_seeds import run_old_seed

MOST_SEEDS = 200


def laws_broken_by(parts: Parts, expected: str, first: int = 0) -> set[str]:
    """The laws that the first seed breaks which breaks the expected one; all laws seen where none does.

    `first`: the first to be tried, where one is known that finds it and takes little time.
    """
    seen: set[str] = set()
    for seed in range(first, first + MOST_SEEDS):
        broken = {violation.law for violation in simulate(seed, parts=parts).violations}
        if expected in broken:
            return broken
        seen |= broken
    return seen


class SettlesOnDeadHandles(FlowMachine):
    """The fence is open: a settlement of an older epoch is sent."""

    def _step(self, event: MachineEvent, now_ms: int) -> list[Command]:
        commands = super()._step(event, now_ms)
        if isinstance(event, HandlingFinished) and any(
            isinstance(command, Note) and command.name == "settlement_fenced" for command in commands
        ):
            return [Settle(event.epoch, event.delivery_id, Outcome.ACCEPTED)]
        return commands


class GoesOnWhenInactive(FlowMachine):
    """Loss of activity is not heard: what is held is started although another member may have it."""

    def _lose_activity(self, now_ms: int) -> list[Command]:
        return []


class ReturnsNothing(FlowMachine):
    """Held deliveries stay in the lanes when activity, handle or patience is lost."""

    def _return_unstarted(self) -> list[Command]:
        return []


class GivesWayWithoutDraining(FlowMachine):
    """A queue is given up at once, handlers running or not."""

    def _start_drain(self, cause: ReleaseCause, now_ms: int, move_id: str = "") -> list[Command]:
        self._in_flight.outlive(self.epoch)
        return [ReturnUnstarted(self.epoch), *self._unbind(cause, now_ms)]


class HandsBackWithoutDraining(GivesWayWithoutDraining):
    """The same, where another member asked for the queue, and only there."""

    def _start_drain(self, cause: ReleaseCause, now_ms: int, move_id: str = "") -> list[Command]:
        if cause is ReleaseCause.HANDBACK:
            return super()._start_drain(cause, now_ms, move_id)
        return FlowMachine._start_drain(self, cause, now_ms, move_id)


class ForgetsAHandBackThatTakesTooLong(FlowMachine):
    """Its time is over, and the handle goes with what runs on it."""

    def _keep_queue(self, move_id: str, now_ms: int) -> list[Command]:
        self._in_flight.outlive(self.epoch)
        return self._unbind(ReleaseCause.HANDBACK, now_ms)


class KeepsTheQueueAndItsIntakeClosed(FlowMachine):
    """A hand-back is given up, and the broker is never asked to send again."""

    def _keep_queue(self, move_id: str, now_ms: int) -> list[Command]:
        self._in_flight.open_intake()
        return [command for command in super()._keep_queue(move_id, now_ms) if not isinstance(command, StartIntake)]


class LooksBeforeItHops(FlowMachine):
    """A standby asks for messages and then steps aside."""

    def _take_activity(self, now_ms: int) -> list[Command]:
        return [StartIntake(self.epoch), *super()._take_activity(now_ms)]


class BindsWithItsIntakeOpen(FlowMachine):
    """As the client does by itself: a flow is fed as soon as it is active, whatever its member means to do."""

    def _enter_standby(self, now_ms: int) -> list[Command]:
        self._in_flight.open_intake()
        return [StartIntake(self.epoch), *super()._enter_standby(now_ms)]


class SettlesTheCancelled(FlowMachine):
    """A handler without an outcome counts as done."""

    def _step(self, event: MachineEvent, now_ms: int) -> list[Command]:
        if isinstance(event, HandlingFinished) and event.outcome is None:
            event = HandlingFinished(event.epoch, event.delivery_id, Outcome.ACCEPTED)
        return super()._step(event, now_ms)


class LeavesBeforeItIsUnbound(FlowMachine):
    """A member that is asked to stop exits at once, while handlers run and handles are bound."""

    @property
    def is_stopped(self) -> bool:
        return self._plan.is_leaving


class DropsSettlementsAndKeepsTheHandle(FlowMachine):
    """After an outage, settlements of what was delivered before are dropped, and the handle is kept.

    The plausible rule that F.4 of the client's fact sheet refutes: the client never shows those messages again.
    """

    def _step(self, event: MachineEvent, now_ms: int) -> list[Command]:
        if isinstance(event, FlowInactive) and self.state is FlowState.ACTIVE and event.epoch == self.epoch:
            commands = self._return_unstarted()
            self._in_flight.outlive(self.epoch)
            return commands
        return super()._step(event, now_ms)


class LanePerDelivery(KeyLanes):
    """No lanes at all: every delivery may start at once."""

    def offer(self, lane_key: LaneKey, delivery: Delivery) -> None:
        super().offer(LaneKey(f"{lane_key} {delivery.delivery_id}"), delivery)


class LanePerEpoch(KeyLanes):
    """Lanes end with the bind: a redelivered message does not wait for the handler that still runs."""

    def offer(self, lane_key: LaneKey, delivery: Delivery) -> None:
        super().offer(LaneKey(f"{lane_key} {delivery.epoch}"), delivery)


class LaneGoesOnWhileOneIsDelayed(KeyLanes):
    """A message that is tried again goes to the end of its lane, so that its successors pass it."""

    def delay(self, lane: Lane, until_ms: int) -> bool:
        if lane.rest:
            lane.rest.append(lane.head)
            lane.head = lane.rest.popleft()
        return super().delay(lane, until_ms)


@pytest.mark.parametrize(
    ("mutant", "law", "first"),
    [
        (SettlesOnDeadHandles, "settlements_stay_in_their_epoch", 71),
        (GoesOnWhenInactive, "nothing_starts_after_activity_is_lost", 76),
        (ReturnsNothing, "nothing_starts_after_activity_is_lost", 83),
        (GivesWayWithoutDraining, "release_waits_for_what_is_in_flight", 83),
        (GivesWayWithoutDraining, "processes_overlap_only_when_cut_off", 46),
        (GivesWayWithoutDraining, "duplicates_are_excused", 37),
        (HandsBackWithoutDraining, "release_waits_for_what_is_in_flight", 37),
        (HandsBackWithoutDraining, "processes_overlap_only_when_cut_off", 46),
        (HandsBackWithoutDraining, "duplicates_are_excused", 37),
        (ForgetsAHandBackThatTakesTooLong, "release_waits_for_what_is_in_flight", 56),
        (ForgetsAHandBackThatTakesTooLong, "duplicates_are_excused", 56),
        (KeepsTheQueueAndItsIntakeClosed, "run_ends", 7),
        (LooksBeforeItHops, "standbys_touch_nothing", 94),
        (BindsWithItsIntakeOpen, "standbys_touch_nothing", 56),
        (SettlesTheCancelled, "only_success_and_rejection_are_settled", 37),
        (SettlesTheCancelled, "first_handlings_are_in_order", 83),
        (LeavesBeforeItIsUnbound, "release_waits_for_what_is_in_flight", 67),
        (DropsSettlementsAndKeepsTheHandle, "every_delivery_ends_once", 4),
        (DropsSettlementsAndKeepsTheHandle, "run_ends", 104),
    ],
)
def test_a_broken_flow_machine_is_found_out(mutant: type[FlowMachine], law: str, first: int) -> None:
    assert law in laws_broken_by(Parts(make_machine=mutant), law, first)


@pytest.mark.parametrize(
    ("mutant", "law", "first"),
    [
        (LanePerDelivery, "lane_is_serial", 67),
        (LanePerDelivery, "first_handlings_are_in_order", 67),
        (LanePerDelivery, "settled_messages_are_a_prefix", 37),
        (LanePerEpoch, "lane_is_serial", 132),
        (LaneGoesOnWhileOneIsDelayed, "first_handlings_are_in_order", 89),
    ],
)
def test_broken_lanes_are_found_out(mutant: type[KeyLanes], law: str, first: int) -> None:
    assert law in laws_broken_by(Parts(make_lanes=mutant), law, first)


def test_a_client_that_lets_a_rejection_overtake_acceptances_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The official client does it: a transport has to flush before it rejects."""

    def settle_rejections_first(handle: SimHandle, delivery_id: DeliveryId, outcome: Outcome) -> None:
        if outcome is Outcome.REJECTED:
            held_back, handle._settled[handle._sent :] = handle._settled[handle._sent :], []
            settle(handle, delivery_id, outcome)
            handle._settled += held_back
            handle._arm_timer()
        else:
            settle(handle, delivery_id, outcome)

    settle = SimHandle.settle
    monkeypatch.setattr(SimHandle, "settle", settle_rejections_first)
    assert "settled_messages_are_a_prefix" in laws_broken_by(Parts(), "settled_messages_are_a_prefix")


def test_a_client_that_does_not_repeat_what_a_broken_connection_lost_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The official client is like that on flows with negative outcomes: acknowledgements 1 and 2 went into a dead
    connection, the handle came back, 3 was acknowledged on it, and 1 and 2 came again after it."""

    def bound_and_forgetful(handle: SimHandle, link: Link, bound: BoundQueue) -> None:
        handle._settled, handle._sent = handle._settled[handle._sent :], 0
        become_bound(handle, link, bound)

    become_bound = SimHandle._bound
    monkeypatch.setattr(SimHandle, "_bound", bound_and_forgetful)
    broken = {violation.law for violation in run_old_seed(Scope(RebindMode.CYCLE), 14).violations}
    assert broken == {"settled_messages_are_a_prefix"}


@pytest.mark.parametrize("seed", [4, 14, 91])
def test_a_member_that_was_cut_off_makes_no_gap(seed: int) -> None:
    """Message 4 was given to another member, its old owner came back as a standby and its settlements of 5 to 8, which
    nobody else had been given, still counted: 4 was left alone. The broker now ends all claims of a lost handle when it
    gives one of its messages to someone else. Short windows and many broken connections make it likely."""
    settings = replace(
        draw_settings(SeededChance(seed).fork("settings")),
        window=1,
        max_in_flight=8,
        planned_members=2,
        first_members=2,
        faults=(FaultKind.DISCONNECT, FaultKind.SLOW),
        fault_gap_ms=400,
        keep_alive_ms=500,
        publish_gap_ms=5,
        request_gap_ms=None,
        horizon_ms=6_000,
    )
    assert simulate(seed, settings).violations == ()
