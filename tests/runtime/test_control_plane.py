"""What the shell of the control plane feeds its machine with."""

import asyncio
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, cast

from lbg_runtime.core.group.control_plane import ControlInput, FlowChanged
from lbg_runtime.core.group.membership_events import ControlConnected, WeightChanged
from lbg_runtime.runtime.control_plane import ControlPlane


class _Machine:
    """Notes what it is fed."""

    deadline_ms = None
    membership = SimpleNamespace()

    def __init__(self) -> None:
        self.taken: list[ControlInput] = []
        self.has_taken = asyncio.Event()

    def flow_reports(self) -> dict[str, object]:
        return {}

    def take(self, inputs: Iterable[ControlInput], now_ms: int) -> list[object]:
        self.taken += inputs
        self.has_taken.set()
        return []


class _Session:
    async def subscribe(self, topic: str, arrived: object) -> None: ...

    def watch_connection(self, changed: Callable[[bool], None]) -> None:
        changed(True)


async def test_flows_that_change_together_are_looked_at_once() -> None:
    machine = _Machine()
    ignored = cast(Any, SimpleNamespace(listen_to=lambda _: None))
    plane = ControlPlane(
        cast(Any, _Session()), "control", cast(Any, machine), [], ignored, ignored, ignored, ignored, ignored
    )
    running = asyncio.create_task(plane.run())
    await machine.has_taken.wait()
    assert ControlConnected() in machine.taken
    machine.taken.clear()
    machine.has_taken.clear()

    for _ in range(1_000):
        plane.flow_changed()
    plane.set_weight(2)
    plane.flow_changed()
    plane.flow_changed()
    await machine.has_taken.wait()

    assert machine.taken == [FlowChanged(), WeightChanged(2), FlowChanged()]
    running.cancel()
    await asyncio.wait([running])
