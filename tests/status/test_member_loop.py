"""A member's loop in another thread, asked from a loop that is busy itself."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import cast

import pytest

from lbg_runtime.status.member_loop import ANSWER_WITHIN_MS, Blocked, MemberLoop
from tests.patience import PATIENCE_S


@pytest.fixture
def member() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join(PATIENCE_S)
    loop.close()


def be_busy(within_s: float) -> None:
    """As a loop that works something out."""
    end_s = time.monotonic() + within_s
    while time.monotonic() < end_s:
        pass


class SlowLoop:
    """Hears what it is told when the test says so."""

    def __init__(self) -> None:
        self.told: list[Callable[[], object]] = []

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: object) -> None:
        self.told.append(lambda: callback(*args))


@pytest.mark.real_time
async def test_an_answer_that_lies_ready_is_taken_however_busy_the_asking_loop_was(
    member: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lbg_runtime.status.member_loop.ANSWER_WITHIN_MS", 50)
    is_answered = threading.Event()
    asked = asyncio.ensure_future(MemberLoop(member).ask(lambda: "well"))
    await asyncio.sleep(0)
    member.call_soon_threadsafe(is_answered.set)
    assert is_answered.wait(PATIENCE_S)
    be_busy(0.1)
    assert await asked == "well"


async def test_a_loop_that_hears_others_first_is_not_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    time_s = asyncio.get_running_loop().time
    monkeypatch.setattr("lbg_runtime.status.member_loop.monotonic_ns", lambda: int(time_s() * 1e9))
    slow = SlowLoop()
    member_loop = MemberLoop(cast(asyncio.AbstractEventLoop, slow))
    asked = [asyncio.ensure_future(member_loop.ask(lambda: "well")) for _ in range(3)]
    # Together longer than the limit, each for itself not.
    for number in range(2):
        await asyncio.sleep(0.5)
        slow.told[number]()
    assert [await each for each in asked[:2]] == ["well", "well"]
    assert await asked[2] == Blocked(ANSWER_WITHIN_MS)


@pytest.mark.real_time
async def test_a_loop_is_blocked_for_as_long_as_it_has_been_silent(
    member: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    within_ms = 50
    monkeypatch.setattr("lbg_runtime.status.member_loop.ANSWER_WITHIN_MS", within_ms)
    member_loop = MemberLoop(member)
    release, is_blocked = threading.Event(), threading.Event()

    def block() -> None:
        is_blocked.set()
        release.wait(PATIENCE_S)

    began_s = time.monotonic()
    member.call_soon_threadsafe(block)
    assert is_blocked.wait(PATIENCE_S)
    first, second = await asyncio.gather(member_loop.ask(lambda: "well"), member_loop.ask(lambda: "well"))
    third = await member_loop.ask(lambda: "well")
    silent_ms = (time.monotonic() - began_s) * 1_000
    release.set()
    assert isinstance(first, Blocked)
    assert isinstance(second, Blocked)
    assert isinstance(third, Blocked)
    assert within_ms <= first.blocked_ms <= silent_ms
    # It counts from the first question on that is owed an answer.
    assert first.blocked_ms + within_ms <= third.blocked_ms <= silent_ms
    assert await member_loop.ask(lambda: "well") == "well"
