"""A flow that hands its queue back, and one that steps aside."""

import random
from dataclasses import replace

import pytest

from lbg_runtime.core.flow.commands import (
    CancelHandling,
    Dispatch,
    LookForStall,
    Note,
    ReturnUnstarted,
    StartIntake,
    StopIntake,
    Unbind,
)
from lbg_runtime.core.flow.events import (
    BindSucceeded,
    FlowActive,
    FlowDown,
    FlowInactive,
    HandBackRequested,
    HandlingStalled,
    MachineEvent,
    PlaceChanged,
    ReleaseCause,
    StepAsideCancelled,
    StepAsideRequested,
    StopRequested,
    UnbindFinished,
)
from lbg_runtime.core.flow.machine import FlowMachine
from lbg_runtime.core.flow.table import FlowState
from lbg_runtime.core.roles import Place
from lbg_runtime.model.ids import Epoch
from tests.core.flow.machines import (
    CYCLING,
    HOME,
    QUEUE,
    STANDBY,
    active,
    bound,
    busy,
    delivery,
    finished,
    machines_in,
    new_machine,
    notes,
    received,
    settle,
    without_notes,
)
from tests.core.rebind import REBIND


def test_a_hand_back_handles_what_has_arrived_and_unbinds_after_a_quiet_gap() -> None:
    machine = busy(STANDBY)
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
    machine = busy(STANDBY)
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
    machine = busy(STANDBY)
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
    machine = busy(CYCLING)
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
    machine = busy(STANDBY)
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
    machine = busy(STANDBY)
    machine.handle(HandBackRequested("m"), 100)
    machine.on_deadline(120)
    assert machine.handle(received(2), 120) == [Dispatch(delivery(2))]
    assert machine.handle(HandlingStalled(Epoch(1)), 120) == []
    assert machine.deadline_ms == 220


def test_what_arrives_when_a_hand_back_has_returned_the_rest_is_left_unstarted() -> None:
    machine = busy(STANDBY)
    machine.handle(HandBackRequested("m"), 100)
    machine.handle(HandlingStalled(Epoch(1)), 120)
    assert notes(machine.handle(received(2), 121)) == ["delivery_left_unstarted"]
    assert machine.deadline_ms is None, "and the queue is not kept: what was returned does not come again here"
    assert machine.handle(finished(1, None), 9_000) == [Unbind(Epoch(1), ReleaseCause.HANDBACK)]


def test_a_hand_back_whose_handler_passes_its_delivery_back_is_still_one_and_sends_the_rest_along() -> None:
    """As where the application that handles messages is away: the queue goes on as agreed, and is not lost."""
    machine = active(new_machine(STANDBY))
    for number in (1, 2, 3):
        machine.handle(received(number), 1)
    machine.handle(HandBackRequested("m"), 100)
    assert without_notes(machine.handle(finished(1, None), 110)) == [ReturnUnstarted(Epoch(1))]
    assert machine.deadline_ms is None, "the queue is not kept: what was returned does not come again here"
    assert machine.handle(finished(2, None), 111) == []
    assert machine.handle(finished(3), 9_000) == [settle(3), Unbind(Epoch(1), ReleaseCause.HANDBACK)]
    assert machine.move_id == "m"


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


@pytest.mark.parametrize("cause", [ReleaseCause.REBIND, ReleaseCause.STOP])
def test_a_stopped_queue_is_given_up_in_any_drain_when_nothing_more_of_it_is_under_way(cause) -> None:
    machine = busy(CYCLING)
    began = machine.handle(StopRequested(), 30_000) if cause is ReleaseCause.STOP else machine.on_deadline(30_000)
    assert began == [StopIntake(Epoch(1))]
    assert machine.handle(HandlingStalled(Epoch(1), has_stopped=True), 30_019) == [], "more may be under way"
    assert [
        without_notes(machine.handle(HandlingStalled(Epoch(1), has_stopped=True), 30_020)),
        machine.deadline_ms,
        machine.handle(HandlingStalled(Epoch(1), has_stopped=True), 30_021),
        machine.handle(finished(1, None), 30_022),
    ] == [[ReturnUnstarted(Epoch(1))], None, [], [Unbind(Epoch(1), cause)]]


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
    machine = busy(STANDBY)
    machine.handle(HandBackRequested("m"), 100)
    assert machine.handle(StopRequested(), 5_000) == []
    assert (machine.cause, machine.deadline_ms) == (ReleaseCause.STOP, 10_000)
    assert machine.on_deadline(10_000) == [ReturnUnstarted(Epoch(1)), CancelHandling(Epoch(1))]
    assert machine.handle(finished(1, None), 10_001) == [Unbind(Epoch(1), ReleaseCause.STOP)]


def test_whoever_asks_for_a_stop_again_gives_it_no_more_time() -> None:
    """A second signal, or the end of the time in which others may take the queues, comes in the middle of a drain."""
    machine = busy()
    machine.handle(StopRequested(), 5_000)
    first_ms = machine.deadline_ms
    assert machine.handle(StopRequested(), 6_000) == []
    assert machine.deadline_ms == first_ms


def test_a_hand_back_that_loses_activity_waits_for_what_runs_and_binds_a_new_handle() -> None:
    machine = busy(STANDBY)
    machine.handle(HandBackRequested("m"), 100)
    assert machine.handle(FlowInactive(Epoch(1)), 200) == [ReturnUnstarted(Epoch(1))]
    assert (machine.cause, machine.deadline_ms) == (ReleaseCause.INACTIVE, None)
    assert machine.handle(finished(1), 9_000) == [settle(1), Unbind(Epoch(1), ReleaseCause.INACTIVE)]
    machine.handle(UnbindFinished(Epoch(1)), 9_001)
    assert machine.deadline_ms == 9_001


def test_a_handle_that_dies_in_a_hand_back_is_replaced() -> None:
    machine = busy(STANDBY)
    machine.handle(HandBackRequested("m"), 100)
    assert notes(machine.handle(FlowDown(Epoch(1), "gone"), 200)) == ["flow_lost"]
    assert machine.deadline_ms is not None
    assert machine.cause is None


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
