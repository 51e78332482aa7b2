"""The timer of a shell's deadlines, in virtual time."""

import asyncio

from lbg_runtime.runtime.clock import DeadlineTimer, now_ms


class Bell:
    """A timer that notes when it calls back."""

    def __init__(self):
        self.start_ms = now_ms()
        self.rung_ms = []
        self.timer = DeadlineTimer(lambda: self.rung_ms.append(now_ms() - self.start_ms))

    def set(self, after_ms):
        self.timer.set(self.start_ms + after_ms)


async def test_only_the_deadline_set_last_is_called_back_at():
    bell = Bell()
    bell.set(50)
    bell.set(20)
    bell.set(80)
    await asyncio.sleep(0.2)
    assert bell.rung_ms == [80]


async def test_none_and_cancelling_take_the_deadline_back():
    bell = Bell()
    bell.set(50)
    bell.timer.set(None)
    await asyncio.sleep(0.1)
    bell.set(150)
    bell.timer.cancel()
    await asyncio.sleep(0.1)
    assert bell.rung_ms == []


async def test_the_same_deadline_can_be_set_again_when_it_has_been_reached_or_cancelled():
    bell = Bell()
    bell.set(50)
    bell.timer.cancel()
    bell.set(50)
    await asyncio.sleep(0.1)
    bell.set(50)
    await asyncio.sleep(0.1)
    assert bell.rung_ms == [50, 100]
