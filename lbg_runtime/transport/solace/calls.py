"""The calls of one session that are in the client's library, under which the session must not be freed."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager

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
