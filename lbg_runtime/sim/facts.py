"""A run's history, indexed for the laws: what happened to each delivery, handle and key, and when.

Times within a run are positions in its history, because many things happen in one millisecond.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import assert_never

from lbg_runtime.broker.engine.effects import FlowId
from lbg_runtime.model.ids import DeliveryId
from lbg_runtime.sim.history import (
    ActivityLost,
    Answered,
    CalmBegan,
    CalmEnded,
    Confirmed,
    CopySettled,
    Delivered,
    Dispatched,
    FlowClosed,
    FlowFed,
    HandBackAsked,
    Handle,
    HandleBound,
    HandleLost,
    HandlingEnded,
    HandlingStarted,
    Happening,
    IntakeStarted,
    IntakeStopped,
    LeaveBegan,
    Life,
    LifeEnded,
    LifePaused,
    LifeStarted,
    LoopHung,
    MessageDropped,
    Result,
    Said,
    SettleOrdered,
    SpoolSeen,
    Stalled,
    Stamp,
    StoodAside,
    TwinStarted,
    UnbindOrdered,
)


@dataclass(slots=True)
class Handling:
    """One attempt of a handler."""

    start: int
    handle: Handle
    delivery_id: DeliveryId
    stamp: Stamp
    end: int | None = None
    """None if it had not ended when the run did."""
    result: Result | None = None
    """None if its process was killed."""


@dataclass(slots=True)
class DeliveryFacts:
    """What happened to one delivery in the member that got it."""

    delivered: int
    record: Delivered
    dispatched: list[int] = field(default_factory=list)
    handlings: list[Handling] = field(default_factory=list)
    answers: list[tuple[int, Answered]] = field(default_factory=list)
    settles: list[tuple[int, SettleOrdered]] = field(default_factory=list)


@dataclass(slots=True)
class Facts:
    """Indexes everything in one pass."""

    history: Sequence[Happening]
    deliveries: dict[DeliveryId, DeliveryFacts] = field(default_factory=dict)
    """In the order in which they were sent."""
    confirmed: list[Stamp] = field(default_factory=list)
    closed: dict[FlowId, tuple[int, FlowClosed]] = field(default_factory=dict)
    handle_ends: dict[Handle, int] = field(default_factory=dict)
    """Where a member gave the handle up, or was told that it was dead."""
    intake_starts: dict[Handle, int] = field(default_factory=dict)
    """Where a member first asked for messages on the handle."""
    activity_losses: list[tuple[int, ActivityLost]] = field(default_factory=list)
    unbinds: list[tuple[int, UnbindOrdered]] = field(default_factory=list)
    life_starts: dict[Life, int] = field(default_factory=dict)
    life_ends: dict[Life, tuple[int, LifeEnded]] = field(default_factory=dict)
    pauses: dict[Life, list[LifePaused | LoopHung]] = field(default_factory=lambda: defaultdict(list))
    """Times during which no settlements left."""
    twins: dict[Life, Life] = field(default_factory=dict)
    """Processes that began with the id of a live member, and the life of that member."""
    aside: dict[Life, int] = field(default_factory=dict)
    dropped: list[tuple[int, MessageDropped]] = field(default_factory=list)
    stalled: list[tuple[int, Stalled]] = field(default_factory=list)
    bound: dict[Handle, int] = field(default_factory=dict)
    """Where a member's client learned that the handle was bound."""
    leaving: dict[Life, int] = field(default_factory=dict)
    said: list[tuple[int, Said]] = field(default_factory=list)
    hand_backs: list[tuple[int, HandBackAsked]] = field(default_factory=list)
    fed: list[tuple[int, FlowFed]] = field(default_factory=list)
    calm: tuple[int, CalmBegan] | None = None
    calm_end: int | None = None

    def __post_init__(self) -> None:
        for position, happening in enumerate(self.history):
            self._take(position, happening)

    def at_ms(self, position: int) -> int:
        """The virtual time of a position."""
        return self.history[position].at_ms

    def handlings(self) -> list[Handling]:
        """All attempts of all handlers, by start."""
        tries = [handling for delivery in self.deliveries.values() for handling in delivery.handlings]
        return sorted(tries, key=lambda handling: handling.start)

    def handled(self) -> dict[Stamp, list[DeliveryFacts]]:
        """The deliveries of each message that a handler was called for, in the order in which they were sent."""
        found: dict[Stamp, list[DeliveryFacts]] = defaultdict(list)
        for delivery in self.deliveries.values():
            if delivery.handlings:
                found[delivery.record.stamp].append(delivery)
        return found

    def end_of(self, handling: Handling) -> int:
        """Where an attempt ended, by itself or with its process."""
        if handling.end is not None:
            return handling.end
        life_end = self.life_ends.get(handling.handle.life)
        return life_end[0] if life_end is not None else len(self.history)

    def _take(self, position: int, happening: Happening) -> None:
        match happening:
            case Delivered():
                self.deliveries[happening.delivery_id] = DeliveryFacts(position, happening)
            case Dispatched():
                self.deliveries[happening.delivery_id].dispatched.append(position)
            case HandlingStarted():
                handling = Handling(position, happening.handle, happening.delivery_id, happening.stamp)
                self.deliveries[happening.delivery_id].handlings.append(handling)
            case HandlingEnded():
                handling = self.deliveries[happening.delivery_id].handlings[-1]
                handling.end, handling.result = position, happening.result
            case Answered():
                self.deliveries[happening.delivery_id].answers.append((position, happening))
            case SettleOrdered():
                self.deliveries[happening.delivery_id].settles.append((position, happening))
            case Confirmed():
                self.confirmed.append(happening.stamp)
            case FlowClosed():
                self.closed[happening.flow] = (position, happening)
            case UnbindOrdered():
                self.unbinds.append((position, happening))
                self.handle_ends.setdefault(happening.handle, position)
            case HandleLost():
                self.handle_ends.setdefault(happening.handle, position)
            case IntakeStarted():
                self.intake_starts.setdefault(happening.handle, position)
            case ActivityLost():
                self.activity_losses.append((position, happening))
            case LifeEnded():
                self.life_ends[happening.life] = (position, happening)
            case LifePaused():
                self.pauses[happening.life].append(happening)
            case LoopHung():
                if happening.keeps_settlements:
                    self.pauses[happening.life].append(happening)
            case LifeStarted():
                self.life_starts[happening.life] = position
            case TwinStarted():
                self.twins[happening.life] = happening.twin_of
            case StoodAside():
                self.aside[happening.life] = position
            case MessageDropped():
                self.dropped.append((position, happening))
            case Stalled():
                self.stalled.append((position, happening))
            case HandleBound():
                self.bound[happening.handle] = position
            case LeaveBegan():
                self.leaving[happening.life] = position
            case Said():
                self.said.append((position, happening))
            case HandBackAsked():
                self.hand_backs.append((position, happening))
            case FlowFed():
                self.fed.append((position, happening))
            case CalmBegan():
                self.calm = (position, happening)
            case CalmEnded():
                self.calm_end = position
            case IntakeStopped() | CopySettled() | SpoolSeen():
                pass
            case _:
                assert_never(happening)
