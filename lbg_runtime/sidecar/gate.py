"""Where events wait while the application is away, and what the member is told about it."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog

from lbg_runtime.model.ids import Epoch, QueueName
from lbg_runtime.runtime.companion import Handle, KeptHandles
from lbg_runtime.runtime.runners.attempts import attempt_put_off
from lbg_runtime.runtime.runners.handling import GivenBack
from lbg_runtime.sidecar.event import Event

_log = structlog.get_logger(__name__)

GRACE_S = 1.0
"""How long events wait for an application that is away while their queue is given up: more than the time between two
probes."""

UNABLE_AFTER_S = 10.0
"""If the application is away for longer, other members get its queues; more than a restart commonly takes."""


class Gate:
    """Closed at first. Used on the member's loop.

    Events wait for as long as the application is away, as that is not their fault. If their flow handle is being given
    up, they wait `GRACE_S` and then go back; otherwise the queue would wait for them until its drain timeout. If their
    handle is lost, the runtime takes them back at once.
    """

    def __init__(
        self, on_able: Callable[[bool], None], on_open: Callable[[], None], *, others_take_queues: bool = True
    ) -> None:
        """`on_able`: see `Companion.attend`; it is not called, and nothing is logged about it, unless
        `others_take_queues`. `on_open` is called whenever the application is found to be there.
        """
        self._on_able = on_able
        self._others_take_queues = others_take_queues
        self._on_open = on_open
        self._is_open = False
        self.reason = "it has not been heard yet"
        """Why it is closed, or was closed last."""
        self._waiting: dict[asyncio.Future[None], Handle] = {}
        """Everything that waits for the application in one way or another, and may go back."""
        self._passing: set[asyncio.Future[None]] = set()
        """Whatever of that waits for the gate to open."""
        self._handles = KeptHandles()
        self._grace: asyncio.TimerHandle | None = None
        self._until_unable: asyncio.TimerHandle | None = None
        """Set when the gate is closed, and kept after the time is over."""
        self._is_able = True
        self._has_ended = False

    @property
    def is_open(self) -> bool:
        """Whether the application is there."""
        return self._is_open

    async def passed(self, event: Event) -> None:
        """Return when the gate is open; raises `GivenBack`."""
        while not self._is_open:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._passing.add(turn)
            try:
                with self.waiting(turn, event):
                    # No bound: that the application is away is not the message's fault.
                    await turn
            finally:
                self._passing.discard(turn)

    @contextmanager
    def waiting(self, turn: "asyncio.Future[None]", event: Event) -> Iterator[None]:
        """While the context lasts, the event waits for something that only a present application can bring; `turn` may
        fail with `GivenBack`."""
        self._waiting[turn] = (event.queue, event.epoch)
        self._look()
        try:
            with attempt_put_off():
                yield
        finally:
            del self._waiting[turn]

    def open(self) -> None:
        """Open the gate: the application is there. Idempotent."""
        self._is_open = True
        self._look()
        if self._until_unable is not None:
            self._until_unable.cancel()
            self._until_unable = None
        if not self._is_able:
            self._is_able = True
            _log.info("queues_wanted_again")
            self._on_able(True)
        for turn in self._passing:
            if not turn.done():
                turn.set_result(None)
        self._on_open()

    def close(self, reason: str) -> None:
        """Close the gate: the application is away, for this reason. Idempotent."""
        self._is_open = False
        self.reason = reason
        self._look()
        if self._until_unable is None and self._others_take_queues and not self._has_ended:
            self._until_unable = asyncio.get_running_loop().call_later(UNABLE_AFTER_S, self._become_unable)

    def flow_changed(self, queue: QueueName, epoch: Epoch, *, is_kept: bool) -> None:
        """See `Companion.flow_changed`."""
        self._handles.flow_changed(queue, epoch, is_kept=is_kept)
        self._look()

    def end(self) -> None:
        """Report nothing more, even if the application goes only now: the member has left."""
        self._has_ended = True
        for timer in (self._grace, self._until_unable):
            if timer is not None:
                timer.cancel()

    def _look(self) -> None:
        """Start or stop the grace timer: it runs while an event of a handle that is given up or gone waits here."""
        is_closed = not self._is_open and not self._has_ended
        is_needed = is_closed and any(self._handles.is_given_up(handle) for handle in self._waiting.values())
        if is_needed and self._grace is None:
            self._grace = asyncio.get_running_loop().call_later(GRACE_S, self._give_back)
        elif not is_needed and self._grace is not None:
            self._grace.cancel()
            self._grace = None

    def _give_back(self) -> None:
        self._grace = None
        given = [
            turn for turn, handle in self._waiting.items() if self._handles.is_given_up(handle) and not turn.done()
        ]
        if given:
            queues = sorted({self._waiting[turn][0] for turn in given})
            _log.warning("events_given_back", queues=queues, events=len(given))
        for turn in given:
            turn.set_exception(GivenBack())

    def _become_unable(self) -> None:
        self._is_able = False
        _log.warning("queues_left_to_others", reason=f"the application has been away for {UNABLE_AFTER_S:g} s")
        self._on_able(False)
