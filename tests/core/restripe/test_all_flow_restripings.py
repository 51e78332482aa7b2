"""All histories of small groups that are re-striped with their flow machines: handles that are lost or given up, and
handlers that fail, at whatever moment, break no law, and the re-striping comes to its end.

A few are part of the tests; run as a script, it tries each mishap with one member and with two, which takes minutes.
"""

from collections.abc import Callable

import pytest

from lbg_runtime.core.flow.commands import Command
from lbg_runtime.core.flow.machine import FlowMachine
from lbg_runtime.core.flow.table import FlowState
from lbg_runtime.core.restripe.gate import GateOrder
from lbg_runtime.model.ids import DeliveryId, Epoch
from lbg_runtime.model.message import Delivery
from tests.core.histories import Histories, tell_of
from tests.core.restripe.small_flows import SmallFlows
from tests.core.restripe.small_stripe_parts import Setup

OF_HANDLES = ("take", "deadline", "bind", "bind returns", "bind again", "settle", "send", "give", "notice", "reconnect")
SLOW = (*OF_HANDLES, "retry", "start", "say", "conduct")
"""Nothing is late but handlers, messages, and mishaps."""
LATE = tuple(step for step in SLOW if step != "settle")
"""And settlements."""
PROMPT = (*SLOW, "end")
"""Nor are handlers."""
MISHAPS = (
    *("cut", "end flow", "stop feeding", "suspend", "kill", "fail", "give back", "hand back", "leave", "step aside"),
    *("refuse", "kill the conductor", "lose patience"),
)


def histories_of(setup: Setup) -> Histories[SmallFlows]:
    """All of them, from the moment at which the members are bound and the command begins."""
    return Histories(SmallFlows(setup), SmallFlows.twin, SmallFlows.mark, "at last")


@pytest.mark.parametrize(
    ("setup", "fewest"),
    [
        (Setup((1, 2), ("1a", "1a"), (), 1, at_once=SLOW), 950),
        (Setup((2, 1), ("1a",), ("fail",), 1, at_once=SLOW), 500),
        (Setup((1, 2), ("1a",), ("give back",), 1, at_once=SLOW), 600),
        (Setup((2, 1), ("1a",), ("hand back",), 1, at_once=PROMPT), 3_000),
        (Setup((1, 2), ("1a",), ("cut",), 1, at_once=PROMPT), 4_000),
    ],
    ids=lambda value: "+".join((*map(str, value.counts), *value.may_happen)) if isinstance(value, Setup) else "",
)
def test_every_history_keeps_the_laws_and_ends_well(setup: Setup, fewest: int) -> None:
    histories = histories_of(setup)
    assert histories.problem == ""
    assert len(histories) > fewest, "there were more states: what has become impossible?"


def _admit_whatever_comes(machine: FlowMachine, delivery: Delivery) -> bool:
    gate = machine._gate
    assert gate is not None
    if machine.state is not FlowState.ACTIVE or gate.is_record(delivery.message.topic):
        return False
    return machine._in_flight.add_if_room(delivery.delivery_id, delivery.message.topic)


def _accept_without_the_gate(machine: FlowMachine, epoch: Epoch, delivery_id: DeliveryId) -> bool:
    is_ours = machine.state is FlowState.ACTIVE and epoch == machine.epoch
    return is_ours and machine._in_flight.answer_if_open(delivery_id)


def _bind_without_the_gate(machine: FlowMachine) -> list[Command]:
    gate, machine._gate = machine._gate, None
    commands = BIND(machine)
    machine._gate = gate
    return commands


def _obey_without_a_handle(machine: FlowMachine, orders: list[GateOrder]) -> list[Command]:
    state = machine.state
    if state in (FlowState.UNBOUND, FlowState.BINDING, FlowState.UNBINDING):
        machine.state = FlowState.ACTIVE
    commands = OBEY(machine, orders)
    machine.state = state
    return commands


BIND, OBEY = FlowMachine._bind, FlowMachine._obey_gate


@pytest.mark.parametrize(
    ("name", "broken", "setup", "problem"),
    [
        ("admit", _admit_whatever_comes, Setup((1, 2), ("1a", "1a"), (), 1, at_once=SLOW), "is handled again"),
        ("accept", _accept_without_the_gate, Setup((1, 2), ("1a", "1a"), (), 1, at_once=SLOW), "nothing goes on"),
        ("_bind", _bind_without_the_gate, Setup((2, 1), ("1a",), ("end flow",), 1, at_once=PROMPT), "nothing goes on"),
        ("_obey_gate", _obey_without_a_handle, Setup((2, 1), ("1a",), ("hand back",), 1, at_once=LATE), "as in flight"),
    ],
)
def test_a_broken_rule_is_noticed(
    monkeypatch: pytest.MonkeyPatch, name: str, broken: Callable[..., object], setup: Setup, problem: str
) -> None:
    monkeypatch.setattr(FlowMachine, name, broken)
    assert problem in histories_of(setup).problem


def _try_everything() -> None:
    for mishap in MISHAPS:
        for members, at_once in ((1, SLOW), (2, PROMPT)):
            for counts in ((1, 2), (2, 1)):
                if mishap == "leave" and members == 1:
                    continue
                setup = Setup(counts, ("1a",), (mishap,), members, at_once=at_once)
                tell_of(f"{counts} {members} {mishap}", histories_of(setup))


if __name__ == "__main__":
    _try_everything()
