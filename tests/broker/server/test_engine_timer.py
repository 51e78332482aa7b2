"""Deadlines of an engine on the event loop."""

import asyncio
from collections.abc import Iterable

from lbg_runtime.broker.engine.effects import ClientEnded, ClientId, Effect
from lbg_runtime.broker.engine.engine import Engine
from lbg_runtime.broker.server.engine_timer import EngineTimer


class Part:
    """Tells of its calls, or raises."""

    def __init__(self, client: int, *, raises: bool = False) -> None:
        self.effect = ClientEnded(ClientId(client), "due")
        self.raises = raises

    def on_deadline(self) -> list[Effect]:
        if self.raises:
            raise ZeroDivisionError
        return [self.effect]


async def test_a_deadline_that_raises_takes_nothing_from_others_that_are_due_with_it() -> None:
    raised: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context["exception"]))
    carried_out: list[Effect] = []
    both = asyncio.Event()

    def carry_out(effects: Iterable[Effect]) -> None:
        carried_out.extend(effects)
        if len(carried_out) == 2:
            both.set()

    engine = Engine()
    timer = EngineTimer(engine, carry_out)
    timetable = engine.surroundings.timetable
    before, broken, behind = Part(1), Part(2, raises=True), Part(3)
    for part in (before, broken, behind):
        timetable.set(part, timetable.now() + 100)
    timer.arm()
    async with asyncio.timeout(10):
        await both.wait()
    assert carried_out == [before.effect, behind.effect]
    assert [type(each) for each in raised] == [ZeroDivisionError]
    assert timetable.next_ms is None
