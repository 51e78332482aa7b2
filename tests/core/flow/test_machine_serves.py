"""A flow that is active: what it takes in and settles, how it gives way and how it stops."""

from lbg_runtime.core.flow.commands import (
    Bind,
    CancelHandling,
    Dispatch,
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
    FlowActive,
    FlowInactive,
    HandBackRequested,
    ReleaseCause,
    StopRequested,
    UnbindFinished,
)
from lbg_runtime.core.flow.table import FlowState
from lbg_runtime.model.ids import DeliveryId, Epoch
from lbg_runtime.model.outcome import Outcome
from tests.core.flow.machines import (
    HOME,
    active,
    bound,
    busy,
    delivery,
    finished,
    held_up,
    new_machine,
    notes,
    received,
    settle,
    without_notes,
)


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
    machine = busy()
    assert machine.handle(finished(1, Outcome.REJECTED), 2) == [Settle(Epoch(1), DeliveryId(1), Outcome.REJECTED)]
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
    machine = busy()
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
    machine = busy()
    machine.handle(received(2), 1)
    machine.on_deadline(30_000)
    assert machine.deadline_ms == 35_000
    assert machine.on_deadline(35_000) == [ReturnUnstarted(Epoch(1))]
    assert machine.handle(finished(2, None), 35_001) == []
    assert notes(machine.handle(received(3), 35_002)) == ["delivery_left_unstarted"]
    assert machine.deadline_ms is None
    assert machine.handle(finished(1), 99_000) == [settle(1), Unbind(Epoch(1), ReleaseCause.REBIND)]


def test_a_stop_drains_like_a_rebind_and_then_stays_unbound() -> None:
    machine = busy(HOME)
    assert machine.handle(StopRequested(), 100) == [StopIntake(Epoch(1))]
    assert machine.handle(finished(1), 200) == [settle(1), Unbind(Epoch(1), ReleaseCause.STOP)]
    assert not machine.is_stopped
    machine.handle(UnbindFinished(Epoch(1)), 201)
    assert machine.is_stopped
    assert machine.deadline_ms is None
    assert machine.handle(StopRequested(), 202) == []


def test_past_the_deadline_of_a_stop_the_running_are_cancelled_once_and_settled_never() -> None:
    machine = busy()
    machine.handle(StopRequested(), 100)
    assert machine.on_deadline(5_100) == [ReturnUnstarted(Epoch(1)), CancelHandling(Epoch(1))]
    assert machine.deadline_ms is None
    assert machine.handle(finished(1, None), 5_101) == [Unbind(Epoch(1), ReleaseCause.STOP)]


def test_a_stop_during_a_rebind_drain_makes_it_a_stop() -> None:
    machine = busy()
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
