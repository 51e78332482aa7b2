"""How long a queue keeps trying: times to live, redeliveries that are counted or delayed, and dead messages."""

from collections.abc import Callable
from heapq import heapify, heappop, heappush

from lbg_runtime.broker.engine.answers import Death, DeathCounts
from lbg_runtime.broker.engine.claims import Claims
from lbg_runtime.broker.engine.effects import Effect, Published
from lbg_runtime.broker.engine.settings import QueueSettings
from lbg_runtime.broker.engine.spool import Spool
from lbg_runtime.broker.engine.surroundings import Surroundings
from lbg_runtime.broker.engine.waiting import SpooledMessage

Bury = Callable[[QueueSettings, Published], list[Effect] | None]
"""Puts a message that left a queue with these settings into its dead message queue; None if it is discarded."""

Feed = Callable[[], list[Effect]]


class Retention:
    """Part of one queue, called by it and by the timetable.

    A message that expires while a consumer holds it dies as soon as it waits again; the consumer may still settle it.
    """

    def __init__(
        self,
        settings: QueueSettings,
        spool: Spool,
        claims: Claims,
        surroundings: Surroundings,
        bury: Bury,
        feed: Feed,
    ) -> None:
        self.deaths = DeathCounts()
        self._spool = spool
        self._claims = claims
        self._surroundings = surroundings
        self._bury = bury
        self._feed = feed
        self._ends: list[tuple[int, int]] = []
        """Expiry times, each with the place of its message, which may be gone."""
        self._delayed: list[tuple[int, int]] = []
        """Times at which messages waiting for redelivery come back. The spool counts them as handed out until then."""
        self.change(settings)

    def change(self, settings: QueueSettings) -> None:
        """The queue has these settings now; they apply to messages that it already holds too."""
        self._settings = settings
        self._most_attempts = 0
        if not settings.redelivery_enabled:
            self._most_attempts = 1
        elif settings.max_redelivery_count:
            self._most_attempts = settings.max_redelivery_count + 1
        self.is_watching = bool(settings.respect_time_to_live or self._most_attempts)
        """Whether messages can die here for another reason than a rejection."""
        self._ends.clear()
        for message in self._spool.messages():
            message.is_overdue = False
            self.came(message, self._surroundings.age_ms(message.message))

    def came(self, message: SpooledMessage, age_ms: int = 0) -> None:
        """A message came to the queue, `age_ms` ago: start its time to live, if it has one."""
        if not self._settings.respect_time_to_live:
            return
        lives_ms = [self._surroundings.traits_of(message.message).time_to_live_ms, self._settings.max_ttl_s * 1_000]
        life_ms = min((each for each in lives_ms if each), default=0)
        if not life_ms:
            return
        now_ms = self._surroundings.timetable.now()
        heappush(self._ends, (now_ms + life_ms - age_ms, message.sequence))
        if len(self._ends) > 2 * self._spool.depth + 64:
            self._ends = [each for each in self._ends if self._spool.at(each[1]) is not None]
            heapify(self._ends)
        self._arm()

    def is_dead(self, message: SpooledMessage) -> bool:
        """Whether a message may no longer be delivered."""
        return message.is_overdue or self._is_worn_out(message)

    def end_dead(self, message: SpooledMessage) -> list[Effect]:
        return self._end(message, Death.EXPIRED if message.is_overdue else Death.WORN_OUT)

    def put_back(self, message: SpooledMessage) -> None:
        """A message that nobody holds any more waits again; no effect if it is gone or waits already.

        If it is overdue, it dies at the next deadline, which is now: whoever calls this may be in the middle of a
        change that burying it would disturb.
        """
        self._spool.put_back(message)
        if message.is_overdue and message.is_waiting:
            heappush(self._ends, (self._surroundings.timetable.now(), message.sequence))
            self._arm()

    def fail(self, message: SpooledMessage) -> list[Effect]:
        """A consumer gave a message back: it waits again, at once or after the redelivery delay, or dies."""
        settings = self._settings
        if self._is_worn_out(message) and not message.is_gone:
            return self._end(message, Death.WORN_OUT)
        self._spool.give_back(message)
        if not settings.redelivery_delay_enabled or message.is_waiting:
            self.put_back(message)
            return []
        factor = (settings.redelivery_delay_multiplier_percent / 100) ** min(message.delivery_count - 1, 64)
        delay_ms = min(int(settings.redelivery_delay_initial_ms * factor), settings.redelivery_delay_max_ms)
        heappush(self._delayed, (self._surroundings.timetable.now() + delay_ms, message.sequence))
        self._arm()
        return []

    def reject(self, message: SpooledMessage) -> list[Effect]:
        """End a message that its consumer rejected; no effect if it is gone."""
        return [] if message.is_gone else self._end(message, Death.REJECTED)

    def on_deadline(self) -> list[Effect]:
        """End expired messages, and let delayed ones wait again."""
        now_ms = self._surroundings.timetable.now()
        effects: list[Effect] = []
        while self._delayed and self._delayed[0][0] <= now_ms:
            message = self._spool.at(heappop(self._delayed)[1])
            if message is not None:
                self.put_back(message)
        while self._ends and self._ends[0][0] <= now_ms:
            message = self._spool.at(heappop(self._ends)[1])
            if message is None:
                continue
            if message.is_waiting:
                effects += self._end(message, Death.EXPIRED)
            else:
                message.is_overdue = True
        self._arm()
        return effects + self._feed()

    def retire(self) -> None:
        """The queue is gone: its messages no longer die or come back."""
        self._ends.clear()
        self._delayed.clear()
        self._surroundings.timetable.set(self, None)

    def _is_worn_out(self, message: SpooledMessage) -> bool:
        return 0 < self._most_attempts <= message.delivery_count

    def _end(self, message: SpooledMessage, death: Death) -> list[Effect]:
        self._claims.end_on((message,))
        self._spool.remove((message,))
        effects = self._bury(self._settings, message.message)
        (self.deaths.discarded if effects is None else self.deaths.buried)[death] += 1
        return effects or []

    def _arm(self) -> None:
        times = [each[0][0] for each in (self._ends, self._delayed) if each]
        self._surroundings.timetable.set(self, min(times, default=None))
