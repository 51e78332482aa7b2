"""Every reaction of the flow machine, state by state, as its table has them; over 400 lines, as the table is one."""

import random
from collections.abc import Iterable
from dataclasses import replace

import pytest

from lbg_runtime.core.flow.commands import (
    Bind,
    CancelHandling,
    Command,
    Dispatch,
    LookForStall,
    Note,
    ReturnUnstarted,
    Settle,
    StartIntake,
    StopIntake,
    Unbind,
)
from lbg_runtime.core.flow.events import (
    BindRefused,
    BindSucceeded,
    DeliveriesHeldUp,
    FlowActive,
    FlowDown,
    FlowInactive,
    HandBackRequested,
    HandlingFinished,
    HandlingStalled,
    MachineEvent,
    MessageReceived,
    PlaceChanged,
    ReleaseCause,
    SettlementsReached,
    StepAsideCancelled,
    StepAsideRequested,
    StopRequested,
    StripingLearned,
    UnbindFinished,
)
from lbg_runtime.core.flow.machine import FlowMachine
from lbg_runtime.core.flow.table import TRANSITIONS, EventKind, FlowState
from lbg_runtime.core.restripe.striping import Striping
from lbg_runtime.core.roles import Place, Role
from lbg_runtime.model.errors import InvariantViolated
from lbg_runtime.model.ids import DeliveryId, Epoch, QueueName
from lbg_runtime.model.message import Delivery, Message
from lbg_runtime.model.outcome import Outcome, Settlement
from tests.core.rebind import REBIND

QUEUE = QueueName("orders/0")
HOME = Place(0, gives_way=True)
CYCLING = Place(1, gives_way=True)
STANDBY = Place(1, gives_way=False)
UNWANTED = Place(None, gives_way=False)
MESSAGE = Message("lbg/0/orders", b"")


def new_machine(place: Place = CYCLING, max_in_flight: int = 4, max_held: int | None = None) -> FlowMachine:
    return FlowMachine(QUEUE, place, REBIND, max_in_flight, random.Random(1), now_ms=0, max_held=max_held)


def delivery(number: int, epoch: int = 1) -> Delivery:
    return Delivery(QUEUE, Epoch(epoch), DeliveryId(number), MESSAGE, redelivered=False, received_at_ns=0)


def received(number: int, epoch: int = 1) -> MessageReceived:
    return MessageReceived(delivery(number, epoch))


def finished(number: int, outcome: Outcome | None = Outcome.ACCEPTED, epoch: int = 1) -> HandlingFinished:
    return HandlingFinished(Epoch(epoch), DeliveryId(number), outcome)


def held_up(*numbers: int, epoch: int = 1) -> DeliveriesHeldUp:
    return DeliveriesHeldUp(Epoch(epoch), tuple(map(DeliveryId, numbers)))


def settle(number: int, epoch: int = 1) -> Settle:
    return Settle(Settlement(QUEUE, Epoch(epoch), DeliveryId(number), Outcome.ACCEPTED))


def bound(machine: FlowMachine, now_ms: int = 0) -> FlowMachine:
    assert [type(command) for command in machine.on_deadline(now_ms)] == [Bind]
    machine.handle(BindSucceeded(machine.epoch), now_ms)
    return machine


def active(machine: FlowMachine, now_ms: int = 0) -> FlowMachine:
    bound(machine, now_ms).handle(FlowActive(machine.epoch), now_ms)
    return machine


def without_notes(commands: Iterable[Command]) -> list[Command]:
    return [command for command in commands if not isinstance(command, Note)]


def notes(commands: Iterable[Command]) -> list[str]:
    return [command.name for command in commands if isinstance(command, Note)]


# -- binding


def test_a_new_flow_binds_at_once_with_epoch_1() -> None:
    machine = new_machine()
    assert (machine.state, machine.deadline_ms) == (FlowState.UNBOUND, 0)
    assert machine.on_deadline(0) == [Bind(Epoch(1))]
    assert machine.state is FlowState.BINDING


@pytest.mark.parametrize("place", [HOME, STANDBY, CYCLING])
def test_a_bound_flow_is_a_standby_whatever_its_place(place: Place) -> None:
    machine = bound(new_machine(place))
    assert (machine.state, machine.deadline_ms) == (FlowState.STANDBY, None)


def test_a_failed_bind_is_tried_again_with_growing_waits_and_new_epochs() -> None:
    machine = new_machine()
    now_ms, waits = 0, []
    for attempt in range(1, 9):
        assert machine.on_deadline(now_ms) == [Bind(Epoch(attempt))]
        commands = machine.handle(BindRefused(Epoch(attempt), "timeout", permanent=False), now_ms)
        assert notes(commands) == ["bind_failed"]
        assert machine.deadline_ms is not None
        waits.append(machine.deadline_ms - now_ms)
        now_ms = machine.deadline_ms
    assert waits[0] <= 100
    assert 2_500 <= waits[-1] <= 5_000


def test_failures_before_a_handle_that_served_do_not_slow_the_next_bind_down() -> None:
    machine = new_machine()
    for epoch in range(1, 6):
        assert machine.deadline_ms is not None
        machine.on_deadline(machine.deadline_ms)
        machine.handle(BindRefused(Epoch(epoch), "timeout", permanent=False), machine.deadline_ms or 0)
    active(machine, now_ms=100_000)
    machine.handle(HandBackRequested("m"), 100_001)
    machine.on_deadline(100_021)
    machine.handle(UnbindFinished(machine.epoch), 100_022)
    assert machine.deadline_ms is not None
    machine.on_deadline(machine.deadline_ms)
    [command] = machine.handle(BindRefused(machine.epoch, "timeout", permanent=False), machine.deadline_ms or 0)
    assert isinstance(command, Note)
    assert command.facts["failed_binds"] == 1


def test_a_permanent_refusal_is_reported_and_tried_again_after_the_longest_wait() -> None:
    machine = new_machine()
    machine.on_deadline(0)
    commands = machine.handle(BindRefused(Epoch(1), "Unknown Queue", permanent=True), 0)
    assert commands == [Note("bind_refused", {"epoch": 1, "reason": "Unknown Queue", "failed_binds": 1})]
    assert machine.deadline_ms is not None
    assert machine.deadline_ms >= 2_500
    assert machine.on_deadline(machine.deadline_ms) == [Bind(Epoch(2))]


def test_events_that_outrun_their_bind_are_handled_right_after_it() -> None:
    machine = new_machine()
    machine.on_deadline(0)
    assert machine.handle(FlowActive(Epoch(1)), 1) == []
    assert machine.handle(received(1), 1) == []
    assert machine.handle(received(2), 1) == []
    commands = machine.handle(BindSucceeded(Epoch(1)), 2)
    assert commands == [StartIntake(Epoch(1)), Dispatch(delivery(1)), Dispatch(delivery(2))]
    assert machine.state is FlowState.ACTIVE


def test_events_that_outran_a_refused_bind_are_late() -> None:
    machine = new_machine()
    machine.on_deadline(0)
    machine.handle(FlowActive(Epoch(1)), 1)
    commands = machine.handle(BindRefused(Epoch(1), "timeout", permanent=False), 2)
    assert notes(commands) == ["bind_failed", "flow_active_late"]
    assert machine.state is FlowState.UNBOUND


# -- active


def test_a_flow_opens_its_intake_when_it_becomes_active_and_only_then() -> None:
    machine = bound(new_machine())
    assert machine.handle(FlowInactive(Epoch(1)), 1) == []
    assert machine.handle(FlowActive(Epoch(1)), 2) == [StartIntake(Epoch(1))]
    assert machine.handle(FlowActive(Epoch(1)), 3) == []


def test_a_message_before_the_active_event_shows_that_the_flow_is_active() -> None:
    machine = bound(new_machine())
    commands = machine.handle(received(1), 7)
    activated = Note("flow_activated_by_message", {"epoch": 1})
    assert commands == [activated, StartIntake(Epoch(1)), Dispatch(delivery(1))]
    assert machine.deadline_ms == 7 + 30_000
    assert machine.handle(FlowActive(Epoch(1)), 9) == []
    assert (machine.state, machine.deadline_ms) == (FlowState.ACTIVE, 7 + 30_000)


def test_an_outcome_is_settled_on_the_handle_that_delivered() -> None:
    machine = active(new_machine())
    machine.handle(received(1), 1)
    assert machine.handle(finished(1, Outcome.REJECTED), 2) == [
        Settle(Settlement(QUEUE, Epoch(1), DeliveryId(1), Outcome.REJECTED))
    ]
    assert machine.in_flight == 0


def test_intake_stops_once_at_the_cap_and_starts_once_at_half_of_it() -> None:
    machine = active(new_machine(max_in_flight=4))
    commands = [machine.handle(received(number), 1) for number in range(1, 7)]
    assert [StopIntake(Epoch(1)) in each for each in commands] == [False, False, False, True, False, False]
    commands = [machine.handle(finished(number), 2) for number in range(1, 7)]
    assert [StartIntake(Epoch(1)) in each for each in commands] == [False, False, False, True, False, False]


def test_an_intake_that_is_shut_opens_when_enough_of_what_is_in_flight_is_held_up() -> None:
    machine = active(new_machine(max_in_flight=4, max_held=20))
    for number in range(1, 5):
        machine.handle(received(number), 1)
    assert machine.handle(held_up(2), 2) == []
    assert machine.handle(held_up(2, 3, 7), 2) == [StartIntake(Epoch(1))]
    assert machine.handle(held_up(4), 2) == []
    commands = [command for number in range(5, 8) for command in machine.handle(received(number), 3)]
    assert commands == [*(Dispatch(delivery(number)) for number in range(5, 8)), StopIntake(Epoch(1))]


def test_what_is_held_up_opens_no_intake_beyond_all_that_may_be_held() -> None:
    machine = active(new_machine(max_in_flight=4, max_held=5))
    for number in range(1, 5):
        machine.handle(received(number), 1)
    assert machine.handle(held_up(2, 3, 4), 2) == []
    assert machine.handle(finished(1), 3) == [settle(1), StartIntake(Epoch(1))]


def test_a_drain_takes_note_of_what_is_held_up_and_opens_the_intake_only_when_it_is_given_up() -> None:
    machine = active(new_machine(HOME, max_in_flight=2, max_held=9))
    for number in (1, 2):
        machine.handle(received(number), 1)
    machine.handle(HandBackRequested("m"), 2)
    assert machine.handle(held_up(2), 3) == []
    assert without_notes(machine.on_deadline(5_002)) == [StartIntake(Epoch(1))]


def test_as_a_delivery_is_dispatched_it_is_excused_at_once_unless_that_may_open_the_intake() -> None:
    """The order to stop the intake may come behind the one to dispatch."""
    machine = active(new_machine(max_in_flight=2, max_held=9))
    machine.handle(received(1), 1)
    assert machine.excuse(Epoch(1), DeliveryId(1))
    machine.handle(received(2), 1)
    assert machine.handle(received(3), 1) == [Dispatch(delivery(3)), StopIntake(Epoch(1))]
    assert not machine.excuse(Epoch(1), DeliveryId(3))
    assert machine.handle(held_up(3), 1) == [StartIntake(Epoch(1))]


def test_a_delivery_of_an_older_handle_that_is_held_up_excuses_none_of_this_one() -> None:
    machine = active(new_machine())
    machine.handle(received(1), 0)
    assert not machine.excuse(Epoch(0), DeliveryId(1))


def test_a_cap_of_one_lets_the_next_message_in_after_each() -> None:
    machine = active(new_machine(max_in_flight=1))
    assert machine.handle(received(1), 1) == [Dispatch(delivery(1)), StopIntake(Epoch(1))]
    assert machine.handle(finished(1), 2) == [settle(1), StartIntake(Epoch(1))]


# -- rebind


def test_a_flow_that_is_at_home_never_gives_way() -> None:
    machine = active(new_machine(HOME))
    assert machine.deadline_ms is None
    assert machine.on_deadline(10**9) == []


def test_a_standby_does_not_cycle() -> None:
    machine = bound(new_machine())
    assert machine.on_deadline(10**9) == []


def test_a_flow_away_from_home_gives_way_after_its_interval() -> None:
    machine = active(new_machine(), now_ms=50)
    assert machine.deadline_ms == 30_050
    assert machine.on_deadline(30_049) == []
    assert machine.on_deadline(30_050) == [StopIntake(Epoch(1))]
    assert (machine.state, machine.cause) == (FlowState.DRAINING, ReleaseCause.REBIND)


def test_a_drain_handles_what_is_under_way_and_unbinds_after_a_quiet_gap() -> None:
    machine = active(new_machine())
    machine.handle(received(1), 1)
    machine.on_deadline(30_000)
    assert machine.handle(received(2), 30_010) == [Dispatch(delivery(2))]
    assert machine.handle(finished(1), 30_011) == [settle(1)]
    assert machine.handle(finished(2), 30_012) == [settle(2)]
    assert machine.deadline_ms == 30_030
    assert machine.on_deadline(30_030) == [Unbind(Epoch(1), ReleaseCause.REBIND)]
    assert machine.state is FlowState.UNBINDING


def test_intake_that_the_cap_has_stopped_is_not_stopped_again_by_the_drain() -> None:
    machine = active(new_machine(max_in_flight=1))
    machine.handle(received(1), 1)
    assert machine.on_deadline(30_000) == []


def test_after_giving_way_the_flow_pauses_and_binds_a_new_handle() -> None:
    machine = active(new_machine())
    machine.on_deadline(30_000)
    machine.on_deadline(30_020)
    assert machine.handle(UnbindFinished(Epoch(1)), 30_021) == []
    assert machine.deadline_ms is not None
    assert 30_021 < machine.deadline_ms <= 30_121
    assert machine.on_deadline(machine.deadline_ms) == [Bind(Epoch(2))]


def test_past_the_drain_deadline_the_unstarted_go_back_and_the_running_are_waited_for() -> None:
    machine = active(new_machine())
    machine.handle(received(1), 1)
    machine.handle(received(2), 1)
    machine.on_deadline(30_000)
    assert machine.deadline_ms == 35_000
    assert machine.on_deadline(35_000) == [ReturnUnstarted(Epoch(1))]
    assert machine.handle(finished(2, None), 35_001) == []
    assert notes(machine.handle(received(3), 35_002)) == ["delivery_left_unstarted"]
    assert machine.deadline_ms is None
    assert machine.handle(finished(1), 99_000) == [settle(1), Unbind(Epoch(1), ReleaseCause.REBIND)]


# -- stop


def test_a_stop_drains_like_a_rebind_and_then_stays_unbound() -> None:
    machine = active(new_machine(HOME))
    machine.handle(received(1), 1)
    assert machine.handle(StopRequested(), 100) == [StopIntake(Epoch(1))]
    assert machine.handle(finished(1), 200) == [settle(1), Unbind(Epoch(1), ReleaseCause.STOP)]
    assert not machine.is_stopped
    machine.handle(UnbindFinished(Epoch(1)), 201)
    assert machine.is_stopped
    assert machine.deadline_ms is None
    assert machine.handle(StopRequested(), 202) == []


def test_past_the_deadline_of_a_stop_the_running_are_cancelled_once_and_settled_never() -> None:
    machine = active(new_machine())
    machine.handle(received(1), 1)
    machine.handle(StopRequested(), 100)
    assert machine.on_deadline(5_100) == [ReturnUnstarted(Epoch(1)), CancelHandling(Epoch(1))]
    assert machine.deadline_ms is None
    assert machine.handle(finished(1, None), 5_101) == [Unbind(Epoch(1), ReleaseCause.STOP)]


def test_a_stop_during_a_rebind_drain_makes_it_a_stop() -> None:
    machine = active(new_machine())
    machine.handle(received(1), 1)
    machine.on_deadline(30_000)
    machine.on_deadline(35_000)
    assert machine.handle(StopRequested(), 36_000) == []
    assert (machine.cause, machine.deadline_ms) == (ReleaseCause.STOP, 41_000)
    assert machine.on_deadline(41_000) == [CancelHandling(Epoch(1))]
    machine.handle(finished(1, None), 41_001)
    machine.handle(UnbindFinished(Epoch(1)), 41_002)
    assert machine.is_stopped


def test_a_stop_of_a_standby_unbinds_at_once() -> None:
    assert bound(new_machine()).handle(StopRequested(), 5) == [Unbind(Epoch(1), ReleaseCause.STOP)]


def test_a_stop_before_the_first_bind_is_done_at_once() -> None:
    machine = new_machine()
    machine.handle(StopRequested(), 0)
    assert machine.is_stopped
    assert machine.on_deadline(10**9) == []


def test_a_stop_during_a_bind_waits_for_its_answer() -> None:
    machine = new_machine()
    machine.on_deadline(0)
    assert machine.handle(StopRequested(), 1) == []
    assert machine.handle(BindSucceeded(Epoch(1)), 2) == [Unbind(Epoch(1), ReleaseCause.STOP)]

    machine = new_machine()
    machine.on_deadline(0)
    machine.handle(StopRequested(), 1)
    machine.handle(BindRefused(Epoch(1), "timeout", permanent=False), 2)
    assert machine.is_stopped
    assert machine.deadline_ms is None


def test_a_stop_during_an_unbind_keeps_the_flow_unbound() -> None:
    machine = active(new_machine())
    machine.on_deadline(30_000)
    machine.on_deadline(30_020)
    assert machine.handle(StopRequested(), 30_021) == []
    machine.handle(UnbindFinished(Epoch(1)), 30_022)
    assert machine.is_stopped


# -- activity lost


def test_a_flow_that_loses_activity_starts_nothing_more_and_settles_what_runs() -> None:
    machine = active(new_machine())
    machine.handle(received(1), 1)
    machine.handle(received(2), 1)
    assert machine.handle(FlowInactive(Epoch(1)), 2) == [ReturnUnstarted(Epoch(1))]
    assert notes(machine.handle(received(3), 3)) == ["delivery_left_unstarted"]
    machine.handle(finished(2, None), 3)
    assert machine.handle(FlowActive(Epoch(1)), 4) == []
    assert machine.deadline_ms is None
    assert machine.handle(finished(1), 5) == [settle(1), Unbind(Epoch(1), ReleaseCause.INACTIVE)]
    machine.handle(UnbindFinished(Epoch(1)), 6)
    assert machine.on_deadline(6) == [Bind(Epoch(2))]


def test_a_flow_with_nothing_in_flight_is_replaced_as_soon_as_it_loses_activity() -> None:
    machine = active(new_machine())
    assert machine.handle(FlowInactive(Epoch(1)), 2) == [Unbind(Epoch(1), ReleaseCause.INACTIVE)]


def test_a_standby_keeps_its_handle_through_an_outage() -> None:
    machine = bound(new_machine())
    assert machine.handle(FlowInactive(Epoch(1)), 2) == []
    assert machine.state is FlowState.STANDBY


def test_a_drain_that_loses_activity_returns_the_unstarted_before_its_deadline() -> None:
    machine = active(new_machine())
    machine.handle(received(1), 1)
    machine.on_deadline(30_000)
    assert machine.handle(FlowInactive(Epoch(1)), 30_005) == [ReturnUnstarted(Epoch(1))]
    assert (machine.cause, machine.deadline_ms) == (ReleaseCause.INACTIVE, None)


def test_a_stop_that_loses_activity_stays_a_stop_with_its_deadline() -> None:
    machine = active(new_machine())
    machine.handle(received(1), 1)
    machine.handle(StopRequested(), 100)
    machine.handle(FlowInactive(Epoch(1)), 105)
    assert (machine.cause, machine.deadline_ms) == (ReleaseCause.STOP, 5_100)
    assert machine.on_deadline(5_100) == [CancelHandling(Epoch(1))]


def test_a_handler_that_is_cancelled_unasked_sends_its_successors_back() -> None:
    machine = active(new_machine())
    machine.handle(received(1), 1)
    machine.handle(received(2), 1)
    commands = machine.handle(finished(1, None), 2)
    assert notes(commands) == ["handling_abandoned"]
    assert without_notes(commands) == [ReturnUnstarted(Epoch(1))]
    assert machine.state is FlowState.DRAINING


def test_a_handler_that_is_cancelled_unasked_ends_a_drains_patience() -> None:
    machine = active(new_machine())
    machine.handle(received(1), 1)
    machine.handle(received(2), 1)
    machine.on_deadline(30_000)
    assert without_notes(machine.handle(finished(1, None), 30_002)) == [ReturnUnstarted(Epoch(1))]
    assert machine.handle(finished(2, None), 30_003) == [Unbind(Epoch(1), ReleaseCause.INACTIVE)]


# -- handle lost


def test_a_dead_handle_is_replaced_without_waiting_and_its_settlements_are_fenced() -> None:
    machine = active(new_machine())
    machine.handle(received(1), 1)
    machine.handle(received(2), 1)
    commands = machine.handle(FlowDown(Epoch(1), "Queue Shutdown"), 2)
    assert commands == [ReturnUnstarted(Epoch(1)), Note("flow_lost", {"epoch": 1, "reason": "Queue Shutdown"})]
    assert (machine.state, machine.in_flight) == (FlowState.UNBOUND, 0)
    assert notes(machine.handle(finished(2, None), 3)) == ["handling_abandoned"]
    active(machine, now_ms=102)
    fenced = Note("settlement_fenced", {"epoch": 1, "delivery_id": 1})
    assert machine.handle(finished(1), 200) == [fenced]
    assert machine.state is FlowState.ACTIVE


def test_a_handle_that_dies_in_a_stop_ends_it() -> None:
    machine = active(new_machine())
    machine.handle(received(1), 1)
    machine.handle(StopRequested(), 2)
    machine.handle(FlowDown(Epoch(1), "gone"), 3)
    assert machine.is_stopped
    assert notes(machine.handle(finished(1), 4)) == ["settlement_fenced"]


def test_handles_that_die_young_are_replaced_ever_more_slowly_and_old_ones_quickly() -> None:
    machine = new_machine()
    now_ms = 0
    for _ in range(8):
        bound(machine, now_ms).handle(FlowDown(machine.epoch, "gone"), now_ms + 1)
        assert machine.deadline_ms is not None
        wait_ms, now_ms = machine.deadline_ms - now_ms, machine.deadline_ms
    assert wait_ms >= 2_500
    bound(machine, now_ms).handle(FlowDown(machine.epoch, "gone"), now_ms + 60_000)
    assert machine.deadline_ms is not None
    assert machine.deadline_ms - now_ms - 60_000 <= 100


def test_a_death_during_an_unbind_changes_nothing() -> None:
    machine = bound(new_machine())
    machine.handle(StopRequested(), 5)
    assert machine.handle(FlowDown(Epoch(1), "gone"), 6) == []
    assert notes(machine.handle(received(1), 6)) == ["delivery_left_unstarted"]
    machine.handle(UnbindFinished(Epoch(1)), 7)
    assert machine.is_stopped


# -- place


def unbound_since(now_ms: int, machine: FlowMachine) -> FlowMachine:
    """Unwanted, and unbound from this time on."""
    bound(machine).handle(PlaceChanged(UNWANTED), now_ms)
    machine.handle(UnbindFinished(machine.epoch), now_ms)
    return machine


def test_a_flow_that_is_not_wanted_stays_unbound() -> None:
    machine = new_machine(UNWANTED)
    assert (machine.deadline_ms, machine.role, machine.place) == (None, Role.SECONDARY, UNWANTED)
    assert machine.on_deadline(10**9) == []


@pytest.mark.parametrize(("rank", "bind_at_ms"), [(0, 7_000), (1, 7_100), (3, 7_300)])
def test_a_flow_that_becomes_wanted_binds_in_the_order_of_the_ranks(rank: int, bind_at_ms: int) -> None:
    machine = new_machine(UNWANTED)
    assert machine.handle(PlaceChanged(Place(rank, gives_way=False)), 7_000) == []
    assert machine.deadline_ms == bind_at_ms
    assert machine.role is (Role.PRIMARY if rank == 0 else Role.SECONDARY)
    assert machine.on_deadline(bind_at_ms) == [Bind(Epoch(1))]


def test_a_better_rank_brings_a_bind_forward_and_a_worse_one_leaves_it() -> None:
    machine = new_machine(UNWANTED)
    machine.handle(PlaceChanged(Place(3, gives_way=False)), 1_000)
    machine.handle(PlaceChanged(Place(4, gives_way=False)), 1_050)
    assert machine.deadline_ms == 1_300
    machine.handle(PlaceChanged(Place(1, gives_way=False)), 1_050)
    assert machine.deadline_ms == 1_150
    machine.handle(PlaceChanged(HOME), 1_060)
    assert machine.deadline_ms == 1_060


def test_another_place_cuts_no_backoff_short() -> None:
    machine = new_machine()
    machine.on_deadline(0)
    machine.handle(BindRefused(Epoch(1), "Unknown Queue", permanent=True), 0)
    for place in (HOME, UNWANTED, HOME):
        machine.handle(PlaceChanged(place), 10)
    assert machine.deadline_ms is not None
    assert machine.deadline_ms >= 2_500


def test_a_better_place_does_not_cut_the_pause_after_giving_way_short() -> None:
    machine = active(new_machine())
    machine.on_deadline(30_000)
    machine.on_deadline(30_020)
    machine.handle(UnbindFinished(Epoch(1)), 30_021)
    pause_ends_ms = machine.deadline_ms
    assert pause_ends_ms is not None
    assert pause_ends_ms > 30_022
    machine.handle(PlaceChanged(HOME), 30_022)
    assert machine.deadline_ms == pause_ends_ms


def test_a_standby_that_is_not_wanted_any_more_unbinds_and_stays_unbound() -> None:
    machine = bound(new_machine())
    assert machine.handle(PlaceChanged(UNWANTED), 5) == [Unbind(Epoch(1), ReleaseCause.UNWANTED)]
    assert machine.handle(UnbindFinished(Epoch(1)), 6) == []
    assert (machine.state, machine.deadline_ms, machine.is_stopped) == (FlowState.UNBOUND, None, False)


def test_a_standby_that_is_wanted_again_while_it_unbinds_binds_again() -> None:
    machine = bound(new_machine())
    machine.handle(PlaceChanged(UNWANTED), 5)
    machine.handle(PlaceChanged(Place(2, gives_way=False)), 6)
    machine.handle(UnbindFinished(Epoch(1)), 7)
    assert machine.deadline_ms == 207


def test_an_active_flow_that_is_not_wanted_keeps_its_queue_until_it_loses_it() -> None:
    machine = active(new_machine(STANDBY))
    assert machine.handle(PlaceChanged(UNWANTED), 5) == []
    assert machine.handle(received(1), 6) == [Dispatch(delivery(1))]
    assert machine.handle(finished(1), 7) == [settle(1)]
    assert machine.handle(FlowInactive(Epoch(1)), 8) == [Unbind(Epoch(1), ReleaseCause.INACTIVE)]
    machine.handle(UnbindFinished(Epoch(1)), 9)
    assert machine.deadline_ms is None


def test_an_unwanted_flow_whose_handle_dies_stays_unbound() -> None:
    machine = active(new_machine(STANDBY))
    machine.handle(PlaceChanged(UNWANTED), 5)
    machine.handle(FlowDown(Epoch(1), "gone"), 6)
    assert (machine.state, machine.deadline_ms) == (FlowState.UNBOUND, None)


def test_a_flow_that_gets_unwanted_while_it_binds_unbinds_right_after_even_if_it_is_active() -> None:
    machine = new_machine()
    machine.on_deadline(0)
    assert machine.handle(PlaceChanged(UNWANTED), 1) == []
    machine.handle(FlowActive(Epoch(1)), 2)
    assert machine.handle(BindSucceeded(Epoch(1)), 3) == [Unbind(Epoch(1), ReleaseCause.UNWANTED)]


def test_a_flow_that_gets_unwanted_while_its_bind_is_refused_does_not_try_again() -> None:
    machine = new_machine()
    machine.on_deadline(0)
    machine.handle(PlaceChanged(UNWANTED), 1)
    machine.handle(BindRefused(Epoch(1), "timeout", permanent=False), 2)
    assert machine.deadline_ms is None


def test_the_cycle_runs_while_the_place_says_so() -> None:
    machine = active(new_machine(STANDBY))
    assert machine.deadline_ms is None
    machine.handle(PlaceChanged(CYCLING), 1_000)
    assert machine.deadline_ms == 31_000
    machine.handle(PlaceChanged(Place(2, gives_way=True)), 2_000)
    assert machine.deadline_ms == 31_000, "it goes on as it was drawn"
    machine.handle(PlaceChanged(STANDBY), 3_000)
    assert machine.deadline_ms is None
    machine.handle(PlaceChanged(CYCLING), 4_000)
    machine.handle(PlaceChanged(HOME), 5_000)
    assert machine.deadline_ms is None


def test_a_stop_outdoes_every_place() -> None:
    machine = unbound_since(5, new_machine())
    machine.handle(StopRequested(), 6)
    machine.handle(PlaceChanged(HOME), 7)
    assert machine.is_stopped
    assert machine.deadline_ms is None


# -- hand-back


def test_a_hand_back_handles_what_has_arrived_and_unbinds_after_a_quiet_gap() -> None:
    machine = active(new_machine(STANDBY))
    machine.handle(received(1), 1)
    assert machine.handle(HandBackRequested("m"), 100) == [StopIntake(Epoch(1))]
    assert (machine.state, machine.cause) == (FlowState.DRAINING, ReleaseCause.HANDBACK)
    assert machine.handle(received(2), 110) == [Dispatch(delivery(2))]
    assert machine.handle(finished(1), 111) == [settle(1)]
    assert machine.handle(finished(2), 112) == [settle(2)]
    assert machine.on_deadline(130) == [Unbind(Epoch(1), ReleaseCause.HANDBACK)]


def test_a_hand_back_whose_timeout_is_shorter_than_the_quiet_gap_still_gives_the_queue_away() -> None:
    settings = replace(REBIND, drain_timeout_ms=5)
    machine = active(FlowMachine(QUEUE, CYCLING, settings, 4, random.Random(1), now_ms=0))
    machine.handle(HandBackRequested("m"), 100)
    assert machine.deadline_ms == 120
    assert machine.on_deadline(120) == [Unbind(Epoch(1), ReleaseCause.HANDBACK)]


def test_a_hand_back_has_the_name_of_its_request_until_the_handle_is_gone() -> None:
    machine = active(new_machine(STANDBY))
    machine.handle(HandBackRequested("m"), 100)
    assert (machine.state, machine.move_id) == (FlowState.DRAINING, "m")
    machine.on_deadline(machine.deadline_ms or 0)
    assert (machine.state, machine.move_id) == (FlowState.UNBINDING, "m")
    machine.handle(UnbindFinished(Epoch(1)), 1_000)
    assert machine.move_id == ""


@pytest.mark.parametrize("event", [StopRequested(), FlowInactive(Epoch(1)), FlowDown(Epoch(1), "gone")])
def test_what_ends_a_hand_back_otherwise_takes_its_name(event: MachineEvent) -> None:
    machine = active(new_machine(STANDBY))
    machine.handle(received(1), 1)
    machine.handle(HandBackRequested("m"), 100)
    machine.handle(event, 101)
    assert machine.cause is not ReleaseCause.HANDBACK
    assert machine.move_id == ""


@pytest.mark.parametrize(("rank", "bind_at_ms"), [(0, 1_100), (1, 1_100), (2, 1_200), (None, None)])
def test_after_a_hand_back_the_flow_stands_by_where_it_is_wanted(rank: int | None, bind_at_ms: int | None) -> None:
    machine = active(new_machine(HOME))
    machine.handle(PlaceChanged(Place(rank, gives_way=False)), 900)
    machine.handle(HandBackRequested("m"), 900)
    machine.on_deadline(920)
    machine.handle(UnbindFinished(Epoch(1)), 1_000)
    assert (machine.state, machine.deadline_ms) == (FlowState.UNBOUND, bind_at_ms)


def test_a_hand_back_that_takes_too_long_is_given_up_and_nothing_is_returned_or_cancelled() -> None:
    machine = active(new_machine(STANDBY))
    machine.handle(received(1), 1)
    machine.handle(received(2), 1)
    machine.handle(HandBackRequested("m"), 100)
    machine.on_deadline(120)
    note = Note("handback_given_up", {"epoch": 1, "move_id": "m", "in_flight": 2})
    assert machine.on_deadline(5_100) == [note, StartIntake(Epoch(1))]
    assert (machine.state, machine.cause, machine.deadline_ms) == (FlowState.ACTIVE, None, None)
    assert machine.handle(received(3), 5_101) == [Dispatch(delivery(3))]
    assert machine.handle(finished(1), 5_102) == [settle(1)]


def test_intake_stays_closed_after_a_given_up_hand_back_until_half_of_the_cap_is_free() -> None:
    machine = active(new_machine(STANDBY, max_in_flight=4))
    for number in range(1, 4):
        machine.handle(received(number), 1)
    machine.handle(HandBackRequested("m"), 100)
    assert notes(machine.on_deadline(5_100)) == ["handback_given_up"]
    assert machine.handle(finished(1), 5_101) == [settle(1), StartIntake(Epoch(1))]


def test_a_hand_back_given_up_by_a_flow_that_gives_way_starts_a_new_cycle() -> None:
    machine = active(new_machine(CYCLING))
    machine.handle(received(1), 1)
    machine.handle(HandBackRequested("m"), 29_000)
    machine.on_deadline(34_000)
    assert (machine.state, machine.deadline_ms) == (FlowState.ACTIVE, 64_000)


def test_a_hand_back_in_which_nothing_moves_any_more_returns_it_and_gives_the_queue_away() -> None:
    machine = active(new_machine(STANDBY))
    for number in (1, 2, 3):
        machine.handle(received(number), 1)
    machine.handle(HandBackRequested("m"), 100)
    machine.handle(finished(3), 110)
    assert machine.deadline_ms == 120, "what is under way comes first"
    assert machine.on_deadline(120) == [LookForStall(Epoch(1))]
    note = Note("handback_stalled", {"epoch": 1, "move_id": "m", "in_flight": 2})
    assert machine.handle(HandlingStalled(Epoch(1)), 120) == [note, ReturnUnstarted(Epoch(1))]
    assert machine.handle(finished(1, None), 121) == []
    assert machine.handle(finished(2, None), 121) == [Unbind(Epoch(1), ReleaseCause.HANDBACK)]
    assert machine.move_id == "m"


def test_a_hand_back_looks_again_until_nothing_moves_or_its_time_is_over() -> None:
    machine = active(new_machine(STANDBY))
    machine.handle(received(1), 1)
    machine.handle(HandBackRequested("m"), 100)
    looks = []
    while machine.state is FlowState.DRAINING:
        assert machine.deadline_ms is not None
        looks += [(machine.deadline_ms, *machine.on_deadline(machine.deadline_ms))]
    assert looks[:2] == [(120, LookForStall(Epoch(1))), (220, LookForStall(Epoch(1)))]
    assert looks[-1][:1] == (5_100,), "it is given up as ever"
    assert machine.state is FlowState.ACTIVE
    assert machine.handle(HandlingStalled(Epoch(1)), 5_100) == [], "too late"


def test_what_arrives_after_a_look_is_dispatched_and_the_look_does_not_count() -> None:
    """Returned without it, the head of its key would be overtaken."""
    machine = active(new_machine(STANDBY))
    machine.handle(received(1), 1)
    machine.handle(HandBackRequested("m"), 100)
    machine.on_deadline(120)
    assert machine.handle(received(2), 120) == [Dispatch(delivery(2))]
    assert machine.handle(HandlingStalled(Epoch(1)), 120) == []
    assert machine.deadline_ms == 220


def test_what_arrives_when_a_hand_back_has_returned_the_rest_is_left_unstarted() -> None:
    machine = active(new_machine(STANDBY))
    machine.handle(received(1), 1)
    machine.handle(HandBackRequested("m"), 100)
    machine.handle(HandlingStalled(Epoch(1)), 120)
    assert notes(machine.handle(received(2), 121)) == ["delivery_left_unstarted"]
    assert machine.deadline_ms is None, "and the queue is not kept: what was returned does not come again here"
    assert machine.handle(finished(1, None), 9_000) == [Unbind(Epoch(1), ReleaseCause.HANDBACK)]


def test_only_a_hand_back_ends_when_nothing_moves() -> None:
    for cause in (ReleaseCause.REBIND, ReleaseCause.STOP, ReleaseCause.INACTIVE):
        machine = active(new_machine(CYCLING))
        machine.handle(received(1), 1)
        if cause is ReleaseCause.REBIND:
            machine.on_deadline(30_000)
        else:
            machine.handle(StopRequested() if cause is ReleaseCause.STOP else FlowInactive(Epoch(1)), 30_000)
        deadline_ms = machine.deadline_ms
        assert deadline_ms in (35_000, None)
        assert machine.handle(HandlingStalled(Epoch(1)), 31_000) == []
        assert (machine.state, machine.cause, machine.deadline_ms) == (FlowState.DRAINING, cause, deadline_ms)


def test_a_stop_takes_over_a_hand_back_that_looks_and_one_that_has_returned_what_it_held() -> None:
    for has_stalled in (False, True):
        machine = active(new_machine(STANDBY))
        machine.handle(received(1), 1)
        machine.handle(HandBackRequested("m"), 100)
        machine.on_deadline(120)
        if has_stalled:
            machine.handle(HandlingStalled(Epoch(1)), 120)
        machine.handle(StopRequested(), 130)
        assert machine.handle(HandlingStalled(Epoch(1)), 140) == []
        assert (machine.cause, machine.deadline_ms) == (ReleaseCause.STOP, 5_130)


@pytest.mark.parametrize("state", [state for state in FlowState if state is not FlowState.ACTIVE])
def test_a_hand_back_of_what_is_not_active_is_ignored(state: FlowState) -> None:
    for machine in machines_in(state):
        deadline_ms = machine.deadline_ms
        [note] = machine.handle(HandBackRequested("m"), 30_000)
        assert isinstance(note, Note)
        assert (note.name, note.facts["move_id"]) == ("handback_ignored", "m")
        assert (machine.state, machine.deadline_ms) == (state, deadline_ms)


def test_a_stop_during_a_hand_back_makes_it_a_stop_with_a_bound_of_its_own() -> None:
    machine = active(new_machine(STANDBY))
    machine.handle(received(1), 1)
    machine.handle(HandBackRequested("m"), 100)
    assert machine.handle(StopRequested(), 5_000) == []
    assert (machine.cause, machine.deadline_ms) == (ReleaseCause.STOP, 10_000)
    assert machine.on_deadline(10_000) == [ReturnUnstarted(Epoch(1)), CancelHandling(Epoch(1))]
    assert machine.handle(finished(1, None), 10_001) == [Unbind(Epoch(1), ReleaseCause.STOP)]


def test_a_hand_back_that_loses_activity_waits_for_what_runs_and_binds_a_new_handle() -> None:
    machine = active(new_machine(STANDBY))
    machine.handle(received(1), 1)
    machine.handle(HandBackRequested("m"), 100)
    assert machine.handle(FlowInactive(Epoch(1)), 200) == [ReturnUnstarted(Epoch(1))]
    assert (machine.cause, machine.deadline_ms) == (ReleaseCause.INACTIVE, None)
    assert machine.handle(finished(1), 9_000) == [settle(1), Unbind(Epoch(1), ReleaseCause.INACTIVE)]
    machine.handle(UnbindFinished(Epoch(1)), 9_001)
    assert machine.deadline_ms == 9_001


def test_a_handle_that_dies_in_a_hand_back_is_replaced() -> None:
    machine = active(new_machine(STANDBY))
    machine.handle(received(1), 1)
    machine.handle(HandBackRequested("m"), 100)
    assert notes(machine.handle(FlowDown(Epoch(1), "gone"), 200)) == ["flow_lost"]
    assert machine.deadline_ms is not None
    assert machine.cause is None


# -- stepping aside


def test_a_standby_that_steps_aside_lets_activity_pass_without_opening_its_intake() -> None:
    machine = bound(new_machine(STANDBY))
    assert machine.handle(StepAsideRequested(2_000), 1_000) == []
    assert machine.handle(FlowActive(Epoch(1)), 1_500) == [Unbind(Epoch(1), ReleaseCause.HOP)]
    machine.handle(UnbindFinished(Epoch(1)), 1_510)
    assert machine.deadline_ms is not None
    pause_ends_ms = machine.deadline_ms
    assert 1_511 <= pause_ends_ms <= 1_610
    machine.handle(PlaceChanged(HOME), 1_510)
    assert machine.deadline_ms == pause_ends_ms, "the queue would be back before it has passed"


def test_a_flow_steps_aside_once_per_request() -> None:
    machine = bound(new_machine(STANDBY))
    machine.handle(StepAsideRequested(60_000), 0)
    machine.handle(FlowActive(Epoch(1)), 1)
    machine.handle(UnbindFinished(Epoch(1)), 2)
    bound(machine, now_ms=200)
    assert machine.handle(FlowActive(Epoch(2)), 201) == [StartIntake(Epoch(2))]
    assert machine.state is FlowState.ACTIVE


@pytest.mark.parametrize("state", [FlowState.UNBOUND, FlowState.BINDING])
def test_a_request_to_step_aside_is_remembered_until_there_is_activity(state: FlowState) -> None:
    machine = machines_in(state)[0]
    machine.handle(StepAsideRequested(60_000), 0)
    if state is FlowState.UNBOUND:
        machine.on_deadline(0)
    machine.handle(FlowActive(Epoch(1)), 1)
    assert machine.handle(BindSucceeded(Epoch(1)), 2) == [Unbind(Epoch(1), ReleaseCause.HOP)]


def test_a_request_to_step_aside_outlasts_the_hand_back_of_the_same_flow() -> None:
    machine = active(new_machine(STANDBY))
    machine.handle(StepAsideRequested(60_000), 1)
    assert machine.handle(received(1), 2) == [Dispatch(delivery(1))], "no effect while it is active"
    machine.handle(finished(1), 3)
    machine.handle(HandBackRequested("m"), 4)
    machine.on_deadline(24)
    machine.handle(UnbindFinished(Epoch(1)), 25)
    bound(machine, now_ms=125)
    assert machine.handle(FlowActive(Epoch(2)), 126) == [Unbind(Epoch(2), ReleaseCause.HOP)]


@pytest.mark.parametrize("forgets", [None, StepAsideCancelled()])
def test_a_request_to_step_aside_ends_with_its_time_or_when_it_is_cancelled(forgets: MachineEvent | None) -> None:
    machine = bound(new_machine(STANDBY))
    machine.handle(StepAsideRequested(2_000), 0)
    if forgets is not None:
        assert machine.handle(forgets, 1) == []
    assert machine.handle(FlowActive(Epoch(1)), 2_000 if forgets is None else 2) == [StartIntake(Epoch(1))]


def test_a_flow_that_was_fed_does_not_step_aside() -> None:
    machine = bound(new_machine(STANDBY))
    machine.handle(StepAsideRequested(60_000), 0)
    assert Dispatch(delivery(1)) in machine.handle(received(1), 1)
    assert machine.state is FlowState.ACTIVE


# -- late and impossible


@pytest.mark.parametrize(
    "event",
    [FlowActive(Epoch(1)), FlowInactive(Epoch(1)), FlowDown(Epoch(1), "gone"), received(9), BindSucceeded(Epoch(1))],
)
def test_events_of_an_older_epoch_are_ignored_and_noted(event: MachineEvent) -> None:
    machine = active(new_machine())
    machine.handle(FlowDown(Epoch(1), "gone"), 1)
    active(machine, now_ms=200)
    [note] = notes(machine.handle(event, 201))
    assert note.endswith("_late")
    assert (machine.state, machine.epoch) == (FlowState.ACTIVE, 2)


def test_an_event_of_an_epoch_to_come_is_impossible() -> None:
    with pytest.raises(InvariantViolated, match="epoch 2"):
        active(new_machine()).handle(FlowActive(Epoch(2)), 1)


def test_a_second_answer_for_a_delivery_is_impossible() -> None:
    machine = active(new_machine())
    machine.handle(received(1), 1)
    machine.handle(finished(1), 2)
    with pytest.raises(InvariantViolated, match="not in flight"):
        machine.handle(finished(1), 3)


def test_a_second_answer_for_a_delivery_of_a_dead_handle_is_impossible() -> None:
    machine = active(new_machine())
    machine.handle(received(1), 1)
    machine.handle(FlowDown(Epoch(1), "gone"), 1)
    machine.handle(finished(1), 2)
    with pytest.raises(InvariantViolated):
        machine.handle(finished(1), 3)


def test_a_second_answer_for_a_dead_handle_settles_nothing_of_the_next_one() -> None:
    machine = active(new_machine())
    machine.handle(received(7), 0)
    machine.handle(FlowDown(Epoch(1), "gone"), 1)
    machine.handle(finished(7), 2)
    active(machine, 100_000).handle(received(7, epoch=2), 100_000)
    with pytest.raises(InvariantViolated, match="delivery 7 of epoch 1 was answered"):
        machine.handle(finished(7), 100_001)
    assert machine.in_flight == 1


def test_a_delivery_that_arrives_twice_on_one_handle_is_impossible() -> None:
    machine = active(new_machine())
    machine.handle(received(1), 1)
    with pytest.raises(InvariantViolated, match="twice"):
        machine.handle(received(1), 2)


# -- the table


def machines_in(state: FlowState) -> list[FlowMachine]:
    """Machines in a state, by every way into it that makes a difference, delivery 1 in flight where one can be."""
    match state:
        case FlowState.UNBOUND:
            lost = active(new_machine())
            lost.handle(FlowDown(Epoch(1), "gone"), 1)
            return [new_machine(), lost, new_machine(UNWANTED)]
        case FlowState.BINDING:
            stopping = new_machine()
            stopping.on_deadline(0)
            stopping.handle(StopRequested(), 0)
            unwanted = new_machine()
            unwanted.on_deadline(0)
            unwanted.handle(PlaceChanged(UNWANTED), 0)
            machine = new_machine()
            machine.on_deadline(0)
            return [machine, stopping, unwanted]
        case FlowState.STANDBY:
            stepping_aside = bound(new_machine())
            stepping_aside.handle(StepAsideRequested(60_000), 0)
            return [bound(new_machine()), stepping_aside]
        case FlowState.ACTIVE:
            busy, abandoned = active(new_machine()), active(new_machine())
            busy.handle(received(1), 1)
            abandoned.handle(received(1), 1)
            abandoned.handle(received(2), 1)
            # With no quiet gap an idle flow needs no draining.
            hasty = FlowMachine(QUEUE, CYCLING, replace(REBIND, quiet_gap_ms=0), 4, random.Random(1), 0)
            return [busy, abandoned, active(new_machine()), active(hasty)]
        case FlowState.DRAINING:
            machines = machines_in(FlowState.ACTIVE)[:3]
            for machine in machines:
                machine.on_deadline(30_000)
            waiting = machines_in(FlowState.ACTIVE)[0]
            waiting.handle(FlowInactive(Epoch(1)), 30_000)
            handing_back = machines_in(FlowState.ACTIVE)[0]
            handing_back.handle(HandBackRequested("m"), 30_000)
            # Its next deadline is the end of its time; that of the other is a look.
            no_time = replace(REBIND, drain_timeout_ms=0)
            short_of_time = active(FlowMachine(QUEUE, CYCLING, no_time, 4, random.Random(1), 0))
            short_of_time.handle(received(1), 1)
            short_of_time.handle(HandBackRequested("m"), 30_000)
            return [*machines, waiting, handing_back, short_of_time]
        case FlowState.UNBINDING:
            machine = active(new_machine())
            machine.handle(FlowInactive(Epoch(1)), 1)
            return [machine]


EVENTS: list[tuple[EventKind, MachineEvent]] = [
    (EventKind.MESSAGE_RECEIVED, received(7)),
    (EventKind.FLOW_ACTIVE, FlowActive(Epoch(1))),
    (EventKind.FLOW_INACTIVE, FlowInactive(Epoch(1))),
    (EventKind.FLOW_DOWN, FlowDown(Epoch(1), "gone")),
    (EventKind.BIND_SUCCEEDED, BindSucceeded(Epoch(1))),
    (EventKind.BIND_REFUSED, BindRefused(Epoch(1), "no", permanent=False)),
    (EventKind.UNBIND_FINISHED, UnbindFinished(Epoch(1))),
    (EventKind.HANDLING_FINISHED, finished(1)),
    (EventKind.HANDLING_FINISHED, finished(1, None)),
    (EventKind.DELIVERIES_HELD_UP, DeliveriesHeldUp(Epoch(1), (DeliveryId(1),))),
    (EventKind.HANDLING_STALLED, HandlingStalled(Epoch(1))),
    (EventKind.STOP_REQUESTED, StopRequested()),
    (EventKind.PLACE_CHANGED, PlaceChanged(HOME)),
    (EventKind.PLACE_CHANGED, PlaceChanged(UNWANTED)),
    (EventKind.HAND_BACK_REQUESTED, HandBackRequested("m")),
    (EventKind.STEP_ASIDE_REQUESTED, StepAsideRequested(60_000)),
    (EventKind.STEP_ASIDE_CANCELLED, StepAsideCancelled()),
    (EventKind.STRIPING_LEARNED, StripingLearned(Striping(1, 4, 8))),
    (EventKind.SETTLEMENTS_REACHED, SettlementsReached(Epoch(1), 1)),
]


@pytest.mark.parametrize("state", FlowState)
def test_every_event_in_every_state_does_what_the_table_says_and_nothing_else(state: FlowState) -> None:
    reached: dict[EventKind, set[FlowState]] = {kind: set() for kind in TRANSITIONS[state]}
    for kind, event in EVENTS:
        for machine in machines_in(state):
            assert machine.state is state
            is_flow_event = isinstance(
                event,
                MessageReceived
                | FlowActive
                | FlowInactive
                | FlowDown
                | DeliveriesHeldUp
                | HandlingStalled
                | SettlementsReached,
            )
            nothing_to_answer = kind is EventKind.HANDLING_FINISHED and machine.in_flight == 0
            if kind in TRANSITIONS[state] and not nothing_to_answer:
                machine.handle(event, 30_001)
                reached[kind].add(machine.state)
            elif machine.epoch == 1 and state is FlowState.UNBOUND and is_flow_event:
                assert notes(machine.handle(event, 30_001)) == [f"{kind.value}_late"]
                assert machine.state is state
            else:
                with pytest.raises(InvariantViolated):
                    machine.handle(event, 30_001)
    for machine in machines_in(state):
        if machine.deadline_ms is not None:
            machine.on_deadline(machine.deadline_ms)
            reached[EventKind.DEADLINE].add(machine.state)
    assert reached == {kind: set(states) for kind, states in TRANSITIONS[state].items()}
