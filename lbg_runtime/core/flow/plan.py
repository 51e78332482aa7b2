"""Decides for a flow machine, by the flow's place in the group, when it binds and gives way, and whether it steps
aside.

The flow machine reports what happens to its handles; the plan answers with times. It knows nothing about deliveries.
"""

from typing import assert_never

from lbg_runtime.core.chance import RandomSource
from lbg_runtime.core.flow.events import ReleaseCause
from lbg_runtime.core.flow.rebind import RebindSettings, bind_backoff_ms, hop_pause_ms, rebind_delay_ms, rebind_pause_ms
from lbg_runtime.core.roles import Place


class FlowPlan:
    """The schedule of one flow. Owned by one flow machine. Times are on the clock of `now_ms`.

    The first bind is immediate, whatever the rank: a member that has just started disturbs nobody's line.
    """

    def __init__(self, place: Place, settings: RebindSettings, random: RandomSource, now_ms: int) -> None:
        self.place = place
        self.bind_at_ms: int | None = now_ms if place.is_wanted else None
        """When to bind a flow without a handle; None if it is to stay unbound."""
        self.give_way_at_ms: int | None = None
        """When an active flow gives way; None if it need not."""
        self.is_leaving = False
        """Whether the member is stopping: never bind again."""
        self.failed_binds = 0
        """Failures in a row, including early deaths of handles."""
        self._settings = settings
        self._random = random
        self._not_before_ms = now_ms
        self._bound_at_ms = now_ms
        self._aside_until_ms: int | None = None

    @property
    def wants_handle(self) -> bool:
        """Whether the flow should be bound."""
        return self.place.is_wanted and not self.is_leaving

    # -- what the runtime wants

    def leave(self) -> None:
        """The member is stopping."""
        self.is_leaving = True
        self.bind_at_ms = None

    def reschedule_bind(self, now_ms: int) -> None:
        """The place of a flow without a handle has changed. A better one brings the bind forward, but cuts no backoff
        short; a worse one leaves the scheduled time."""
        if not self.wants_handle:
            self.bind_at_ms = None
            return
        due_ms = max(self._not_before_ms, now_ms + (self.place.rank or 0) * self._settings.rank_delay_ms)
        self.bind_at_ms = due_ms if self.bind_at_ms is None else min(self.bind_at_ms, due_ms)

    def reschedule_cycle(self, now_ms: int) -> None:
        """The place of an active flow has changed; a cycle that is already running keeps its scheduled end."""
        if self.give_way_at_ms is None or not self._gives_way:
            self.activate(now_ms)

    def step_aside(self, until_ms: int | None) -> None:
        """Let the next activity before this time pass, once; None cancels that."""
        self._aside_until_ms = until_ms

    # -- what happens to handles

    def finish_bind(self, now_ms: int) -> None:
        """The handle is bound."""
        self._bound_at_ms = now_ms

    def refuse_bind(self, now_ms: int, *, permanent: bool) -> None:
        """The bind failed; try again later, if the flow should be bound."""
        self.failed_binds += 1
        self._not_before_ms = now_ms + bind_backoff_ms(
            self._settings, self.failed_binds, self._random, permanent=permanent
        )
        self.bind_at_ms = self._not_before_ms if self.wants_handle else None

    def accept_activity(self, now_ms: int) -> bool:
        """Accept an activity that begins now, and return True; or step aside, and return False, which uses the request
        for that up."""
        if self._aside_until_ms is None or now_ms >= self._aside_until_ms:
            return True
        self._aside_until_ms = None
        return False

    def activate(self, now_ms: int) -> None:
        """The flow is active from now: its cycle starts with activity, since a standby has nothing to give."""
        self.give_way_at_ms = now_ms + rebind_delay_ms(self._settings, self._random) if self._gives_way else None

    def begin_unbind(self) -> None:
        """The handle served until its orderly end, so earlier failures no longer count."""
        self.failed_binds = 0

    def finish_unbind(self, cause: ReleaseCause, now_ms: int) -> None:
        """The handle is gone; bind again when the reason for its end allows."""
        self._not_before_ms = now_ms
        wait_ms = 0
        match cause:
            case ReleaseCause.REBIND:
                wait_ms = rebind_pause_ms(self._settings, self._random)
                self._not_before_ms += wait_ms
            case ReleaseCause.HOP:
                wait_ms = hop_pause_ms(self._settings, self._random)
                self._not_before_ms += wait_ms
            case ReleaseCause.HANDBACK:
                # The member that is to have the queue is already bound; the other standbys keep their places in line.
                wait_ms = max(self.place.rank or 0, 1) * self._settings.rank_delay_ms
            case ReleaseCause.UNWANTED:
                wait_ms = (self.place.rank or 0) * self._settings.rank_delay_ms
            case ReleaseCause.INACTIVE | ReleaseCause.DOWN | ReleaseCause.STOP:
                pass
            case _:
                assert_never(cause)
        self.bind_at_ms = now_ms + wait_ms if self.wants_handle else None

    def lose_handle(self, now_ms: int) -> None:
        """The handle died. An early death counts as one more failure; otherwise a flow that dies after each bind would
        be bound again and again without a pause."""
        if now_ms - self._bound_at_ms >= self._settings.bind_backoff_max_ms:
            self.failed_binds = 0
        self.refuse_bind(now_ms, permanent=False)

    # -- parts

    @property
    def _gives_way(self) -> bool:
        return self.place.gives_way and self.place.rank != 0
