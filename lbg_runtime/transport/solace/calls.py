"""The calls of one session that are in the client's library, under which the session must not be freed.

Some of them would last too long, and can be broken off.
"""

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any

from lbg_runtime.transport.solace import native
from lbg_runtime.transport.solace.library import PubSubPlusClientError


class Calls:
    """Counts what the control threads ask of the library; every thread may use it.

    What the loop's thread asks is not counted: it settles, and opens and closes windows, only of a flow that is bound
    and only of the transport's session, and both end there before anybody begins to free the session.
    """

    def __init__(self) -> None:
        self.over: Future[None] = Future()
        """Done when no more calls are let in."""
        self._left = threading.Condition()
        self._count = 0

    @contextmanager
    def one(self) -> Iterator[None]:
        """This context is one call, bounded by the client's timeouts; raises an error of its if the session is over."""
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
        """Let no more in. Idempotent; does not wait."""
        with self._left:
            if not self.over.done():
                self.over.set_result(None)

    def are_under_way(self) -> bool:
        """Whether any has not returned."""
        with self._left:
            return self._count > 0

    def wait(self) -> None:
        """Return when all have returned; none comes after `end`.

        Without a bound, because each of them has one; what was seen to have none, a subscription in an outage, is not
        asked for.
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
        """The service is connected in this context, and may be freed after it."""
        with self._lock:
            self._service = service
        try:
            yield
        finally:
            # Waits for `break_off`, which must not meet a session that is being freed.
            with self._lock:
                self._service = None

    def break_off(self) -> None:
        """Make it fail now; does nothing before it has begun and after it has ended. Blocks for a moment."""
        with self._lock:
            if self._service is not None:
                native.break_off(self._service)


@contextmanager
def broken_off_after(patience_s: float, service: Any) -> Iterator[None]:
    """Disconnect the service if the context lasts longer than that; it may be freed after the context. Blocks."""
    breaking = threading.Timer(patience_s, native.break_off, (service,))
    # Not one that a process which has to leave would name as a handler's.
    breaking.daemon = True
    with suppress(RuntimeError):
        # Without a thread to spare it lasts as long as it does.
        breaking.start()
    try:
        yield
    finally:
        breaking.cancel()
        if breaking.ident is not None:
            breaking.join()
