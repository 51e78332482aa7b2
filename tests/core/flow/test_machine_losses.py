"""A flow that loses its activity or its handle, and events that are late or impossible."""

import pytest

from lbg_runtime.core.flow.commands import Bind, CancelHandling, Command, Dispatch, Note, ReturnUnstarted, Unbind
from lbg_runtime.core.flow.events import (
    BindSucceeded,
    FlowActive,
    FlowDown,
    FlowInactive,
    MachineEvent,
    ReleaseCause,
    StopRequested,
    UnbindFinished,
)
from lbg_runtime.core.flow.table import FlowState
from lbg_runtime.model.errors import InvariantViolated
from lbg_runtime.model.ids import Epoch
from tests.core.flow.machines import (
    active,
    bound,
    busy,
    delivery,
    finished,
    new_machine,
    notes,
    received,
    settle,
    without_notes,
)


def test_a_flow_that_loses_activity_starts_nothing_more_and_settles_what_runs() -> None:
    machine = busy()
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
    machine = busy()
    machine.on_deadline(30_000)
    assert machine.handle(FlowInactive(Epoch(1)), 30_005) == [ReturnUnstarted(Epoch(1))]
    assert (machine.cause, machine.deadline_ms) == (ReleaseCause.INACTIVE, None)


def test_a_stop_that_loses_activity_stays_a_stop_with_its_deadline() -> None:
    machine = busy()
    machine.handle(StopRequested(), 100)
    machine.handle(FlowInactive(Epoch(1)), 105)
    assert (machine.cause, machine.deadline_ms) == (ReleaseCause.STOP, 5_100)
    assert machine.on_deadline(5_100) == [CancelHandling(Epoch(1))]


def test_a_handler_that_is_cancelled_unasked_sends_its_successors_back() -> None:
    machine = busy()
    machine.handle(received(2), 1)
    commands = machine.handle(finished(1, None), 2)
    assert notes(commands) == ["handling_abandoned"]
    assert without_notes(commands) == [ReturnUnstarted(Epoch(1))]
    assert machine.state is FlowState.DRAINING


def test_a_handler_that_is_cancelled_unasked_ends_a_drains_patience() -> None:
    machine = busy()
    machine.handle(received(2), 1)
    machine.on_deadline(30_000)
    assert without_notes(machine.handle(finished(1, None), 30_002)) == [ReturnUnstarted(Epoch(1))]
    assert machine.handle(finished(2, None), 30_003) == [Unbind(Epoch(1), ReleaseCause.INACTIVE)]


def test_a_dead_handle_is_replaced_without_waiting_and_its_settlements_are_fenced() -> None:
    machine = busy()
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
    machine = busy()
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


@pytest.mark.parametrize(
    ("end", "command"),
    [
        (FlowInactive(Epoch(1)), Unbind(Epoch(1), ReleaseCause.INACTIVE)),
        (FlowDown(Epoch(1), "gone"), Note("flow_lost", {"epoch": 1, "reason": "gone"})),
    ],
    ids=["inactive", "down"],
)
def test_a_flow_whose_activity_is_over_when_its_bind_is_known_is_not_fed(
    end: FlowInactive | FlowDown, command: Command
) -> None:
    """Its intake was opened and the handle unbound at once, so what came meanwhile counted as redelivered."""
    machine = new_machine()
    machine.on_deadline(0)
    for event in (FlowActive(Epoch(1)), end):
        assert machine.handle(event, 1) == []
    assert machine.handle(BindSucceeded(Epoch(1)), 2) == [command]


def test_nor_is_its_intake_closed_that_was_never_open() -> None:
    machine = new_machine(max_in_flight=1)
    machine.on_deadline(0)
    for event in (received(1), FlowInactive(Epoch(1))):
        assert machine.handle(event, 1) == []
    commands = without_notes(machine.handle(BindSucceeded(Epoch(1)), 2))
    assert commands == [Dispatch(delivery(1)), ReturnUnstarted(Epoch(1))]


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
    machine = busy()
    machine.handle(finished(1), 2)
    with pytest.raises(InvariantViolated, match="not in flight"):
        machine.handle(finished(1), 3)


def test_a_second_answer_for_a_delivery_of_a_dead_handle_is_impossible() -> None:
    machine = busy()
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
    machine = busy()
    with pytest.raises(InvariantViolated, match="twice"):
        machine.handle(received(1), 2)
