"""Keeps a subscription to a control topic, and knows whether it holds: after an outage the client subscribes again by
itself, but the broker does not confirm that."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

import structlog

from lbg_runtime.model.errors import SubscribeFailed
from lbg_runtime.transport.base import DirectSink, Messenger

_log = structlog.get_logger(__name__)

SUBSCRIBE_AGAIN_S = 1.0
"""The time from a failure to subscribe to the next attempt; doubled each time, and this short again when the connection
is back."""

SUBSCRIBE_AGAIN_AT_LAST_S = 30.0

Confirmed = Callable[[bool], None]
"""Called when the broker has confirmed the subscription, with whether an attempt had failed before. Must not raise or
block."""


class KeptSubscription:
    """Owned by one shell, on its event loop: `subscribe` once, then `keep` while it runs.

    The owner passes on every change of the connection, the first included.
    """

    def __init__(self, session: Messenger, topic: str, sink: DirectSink) -> None:
        self._session = session
        self._topic = topic
        self._sink = sink
        self._is_connected = False
        self._has_come_back = asyncio.Event()
        """Set from when the connection is back until the topic is asked for."""

    async def subscribe(self) -> SubscribeFailed | None:
        """Subscribe once; return why that failed, or None if the topic is heard from now on."""
        try:
            await self._session.subscribe(self._topic, self._sink)
        except SubscribeFailed as failure:
            return failure
        return None

    def connection_changed(self, is_up: bool) -> None:
        """See `ConnectionSink`."""
        self._is_connected = is_up
        if is_up:
            self._has_come_back.set()

    async def keep(self, failure: SubscribeFailed | None, on_confirmed: Confirmed) -> None:
        """Ask for the topic whenever the connection is back, and after a failure again and again, until cancelled.

        `failure`: what `subscribe` has returned. `on_confirmed` is called each time that the broker confirms, unless
        the connection was lost meanwhile: then the broker is asked again when it is back.
        """
        while True:
            if failure is not None:
                await self._insist(failure)
                self._confirm(on_confirmed, had_failed=True)
            # No bound: the client reconnects for as long as it takes.
            await self._has_come_back.wait()
            # Cleared before the attempt: while that fails, the connection may come back once more.
            self._has_come_back.clear()
            failure = await self.subscribe()
            if failure is None:
                self._confirm(on_confirmed, had_failed=False)

    def _confirm(self, on_confirmed: Confirmed, *, had_failed: bool) -> None:
        if self._is_connected:
            on_confirmed(had_failed)

    async def _insist(self, failure: SubscribeFailed | None) -> None:
        """Try until the topic is heard; log each kind of failure once."""
        told: set[bool] = set()
        wait_s = SUBSCRIBE_AGAIN_S
        while failure is not None:
            if failure.permanent not in told:
                told.add(failure.permanent)
                if failure.permanent:
                    _log.error("control_topic_refused", topic=self._topic, reason=failure.reason)
                else:
                    _log.warning("control_topic_out_of_reach", topic=self._topic, reason=failure.reason)
            next_wait_s = min(2 * wait_s, SUBSCRIBE_AGAIN_AT_LAST_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._has_come_back.wait()
                    next_wait_s = SUBSCRIBE_AGAIN_S
            self._has_come_back.clear()
            failure, wait_s = await self.subscribe(), next_wait_s
        _log.info("control_topic_subscribed", topic=self._topic)
