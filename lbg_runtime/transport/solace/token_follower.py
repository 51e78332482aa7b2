"""Gives the client the newest token in time: after an outage, it reconnects by itself with the last one it was
given."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog

from lbg_runtime.model.errors import ConfigError
from lbg_runtime.transport.solace.credentials import TokenFile
from lbg_runtime.transport.solace.errors import subcode_and_reason
from lbg_runtime.transport.solace.threads import ControlThreads

if TYPE_CHECKING:
    # It imports the client, which must not happen before `SolaceTransport.open`.
    from lbg_runtime.transport.solace.session import SolaceSession

LOOK_S = 2.0
"""How often the file is read, in addition to each connection and outage."""

_log = structlog.get_logger(__name__)


class TokenFollower:
    """Belongs to a transport, which calls it on its loop."""

    def __init__(
        self, source: TokenFile, threads: ControlThreads, session: "Callable[[], SolaceSession | None]"
    ) -> None:
        """`session` returns the present session; None while there is none."""
        self._source = source
        self._threads = threads
        self._session = session
        self._is_due = asyncio.Event()

    def look_now(self) -> None:
        """Look at the file now, as the client is about to present its token again."""
        self._is_due.set()

    async def run(self) -> None:
        """Follow the file until cancelled. What is wrong is logged, once until it changes."""
        told = ""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._is_due.wait()
            self._is_due.clear()
            session = self._session()
            if session is None:
                continue
            fault = ""
            try:
                await self._threads.run(session.follow_token, self._source)
            except ConfigError as error:
                fault = str(error)
            except Exception as error:  # noqa: BLE001 - otherwise the token would expire, and nobody would know why
                fault = subcode_and_reason(error)[1]
            if fault and fault != told:
                _log.warning("token_not_renewed", file=self._source.path, reason=fault)
            told = fault
