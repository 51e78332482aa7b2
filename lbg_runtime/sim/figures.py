"""What a run shows about speed: pauses, owner changes, hops and duplicates, computed from its history alone."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from lbg_runtime.core.flow.events import ReleaseCause
from lbg_runtime.model.ids import QueueName
from lbg_runtime.sim.facts import Facts
from lbg_runtime.sim.history import (
    FlowClosed,
    FlowFed,
    Handle,
    Happening,
    IntakeStarted,
    IntakeStopped,
    Life,
    Result,
    member_of,
)


@dataclass(frozen=True, slots=True)
class Serving:
    """The moment from which a queue was fed to a member that asked for messages."""

    at_ms: int
    queue: QueueName
    life: Life
    pause_ms: int | None
    """How long nobody was fed before that; None for the first time, and if the previous flow goes on."""
    after_loss: bool
    """Whether the previous flow had been lost rather than given up."""


@dataclass(slots=True)
class _Queue:
    fed: Handle | None = None
    open_handles: set[Handle] = field(default_factory=set)
    unserved_since_ms: int | None = None
    has_ended: bool = False
    was_lost: bool = False


def servings(history: Sequence[Happening]) -> list[Serving]:
    """Every start of a member being fed, in order."""
    found: list[Serving] = []
    queues: defaultdict[QueueName, _Queue] = defaultdict(_Queue)
    handles: dict[object, Handle] = {}
    for happening in history:
        if not isinstance(happening, FlowFed | FlowClosed | IntakeStarted | IntakeStopped):
            continue
        now_ms = happening.at_ms
        queue_name = happening.queue if isinstance(happening, FlowFed | FlowClosed) else happening.handle.queue
        queue = queues[queue_name]
        was_served = queue.fed in queue.open_handles
        match happening:
            case FlowFed():
                handles[happening.flow] = queue.fed = happening.handle
            case IntakeStarted():
                queue.open_handles.add(happening.handle)
            case IntakeStopped():
                queue.open_handles.discard(happening.handle)
            case FlowClosed() if handles.get(happening.flow) == queue.fed and queue.fed is not None:
                queue.fed = None
                queue.has_ended = True
                if happening.cut_ms is not None:
                    queue.was_lost = True
                    now_ms = happening.cut_ms
            case FlowClosed():
                pass
        is_served = queue.fed in queue.open_handles
        if was_served and not is_served:
            queue.unserved_since_ms = now_ms
        elif is_served and not was_served and queue.fed is not None:
            since_ms = queue.unserved_since_ms
            if since_ms is None or queue.has_ended:
                pause_ms = None if since_ms is None else now_ms - since_ms
                found.append(Serving(now_ms, queue_name, queue.fed.life, pause_ms, queue.was_lost))
            queue.unserved_since_ms, queue.has_ended, queue.was_lost = None, False, False
    return found


def owner_changes(found: Sequence[Serving], from_ms: int, until_ms: int) -> int:
    """How often a queue passed from one life to another in a period."""
    changes = 0
    owner: dict[QueueName, Life] = {}
    for serving in found:
        before = owner.get(serving.queue)
        if before is not None and before != serving.life and from_ms <= serving.at_ms < until_ms:
            changes += 1
        owner[serving.queue] = serving.life
    return changes


def time_to_own_ms(found: Sequence[Serving], member: str, from_ms: int, until_ms: int) -> int | None:
    """How long a member that starts at `from_ms` takes to own all that it owns at `until_ms`; None if that is nothing.

    Queues that it hands on do not count, and those that it loses and takes again count from the last time.
    """
    newest: dict[QueueName, Serving] = {}
    for serving in found:
        if serving.at_ms < until_ms and (serving.queue not in newest or newest[serving.queue].life != serving.life):
            newest[serving.queue] = serving
    taken = [serving.at_ms - from_ms for serving in newest.values() if member_of(serving.life) == member]
    return max(taken, default=None)


def hops(facts: Facts) -> int:
    """How often a standby let a queue pass on its way to another member, without touching a message."""
    return sum(1 for _, unbind in facts.unbinds if unbind.cause is ReleaseCause.HOP)


@dataclass(frozen=True, slots=True)
class Duplicates:
    """Handlings of a message that had been handled before, by how the message had come back to the queue."""

    after_loss: int = 0
    """The earlier flow was lost: a crash, an outage, or the broker ended it."""
    unfinished: int = 0
    """The earlier flow was given up with the handling cancelled or failed, as happens in a stop whose time is over."""
    after_hand_over: int = 0
    """The earlier handling had succeeded and its flow was given up in good order. The laws forbid this."""

    def __add__(self, other: "Duplicates") -> "Duplicates":
        return Duplicates(
            self.after_loss + other.after_loss,
            self.unfinished + other.unfinished,
            self.after_hand_over + other.after_hand_over,
        )


def count_duplicates(facts: Facts) -> Duplicates:
    after_loss = unfinished = after_hand_over = 0
    for before in (each for deliveries in facts.handled().values() for each in deliveries[:-1]):
        closed = facts.closed.get(before.record.flow)
        if closed is None or closed[1].cut_ms is not None:
            after_loss += 1
        elif before.handlings[-1].result is not Result.DONE:
            unfinished += 1
        else:
            after_hand_over += 1
    return Duplicates(after_loss, unfinished, after_hand_over)
