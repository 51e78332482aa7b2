"""What this member knows about a key, to answer questions: where it belongs, what waits, what was handled last."""

from time import monotonic_ns

from lbg_runtime.core.group.control_messages import (
    MAX_TEXT_LENGTH,
    KeySight,
    LaneHead,
    LastHandled,
    LastOutcome,
)
from lbg_runtime.core.lanes import LaneSight, LaneStage
from lbg_runtime.core.restripe.striping import StripingBook
from lbg_runtime.model.failure import Then
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.hashing import HashFunction, shard_of
from lbg_runtime.model.ids import QueueName
from lbg_runtime.model.printable import printable
from lbg_runtime.runtime.clock import now_ms
from lbg_runtime.runtime.dispatch.dispatcher import Dispatcher
from lbg_runtime.runtime.dispatch.seen_keys import LONGEST_REMEMBERED, remembered
from lbg_runtime.runtime.dispatch.stages import stage_of
from lbg_runtime.runtime.runners.handling import Handling

MAX_KEYS_REMEMBERED = 5_000
"""How many keys' last messages are remembered at most, in less than 2 MB; those of the newest half are always."""

_Last = tuple[int | None, int, int, Then | None]
"""Of a key's last message: number, attempts, end (ns), and where it went if it was not handled. Not the message itself,
which may be large."""

_OUTCOMES = {
    None: LastOutcome.HANDLED,
    Then.ERROR_QUEUE: LastOutcome.ERROR_QUEUE,
    Then.DMQ: LastOutcome.DMQ,
}


class KeyBook:
    """One per member, on its loop."""

    def __init__(
        self, dispatcher: Dispatcher, shape: GroupShape, hash_function: HashFunction, striping: StripingBook
    ) -> None:
        self._dispatcher = dispatcher
        self._shape = shape
        self._striping = striping
        self._hash_function = hash_function
        # Two generations, as in `SeenKeys`, and for the same reason.
        self._young: dict[str | bytes, _Last] = {}
        self._old: dict[str | bytes, _Last] = {}

    def settled(self, handling: Handling) -> None:
        """Remember a settled message as the last of its key. Constant time."""
        key = handling.key
        if key is None:
            return
        # Most keys are short, and are not worth a call.
        name = key if len(key) <= LONGEST_REMEMBERED else remembered(key)
        if len(self._young) >= MAX_KEYS_REMEMBERED // 2 and name not in self._young:
            self._old, self._young = self._young, {}
        report = handling.end_report
        then = None if report is None else report.then
        self._young[name] = (handling.delivery.message.key_sequence, handling.attempts, handling.done_mono_ns, then)

    def place(self, key: str) -> tuple[int, QueueName]:
        """Shard and queue of a key, as far as this member knows; raises `UserError` if the key cannot be hashed."""
        shard = shard_of(self._hash_function, key, self._shape.hash_count)
        return shard, self._shape.queue_name(self._striping.now.index_of(shard))

    def sight(self, key: str) -> KeySight:
        """What is known of the key now."""
        now_ns = monotonic_ns()
        looked = self._dispatcher.look(key)
        name = remembered(key)
        last = self._young.get(name) or self._old.get(name)
        return KeySight(
            waiting=0 if looked is None else looked.waiting,
            parked=self._dispatcher.parked_of(key),
            head=None if looked is None else _head(looked, now_ns),
            last=None if last is None else _last(last, now_ns),
        )


def _head(lane: LaneSight[Handling], now_ns: int) -> LaneHead:
    handling, delivery = lane.head, lane.head.delivery
    stage, attempts = stage_of(lane), handling.attempts
    if stage is LaneStage.READY and lane.stage is LaneStage.RUNNING:
        # The attempt has yet to begin.
        attempts -= 1
    retry_in_ms = None if lane.retry_at_ms is None else max(0, lane.retry_at_ms - now_ms())
    return LaneHead(
        stage=stage,
        attempts=attempts,
        redelivered=delivery.redelivered,
        number=delivery.message.key_sequence,
        received_ms=_since_ms(delivery.received_at_ns, now_ns),
        started_ms=_since_ms(handling.start_mono_ns, now_ns) if attempts else None,
        retry_in_ms=retry_in_ms,
        topic=_told(handling.topic),
        error=_told(getattr(handling, "last_error", None)),
    )


def _last(known: _Last, now_ns: int) -> LastHandled:
    number, attempts, done_ns, then = known
    return LastHandled(number, attempts, _since_ms(done_ns, now_ns), _OUTCOMES.get(then))


def _told(text: str | None) -> str | None:
    """The text as a control message can carry it: anyone may publish on any topic, and raise any error."""
    return printable(text)[:MAX_TEXT_LENGTH] if text else None


def _since_ms(moment_ns: int, now_ns: int) -> int:
    return max(0, (now_ns - moment_ns) // 1_000_000)
