"""What a command is connected to, unless it is asked to leave; the commands themselves are in test_leaving.py."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from lbg_runtime.cli.connecting import connected_unless_stopped
from lbg_runtime.runtime.stop import StopCause

pytestmark = pytest.mark.real_time


@asynccontextmanager
async def _connection(log: list[str]) -> AsyncIterator[str]:
    log.append("opened")
    yield "session"
    log.append("closed")


async def test_a_process_whose_parent_has_gone_connects_to_nothing() -> None:
    log: list[str] = []
    causes: list[StopCause] = []
    async with connected_unless_stopped(_connection(log), causes.append, parent_pid=os.getpid()) as session:
        assert session is None
    assert causes == [StopCause.PARENT_GONE]
    assert log == []


async def test_whoever_is_connected_is_told_to_leave_and_keeps_the_connection_until_it_does() -> None:
    log: list[str] = []
    told = asyncio.Event()
    async with connected_unless_stopped(_connection(log), lambda _: told.set()) as session:
        assert session == "session"
        os.kill(os.getpid(), signal.SIGTERM)
        await told.wait()
        assert log == ["opened"]
    assert log == ["opened", "closed"]
