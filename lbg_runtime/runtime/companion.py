"""The protocol of what may live alongside a member, on its session; the sidecar implements it."""

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from lbg_runtime.admin.stored import Difference
from lbg_runtime.metrics.reading import SidecarReading
from lbg_runtime.model.ids import Epoch, QueueName
from lbg_runtime.runtime.session import Session

Handle = tuple[QueueName, Epoch]
"""Names a flow handle of the member."""


class Companion(Protocol):
    """Called by the member, on its loop."""

    @property
    def shared(self) -> Mapping[str, str]:
        """What must be alike on all members of the group, besides the settings; by name. Never changes."""
        ...

    def attend(
        self, session: Session, on_able: Callable[[bool], None], changed: Callable[[], tuple[Difference, ...]]
    ) -> AbstractAsyncContextManager[None]:
        """Live from before the first flow is bound until after the last is gone; the session is open meanwhile.

        Calls `on_able` with False when messages could not be handled here for so long that other members should have
        the queues, and with True when they can be handled again. `changed` returns which of the group's settings differ
        on the broker by now; a companion that publishes must not go on with the old ones.
        """
        ...

    def reading(self) -> SidecarReading | None:
        """Its figures, if there are any. Called on the member's loop."""
        ...

    async def until_ready(self) -> None:
        """Return when the member may take queues; cancelled if it is to leave before."""
        ...

    def waits_for(self) -> str:
        """What `until_ready` waits for, in a few words; empty if it waits for nothing, or that is not known. Called on
        the member's loop."""
        ...

    def flow_changed(self, queue: QueueName, epoch: Epoch, *, is_kept: bool) -> None:
        """Called when a flow of the member changes state. `is_kept` is False if the handle drains or is gone: messages
        of it, and of earlier epochs, that still wait may then end with `GivenBack`. Must not raise or block.
        """
        ...


class KeptHandles:
    """Which flow handles of the member are given up: for a companion in which messages wait."""

    def __init__(self) -> None:
        self._newest: dict[QueueName, tuple[Epoch, bool]] = {}
        """Epoch of the newest handle, and whether that handle is kept."""

    def flow_changed(self, queue: QueueName, epoch: Epoch, *, is_kept: bool) -> None:
        """See `Companion.flow_changed`."""
        self._newest[queue] = epoch, is_kept

    def is_given_up(self, handle: Handle) -> bool:
        """Whether the handle is being given up, or is gone. A handle of which nothing was heard counts as kept."""
        queue, epoch = handle
        newest, is_kept = self._newest.get(queue, (epoch, True))
        return newest > epoch or (newest == epoch and not is_kept)
