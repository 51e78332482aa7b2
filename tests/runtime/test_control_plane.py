"""What the shell of the control plane feeds its machine with."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from structlog.testing import capture_logs

from lbg_runtime.core.group.control_messages import Life, MemberState
from lbg_runtime.core.group.control_plane import ControlInput, FlowChanged
from lbg_runtime.core.group.membership_events import ControlConnected, ViewChanged, WeightChanged
from lbg_runtime.core.group.view import GroupView, MemberView
from lbg_runtime.model.ids import MemberId
from lbg_runtime.runtime.control_plane import ControlPlane


class _Machine:
    """Notes what it is fed."""

    deadline_ms = None
    will_look = False
    membership = SimpleNamespace(owner_of=None)
    rebalance = SimpleNamespace(accepted=None)

    def __init__(self) -> None:
        self.taken: list[ControlInput] = []
        self.outputs: list[object] = []
        self.has_taken = asyncio.Event()

    def flow_reports(self) -> dict[str, object]:
        return {}

    def take(self, inputs: Iterable[ControlInput], now_ms: int) -> list[object]:
        self.taken += inputs
        self.has_taken.set()
        outputs, self.outputs = self.outputs, []
        return outputs


class _Session:
    async def subscribe(self, topic: str, arrived: object) -> None: ...

    def watch_connection(self, changed: Callable[[bool], None]) -> None:
        changed(True)


@asynccontextmanager
async def running(machine: _Machine, queues: int) -> AsyncIterator[ControlPlane]:
    ignored = cast(Any, SimpleNamespace(listen_to=lambda *_: None))
    runners = [cast(Any, SimpleNamespace(machine=SimpleNamespace(queue=index))) for index in range(queues)]
    plane = ControlPlane(
        cast(Any, _Session()), "control", cast(Any, machine), runners, ignored, ignored, ignored, ignored, ignored
    )
    task = asyncio.create_task(plane.run())
    await machine.has_taken.wait()
    assert ControlConnected() in machine.taken
    machine.taken.clear()
    machine.has_taken.clear()
    try:
        yield plane
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_flows_that_change_together_are_looked_at_once() -> None:
    machine = _Machine()
    async with running(machine, 8) as plane:
        for _ in range(1_000):
            plane.flow_changed()
        plane.set_weight(2)
        plane.flow_changed()
        plane.flow_changed()
        await machine.has_taken.wait()
        assert machine.taken == [FlowChanged(), WeightChanged(2), FlowChanged()]


async def test_a_machine_that_will_look_at_its_flows_is_not_told_that_they_have_changed() -> None:
    machine = _Machine()
    async with running(machine, 8) as plane:
        machine.will_look = True
        plane.flow_changed()
        plane.set_weight(2)
        await machine.has_taken.wait()
        assert machine.taken == [WeightChanged(2)]


async def test_a_view_is_told_of_when_a_member_or_its_state_is_new() -> None:
    one = MemberView(MemberId("a"), Life(1, 1), MemberState.ACTIVE, 1, False, {}, "")
    views = [(one,), (replace(one, weight=0),), (replace(one, is_suspect=True),), (one, replace(one, member="b"))]
    machine = _Machine()
    machine.outputs = [ViewChanged(GroupView(members, {})) for members in views]
    with capture_logs() as log:
        async with running(machine, 1):
            pass
    assert [line["members"] for line in log if line["event"] == "view_changed"] == [
        {"a": "active"},
        {"a": "suspect"},
        {"a": "active", "b": "active"},
    ]
