"""Keys and handlers that hold others up: one log line when that begins, and one when it is over."""

import asyncio
from collections.abc import Callable, Hashable

import structlog

from lbg_runtime.config.settings import DispatchSettings
from lbg_runtime.core.lanes import KeyLanes, Lane, LaneStage
from lbg_runtime.core.standstill import StandingAt, StandstillWatch
from lbg_runtime.model.ids import DeliveryId
from lbg_runtime.runtime.clock import now_ms
from lbg_runtime.runtime.dispatch.stages import stage_of
from lbg_runtime.runtime.runners.attempts import Attempt, AttemptWatches
from lbg_runtime.runtime.runners.handling import Handling, facts_of

_log = structlog.get_logger(__name__)

MAX_LINES = 10
"""The most lines of one kind between two looks; one more line says how many others there were."""

LOOKS = 4
"""How many looks there are within the shortest time limit: a line is late by at most that fraction of the limit."""

_MIN_LOOK_MS = 50
_MAX_LOOK_MS = 5_000

_Facts = dict[str, str | int | None]


class KeyReports:
    """One per dispatcher, on its loop. Counts what it reports; gauges are as of the last look.

    A key becomes hot with the message that waits behind `max_waiting_per_key` others, and stays so until a look finds
    no more than half as many. A message costs nothing unless its lane is that long.

    When the flow handle of a hot or stuck key ends, the key is neither any more on this member, but nothing has become
    better: its messages go back unhandled. So that has a log line of its own.
    """

    def __init__(
        self,
        settings: DispatchSettings,
        lanes: KeyLanes[Handling],
        attempts: AttemptWatches,
        hold_up: Callable[[Lane[Handling]], None],
    ) -> None:
        """`hold_up` is called with a lane whose head has run for so long that its key is stuck."""
        self.hot_total = 0
        """How often a key became hot."""
        self.stuck_total = 0
        """How often the next message of a key became overdue."""
        self.slow_total = 0
        """Attempts that took too long."""
        self._lanes = lanes
        self._attempts = attempts
        self._hold_up = hold_up
        self._most_waiting = settings.waiting_limit
        slow_ms, stuck_ms = settings.slow_handler_ms, settings.stuck_key_ms
        self._slow = None if slow_ms is None else StandstillWatch[Attempt](slow_ms)
        self._stuck = None if stuck_ms is None else StandstillWatch[Lane[Handling]](stuck_ms)
        self._hot: dict[Lane[Handling], int] = {}
        """The hot lanes, with the time since when each is."""
        self._stuck_lanes: dict[Lane[Handling], Handling] = {}
        """The stuck lanes, with the message at which each is stuck."""
        self._hot_lines = _Lines("key_hot", "key_cooled", "keys_hot")
        self._stuck_lines = _Lines("key_stuck", "key_moves_again", "keys_stuck")
        self._slow_lines = _Lines("handler_slow", "handler_slow_ended", "handlers_slow")
        self._heads: dict[Lane[Handling], DeliveryId] = {}
        """The heads of all lanes as of the last look: their ids only, as messages may be large."""
        self._looked_ms = 0
        shortest_ms = min((each for each in (slow_ms, stuck_ms) if each is not None), default=_MAX_LOOK_MS)
        self._interval_s = min(_MAX_LOOK_MS, max(_MIN_LOOK_MS, shortest_ms // LOOKS)) / 1_000

    @property
    def hot(self) -> int:
        return len(self._hot)

    @property
    def stuck(self) -> int:
        """Keys whose next message has been the same for too long."""
        return 0 if self._stuck is None else self._stuck.count

    @property
    def slow(self) -> int:
        """Attempts that take too long."""
        return 0 if self._slow is None else self._slow.count

    def key_may_be_hot(self, handling: Handling) -> None:
        """Note that a delivery waits behind too many of its key. Constant time."""
        lane = self._lanes.find(handling.lane)
        if lane is None or lane.waiting <= self._most_waiting or lane in self._hot:
            return
        self._hot[lane] = now_ms()
        self.hot_total += 1
        self._hot_lines.begin(lane, {**facts_of(lane.head), "waiting": lane.waiting}, _brief(lane.head))

    async def run(self) -> None:
        """Look at intervals, until cancelled."""
        self._looked_ms = now_ms()
        while True:
            await asyncio.sleep(self._interval_s)
            self.look()

    def look(self) -> None:
        """Report what is new since the last look. Linear in the number of lanes."""
        now = now_ms()
        self._look_for_cooled(now)
        if self._slow is not None:
            self._look_for_slow(self._slow, now)
        if self._stuck is not None:
            self._look_for_stuck(self._stuck, now)
        self._looked_ms = now

    def _look_for_cooled(self, now: int) -> None:
        self._hot_lines.tell_of_others()
        for lane, since_ms in list(self._hot.items()):
            # A lane that was emptied is gone, and the key may have a new one.
            if lane.waiting <= self._most_waiting // 2:
                del self._hot[lane]
                facts: _Facts = {"lasted_ms": now - since_ms}
                if lane.is_recalled or _was_given_back(lane.head):
                    self._hot_lines.give_back(lane, {"was": "hot", **facts})
                else:
                    self._hot_lines.end(lane, facts)

    def _look_for_slow(self, watch: StandstillWatch[Attempt], now: int) -> None:
        started = [StandingAt(each, None, int(since_s * 1_000)) for each, since_s in self._attempts.started()]
        if not started and not watch.count:
            return
        found = watch.look(started, now)
        self.slow_total += len(found.began)
        for attempt, took_ms in found.ended:
            self._slow_lines.end(attempt, {"took_ms": took_ms})
        for attempt, running_ms in found.began:
            facts = facts_of(attempt.handling)
            self._slow_lines.begin(attempt, {**facts, "running_ms": running_ms}, facts)
        self._slow_lines.tell_of_others()

    def _look_for_stuck(self, watch: StandstillWatch[Lane[Handling]], now: int) -> None:
        before = self._heads
        self._heads = {lane: lane.head.delivery.delivery_id for lane in self._lanes.lanes()}
        # What is new since the last look has not stood for any time: in a healthy member, nearly everything.
        same = [(lane, head) for lane, head in self._heads.items() if before.get(lane) == head]
        if not same and not watch.count:
            return
        found = watch.look((StandingAt(lane, head, self._looked_ms) for lane, head in same), now)
        self.stuck_total += len(found.began)
        for lane, stood_ms in found.ended:
            if _was_given_back(self._stuck_lanes.pop(lane)):
                self._stuck_lines.give_back(lane, {"was": "stuck", "stood_ms": stood_ms})
            else:
                self._stuck_lines.end(lane, {"stood_ms": stood_ms})
        for lane, stands_ms in found.began:
            self._stuck_lanes[lane] = lane.head
            how = {"stage": stage_of(lane).value, "waiting": lane.waiting, "stands_ms": stands_ms}
            self._stuck_lines.begin(lane, {**facts_of(lane.head), **how}, _brief(lane.head))
        self._stuck_lines.tell_of_others()
        for lane in self._stuck_lanes:
            # A lane that waits for a runner will get one. Too much work holds it up, and to let in more messages would
            # not help. If its handler then hangs, a later look shows it.
            if lane.stage is LaneStage.RUNNING:
                self._hold_up(lane)


class _Lines:
    """Log lines of one kind: between two looks at most `MAX_LINES` beginnings, the number of the others, and the end of
    each beginning that was logged."""

    def __init__(self, began: str, ended: str, others: str) -> None:
        self._began = began
        self._ended = ended
        self._others = others
        self._told: dict[Hashable, _Facts] = {}
        self._count = 0
        """Beginnings since the last look."""

    def begin(self, name: Hashable, facts: _Facts, kept: _Facts) -> None:
        """`kept`: the facts that are repeated in the line of its end."""
        self._count += 1
        if self._count <= MAX_LINES:
            self._told[name] = kept
            _log.warning(self._began, **facts)

    def end(self, name: Hashable, facts: _Facts) -> None:
        """Log the end of one, if its beginning was logged."""
        kept = self._told.pop(name, None)
        if kept is not None:
            _log.info(self._ended, **kept, **facts)

    def give_back(self, name: Hashable, facts: _Facts) -> None:
        """Like `end`, if the key's messages went back unhandled: nothing has become better."""
        kept = self._told.pop(name, None)
        if kept is not None:
            _log.info("key_given_back", **kept, **facts)

    def tell_of_others(self) -> None:
        """Log how many beginnings since the last call got no line; called at each look."""
        if self._count > MAX_LINES:
            _log.warning(self._others, untold=self._count - MAX_LINES)
        self._count = 0


def _was_given_back(handling: Handling) -> bool:
    return handling.done_mono_ns > 0 and handling.outcome is None


def _brief(handling: Handling) -> _Facts:
    """The facts for the end of a hot or stuck key: by then another message, with other numbers, is the head."""
    return {"queue": handling.queue, "topic": handling.topic, "key": handling.key}
