"""A connection that comes back and is lost again at once, on virtual time."""

import asyncio
from typing import Any, cast

from lbg_runtime.transport.solace.session import SessionEvent
from lbg_runtime.transport.solace.session_making import SessionMaking
from lbg_runtime.transport.solace.settings import SolaceSettings
from lbg_runtime.transport.solace.transport import RESTORE_WAIT_S, SolaceTransport


class Session:
    """Of which only this is asked."""

    def __init__(self) -> None:
        self.publisher = self

    def logged_in(self) -> None: ...

    def fail_all(self, _: str) -> None: ...

    def disconnect(self) -> None: ...


async def test_a_connection_that_is_lost_again_before_it_was_told_of_is_not_told_of() -> None:
    """It would be thought to be there for the whole outage: binds would wait in the client, and occupy its threads."""
    settings, nobody = SolaceSettings(("tcp://127.0.0.1:1",), "first"), cast(Any, None)
    transport, told = SolaceTransport(settings), list[bool]()
    transport._session = cast(Any, Session())
    transport._making = making = SessionMaking(settings, nobody, nobody)
    transport.watch_connection(told.append)
    transport._session_event(making, (SessionEvent.RESTORED, "one"))
    await asyncio.sleep(0.9 * RESTORE_WAIT_S)
    assert told == [False]
    transport._session_event(making, (SessionEvent.LOST, "two"))
    await asyncio.sleep(2 * RESTORE_WAIT_S)
    assert (told, transport.is_connected, transport.why_away) == ([False], False, "two")
    # Nor is what is said of a session that another one has replaced.
    transport._session_event(SessionMaking(settings, nobody, nobody), (SessionEvent.RESTORED, "late"))
    await asyncio.sleep(2 * RESTORE_WAIT_S)
    assert (told, transport.is_connected) == ([False], False)
    transport._session_event(making, (SessionEvent.RESTORED, "three"))
    await asyncio.sleep(2 * RESTORE_WAIT_S)
    assert (told, transport.is_connected, transport.why_away) == ([False, True], True, None)
    await transport.close()
