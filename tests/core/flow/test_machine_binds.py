"""When a flow binds and unbinds: its tries, and the place that it has in the group."""

import pytest

from lbg_runtime.core.flow.commands import Bind, Dispatch, Note, StartIntake, Unbind
from lbg_runtime.core.flow.events import (
    BindRefused,
    BindSucceeded,
    FlowActive,
    FlowDown,
    FlowInactive,
    HandBackRequested,
    PlaceChanged,
    ReleaseCause,
    StopRequested,
    UnbindFinished,
)
from lbg_runtime.core.flow.table import FlowState
from lbg_runtime.core.roles import Place
from lbg_runtime.model.ids import Epoch
from tests.core.flow.machines import (
    CYCLING,
    HOME,
    STANDBY,
    UNWANTED,
    active,
    bound,
    delivery,
    finished,
    new_machine,
    notes,
    received,
    settle,
    unbound_since,
)


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


def test_a_flow_that_is_not_wanted_stays_unbound() -> None:
    machine = new_machine(UNWANTED)
    assert (machine.deadline_ms, machine.place) == (None, UNWANTED)
    assert machine.on_deadline(10**9) == []


@pytest.mark.parametrize(("rank", "bind_at_ms"), [(0, 7_000), (1, 7_100), (3, 7_300)])
def test_a_flow_that_becomes_wanted_binds_in_the_order_of_the_ranks(rank: int, bind_at_ms: int) -> None:
    machine = new_machine(UNWANTED)
    assert machine.handle(PlaceChanged(Place(rank, gives_way=False)), 7_000) == []
    assert machine.deadline_ms == bind_at_ms
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
