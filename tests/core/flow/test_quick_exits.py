"""`admit`, `accept` and `excuse` are `handle` for what comes once per message: twins stay alike, whichever is asked."""

import copy
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from lbg_runtime.core.flow.commands import Dispatch, Settle
from lbg_runtime.core.flow.events import (
    BindSucceeded,
    DeliveriesHeldUp,
    FlowActive,
    FlowDown,
    FlowInactive,
    HandBackRequested,
    HandlingFinished,
    MachineEvent,
    MessageReceived,
    StopRequested,
)
from lbg_runtime.core.flow.machine import FlowMachine
from lbg_runtime.core.flow.rebind import RebindSettings
from lbg_runtime.core.restripe.gate import StripeGate
from lbg_runtime.core.restripe.records import StripePlan, encode_record, record_prefix, record_topic
from lbg_runtime.core.roles import Place
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.ids import DeliveryId, Epoch, GroupName, QueueName
from lbg_runtime.model.message import Delivery, Message
from lbg_runtime.model.outcome import Outcome

QUEUE = QueueName("orders/0")
SHAPE = GroupShape(GroupName("orders"), "lbg", 8, 2)
PLAN = StripePlan(1, 2, 4, "s3cr3t")
REBIND = RebindSettings(
    interval_ms=60_000,
    jitter=0.0,
    drain_timeout_ms=1_000,
    bind_backoff_min_ms=10,
    bind_backoff_max_ms=100,
    quiet_gap_ms=5,
    rank_delay_ms=1,
)
E1 = Epoch(1)
steps = st.lists(
    st.one_of(
        st.sampled_from(["receive", "receive", "receive", "plan", "other epoch"]),
        st.tuples(st.just("end"), st.integers(0, 5), st.sampled_from([Outcome.ACCEPTED, Outcome.ACCEPTED, None])),
        st.sampled_from([FlowInactive(E1), HandBackRequested("m"), StopRequested()]),
        st.just("excuse"),
    ),
    max_size=25,
)


def active_machine(cap: int, *, with_gate: bool) -> FlowMachine:
    gate = StripeGate(0, SHAPE, record_prefix("control")) if with_gate else None
    machine = FlowMachine(QUEUE, Place(0, gives_way=False), REBIND, cap, random.Random(1), 0, gate, 2 * cap)
    machine.on_deadline(0)
    machine.handle(BindSucceeded(E1), 0)
    machine.handle(FlowActive(E1), 0)
    return machine


def delivery(number: int, message: Message, epoch: Epoch = E1) -> Delivery:
    return Delivery(QUEUE, epoch, DeliveryId(number), message, redelivered=False, received_at_ns=0)


@given(steps, st.integers(1, 3), st.booleans())
@settings(max_examples=150, deadline=None)
def test_whichever_way_is_asked_the_same_is_ordered_and_the_same_is_left(
    course: list[object], cap: int, with_gate: bool
) -> None:
    machine = active_machine(cap, with_gate=with_gate)
    in_flight: list[DeliveryId] = []
    for now_ms, step in enumerate(course, 1):
        number = DeliveryId(now_ms)
        twin = copy.deepcopy(machine)
        match step:
            case "receive" | "plan" | "other epoch" if machine.in_flight or not machine.is_stopped:
                message = Message(f"lbg/{now_ms % 4 * 2}/orders", b"")
                if step == "plan":
                    message = encode_record(PLAN, record_topic("control", PLAN))
                arrived = delivery(number, message, Epoch(0) if step == "other epoch" else E1)
                event: MachineEvent = MessageReceived(arrived)
                if not machine.admit(arrived):
                    commands = machine.handle(event, now_ms)
                    in_flight += [each.delivery.delivery_id for each in commands if isinstance(each, Dispatch)]
                    continue
                assert twin.handle(event, now_ms) == [Dispatch(arrived)]
                in_flight.append(number)
            case ("end", int(position), (Outcome() | None) as outcome) if in_flight:
                ended = in_flight.pop(position % len(in_flight))
                event = HandlingFinished(E1, ended, outcome)
                if outcome is not Outcome.ACCEPTED or not machine.accept(E1, ended):
                    machine.handle(event, now_ms)
                    continue
                assert twin.handle(event, now_ms) == [Settle(E1, ended, Outcome.ACCEPTED)]
            case "excuse" if in_flight:
                event = DeliveriesHeldUp(E1, (in_flight[-1],))
                if not machine.excuse(E1, in_flight[-1]):
                    machine.handle(event, now_ms)
                    continue
                assert twin.handle(event, now_ms) == []
            case FlowInactive() | HandBackRequested() | StopRequested():
                if not (isinstance(step, FlowInactive) and machine.is_stopped):
                    machine.handle(step, now_ms)
                continue
            case _:
                continue
        assert (twin.state, twin.in_flight, twin.deadline_ms) == (machine.state, machine.in_flight, machine.deadline_ms)
        assert vars(twin._in_flight) == vars(machine._in_flight)


def test_no_short_way_takes_a_namesake_of_another_handle_or_a_second_arrival() -> None:
    """Brokers number the deliveries of each handle anew: the end of one must not settle another."""
    machine = active_machine(4, with_gate=False)
    message = Message("lbg/0/orders", b"")
    assert machine.admit(delivery(1, message))
    machine.handle(FlowDown(E1, "gone"), 1)
    machine.on_deadline(1_000)
    second = machine.epoch
    machine.handle(BindSucceeded(second), 1_000)
    machine.handle(FlowActive(second), 1_000)
    assert machine.admit(delivery(1, message, second))
    assert not machine.admit(delivery(1, message, second))
    assert not machine.accept(E1, DeliveryId(1))
    assert machine.in_flight == 1
    assert machine.accept(second, DeliveryId(1))
