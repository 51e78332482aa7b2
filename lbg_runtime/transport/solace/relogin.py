"""When to log in again, because the last login lacked a right that was needed.

A connection has for its whole life the rights that it had at its login: the client goes by what the broker said then,
and does not ask again (docs/protocol.md). So a right that was given back counts from the next login on.
"""

import asyncio
from collections.abc import Callable

LOGIN_AGAIN_S = 30.0
"""From a login that lacked a right to the next one. Each of them ends the session's flows, if there are any, so the
time is doubled from one to the next, and is this again when a login was not followed by a lack for that long."""

LOGIN_AGAIN_AT_LAST_S = 960.0
"""A handler that takes longer than the time between two logins is not settled before its flow ends."""


class Relogin:
    """Belongs to a transport; all methods are called on its loop."""

    def __init__(self, log_in_again: Callable[[str], None]) -> None:
        """`log_in_again`: end the session, for this reason, and make a new one."""
        self._log_in_again = log_in_again
        self._login_at_s: float | None = None
        """When the connection logged in, by the loop's clock; None while there is none."""
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

        Does nothing without a connection, and while this is awaited already.
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
