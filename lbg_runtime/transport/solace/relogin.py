"""Decides when a transport logs in again, because its last login lacked a right that was needed.

For its whole life, a connection has the rights that it got at its login: the client goes by what the broker said then,
and does not ask again (docs/protocol.md). So a right that is granted later counts only from the next login on.
"""

import asyncio
from collections.abc import Callable

LOGIN_AGAIN_S = 30.0
"""The time from a login that lacked a right to the next one. Each login ends the session's flows, if there are any, so
the time doubles from one to the next. It is this short again once a login has not lacked a right for so long."""

LOGIN_AGAIN_AT_LAST_S = 960.0
"""The longest such time. Long, as a handler that takes longer than this never gets its message settled before the flow
ends."""


class Relogin:
    """One per transport, on its loop."""

    def __init__(self, log_in_again: Callable[[str], None]) -> None:
        """`log_in_again` ends the session, for the given reason, and makes a new one."""
        self._log_in_again = log_in_again
        self._login_at_s: float | None = None
        """When the present connection logged in, on the loop's clock; None while there is no connection."""
        self._timer: asyncio.TimerHandle | None = None
        self._wait_s = LOGIN_AGAIN_S

    def logged_in(self) -> None:
        """There is a connection from now on, by a login of its own."""
        self._login_at_s = asyncio.get_running_loop().time()

    def disconnected(self) -> None:
        """The connection is gone, and the next one begins with a login. Idempotent."""
        self._login_at_s = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def lacks(self, reason: str) -> None:
        """The connection lacks a right that was needed: log in again, `LOGIN_AGAIN_S` after the last login or later.

        Does nothing without a connection, or if a login is planned already.
        """
        if self._timer is not None or self._login_at_s is None:
            return
        loop = asyncio.get_running_loop()
        if loop.time() - self._login_at_s > self._wait_s:
            self._wait_s = LOGIN_AGAIN_S
        self._timer = loop.call_at(self._login_at_s + self._wait_s, self._is_due, reason)

    def _is_due(self, reason: str) -> None:
        self._wait_s = min(2 * self._wait_s, LOGIN_AGAIN_AT_LAST_S)
        self._log_in_again(reason)
