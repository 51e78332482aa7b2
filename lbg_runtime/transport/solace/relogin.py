"""When to log in again, because the last login lacked a right that was needed.

A connection has for its whole life the rights that it had at its login: the client goes by what the broker said then,
and does not ask again (docs/protocol.md). So a right that was given back counts from the next login on.
"""

import asyncio
from collections.abc import Callable

LOGIN_AGAIN_S = 30.0
"""From a login that lacked a right to the next one; each of them ends the session's flows, if there are any."""


class Relogin:
    """Belongs to a transport; all methods are called on its loop."""

    def __init__(self, log_in_again: Callable[[str], None]) -> None:
        """`log_in_again`: end the session, for this reason, and make a new one."""
        self._log_in_again = log_in_again
        self._login_at_s: float | None = None
        """When the connection logged in, by the loop's clock; None while there is none."""
        self._timer: asyncio.TimerHandle | None = None

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
        """The connection lacks a right that was needed: log in again, `LOGIN_AGAIN_S` after the last login.

        Does nothing without a connection, and while this is awaited already.
        """
        if self._timer is None and self._login_at_s is not None:
            due_s = self._login_at_s + LOGIN_AGAIN_S
            self._timer = asyncio.get_running_loop().call_at(due_s, self._log_in_again, reason)
