"""What may live beside a member, on its session."""

from contextlib import AbstractAsyncContextManager
from typing import Protocol

from lbg_runtime.runtime.session import Session


class Companion(Protocol):
    """Called by the member, on its loop."""

    def attend(self, session: Session) -> AbstractAsyncContextManager[None]:
        """Be there from before the first flow is bound until after the last is gone; the session is open meanwhile."""
        ...

    async def until_ready(self) -> None:
        """Return when the member may take queues, or when it is to leave."""
        ...

    def leave(self) -> None:
        """The member is about to leave, and waits for nothing that has not begun. Idempotent."""
        ...
