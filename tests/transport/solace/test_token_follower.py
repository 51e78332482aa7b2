import asyncio
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from lbg_runtime.model.errors import ConfigError
from lbg_runtime.transport.solace import token_follower
from lbg_runtime.transport.solace.credentials import TokenFile
from lbg_runtime.transport.solace.threads import ControlThreads
from lbg_runtime.transport.solace.token_follower import TokenFollower
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.real_time


async def test_a_token_is_followed_whatever_goes_wrong_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would have ended unseen: nobody waits for the one who follows it."""
    monkeypatch.setattr(token_follower, "LOOK_S", 0.0)
    is_done = asyncio.Event()
    tell = asyncio.get_running_loop().call_soon_threadsafe
    thread, empty = RuntimeError("can't start new thread"), ConfigError("token", "is empty", "a token")
    outcomes = [thread, thread, empty, empty, None, empty, None]

    class Session:
        """Of which only this is asked."""

        def follow_token(self, _: TokenFile) -> None:
            if not outcomes:
                tell(is_done.set)
            elif (outcome := outcomes.pop(0)) is not None:
                raise outcome

    threads, session = ControlThreads(), cast(Any, Session())
    with capture_logs() as logged:
        following = asyncio.ensure_future(TokenFollower(TokenFile("token"), threads, lambda: session).run())
        async with asyncio.timeout(PATIENCE_S):
            await is_done.wait()
        following.cancel()
        await asyncio.wait([following])
    await threads.close()
    told = ["can't start new thread", str(empty), str(empty)]
    assert [(each["event"], each["reason"]) for each in logged] == [("token_not_renewed", each) for each in told]
