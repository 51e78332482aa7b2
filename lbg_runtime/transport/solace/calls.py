"""Keeps track of a session's calls that are in the client's library: while there are any, the session must not be
freed.

Calls that would last too long can be broken off.
"""

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any

from lbg_runtime.transport.solace import native
from lbg_runtime.transport.solace.library import PubSubPlusClientError


class Calls:
    """Counts the calls that control threads make into the library; any thread may use it.

    Calls of the loop's thread are not counted. That thread settles, and opens and closes windows, only for a flow that
    is bound, and only in the transport's present session; and there, both have ended before anybody begins to free the
    session.
    """

    def __init__(self) -> None:
        self.over: Future[None] = Future()
        """Done when no more calls are let in."""
        self._left = threading.Condition()
        self._count = 0

    @contextmanager
    def one(self) -> Iterator[None]:
        """The context of one call, which is bounded by the client's timeouts; raises an error of the client's if the
        session is over."""
        with self._left:
            if self.over.done():
                raise PubSubPlusClientError("the session ended")
            self._count += 1
        try:
            yield
        finally:
            with self._left:
                self._count -= 1
                self._left.notify_all()

    def end(self) -> None:
        """Let no more calls in. Idempotent; does not wait."""
        with self._left:
            if not self.over.done():
                self.over.set_result(None)

    def are_under_way(self) -> bool:
        """Whether any call has not returned."""
        with self._left:
            return self._count > 0

    def wait(self) -> None:
        """Return when all calls have returned; after `end`, none is added.

        Without a bound, because each call has one. The only call that was seen to have none, a subscription during an
        outage, is never made.
        """
        with self._left:
            self._left.wait_for(lambda: self._count == 0)


class Connecting:
    """The part of `SolaceSession.connect` that waits for the broker, which another thread can break off."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._service: Any = None

    @contextmanager
    def by(self, service: Any) -> Iterator[None]:
        """The context in which the service is being connected; it may be freed after it."""
        with self._lock:
            self._service = service
        try:
            yield
        finally:
            # This waits for `break_off`, which must not act on a session that is being freed.
            with self._lock:
                self._service = None

    def break_off(self) -> None:
        """Make the connecting fail now; does nothing before it has begun and after it has ended. Blocks for a
        moment."""
        with self._lock:
            if self._service is not None:
                native.break_off(self._service)


@contextmanager
def broken_off_after(patience_s: float, service: Any) -> Iterator[None]:
    """Disconnect the service if the context lasts longer than `patience_s`; the service may be freed after the context.
    Blocks."""
    breaking = threading.Timer(patience_s, native.break_off, (service,))
    # A daemon, so that a process which has to leave does not count it among the threads of handlers.
    breaking.daemon = True
    with suppress(RuntimeError):
        # If the system refuses a thread, the context has no bound.
        breaking.start()
    try:
        yield
    finally:
        breaking.cancel()
        if breaking.ident is not None:
            breaking.join()
