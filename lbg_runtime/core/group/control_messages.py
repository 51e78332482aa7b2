"""What members of a group say to each other on its control topic.

Control messages decide where queues should be and when one is handed over; they never decide who may handle a message
(law L1). So a lost, repeated or forged one costs time, not order. Nothing here proves who sent a message; that is left
to the broker's access lists for the control topic.

Bytes to messages and back: core/group/control_codec.py. One file of more than 400 lines, so that all that is said in a
group can be read together.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import NewType

from lbg_runtime.core.lanes import LaneStage
from lbg_runtime.core.restripe.striping import StripingReport
from lbg_runtime.model.ids import Epoch, GroupName, MemberId, QueueName

MAX_TEXT_LENGTH = 250
"""Limit for any name, id or reason in a control message, in characters."""

MAX_NUMBER = (1 << 63) - 1
"""Limit for any number in a control message."""

MoveId = NewType("MoveId", str)
"""Identifies one attempt to hand one queue over; chosen by the offering member, never used twice."""


@dataclass(frozen=True, slots=True, order=True)
class Life:
    """One run of one member. The larger life of a member id is the newer one, and the one that counts."""

    incarnation: int
    """Grows with every life of a member, as far as the member can know; the same number as in `JournalHeader`."""
    nonce: int
    """Chosen at random for this life; decides between two processes that claim the same id and incarnation."""


@dataclass(frozen=True, slots=True)
class Header:
    """The sender of a message, and the message's number in the sender's life."""

    group: GroupName
    member: MemberId
    life: Life
    sequence: int
    """Grows with every message of this life, from 1; a message that is not above all that were heard is outdated."""


class MemberState(Enum):
    """How far a member's life has got, as the member reports it."""

    JOINING = "joining"
    """It is learning who is there; no queue is placed on it."""
    ACTIVE = "active"
    DRAINING = "draining"
    """It gives its queues away and takes none."""


class ReportedFlow(Enum):
    """The state of a bound flow. A queue on which a member has no bound flow is not reported."""

    STANDBY = "standby"
    ACTIVE = "active"
    """The broker feeds it."""
    DRAINING = "draining"
    """It is being given up; the broker fed it, and feeds nobody else until it is unbound."""


@dataclass(frozen=True, slots=True)
class FlowReport:
    """One queue that the sender is bound to."""

    state: ReportedFlow
    epoch: Epoch
    """The sender's own count; not comparable with another member's."""
    in_flight: int

    @property
    def is_owner(self) -> bool:
        """Whether the broker chose this flow, as far as the sender knows."""
        return self.state is not ReportedFlow.STANDBY


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Everything there is to know about a member: a receiver that missed all earlier ones needs only this one."""

    header: Header
    state: MemberState
    weight: int
    settings: Mapping[str, str]
    """The settings that must be the same on all members of a group, by name."""
    flows: Mapping[QueueName, FlowReport]
    view_digest: str
    """Digest of the sender's view of the group; members that agree report the same."""
    striping: StripingReport
    """Which queue holds which shard, as far as the sender knows."""


@dataclass(frozen=True, slots=True)
class StateRequest:
    """The sender knows nothing yet and asks everybody for a heartbeat soon."""

    header: Header


@dataclass(frozen=True, slots=True)
class Leave:
    """The sender has given up its queues; this life says nothing more."""

    header: Header


@dataclass(frozen=True, slots=True)
class Offer:
    """The sender owns the queue and offers it to `to`. Repeated offers with one move id are one offer."""

    header: Header
    queue: QueueName
    epoch: Epoch
    """The sender's flow handle that would be given up."""
    move_id: MoveId
    to: MemberId


@dataclass(frozen=True, slots=True)
class Accept:
    """The sender is bound to the queue and will start on it once the broker makes it the owner."""

    header: Header
    queue: QueueName
    move_id: MoveId


@dataclass(frozen=True, slots=True)
class Reject:
    """The sender does not take the queue now."""

    header: Header
    queue: QueueName
    move_id: MoveId
    reason: str


@dataclass(frozen=True, slots=True)
class Taken:
    """The sender has become the owner of the queue."""

    header: Header
    queue: QueueName
    move_id: MoveId | None
    """The move that brought it here; None if the broker chose the sender by itself."""
    epoch: Epoch
    """The sender's flow handle."""


MoveMessage = Offer | Accept | Reject | Taken
"""The messages about handing one queue over."""

ControlMessage = Heartbeat | StateRequest | Leave | MoveMessage


QuestionId = NewType("QuestionId", str)
"""Identifies one question from a non-member; chosen by the asker, never used twice."""


@dataclass(frozen=True, slots=True)
class LaneHead:
    """The message of a key that is being handled or is next. Times are relative to when the answer is made."""

    stage: LaneStage
    attempts: int
    """How many times its handler was started."""
    redelivered: bool
    number: int | None
    """The publisher's number of the message within its key; None if it has none."""
    received_ms: int
    started_ms: int | None
    """Since the first attempt; None before it."""
    retry_in_ms: int | None
    topic: str | None = None
    """The original topic. This and `error` are told by `KeyDetail`, which older versions do not send."""
    error: str | None = None
    """Type and beginning of what the last failed attempt raised, or of why it could not be moved; None if nothing has
    failed."""


class LastOutcome(Enum):
    """What became of a message that was settled. The values are what commands say.

    A parked message is none of these: it counts once its replay has been handled.
    """

    HANDLED = "handled"
    ERROR_QUEUE = "error_queue"
    DMQ = "dmq"


@dataclass(frozen=True, slots=True)
class LastHandled:
    """The newest message of a key that was settled in this life of the member, as far as it remembers: one that was
    handled, or is known to be elsewhere (`outcome`)."""

    number: int | None
    attempts: int
    ended_ms: int
    """Time since then."""
    outcome: LastOutcome | None = None
    """None: the member is of an older version, which does not tell."""


@dataclass(frozen=True, slots=True)
class KeySight:
    """What a member knows about a key. Only the broker knows what is still on the queue."""

    waiting: int
    """Messages of the key behind the head."""
    parked: int
    """Messages of the key that are parked, if this member owns their queue and knows it (`ParkingWait`); while there
    are any, later ones are parked too."""
    head: LaneHead | None
    last: LastHandled | None

    @property
    def shows_any(self) -> bool:
        """Whether the member has a message of the key, or settled one lately."""
        return self.head is not None or self.last is not None or self.parked > 0


@dataclass(frozen=True, slots=True)
class ParkingWait:
    """Why the owner of a queue does not know yet what is parked of it, and so handles nothing of it."""

    waited_ms: int
    """Since the owner began to open the parking queue; 0 before that."""
    reason: str


@dataclass(frozen=True, slots=True)
class SeenMember:
    """One living member in the sender's view."""

    member: MemberId
    is_suspect: bool


@dataclass(frozen=True, slots=True)
class GroupQuestion:
    """A non-member asks about the state of the group: every member sends a heartbeat, then a `GroupAnswer`.

    The header names the asker, which nobody takes for a member.
    """

    header: Header
    question: QuestionId


@dataclass(frozen=True, slots=True)
class GroupAnswer:
    """The members that the sender sees in the group, itself included."""

    header: Header
    question: QuestionId
    members: tuple[SeenMember, ...]


@dataclass(frozen=True, slots=True)
class KeyQuestion:
    """A non-member asks about a key: every member sends a `KeyAnswer`."""

    header: Header
    question: QuestionId
    key: str


class AboutKey:
    """What follows from whatever a member tells about a key."""

    __slots__ = ()

    flow: FlowReport | None
    sight: KeySight
    wait: ParkingWait | None

    @property
    def is_of_owner(self) -> bool:
        """Whether it is told by the owner of the key's queue."""
        return self.flow is not None and self.flow.is_owner

    @property
    def parked(self) -> int | None:
        """How many messages of the key are parked; None if the member does not know, as only the queue's owner can."""
        return self.sight.parked if self.is_of_owner and self.wait is None else None

    @property
    def is_known(self) -> bool:
        """Whether the member owns the queue, knows what is parked, and has a message of the key or settled one
        lately."""
        return self.parked is not None and self.sight.shows_any


@dataclass(frozen=True, slots=True)
class KeyAnswer(AboutKey):
    """Where the sender's settings place the key, the state of its flow there, and what it knows about the key."""

    header: Header
    question: QuestionId
    shard: int
    queue: QueueName
    flow: FlowReport | None
    """None if the sender is not bound to the queue."""
    sight: KeySight
    wait: ParkingWait | None = None
    """If there is one, nobody knows how many messages are parked. Told by `ParkingWaits`, which is sent first."""
    is_stopped: bool = False
    """Whether the sender starts nothing more of the queue, because a message of any of its keys has failed for good.
    Told by `QueueStopped`, which is sent first; members of an older version do not tell."""


@dataclass(frozen=True, slots=True)
class ParkingWaits:
    """All queues that the sender owns and handles nothing of; sent before its answer to a question, if there are any.

    A message of its own, so that members and askers that do not know it lose nothing else.
    """

    header: Header
    question: QuestionId
    waits: Mapping[QueueName, ParkingWait]


@dataclass(frozen=True, slots=True)
class KeyDetail:
    """What more the sender knows of a key than is in its `KeyAnswer`; sent before that, if there is anything.

    A message of its own for the same reason as `ParkingWaits`.
    """

    header: Header
    question: QuestionId
    topic: str | None
    error: str | None
    outcome: LastOutcome | None

    def added_to(self, sight: KeySight) -> KeySight:
        """The sight of the answer, with this."""
        head = None if sight.head is None else replace(sight.head, topic=self.topic, error=self.error)
        last = None if sight.last is None else replace(sight.last, outcome=self.outcome)
        return replace(sight, head=head, last=last)


@dataclass(frozen=True, slots=True)
class QueueStopped:
    """The queue of the key has stopped at the sender (`KeyAnswer.is_stopped`); sent before the answer, if it has.

    A message of its own for the same reason as `ParkingWaits`.
    """

    header: Header
    question: QuestionId


@dataclass(frozen=True, slots=True)
class StoppedQueues:
    """All queues that the sender owns and that have stopped; sent before its `GroupAnswer`, if there are any.

    A message of its own for the same reason as `ParkingWaits`.
    """

    header: Header
    question: QuestionId
    queues: tuple[QueueName, ...]


@dataclass(frozen=True, slots=True)
class MemberFacts:
    """Which code the sender runs, and what it has handled and parked; sent before its `GroupAnswer`.

    A message of its own for the same reason as `ParkingWaits`. Members older than 0.2.0 do not tell.
    """

    header: Header
    question: QuestionId
    version: str
    """The version of the sender's code."""
    keys_parked: int
    """How many keys are parked in the queues that the sender owns, without those of `ParkingWaits`."""
    handled: Mapping[int, int]
    """Messages settled as accepted in this life, by index of the queue, if there are any."""


Inquiry = (
    GroupQuestion
    | GroupAnswer
    | KeyQuestion
    | KeyAnswer
    | ParkingWaits
    | KeyDetail
    | QueueStopped
    | StoppedQueues
    | MemberFacts
)
"""Questions from non-members, and their answers: they change no view and move no queue."""


def is_valid_text(text: str) -> bool:
    """Whether it may be a name, an id or a reason in a control message: 1 to 250 printable characters."""
    return 0 < len(text) <= MAX_TEXT_LENGTH and text.isprintable()


def digest(facts: Iterable[tuple[str | int, ...]]) -> str:
    """16 hexadecimal digits that are equal for equal facts, in whatever order they come."""
    text = json.dumps(sorted(facts, key=str))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def settings_digest(settings: Mapping[str, str]) -> str:
    """The digest that represents the settings of a heartbeat."""
    return digest(settings.items())
