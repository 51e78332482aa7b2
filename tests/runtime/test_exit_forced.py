"""What the line says that a process is ended with: whose work has kept it, as far as that is to be seen."""

import os
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from structlog.testing import capture_logs

from lbg_runtime.runtime.shutdown import ExitGuard
from lbg_runtime.transport.solace.threads import ControlThreads
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.real_time

OURS = "a call to the client of the broker had not ended in time; no thread of a handler or lifespan was left"
THEIRS = "a handler, a lifespan, a thread of theirs or an atexit function had not ended in time"


def _forced(monkeypatch: pytest.MonkeyPatch) -> Mapping[str, object]:
    """The line of a guard that would end this process now."""
    ended, guard = threading.Event(), ExitGuard()
    monkeypatch.setattr(os, "_exit", lambda _: ended.set())
    with capture_logs() as log:
        guard.arm(0)
        assert ended.wait(PATIENCE_S)
        guard.disarm()
    (line,) = log
    assert line["event"] == "exit_forced"
    return line


@contextmanager
def _calling(pool: ThreadPoolExecutor) -> Iterator[None]:
    """One of its threads is in a call while the context lasts."""
    begun, proceed = threading.Event(), threading.Event()

    def call() -> None:
        begun.set()
        proceed.wait(PATIENCE_S)

    with pool:
        pool.submit(call)
        assert begun.wait(PATIENCE_S)
        try:
            yield
        finally:
            proceed.set()


async def _name_of_a_client_thread() -> str:
    threads = ControlThreads()
    threads.start()
    try:
        return await threads.run(lambda: threading.current_thread().name.rpartition("_")[0])
    finally:
        await threads.close()


def test_a_thread_that_waits_for_its_next_call_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadPoolExecutor(1, thread_name_prefix="idle") as pool:
        pool.submit(int).result(PATIENCE_S)
        ends_s = time.monotonic() + PATIENCE_S
        # The thread is a moment on its way from the call to the wait for the next one.
        while "idle_0" in (line := _forced(monkeypatch))["threads"]:  # type: ignore[operator]  # a list
            assert time.monotonic() < ends_s, line
    assert (line["threads"], line["reason"]) == ([], THEIRS)


def test_a_thread_of_the_users_that_is_in_a_call_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with _calling(ThreadPoolExecutor(1, thread_name_prefix="users-own")):
        line = _forced(monkeypatch)
    assert (line["threads"], line["reason"]) == (["users-own_0"], THEIRS)


async def test_a_call_to_the_client_is_not_blamed_on_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    client = await _name_of_a_client_thread()
    with _calling(ThreadPoolExecutor(1, thread_name_prefix=client)):
        line = _forced(monkeypatch)
        with _calling(ThreadPoolExecutor(1, thread_name_prefix="users-own")):
            line_of_both = _forced(monkeypatch)
    assert (line["threads"], line["reason"]) == ([], OURS)
    assert (line_of_both["threads"], line_of_both["reason"]) == (["users-own_0"], THEIRS)


def test_a_countdown_that_is_stopped_or_begun_anew_ends_nothing_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    counting: list[float] = []

    class Countdown:
        def __init__(self, after_s: float, *_: object) -> None:
            self._after_s = after_s

        def start(self) -> None:
            counting.append(self._after_s)

        def cancel(self) -> None:
            counting.remove(self._after_s)

    monkeypatch.setattr(threading, "Timer", Countdown)
    guard = ExitGuard()
    guard.arm(600)
    guard.arm(30)
    assert sorted(counting) == [30, 32]
    guard.disarm()
    assert counting == []
