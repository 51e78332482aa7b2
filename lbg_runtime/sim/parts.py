"""The machines of a member that a simulation tests."""

from collections.abc import Callable
from dataclasses import dataclass

from lbg_runtime.core.flow.machine import FlowMachine
from lbg_runtime.core.group.rebalance import RebalanceMachine
from lbg_runtime.core.lanes import KeyLanes
from lbg_runtime.core.restripe.gate import StripeGate
from lbg_runtime.model.message import Delivery
from lbg_runtime.sim.control import MakeRebalance

MakeMachine = Callable[..., FlowMachine]
MakeGate = Callable[..., StripeGate]


@dataclass(frozen=True, slots=True)
class Parts:
    """What is under test; tests put in broken ones, to show that the laws notice."""

    make_machine: MakeMachine = FlowMachine
    make_lanes: Callable[[], KeyLanes[Delivery]] = KeyLanes
    make_rebalance: MakeRebalance = RebalanceMachine
    make_gate: MakeGate = StripeGate
