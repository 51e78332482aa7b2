"""What members of a group say to each other on its control topic.

Control messages decide where queues should be and when one is handed over; they never decide who may handle a message
(law L1). So a lost, repeated or forged one costs time, not order. Nothing here proves who sent a message: that is left
to the broker's access lists on the control topic.

Bytes to messages and back: core/group/control_codec.py.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NewType

from lbg_runtime.core.lanes import LaneStage
from lbg_runtime.core.restripe.striping import StripingReport
from lbg_runtime.model.ids import Epoch, GroupName, MemberId, QueueName

MAX_TEXT_LENGTH = 250
"""Characters of any name, id or reason in a control message."""

MoveId = NewType("MoveId", str)
"""Names one attempt to hand one queue over; chosen by the member that offers, never used twice."""


@dataclass(frozen=True, slots=True, order=True)
class Life:
    """One run of one member. The larger life of a member id is the newer one, and the one that counts."""

    incarnation: int
    """Larger in every life of a member, as far as the member can know (record.JournalHeader has the same number)."""
    nonce: int
    """Chosen at random for this life; decides between two processes that claim one id with one incarnation."""


@dataclass(frozen=True, slots=True)
class Header:
    """Who says it, and when in this life."""

    group: GroupName
    member: MemberId
    life: Life
    sequence: int
    """Counts the messages of this life, from 1; a message below one already heard is old."""


class MemberState(Enum):
    """How far a member's life has come, in its own words."""

    JOINING = "joining"
    """Learns who is there; no queue is placed on it."""
    ACTIVE = "active"
    DRAINING = "draining"
    """Gives its queues away and takes none."""


class ReportedFlow(Enum):
    """How a bound flow stands. A queue on which a member has no bound flow is not reported."""

    STANDBY = "standby"
    ACTIVE = "active"
    """The broker feeds it."""
    DRAINING = "draining"
    """It is being given up; the broker fed it, and nobody else is fed before it is unbound."""


@dataclass(frozen=True, slots=True)
class FlowReport:
    """One queue that the sender is bound to."""

    state: ReportedFlow
    epoch: Epoch
    """The sender's own count; it says nothing beside another member's."""
    in_flight: int

    @property
    def is_owner(self) -> bool:
        """Whether the broker chose this flow, as far as the sender knows."""
        return self.state is not ReportedFlow.STANDBY


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """All there is to know of a member; whoever missed every earlier one knows as much after this one."""

    header: Header
    state: MemberState
    weight: int
    settings: Mapping[str, str]
    """The settings that all members of a group must have alike, by name."""
    flows: Mapping[QueueName, FlowReport]
    view_digest: str
    """Of the sender's view of the group; members that agree say the same."""
    striping: StripingReport
    """Which queue holds which shard, as far as the sender knows."""


@dataclass(frozen=True, slots=True)
class StateRequest:
    """The sender knows nothing yet: everybody answers with a heartbeat soon."""

    header: Header


@dataclass(frozen=True, slots=True)
class Leave:
    """The sender has given up its queues; this life says nothing more."""

    header: Header


@dataclass(frozen=True, slots=True)
class Offer:
    """The sender owns the queue and would hand it to `to`. Repeated offers of one move id are one offer."""

    header: Header
    queue: QueueName
    epoch: Epoch
    """The flow handle of the sender that would be given up."""
    move_id: MoveId
    to: MemberId


@dataclass(frozen=True, slots=True)
class Accept:
    """The sender is bound to the queue and starts it once the broker makes it the owner."""

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
    """The move that brought it here; None where the broker chose the sender by itself."""
    epoch: Epoch
    """The flow handle of the sender."""


MoveMessage = Offer | Accept | Reject | Taken
"""What is said about handing one queue over."""

ControlMessage = Heartbeat | StateRequest | Leave | MoveMessage


QuestionId = NewType("QuestionId", str)
"""Names one question of somebody who is no member; chosen by who asks, never used twice."""


@dataclass(frozen=True, slots=True)
class LaneHead:
    """The message of a key that is handled, or is next. Times are what has passed when it is told."""

    stage: LaneStage
    attempts: int
    """Times that its handler was started."""
    redelivered: bool
    number: int | None
    """The publisher's number of the message within its key; None where it has none."""
    received_ms: int
    started_ms: int | None
    """Since the first attempt; None before it."""
    retry_in_ms: int | None


@dataclass(frozen=True, slots=True)
class LastHandled:
    """The newest message of a key that was settled in this life of the member, as far as it remembers."""

    number: int | None
    attempts: int
    ended_ms: int
    """What has passed since."""


@dataclass(frozen=True, slots=True)
class KeySight:
    """What a member knows of a key. What still lies on the queue is known to nobody but the broker."""

    waiting: int
    """Messages of the key behind the head."""
    parked: int
    """Messages of the key that are parked, as far as this member owns their queue; later ones are parked too."""
    head: LaneHead | None
    last: LastHandled | None


@dataclass(frozen=True, slots=True)
class SeenMember:
    """One living member in the sender's view."""

    member: MemberId
    is_suspect: bool


@dataclass(frozen=True, slots=True)
class GroupQuestion:
    """Somebody who is no member asks how the group stands: every member says a heartbeat, then a `GroupAnswer`.

    The header names who asks. Nobody takes that for a member.
    """

    header: Header
    question: QuestionId


@dataclass(frozen=True, slots=True)
class GroupAnswer:
    """Whom the sender sees in the group, itself included."""

    header: Header
    question: QuestionId
    members: tuple[SeenMember, ...]


@dataclass(frozen=True, slots=True)
class KeyQuestion:
    """Somebody who is no member asks after a key: every member says a `KeyAnswer`."""

    header: Header
    question: QuestionId
    key: str


@dataclass(frozen=True, slots=True)
class KeyAnswer:
    """Where the sender's settings place the key, how its flow there stands, and what it knows of the key."""

    header: Header
    question: QuestionId
    shard: int
    queue: QueueName
    flow: FlowReport | None
    """None where it is not bound to the queue."""
    sight: KeySight


Inquiry = GroupQuestion | GroupAnswer | KeyQuestion | KeyAnswer
"""Questions of who is no member, and their answers: they change no view, and no queue moves for them."""


def is_valid_text(text: str) -> bool:
    """Whether it may stand as a name, an id or a reason in a control message: 1 to 250 printable characters."""
    return 0 < len(text) <= MAX_TEXT_LENGTH and text.isprintable()


def digest(facts: Iterable[tuple[str | int, ...]]) -> str:
    """16 hexadecimal digits that are equal where the facts are, in whatever order they come."""
    text = json.dumps(sorted(facts, key=str))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def settings_digest(settings: Mapping[str, str]) -> str:
    """The digest that stands for the settings of a heartbeat."""
    return digest(settings.items())
