"""Commands that are asked to leave while they connect to a host that does not answer: they do not wait for it.

The transport breaks off in the client what they wait for (tests/transport/solace/test_session.py).
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from lbg_runtime.cli.dashboard import _show
from lbg_runtime.cli.replay import _replay
from lbg_runtime.cli.validate import _follow
from lbg_runtime.config.listen_address import ListenAddress
from lbg_runtime.config.load import parse_settings
from lbg_runtime.validator.live import LiveValidator
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.real_time

NOBODY = cast(Any, None)
SETTINGS = parse_settings(
    {"group": {"name": "orders", "hash_prefix": "h", "hash_count": 4, "queue_count": 2}}, "test", {}
)

COMMANDS = {
    "dashboard": (
        "lbg_runtime.runtime.observer.observing",
        lambda: _show(SETTINGS, ListenAddress("127.0.0.1", 0), None, [], None),
        None,
    ),
    "validate --live": (
        "lbg_runtime.runtime.session.open_session",
        lambda: _follow(LiveValidator(), SETTINGS, "notes", None, findings_to_stderr=False),
        False,
    ),
    "replay": (
        "lbg_runtime.publishing.open_publishing_session",
        lambda: _replay(NOBODY, NOBODY, SETTINGS, "orders/new", None, None, NOBODY),
        True,
    ),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_whoever_is_asked_to_leave_does_not_wait_for_a_host(
    monkeypatch: pytest.MonkeyPatch, command: str, number: signal.Signals
) -> None:
    ended: list[str] = []

    @asynccontextmanager
    async def connecting(*_: object) -> AsyncIterator[None]:
        os.kill(os.getpid(), number)
        try:
            await asyncio.Event().wait()
        finally:
            # As the transport, which breaks the attempt off.
            await asyncio.sleep(0)
            ended.append(command)
        yield

    opened, run, outcome = COMMANDS[command]
    monkeypatch.setattr(opened, connecting)
    async with asyncio.timeout(PATIENCE_S):
        assert await cast("Awaitable[object]", run()) is outcome
    assert ended == [command]
