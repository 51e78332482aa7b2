"""How long members on one host are waited for: at their restarts, and when they are to leave; in virtual time."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from lbg_runtime.runtime import siblings
from lbg_runtime.runtime.siblings import HURRY_S, Siblings
from lbg_runtime.runtime.stop import StopCause

DRAIN_S = 30


class _Process:
    """Hears nothing but SIGKILL; lives for so long, or until then."""

    def __init__(self, lives_s: float | None, exit_code: int) -> None:
        self.pid = id(self)
        self.returncode: int | None = None
        self._ended = asyncio.Event()
        if lives_s is not None:
            asyncio.get_running_loop().call_later(lives_s, self.end, exit_code)

    def end(self, exit_code: int) -> None:
        self.returncode = exit_code
        self._ended.set()

    async def wait(self) -> int:
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode


class _Host:
    """Where the processes would be; `lives` are how long the next ones live, and then nobody ends by itself."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lives: list[float] = []
        self.asked: list[float] = []
        """When somebody was asked to leave."""
        self.ask: Callable[[StopCause], None]
        monkeypatch.setattr(asyncio, "create_subprocess_exec", self._start)
        monkeypatch.setattr(siblings, "stop_requests", self._requests)
        monkeypatch.setattr(siblings, "send_signal", self._send_signal)
        self._processes: dict[int, _Process] = {}

    async def _start(self, *_command: str, **_options: Any) -> _Process:
        process = _Process(self.lives.pop(0) if self.lives else None, exit_code=70)
        self._processes[process.pid] = process
        return process

    @contextmanager
    def _requests(self, on_request: Callable[[StopCause], None], **_options: Any) -> Iterator[None]:
        self.ask = on_request
        yield

    def _send_signal(self, pid: int, number: signal.Signals) -> None:
        if number is signal.SIGKILL:
            self._processes[pid].end(-number)
        else:
            self.asked.append(asyncio.get_running_loop().time())


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> _Host:
    return _Host(monkeypatch)


@pytest.mark.parametrize(
    ("requests", "killed_after_s"),
    [
        ([(0, StopCause.SIGTERM)], DRAIN_S + HURRY_S),
        ([(0, StopCause.SIGHUP), (1, StopCause.SIGHUP), (2, StopCause.PARENT_GONE)], DRAIN_S + HURRY_S),
        ([(0, StopCause.SIGTERM), (10, StopCause.SIGTERM)], 10 + HURRY_S),
        ([(0, StopCause.SIGTERM), (10, StopCause.SIGINT), (20, StopCause.SIGINT)], 10 + HURRY_S),
        ([(0, StopCause.SIGTERM), (DRAIN_S + HURRY_S - 1, StopCause.SIGTERM)], DRAIN_S + HURRY_S),
    ],
    ids=["asked_once", "by_who_does_not_hurry", "hurried", "hurried_again", "hurried_too_late"],
)
async def test_one_that_does_not_leave_is_killed_when_its_own_bounds_are_over_and_not_earlier(
    host: _Host, requests: list[tuple[float, StopCause]], killed_after_s: float
) -> None:
    loop = asyncio.get_running_loop()
    running = asyncio.create_task(Siblings([["a"], ["b"]], DRAIN_S * 1_000).run())
    await asyncio.sleep(100)
    asked_at_s = loop.time()
    for after_s, cause in requests:
        loop.call_later(after_s, host.ask, cause)
    assert await running == 128 + signal.SIGKILL
    assert loop.time() - asked_at_s == pytest.approx(killed_after_s)
    heard = [after_s for number, (after_s, cause) in enumerate(requests) if cause.hurries or not number]
    assert [each - asked_at_s for each in host.asked] == pytest.approx([each for each in heard for _ in "ab"])


async def test_the_wait_before_a_restart_doubles_up_to_a_bound_and_is_short_again_after_a_steady_life(
    host: _Host,
) -> None:
    host.lives = [0, 0, 0, 0, 0, 0, 59, 61, 0]
    with capture_logs() as told:
        running = asyncio.create_task(Siblings([["a"]], 0).run())
        await asyncio.sleep(1_000)
        host.ask(StopCause.SIGTERM)
        await running
    waits = [line["starts_again_in_s"] for line in told if line["event"] == "sibling_ended"]
    assert waits == [1, 2, 4, 8, 16, 30, 30, 1, 2]


async def test_asked_to_leave_between_two_starts_nobody_is_started(host: _Host) -> None:
    host.lives = [0]
    running = asyncio.create_task(Siblings([["a"]], 0).run())
    await asyncio.sleep(siblings.RESTART_MIN_S / 2)
    host.ask(StopCause.SIGINT)
    assert await running == 70
    assert host.asked == []
