"""What a listener on the control topic knows about a group at every moment: its members, owners, and moves. Pure.

All of it is what members said, and when. A member whose queues others claim, without a word of its own, is shown as
silent at once: that is how a crash looks from here, long before members call it dead.

Bounded: it forgets members some time after they have gone, and all but the newest moves, and takes in no more names
than a group can have.
"""

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from lbg_runtime.core.group.control_messages import (
    Accept,
    ControlMessage,
    FlowReport,
    Header,
    Heartbeat,
    Inquiry,
    Leave,
    MemberFacts,
    MemberState,
    MoveId,
    Offer,
    ReportedFlow,
)
from lbg_runtime.core.group.membership_timing import MembershipTiming
from lbg_runtime.core.group.picture import GroupPicture
from lbg_runtime.model.ids import MemberId, QueueName

MAX_MOVES = 1_000
"""The newest are remembered, up to this many."""
MAX_MEMBERS = 1_000
MAX_QUEUES = 10_000
"""A bound, as whoever speaks on the control topic may name any number."""

GONE_SHOWN_MS = 30_000
"""How long a member is shown after it has gone."""


class Presence(Enum):
    """How a member appears to a listener."""

    JOINING = "joining"
    ACTIVE = "active"
    DRAINING = "draining"
    SILENT = "silent"
    """Nothing was heard from it for two heartbeats, or others have its queues, and it has not said why."""
    GONE = "gone"
    """It was silent for so long that members call it dead."""
    LEFT = "left"
    """It said good-bye."""


class MoveCause(Enum):
    """Why a queue changed its owner, as far as members said."""

    HAND_BACK = "hand-back"
    """It was offered and accepted."""
    STOP = "stop"
    """Its owner was leaving."""
    TAKEOVER = "takeover"
    """Its owner had not said that it would give it up: a crash, or a connection that broke."""
    ELECTED = "elected"
    """Its owner had given it up to nobody, and the broker chose the next."""


_PRESENT = {
    MemberState.JOINING: Presence.JOINING,
    MemberState.ACTIVE: Presence.ACTIVE,
    MemberState.DRAINING: Presence.DRAINING,
}
AWAY = frozenset({Presence.GONE, Presence.LEFT})
"""Of members that are shown for a while and are no more."""


@dataclass(slots=True)
class WatchedMember:
    """One member id."""

    header: Header
    """Of the newest message from it that counts."""
    presence: Presence
    weight: int
    since_ms: int
    """When its presence became this."""
    heard_ms: int
    flows: dict[QueueName, FlowReport] = field(default_factory=dict)
    view: object = None
    """What it says of the group: homes and the progress of a re-striping follow from it."""


@dataclass(slots=True)
class WatchedQueue:
    """One queue."""

    owner: MemberId | None = None
    """The last member to say that the broker feeds it, if it has not taken that back."""
    is_draining: bool = False
    since_ms: int = 0
    """Since when it has this owner, or none."""
    last_owner: MemberId | None = None
    gap_since_ms: int = 0
    """When the last owner began to give it up, or was found to be without it."""
    was_given: bool = False
    """Whether the last owner said so itself."""


@dataclass(frozen=True, slots=True)
class Move:
    """One change of an owner."""

    number: int
    """Counts the moves, from 1."""
    at_ms: int
    queue: QueueName
    giver: MemberId
    taker: MemberId
    cause: MoveCause
    gap_ms: int | None
    """For how long nobody said that it handles the queue, the drain included; None if the giver did not say."""


@dataclass(slots=True)
class _Offer:
    move_id: MoveId
    to: MemberId
    accepted_ms: int | None = None


class GroupBoard:
    """Fed with everything heard, and with the time. One task calls it; times are of one monotonic clock."""

    def __init__(self, timing: MembershipTiming) -> None:
        self.members: dict[MemberId, WatchedMember] = {}
        self.queues: dict[QueueName, WatchedQueue] = {}
        self.moves: deque[Move] = deque(maxlen=MAX_MOVES)
        self.picture = GroupPicture()
        """Of the members that live, as in `lbg group status`, except for what they say about each other, and about
        queues that stand still."""
        self.changes = 0
        """Grows whenever something changes that is not a number."""
        self._timing = timing
        self._offers: dict[QueueName, _Offer] = {}
        self._move_count = 0

    def hear(self, message: ControlMessage | Inquiry, now_ms: int) -> None:
        """Take what was said in the group."""
        match message:
            case Heartbeat():
                self._hear_heartbeat(message, now_ms)
            case Leave(header):
                member = self.members.get(header.member)
                if member is not None and member.header.life == header.life:
                    self._depart(member, Presence.LEFT, now_ms)
            case Offer(_, queue, _, move_id, to) if queue in self.queues:
                self._offers[queue] = _Offer(move_id, to)
            case Accept(header, queue, move_id):
                offer = self._offers.get(queue)
                if offer is not None and (offer.move_id, offer.to) == (move_id, header.member):
                    offer.accepted_ms = now_ms
            case MemberFacts(header, _, version) if header.member in self.members:
                if self.picture.versions.get(header.member) != version:
                    self.changes += 1
                self.picture.hear(message)
            case _:
                pass

    def tick(self, now_ms: int) -> None:
        """See who has fallen silent; called about four times a second, but not while the broker is out of reach."""
        silent_ms, dead_ms = 2 * self._timing.heartbeat_ms, self._timing.dead_ms
        for name, member in list(self.members.items()):
            if member.presence in AWAY:
                if now_ms - member.since_ms >= GONE_SHOWN_MS:
                    del self.members[name]
                    self.changes += 1
            elif now_ms - member.heard_ms >= dead_ms:
                self._depart(member, Presence.GONE, now_ms)
            elif now_ms - member.heard_ms >= silent_ms:
                self._be(member, Presence.SILENT, now_ms)

    def excuse(self, now_ms: int) -> None:
        """We could not hear anything until now: nobody's silence before this counts."""
        for member in self.members.values():
            member.heard_ms = max(member.heard_ms, now_ms)

    @property
    def has_lost_everybody(self) -> bool:
        """Whether there were members, none of them is heard, and not all of them have said good-bye."""
        found = {member.presence for member in self.members.values()} - {Presence.LEFT}
        return bool(found) and found <= {Presence.SILENT, Presence.GONE}

    # -- members

    def _hear_heartbeat(self, beat: Heartbeat, now_ms: int) -> None:
        header = beat.header
        member = self._member_of(header, now_ms)
        if member is None:
            return
        self.picture.hear(beat)
        member.header = header
        member.heard_ms = now_ms
        member.weight = beat.weight
        view = (beat.weight, beat.settings, beat.view_digest, beat.striping)
        if view != member.view:
            member.view = view
            self.changes += 1
        self._be(member, _PRESENT[beat.state], now_ms)
        before, member.flows = member.flows, dict(beat.flows)
        self._compare(header.member, before, member.flows, now_ms, by_own_word=True)

    def _member_of(self, header: Header, now_ms: int) -> WatchedMember | None:
        """The member that a heartbeat is about; None for one about the past, or of one member too many."""
        known = self.members.get(header.member)
        if known is not None:
            if (header.life, header.sequence) <= (known.header.life, known.header.sequence):
                return None
            if header.life != known.header.life:
                # Its former life has ended without a word.
                self._compare(header.member, known.flows, {}, now_ms, by_own_word=False)
                self.picture.hear(Leave(known.header))
                known.flows = {}
                self.changes += 1
            return known
        if len(self.members) >= MAX_MEMBERS:
            return None
        self.changes += 1
        member = WatchedMember(header, Presence.JOINING, 1, now_ms, now_ms)
        self.members[header.member] = member
        return member

    def _depart(self, member: WatchedMember, how: Presence, now_ms: int) -> None:
        self._be(member, how, now_ms)
        before, member.flows = member.flows, {}
        self._compare(member.header.member, before, {}, now_ms, by_own_word=how is Presence.LEFT)
        self.picture.hear(Leave(member.header))

    def _be(self, member: WatchedMember, presence: Presence, now_ms: int) -> None:
        if member.presence is not presence:
            member.presence = presence
            member.since_ms = now_ms
            self.changes += 1

    # -- owners

    def _compare(
        self,
        name: MemberId,
        before: dict[QueueName, FlowReport],
        after: dict[QueueName, FlowReport],
        now_ms: int,
        *,
        by_own_word: bool,
    ) -> None:
        """Note what became of the member's queues between two of its reports."""
        for queue in dict.fromkeys((*before, *after)):
            was, now = before.get(queue), after.get(queue)
            if was == now:
                continue
            if now is None or was is None or was.state is not now.state or was.epoch != now.epoch:
                self.changes += 1
            if now is not None and now.is_owner:
                is_new = was is None or not was.is_owner or was.epoch != now.epoch
                self._claim(queue, name, is_new=is_new, is_draining=now.state is ReportedFlow.DRAINING, now_ms=now_ms)
            elif was is not None and was.is_owner:
                self._release(queue, name, now_ms, by_own_word=by_own_word)

    def _claim(self, name: QueueName, member: MemberId, *, is_new: bool, is_draining: bool, now_ms: int) -> None:
        if name not in self.queues and len(self.queues) >= MAX_QUEUES:
            return
        queue = self.queues.setdefault(name, WatchedQueue())
        if queue.owner == member:
            if is_draining and not queue.is_draining:
                queue.gap_since_ms = now_ms
            queue.is_draining = is_draining
            return
        if not is_new:
            # Somebody else has it by now, and this one does not know yet.
            return
        giver = queue.owner or queue.last_owner
        offer = self._offers.pop(name, None)
        if giver is not None and giver != member:
            agreed_ms = offer.accepted_ms if offer is not None and offer.to == member else None
            self._note_move(name, queue, giver, member, agreed_ms, now_ms)
        queue.owner, queue.is_draining, queue.since_ms = member, is_draining, now_ms
        queue.last_owner = None

    def _release(self, name: QueueName, member: MemberId, now_ms: int, *, by_own_word: bool) -> None:
        queue = self.queues.get(name)
        if queue is None or queue.owner != member:
            return
        if not queue.is_draining:
            queue.gap_since_ms = now_ms
        queue.last_owner, queue.was_given = member, by_own_word
        queue.owner, queue.is_draining, queue.since_ms = None, False, now_ms

    def _note_move(
        self,
        name: QueueName,
        queue: WatchedQueue,
        giver: MemberId,
        taker: MemberId,
        agreed_ms: int | None,
        now_ms: int,
    ) -> None:
        """`agreed_ms`: when the taker accepted the giver's offer; None if there was none."""
        was_given = queue.is_draining if queue.owner is not None else queue.was_given
        cause = self._cause(giver, was_given=was_given, is_agreed=agreed_ms is not None)
        # The giver may not have told yet what it did in between.
        gap_since_ms = queue.gap_since_ms if queue.owner is None or queue.is_draining else agreed_ms
        self._move_count += 1
        gap_ms = None if gap_since_ms is None else now_ms - gap_since_ms
        self.moves.append(Move(self._move_count, now_ms, name, giver, taker, cause, gap_ms))
        member = self.members.get(giver)
        if cause is MoveCause.TAKEOVER and member is not None and member.presence not in AWAY:
            self._be(member, Presence.SILENT, now_ms)

    def _cause(self, giver: MemberId, *, was_given: bool, is_agreed: bool) -> MoveCause:
        member = self.members.get(giver)
        if member is not None and member.presence in (Presence.DRAINING, Presence.LEFT):
            return MoveCause.STOP
        if is_agreed:
            return MoveCause.HAND_BACK
        return MoveCause.ELECTED if was_given else MoveCause.TAKEOVER
