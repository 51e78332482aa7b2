import random
from collections.abc import Iterable

import pytest

from lbg_runtime.core.commands import (
    Bind,
    CancelHandling,
    Command,
    Dispatch,
    Note,
    ReturnUnstarted,
    Settle,
    StartIntake,
    StopIntake,
    Unbind,
)
from lbg_runtime.core.events import (
    BindRefused,
    BindSucceeded,
    FlowActive,
    FlowDown,
    FlowInactive,
    HandlingFinished,
    MachineEvent,
    MessageReceived,
    ReleaseCause,
    StopRequested,
    UnbindFinished,
)
from lbg_runtime.core.flow import FlowMachine
from lbg_runtime.core.flow_table import TRANSITIONS, EventKind, FlowState
from lbg_runtime.core.rebind import RebindSettings
from lbg_runtime.core.roles import Role
from lbg_runtime.model.errors import InvariantViolated
from lbg_runtime.model.ids import DeliveryId, Epoch, QueueName
from lbg_runtime.model.message import Delivery, Message
from lbg_runtime.model.outcome import Outcome, Settlement

QUEUE = QueueName("orders/0")
SETTINGS = RebindSettings(
    interval_ms=30_000,
    jitter=0.0,
    drain_timeout_ms=5_000,
    bind_backoff_min_ms=100,
    bind_backoff_max_ms=5_000,
    quiet_gap_ms=20,
)
MESSAGE = Message("lbg/0/orders", b"")


def new_machine(role: Role = Role.SECONDARY, max_in_flight: int = 4) -> FlowMachine:
    return FlowMachine(QUEUE, role, SETTINGS, max_in_flight, random.Random(1), now_ms=0)


def delivery(number: int, epoch: int = 1) -> Delivery:
    return Delivery(QUEUE, Epoch(epoch), DeliveryId(number), MESSAGE, redelivered=False, received_at_ns=0)


def received(number: int, epoch: int = 1) -> MessageReceived:
    return MessageReceived(delivery(number, epoch))


def finished(number: int, outcome: Outcome | None = Outcome.ACCEPTED, epoch: int = 1) -> HandlingFinished:
    return HandlingFinished(Epoch(epoch), DeliveryId(number), outcome)


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


@pytest.mark.parametrize("role", Role)
def test_a_bound_flow_is_a_standby_whatever_its_role(role: Role) -> None:
    machine = bound(new_machine(role))
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
    assert machine.handle(BindSucceeded(Epoch(1)), 2) == [Dispatch(delivery(1)), Dispatch(delivery(2))]
    assert machine.state is FlowState.ACTIVE


def test_events_that_outran_a_refused_bind_are_late() -> None:
    machine = new_machine()
    machine.on_deadline(0)
    machine.handle(FlowActive(Epoch(1)), 1)
    commands = machine.handle(BindRefused(Epoch(1), "timeout", permanent=False), 2)
    assert notes(commands) == ["bind_failed", "flow_active_late"]
    assert machine.state is FlowState.UNBOUND


# -- active


def test_a_message_before_the_active_event_shows_that_the_flow_is_active() -> None:
    machine = bound(new_machine())
    commands = machine.handle(received(1), 7)
    assert commands == [Note("flow_activated_by_message", {"epoch": 1}), Dispatch(delivery(1))]
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


def test_a_cap_of_one_lets_the_next_message_in_after_each() -> None:
    machine = active(new_machine(max_in_flight=1))
    assert machine.handle(received(1), 1) == [Dispatch(delivery(1)), StopIntake(Epoch(1))]
    assert machine.handle(finished(1), 2) == [settle(1), StartIntake(Epoch(1))]


# -- rebind


def test_a_primary_never_gives_way() -> None:
    machine = active(new_machine(Role.PRIMARY))
    assert machine.deadline_ms is None
    assert machine.on_deadline(10**9) == []


def test_a_standby_does_not_cycle() -> None:
    machine = bound(new_machine())
    assert machine.on_deadline(10**9) == []


def test_a_secondary_gives_way_after_its_interval() -> None:
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
    machine = active(new_machine(Role.PRIMARY))
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
            return [new_machine(), lost]
        case FlowState.BINDING:
            stopping = new_machine()
            stopping.on_deadline(0)
            stopping.handle(StopRequested(), 0)
            machine = new_machine()
            machine.on_deadline(0)
            return [machine, stopping]
        case FlowState.STANDBY:
            return [bound(new_machine())]
        case FlowState.ACTIVE:
            busy, abandoned = active(new_machine()), active(new_machine())
            busy.handle(received(1), 1)
            abandoned.handle(received(1), 1)
            abandoned.handle(received(2), 1)
            # With no quiet gap an idle flow needs no draining.
            hasty = FlowMachine(
                QUEUE, Role.SECONDARY, RebindSettings(30_000, 0.0, 5_000, 100, 5_000, 0), 4, random.Random(1), 0
            )
            return [busy, abandoned, active(new_machine()), active(hasty)]
        case FlowState.DRAINING:
            machines = machines_in(FlowState.ACTIVE)[:3]
            for machine in machines:
                machine.on_deadline(30_000)
            waiting = machines_in(FlowState.ACTIVE)[0]
            waiting.handle(FlowInactive(Epoch(1)), 30_000)
            return [*machines, waiting]
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
    (EventKind.STOP_REQUESTED, StopRequested()),
]


@pytest.mark.parametrize("state", FlowState)
def test_every_event_in_every_state_does_what_the_table_says_and_nothing_else(state: FlowState) -> None:
    reached: dict[EventKind, set[FlowState]] = {kind: set() for kind in TRANSITIONS[state]}
    for kind, event in EVENTS:
        for machine in machines_in(state):
            assert machine.state is state
            is_flow_event = isinstance(event, MessageReceived | FlowActive | FlowInactive | FlowDown)
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
