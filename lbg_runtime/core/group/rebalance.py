"""Which queues this member binds, offers and takes: from a view of the group to places and hand-backs.

One machine per member, driven by its control plane from one task. Placement (core/group/placement.py) says where queues
should be; this machine moves them there queue by queue, and no other queue pauses:

1. The owner offers a queue to its home, once the home is bound to it as a standby.
2. The home accepts if it agrees, or has room, and is bound; all other members hear the offer and will step aside once.
3. The owner stops intake, finishes what has arrived, settles, unbinds (core/flow/machine.py).
4. The broker makes the next flow in line active. A member that has to step aside binds again, at the end of the line,
   without having touched a message. The home starts and says that it has taken the queue.

Order depends on none of this: the broker feeds one flow, and a flow is given up only when nothing of it is in flight
(laws L1, L5). A lost message ends in a time-out, after which the owner keeps the queue and tries again later.

Sources: incremental hand-over per member without a barrier, Kafka KIP-848; damping and the cap on a drain, Kinesis
Client Library 3; keeping the current owner, Kafka KIP-54.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import assert_never

from lbg_runtime.core.flow.commands import Note
from lbg_runtime.core.flow.events import HandBackRequested, PlaceChanged, StepAsideCancelled, StepAsideRequested
from lbg_runtime.core.group.control_messages import (
    Accept,
    FlowReport,
    Header,
    MemberState,
    MoveId,
    MoveMessage,
    Offer,
    Reject,
    ReportedFlow,
    Taken,
)
from lbg_runtime.core.group.membership_events import DrainStarted, MoveMessageHeard, OwnFlowsChanged
from lbg_runtime.core.group.placement import Placement, place
from lbg_runtime.core.group.rebalance_events import (
    AskFlow,
    GroupSeen,
    RebalanceCommand,
    RebalanceEvent,
    Say,
)
from lbg_runtime.core.group.rebalance_settings import RebalanceSettings
from lbg_runtime.core.group.view import GroupView
from lbg_runtime.core.roles import Place
from lbg_runtime.model.ids import Epoch, MemberId, QueueName

LONGEST_WAIT_MS = 600_000
"""Longest wait after drains that took too long; such waits begin at `step_aside_ms`."""

AWAY = Place(rank=None, gives_way=False)


@dataclass(frozen=True, slots=True)
class _Move:
    """A queue that we are handing over: offered until accepted, then drained."""

    move_id: MoveId
    to: MemberId
    expires_ms: int
    """When it counts as failed: an offer without an answer, later a drain without an end."""
    is_accepted: bool = False
    has_drained: bool = False
    """Our flow has been seen draining."""


@dataclass(frozen=True, slots=True)
class AcceptedOffer:
    """A queue that is to be ours next."""

    move_id: MoveId
    giver: MemberId
    expires_ms: int
    """When its drain is certainly over: activity after that was not given to us by this offer."""


@dataclass(frozen=True, slots=True)
class _Tenure:
    """A queue that we own."""

    epoch: Epoch
    since_ms: int


@dataclass(frozen=True, slots=True)
class _Backoff:
    """Moves of a queue that failed in its tenure, by what that cost, and when to try again."""

    refusals: int = 0
    long_drains: int = 0
    until_ms: int = 0


class RebalanceMachine:
    """Decides places, offers and answers; does nothing itself. The module docstring has the rules."""

    def __init__(
        self,
        member: MemberId,
        queues: Sequence[QueueName],
        pins: Mapping[QueueName, MemberId],
        settings: RebalanceSettings,
        stamp: Callable[[], Header],
    ) -> None:
        """`pins`: queues whose home is configured. `stamp` makes the header of the next message of this life."""
        self.placement: Placement | None = None
        """The newest placement; None until the group has been observed for long enough."""
        self._member = member
        self._queues = tuple(queues)
        self._pins = dict(pins)
        self._settings = settings
        self._stamp = stamp
        self._view: GroupView | None = None
        self._flows: Mapping[QueueName, FlowReport] = {}
        self._tenures: dict[QueueName, _Tenure] = {}
        self._places: dict[QueueName, Place] = dict.fromkeys(self._queues, AWAY)
        self._moves: dict[QueueName, _Move] = {}
        self._accepted: dict[QueueName, AcceptedOffer] = {}
        self._backoffs: dict[QueueName, _Backoff] = {}
        self._placed_for: tuple[object, ...] | None = None
        self._move_count = 0
        self._is_draining = False
        self._any_standby_at_ms: int | None = None
        """While we are leaving and wait for the new homes to bind: when to stop waiting."""

    # -- what a shell reads

    @property
    def queues(self) -> Sequence[QueueName]:
        """The group's queues, in their order."""
        return self._queues

    @property
    def pins(self) -> Mapping[QueueName, MemberId]:
        """Queues whose home is configured."""
        return self._pins

    def accepted(self, queue: QueueName, now_ms: int) -> AcceptedOffer | None:
        """The offer that we have accepted for the queue and whose time has not run out; None if we get the queue now
        without one, by the broker's choice alone."""
        offer = self._accepted.get(queue)
        return offer if offer is not None and now_ms < offer.expires_ms else None

    @property
    def deadline_ms(self) -> int | None:
        """When `on_deadline` must next be called, on the clock of `now_ms`; None to wait for an event."""
        deadlines = [move.expires_ms for move in self._moves.values()]
        if self._any_standby_at_ms is not None:
            deadlines.append(self._any_standby_at_ms)
        if len(self._moves) < self._settings.max_moves:
            deadlines += [self._offer_at_ms(queue) for queue in self._offerable()]
        return min(deadlines, default=None)

    # -- what a shell calls

    def set_queues(self, queues: Sequence[QueueName], pins: Mapping[QueueName, MemberId]) -> None:
        """Set the queues that the group now has, in their order. Nothing is ordered for a queue that is gone."""
        for queue in set(self._queues).difference(queues):
            self._moves.pop(queue, None)
            self._accepted.pop(queue, None)
            self._backoffs.pop(queue, None)
            self._tenures.pop(queue, None)
        self._queues = tuple(queues)
        self._pins = dict(pins)
        self._places = {queue: self._places.get(queue, AWAY) for queue in queues}
        self._placed_for = None
        if self.placement is not None and self._view is not None:
            self._make_placement(self._view)

    def handle(self, event: RebalanceEvent, now_ms: int) -> list[RebalanceCommand]:
        """Process one event and return what to do. Events may come in any order."""
        match event:
            case GroupSeen():
                commands = self._see(event)
            case OwnFlowsChanged(flows):
                commands = self._take_flows(flows, now_ms)
            case MoveMessageHeard(message):
                commands = self._hear(message, now_ms)
            case DrainStarted():
                if not self._is_draining:
                    self._is_draining = True
                    self._any_standby_at_ms = now_ms + self._settings.answer_timeout_ms
                commands = []
            case _:
                assert_never(event)
        return commands + self._offer_what_is_due(now_ms)

    def on_deadline(self, now_ms: int) -> list[RebalanceCommand]:
        """Act on the deadline if it has been reached; calling this too early does no harm."""
        commands: list[RebalanceCommand] = []
        for queue, move in list(self._moves.items()):
            if now_ms >= move.expires_ms:
                reason = "no end of the drain" if move.is_accepted else "no answer"
                commands += self._abandon(queue, move, reason, now_ms)
        if self._any_standby_at_ms is not None and now_ms >= self._any_standby_at_ms:
            self._any_standby_at_ms = None
        return commands + self._offer_what_is_due(now_ms)

    # -- places

    def _see(self, seen: GroupSeen) -> list[RebalanceCommand]:
        self._view = seen.view
        if seen.is_silent:
            return self._set_places({queue: self._place_in_silence(queue) for queue in self._queues})
        # A member that is leaving has no time to let things settle, and everybody hears about it at once.
        if not seen.is_stable and not any(one.state is MemberState.DRAINING for one in seen.view.members):
            return []
        self._make_placement(seen.view)
        return self._set_places({queue: self._place_on(queue) for queue in self._queues})

    def _make_placement(self, view: GroupView) -> None:
        candidates, pins = view.candidates(), view.pins(self._pins)
        if (made_of := (candidates, view.owners, pins)) != self._placed_for:
            self._placed_for = made_of
            self.placement = place(self._queues, candidates, view.owners, pins)

    def _place_on(self, queue: QueueName) -> Place:
        rank = self.placement.rank(queue, self._member) if self.placement else None
        standbys = self._settings.standbys
        if rank is None or (standbys is not None and rank > standbys):
            return AWAY
        return Place(rank, gives_way=False)

    def _place_in_silence(self, queue: QueueName) -> Place:
        # Nobody can be asked, so everybody stands by everywhere and gives way in turn, as in cycle mode.
        is_home = self._pins.get(queue) == self._member
        return Place(0, gives_way=False) if is_home else Place(1, gives_way=True)

    def _set_places(self, places: Mapping[QueueName, Place]) -> list[RebalanceCommand]:
        changed = [(queue, new) for queue, new in places.items() if new != self._places[queue]]
        self._places.update(changed)
        return [AskFlow(queue, PlaceChanged(new)) for queue, new in changed]

    # -- our own flows

    def _take_flows(self, flows: Mapping[QueueName, FlowReport], now_ms: int) -> list[RebalanceCommand]:
        self._flows = {queue: flow for queue, flow in flows.items() if queue in self._places}
        commands: list[RebalanceCommand] = []
        owned = {queue: flow.epoch for queue, flow in self._flows.items() if flow.is_owner}
        # A tenure of another epoch: the queue was lost and came back since the last report.
        for queue in [queue for queue, tenure in self._tenures.items() if owned.get(queue) != tenure.epoch]:
            del self._tenures[queue]
            # Handed over, or lost: either way there is nothing left to hand over.
            self._moves.pop(queue, None)
            self._backoffs.pop(queue, None)
        for queue in sorted(owned.keys() - self._tenures.keys()):
            self._tenures[queue] = _Tenure(owned[queue], now_ms)
            offer = self.accepted(queue, now_ms)
            self._accepted.pop(queue, None)
            commands.append(Say(Taken(self._stamp(), queue, offer.move_id if offer else None, owned[queue])))
        for queue, move in list(self._moves.items()):
            if flows[queue].state is ReportedFlow.DRAINING:
                self._moves[queue] = replace(move, has_drained=True)
            elif move.has_drained:
                # The queue stood still for the whole drain, so do not ask it to drain again for some time.
                commands += self._abandon(queue, move, "the drain took too long", now_ms, has_stood_still=True)
        return commands

    # -- giving

    def _offerable(self) -> dict[QueueName, MemberId]:
        """Queues of ours that another member should have and could take, with that member."""
        held = [queue for queue in sorted(self._tenures) if self._flows[queue].state is ReportedFlow.ACTIVE]
        targets = {queue: self._target(queue) for queue in held if queue not in self._moves}
        return {queue: target for queue, target in targets.items() if target is not None}

    def _offer_at_ms(self, queue: QueueName) -> int:
        tenure_ms = 0 if self._is_draining else self._tenures[queue].since_ms + self._settings.min_tenure_ms
        backoff = self._backoffs.get(queue)
        return max(tenure_ms, backoff.until_ms if backoff else 0)

    def _target(self, queue: QueueName) -> MemberId | None:
        """The member that would get the queue now: its home, if that is bound. Once we are leaving and have waited
        briefly for homes to bind, the best member that is."""
        if self._view is None or self.placement is None:
            return None
        ranked = self.placement.ranks[queue]
        takes_any = self._is_draining and self._any_standby_at_ms is None
        for member in ranked if takes_any else ranked[:1]:
            if member == self._member:
                return None
            found = self._view.find(member)
            flow = found.flows.get(queue) if found is not None and found.is_target else None
            if flow is not None and flow.state is ReportedFlow.STANDBY:
                return member
        return None

    def _offer_what_is_due(self, now_ms: int) -> list[RebalanceCommand]:
        commands: list[RebalanceCommand] = []
        for queue, target in self._offerable().items():
            if now_ms < self._offer_at_ms(queue) or len(self._moves) >= self._settings.max_moves:
                continue
            self._move_count += 1
            header = self._stamp()
            move_id = MoveId(f"{self._member}/{header.life.incarnation}/{header.life.nonce}/{self._move_count}")
            self._moves[queue] = _Move(move_id, target, now_ms + self._settings.answer_timeout_ms)
            commands.append(Say(Offer(header, queue, self._flows[queue].epoch, move_id, target)))
        return commands

    def _abandon(
        self, queue: QueueName, move: _Move, reason: str, now_ms: int, *, has_stood_still: bool = False
    ) -> list[RebalanceCommand]:
        del self._moves[queue]
        settings, before = self._settings, self._backoffs.get(queue, _Backoff())
        # Counted apart: an offer without an answer costs nothing, and says nothing about how long a drain takes.
        if has_stood_still:
            wait_ms = min(LONGEST_WAIT_MS, settings.step_aside_ms << min(before.long_drains, 20))
            self._backoffs[queue] = replace(before, long_drains=before.long_drains + 1, until_ms=now_ms + wait_ms)
        else:
            wait_ms = min(settings.backoff_max_ms, settings.backoff_min_ms << min(before.refusals, 20))
            self._backoffs[queue] = replace(before, refusals=before.refusals + 1, until_ms=now_ms + wait_ms)
        return [Note("move_abandoned", {"queue": queue, "move_id": move.move_id, "to": move.to, "reason": reason})]

    # -- what others say

    def _hear(self, message: MoveMessage, now_ms: int) -> list[RebalanceCommand]:
        if message.header.member == self._member:
            return []
        match message:
            case Offer():
                return self._hear_offer(message, now_ms)
            case Accept(_, queue, move_id):
                if (move := self._offered(queue, move_id)) is None:
                    return []
                self._moves[queue] = replace(move, expires_ms=now_ms + self._settings.step_aside_ms, is_accepted=True)
                started = Note("hand_back_started", {"queue": queue, "move_id": move_id, "to": move.to})
                return [started, AskFlow(queue, HandBackRequested(move_id))]
            case Reject(_, queue, move_id, reason):
                if (move := self._offered(queue, move_id)) is None:
                    return []
                return self._abandon(queue, move, reason, now_ms)
            case Taken(_, queue):
                self._accepted.pop(queue, None)
                return [AskFlow(queue, StepAsideCancelled())] if queue in self._places else []
            case _:
                assert_never(message)

    def _offered(self, queue: QueueName, move_id: MoveId) -> _Move | None:
        """The move of which the offer waits for an answer; None if it is over, or answered."""
        move = self._moves.get(queue)
        return None if move is None or move.move_id != move_id or move.is_accepted else move

    def _hear_offer(self, offer: Offer, now_ms: int) -> list[RebalanceCommand]:
        queue = offer.queue
        if queue not in self._places:
            return []
        if offer.to != self._member:
            self._accepted.pop(queue, None)
            return [AskFlow(queue, StepAsideRequested(now_ms + self._settings.step_aside_ms))]
        if reason := self._reason_to_reject(offer, now_ms):
            return [Say(Reject(self._stamp(), queue, offer.move_id, reason))]
        self._accepted[queue] = AcceptedOffer(offer.move_id, offer.header.member, now_ms + self._settings.step_aside_ms)
        return [AskFlow(queue, StepAsideCancelled()), Say(Accept(self._stamp(), queue, offer.move_id))]

    def _reason_to_reject(self, offer: Offer, now_ms: int) -> str | None:
        flow = self._flows.get(offer.queue)
        giver = self._view.find(offer.header.member) if self._view is not None else None
        if self._is_draining:
            return "leaving"
        if flow is None or flow.state is not ReportedFlow.STANDBY:
            return "not a standby of it"
        if giver is None:
            return "giver unknown"
        # A member that is leaving gives to the best member it can find.
        if giver.state is not MemberState.DRAINING and not self._may_be_home(offer.queue, now_ms):
            return "not at home on it"
        return None

    def _may_be_home(self, queue: QueueName, now_ms: int) -> bool:
        """Whether we are at home on the queue, or have room for it: a giver of another version may see us at home where
        we do not.

        If we take it, we are at home on it, as owners keep queues up to their number. So we do not pass it on.
        """
        if self._is_home(queue):
            return True
        if self.placement is None or queue in self._pins:
            return False
        home_count = sum(map(self._is_home, self.placement.ranks))
        taken = {*self._tenures, *(each for each in self._accepted if self.accepted(each, now_ms) is not None)}
        return len(taken) < home_count

    def _is_home(self, queue: QueueName) -> bool:
        return self.placement is not None and self.placement.home(queue) == self._member
