"""What cannot be handed over for want of memory ends its flows and nothing else; on an intake that asks in vain."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from lbg_runtime.transport.solace.fast.gathering import Gathering
from lbg_runtime.transport.solace.inbox import Inbox


class PoorIntake:
    """In place of the intake of C: it has freed what it had, and says so."""

    def __init__(self, free: int, announce: Callable[[int], object], *_: Any) -> None:
        self.announce = announce

    def add(self, user: int, path: object) -> None:
        pass

    def remove(self, user: int, path: object) -> None:
        pass

    def pop(self, turn: int) -> Any:
        raise MemoryError("for a test")

    def cut(self) -> Any:
        raise MemoryError("for a test")

    def close(self) -> None:
        pass


class Path:
    """In place of a receive path."""

    def __init__(self) -> None:
        self.errors: list[str] = []

    def take_each(self, messages: Iterable[int]) -> None:
        pass

    def drop_each(self, messages: Iterable[int]) -> None:
        pass

    def loop_is_blocked(self) -> None:
        pass

    def broken(self, error: BaseException) -> None:
        self.errors.append(str(error))


@pytest.mark.parametrize("is_event", [False, True], ids=["pop", "cut"])
async def test_flows_whose_messages_are_lost_are_given_up_and_an_event_is_posted_all_the_same(is_event: bool) -> None:
    intakes: list[PoorIntake] = []

    def make(*parts: Any) -> Any:
        intakes.append(PoorIntake(*parts))
        return intakes[-1]

    inbox = Inbox(asyncio.get_running_loop())
    gathering = Gathering(make, inbox, 1, 0.25)
    path, ended, other = Path(), Path(), Path()
    for user, each in enumerate((path, ended, other)):
        gathering.add(user, each)
    gathering.remove(1, ended)
    if is_event:
        gathering.seal()
    else:
        intakes[0].announce(0)
    behind: list[str] = []
    inbox.post(behind.append, "event")
    await asyncio.sleep(0)
    assert [each.errors for each in (path, ended, other)] == [["for a test"], [], ["for a test"]]
    assert behind == ["event"]


async def test_flows_that_cannot_even_be_gone_through_are_given_up() -> None:
    class Poor(list[Any]):
        def __iter__(self) -> Any:
            raise MemoryError("for a test")

    intake = PoorIntake(1, lambda _: None)
    intake.pop = lambda _: Poor()  # type: ignore[method-assign]
    gathering = Gathering(lambda *_: intake, Inbox(asyncio.get_running_loop()), 1, 0.25)  # type: ignore[arg-type]
    path = Path()
    gathering.add(1, path)
    gathering._take(0)
    assert path.errors == ["for a test"]
