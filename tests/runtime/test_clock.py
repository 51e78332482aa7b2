"""The timer of a shell's deadlines, in virtual time, and the clock that goes on while the host sleeps."""

import asyncio
import sys
import time

import pytest

from lbg_runtime.runtime import clock
from lbg_runtime.runtime.clock import DeadlineTimer, now_ms, since_boot_ns, slept_s, steady_s


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
    assert bell.timer.is_set
    await asyncio.sleep(0.2)
    assert bell.rung_ms == [80]
    assert not bell.timer.is_set


async def test_none_and_cancelling_take_the_deadline_back():
    bell = Bell()
    bell.set(50)
    bell.timer.set(None)
    await asyncio.sleep(0.1)
    bell.set(150)
    bell.timer.cancel()
    assert not bell.timer.is_set
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


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such clock")
def test_one_clock_goes_on_while_the_host_sleeps():
    """No test can send the host to sleep: then this clock differs from the monotonic one, and else it does not."""
    before_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    assert before_ns <= since_boot_ns() <= time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    assert since_boot_ns.args == (time.CLOCK_BOOTTIME,)


def test_a_stop_of_the_process_between_two_looks_is_not_taken_for_the_opposite_of_a_sleep(monkeypatch):
    """What was proved before it would pass for new, with whatever counts the sleep of the host."""
    running_ns = 10**12

    def look_and_be_stopped():
        nonlocal running_ns
        running_ns += 60 * 10**9
        return running_ns - 60 * 10**9

    monkeypatch.setattr(clock, "since_boot_ns", look_and_be_stopped)
    monkeypatch.setattr(time, "monotonic_ns", look_and_be_stopped)
    assert slept_s() >= 0


async def test_steady_time_goes_on_by_what_the_host_sleeps_and_by_nothing_else(monkeypatch):
    awake_ns, asleep_ns = 10**12, 7 * 10**9
    monkeypatch.setattr(time, "monotonic_ns", lambda: awake_ns)
    monkeypatch.setattr(clock, "since_boot_ns", lambda: awake_ns + asleep_ns)
    begin_s = steady_s()
    awake_ns += 5 * 10**9
    await asyncio.sleep(5)
    assert steady_s() - begin_s == pytest.approx(5)
    asleep_ns += 3600 * 10**9
    assert steady_s() - begin_s == pytest.approx(3605)
