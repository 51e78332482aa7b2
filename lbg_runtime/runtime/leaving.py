"""How a member leaves: in stages, each with its bound. Its supervisor has one `Leaving`.

`stop` gives the queues to other members, if there are any, and makes every flow drain, within the drain timeout. After
that, or when `stop_now` is called, handlers are cancelled and flows unbind. After another `TAIL_MS` nobody waits for
them any more, and what a handler still does ends with the process. A lifespan that is still beginning is cancelled by
`stop`, as nothing is bound yet; one that is ending, by `stop_now`.
"""

import asyncio
from collections.abc import Callable
from enum import Enum

import structlog

from lbg_runtime.model.ids import MemberId
from lbg_runtime.runtime.clock import now_ms
from lbg_runtime.runtime.control_plane import ControlPlane
from lbg_runtime.runtime.dispatch.dispatcher import Dispatcher
from lbg_runtime.runtime.dispatch.stages import stage_of
from lbg_runtime.runtime.flow.member_flows import MemberFlows
from lbg_runtime.runtime.shutdown import TAIL_MS, Interruption

_log = structlog.get_logger(__name__)

DRAIN_TOLD_MS = 2_000
"""After this long, a member that is leaving says what it still waits for."""


class _Stage(Enum):
    """How far a member has gone in leaving; only forward."""

    STAYING = "staying"
    DRAINING = "draining"
    CANCELLING = "cancelling"
    LEFT = "left"
    """Every flow has ended: there is nothing more to wait for but the lifespans."""


class Leaving:
    """One per life of a member; called by the supervisor, on the loop."""

    def __init__(
        self,
        member: MemberId,
        drain_timeout_ms: int,
        flows: MemberFlows,
        dispatcher: Dispatcher,
        control: ControlPlane | None,
    ) -> None:
        """`control` is None if members do not talk to each other, so that no queue can be given away."""
        self.beginning = Interruption()
        """The context in which lifespans begin."""
        self.end_of_lifespans = Interruption()
        """The context in which lifespans end."""
        self._member = member
        self._drain_timeout_ms = drain_timeout_ms
        self._flows = flows
        self._dispatcher = dispatcher
        self._control = control
        self._stage = _Stage.STAYING
        self._timers: list[asyncio.TimerHandle] = []

    @property
    def has_begun(self) -> bool:
        """Whether the member was asked to leave, or has left."""
        return self._stage is not _Stage.STAYING

    def stop(self) -> None:
        """See `Supervisor.stop`."""
        if self.has_begun:
            return
        self._stage = _Stage.DRAINING
        _log.info("drain_started", member=self._member)
        self.beginning.cut()
        self._call_later(DRAIN_TOLD_MS, self._tell_of_wait)
        self._call_later(self._drain_timeout_ms, self.stop_now)
        if self._control is None:
            self._flows.stop()
        else:
            # Half of the time is for giving queues away while they are still handled, half for draining the rest.
            self._call_later(self._drain_timeout_ms // 2, self._flows.stop)
            self._control.leave(self._flows.stop)

    def stop_now(self) -> None:
        """See `Supervisor.stop_now`."""
        self.stop()
        self.beginning.cut()
        self.end_of_lifespans.cut()
        self._flows.stop()
        if self._stage in (_Stage.CANCELLING, _Stage.LEFT):
            return
        self._stage = _Stage.CANCELLING
        running = self._dispatcher.running()
        waits_for = self._waits_for()
        if running or waits_for:
            _log.warning("handling_cut_short", member=self._member, running=len(running), **waits_for)
        self._dispatcher.cancel_everything()
        self._call_later(TAIL_MS, self._flows.have_left.set)

    def end(self) -> None:
        """Stop all timers: nothing is bound any more, for whatever reason, and only the lifespans have yet to end."""
        self._stage = _Stage.LEFT
        for timer in self._timers:
            timer.cancel()

    def _tell_of_wait(self) -> None:
        waits_for = self._waits_for()
        if waits_for and self._stage is _Stage.DRAINING:
            _log.info("drain_waits", member=self._member, **waits_for)

    def _waits_for(self) -> dict[str, object]:
        """The unanswered deliveries, as fields of a log line, with the key that most likely keeps the member from
        leaving; empty if there are none."""
        held = self._flows.unanswered
        if not held:
            return {}
        facts: dict[str, object] = {"unanswered": sum(held.values()), "queues": list(held)}
        sight = self._dispatcher.toughest()
        if sight is not None:
            facts |= {"key": sight.head.key, "attempts": sight.head.attempts, "stage": stage_of(sight).value}
            if sight.retry_at_ms is not None:
                facts["next_attempt_ms"] = max(0, sight.retry_at_ms - now_ms())
        return facts

    def _call_later(self, delay_ms: int, callback: Callable[[], None]) -> None:
        self._timers.append(asyncio.get_running_loop().call_later(delay_ms / 1_000, callback))
