"""A member that says another weight: at once, as a change that begins a new settling, for itself and for others."""

import random

from lbg_runtime.core.group.control_messages import Heartbeat, Life
from lbg_runtime.core.group.identity import Identity
from lbg_runtime.core.group.membership import MembershipMachine
from lbg_runtime.core.group.membership_events import (
    ControlConnected,
    ControlMessageReceived,
    JoinDone,
    LeaveRequested,
    SendHeartbeat,
    ViewChanged,
    WeightChanged,
)
from lbg_runtime.core.group.membership_timing import MembershipTiming
from lbg_runtime.core.restripe.striping import StripingBook
from lbg_runtime.model.ids import GroupName, MemberId

SETTINGS = MembershipTiming()


def member(name: str) -> MembershipMachine:
    identity = Identity(GroupName("orders"), MemberId(name), Life(1, 1), 2, {})
    machine = MembershipMachine(identity, SETTINGS, random.Random(1), 0, StripingBook(4, 8))
    machine.handle(ControlConnected(), 0)
    machine.handle(JoinDone(), 0)
    return machine


def weights(machine: MembershipMachine) -> dict[str, int]:
    return {one.member: one.weight for one in machine.view.candidates()}


def heard(machine: MembershipMachine, heartbeat: Heartbeat, now_ms: int) -> list[object]:
    return [*machine.handle(ControlMessageReceived(heartbeat), now_ms)]


def test_it_is_said_at_once_and_places_begin_to_settle_anew() -> None:
    first, second = member("a"), member("b")
    for machine, other in ((first, second), (second, first)):
        heard(machine, other.heartbeat({}), 10)
    now_ms = 10_000
    assert weights(first) == {"a": 2, "b": 2}
    for machine, other in ((first, second), (second, first)):
        heard(machine, other.heartbeat({}), now_ms)
    commands = first.handle(WeightChanged(0), now_ms + 100)
    assert any(isinstance(each, SendHeartbeat) for each in commands)
    assert any(isinstance(each, ViewChanged) for each in commands)
    assert weights(first) == {"a": 0, "b": 2}
    assert not first.is_stable(now_ms + 100)
    told = heard(second, first.heartbeat({}), now_ms + 110)
    assert any(isinstance(each, ViewChanged) for each in told)
    assert weights(second) == {"a": 0, "b": 2}


def test_the_same_weight_again_changes_nothing_and_who_has_left_says_nothing() -> None:
    machine = member("a")
    assert not any(isinstance(each, ViewChanged) for each in machine.handle(WeightChanged(2), 100))
    machine.handle(LeaveRequested(), 200)
    assert machine.handle(WeightChanged(0), 300) == []
