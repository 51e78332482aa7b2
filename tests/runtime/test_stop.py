"""A process hears who asks it to leave."""

import asyncio
import os
import signal
import warnings

import pytest

from lbg_runtime.runtime.stop import StopCause, _hear_nothing, child_environment, starting_parent, stop_requests
from lbg_runtime.testing.virtual_time import VirtualTimeLoop

pytestmark = pytest.mark.real_time


@pytest.mark.parametrize(
    ("number", "cause"),
    [
        (signal.SIGTERM, StopCause.SIGTERM),
        (signal.SIGINT, StopCause.SIGINT),
        (signal.SIGHUP, StopCause.SIGHUP),
    ],
)
async def test_a_signal_is_told_by_its_name(number: int, cause: StopCause) -> None:
    heard: asyncio.Queue[StopCause] = asyncio.Queue()
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        with stop_requests(heard.put_nowait):
            os.kill(os.getpid(), number)
            assert await heard.get() is cause
    finally:
        signal.signal(signal.SIGHUP, before)


async def test_a_signal_of_the_terminal_is_left_to_whoever_ignores_or_uses_it() -> None:
    heard: asyncio.Queue[StopCause] = asyncio.Queue()
    for kept in (signal.SIG_IGN, lambda *_: None):
        before = signal.signal(signal.SIGHUP, kept)
        try:
            with stop_requests(heard.put_nowait):
                assert signal.getsignal(signal.SIGHUP) is kept
                os.kill(os.getpid(), signal.SIGHUP)
                os.kill(os.getpid(), signal.SIGTERM)
                assert await heard.get() is StopCause.SIGTERM
            assert signal.getsignal(signal.SIGHUP) is kept
        finally:
            signal.signal(signal.SIGHUP, before)


async def test_what_a_forked_process_is_sent_ends_that_one_and_is_not_heard_here() -> None:
    """As when a handler's pool of processes is ended, or a supervisor asks all of a group."""
    heard: asyncio.Queue[StopCause] = asyncio.Queue()
    (is_ready, says_ready), (may_end, ends) = os.pipe(), os.pipe()
    with stop_requests(heard.put_nowait):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which this child does not need
            child = os.fork()
        if not child:
            os.close(ends)
            os.write(says_ready, b".")
            os.read(may_end, 1)
            os._exit(0)
        os.read(is_ready, 1)
        os.kill(child, signal.SIGTERM)
        os.close(ends)
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        assert os.WTERMSIG(status) == signal.SIGTERM
        os.kill(os.getpid(), signal.SIGINT)
        assert await heard.get() is StopCause.SIGINT
    for end in (is_ready, says_ready, may_end):
        os.close(end)


async def test_the_end_of_the_parent_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: asyncio.Queue[StopCause] = asyncio.Queue()
    # Not 1 as the new one: that may be the parent of the tests.
    parent = os.getppid()
    with stop_requests(heard.put_nowait, parent_pid=parent):
        monkeypatch.setattr(os, "getppid", lambda: parent + 1)
        assert await heard.get() is StopCause.PARENT_GONE


def test_of_a_parent_that_stays_nothing_is_told_and_afterwards_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[StopCause] = []

    async def watch() -> None:
        with stop_requests(heard.append, parent_pid=os.getppid()):
            await asyncio.sleep(1)
        monkeypatch.setattr(os, "getppid", lambda: -1)
        await asyncio.sleep(1)

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(watch())
    assert heard == []


async def test_a_parent_that_had_gone_before_it_was_looked_up_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[StopCause] = []
    # What this process would give its child: it is not the parent of this one, as one that has gone is not any more.
    for name, value in child_environment().items():
        monkeypatch.setenv(name, value)
    with stop_requests(heard.append, parent_pid=starting_parent()):
        assert heard == [StopCause.PARENT_GONE]
    # The processes that this one starts, such as a handler's, have another parent.
    assert starting_parent() == os.getppid()


async def test_where_the_process_ends_afterwards_nobody_is_heard_any_more() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        with stop_requests(lambda _: None, ends_process=True):
            pass
        for number in before:
            os.kill(os.getpid(), number)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("is_its_own", [True, False])
async def test_afterwards_signals_are_what_they_were(number: int, is_its_own: bool) -> None:
    """A program that went on after its member did no longer hear what it had been told to end by."""
    if is_its_own:
        signal.signal(number, lambda *_: None)
    before = signal.getsignal(number)
    with stop_requests(lambda _: None, parent_pid=os.getppid()):
        assert signal.getsignal(number) is not before
    assert signal.getsignal(number) is before
    # And they stay in a process that is forked later.
    signal.signal(number, signal.SIG_IGN)
    _hear_nothing()
    assert signal.getsignal(number) is signal.SIG_IGN
