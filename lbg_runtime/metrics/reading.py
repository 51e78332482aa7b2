"""The figures of a member or publisher at one moment, as values: taken on its event loop, and read on any thread."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from lbg_runtime.metrics.durations import DurationsReading
from lbg_runtime.model.ids import GroupName, MemberId


class QueueReading(NamedTuple):
    """One queue that the member owns, stands by for, or has owned. A tuple, as there may be a thousand."""

    queue_index: int
    handled: int
    """Messages settled as accepted in this life."""
    in_flight: int
    is_owned: bool
    """Whether the broker feeds it to this member."""


@dataclass(frozen=True, slots=True)
class LanesReading:
    """What the lanes of all keys hold, over all queues."""

    lanes: int
    """Keys with at least one message."""
    running: int
    """Keys with a running handler."""
    waiting: int
    """Messages that no handler is working on, including those between two attempts."""


@dataclass(frozen=True, slots=True)
class RestripingReading:
    """A re-striping that is under way, as far as the member knows."""

    shards_moving: int
    """Shards that change their queue."""
    shards_left: int
    """Moving shards that have nothing left in their old queue."""


@dataclass(frozen=True, slots=True)
class TroublesReading:
    """What has gone wrong since the member began."""

    failed_attempts: int
    """Attempts of handlers that failed, including the last one of a message."""
    moved: int
    """Messages that were moved to the error queue or the dead message queue."""
    moves_failed: int
    """How often the broker did not confirm that a message was moved or parked."""
    stops: int
    """Queues that were stopped."""
    stopped: int
    """Queues that are stopped now, or whose parking queue cannot be opened."""
    late_settlements: int
    """Receipts that were settled too late, or twice."""
    records_dropped: int
    """Records that could not be written to the journal."""


@dataclass(frozen=True, slots=True)
class KeysReading:
    """Keys and handlers that hold others up, as of the member's last look and since it began; also bad messages."""

    hot: int = 0
    """Keys of which more messages wait than the settings allow for one key."""
    hot_total: int = 0
    stuck: int = 0
    """Keys whose next message has been the same for too long."""
    stuck_total: int = 0
    slow: int = 0
    """Attempts that take too long."""
    slow_total: int = 0
    without_key: int = 0
    """Messages that arrived without a key."""
    bodies_refused: int = 0
    """Attempts that failed on a payload that could not be decoded."""


@dataclass(frozen=True, slots=True)
class ParkingReading:
    """What is parked in the queues that the member owns now, as far as it knows, and parked since it began."""

    keys: int = 0
    messages: int = 0
    parked_total: int = 0
    """Messages that it has parked, including those that follow another message of their key."""


@dataclass(frozen=True, slots=True)
class SidecarReading:
    """What became of the events and publications of a sidecar, since the member began."""

    is_ready: bool
    """Whether the application is available."""
    accepted: int
    dropped: int
    failed: int
    """Attempts."""
    published: int
    unpublished: int
    """Refused by the broker, or of unknown fate."""
    refused: int
    """Requests that were refused."""


@dataclass(frozen=True, slots=True)
class MetersReading:
    """What a member has counted in this life."""

    redelivered: int
    retried: int
    fenced: int
    returned: int
    handling: DurationsReading
    waiting: DurationsReading
    drains: DurationsReading
    first_handlings: DurationsReading
    owner_changes: Mapping[tuple[str, str], int]
    """How many there were, by event (`taken` or `given`) and cause, as in `OwnerRecord`; also those that never
    happened."""


@dataclass(frozen=True, slots=True)
class MemberReading:
    group: GroupName
    member: MemberId
    has_started: bool
    is_ready: bool
    queues: tuple[QueueReading, ...]
    queue_states: Mapping[str, int]
    """How many queues of the group there are by the state of the member's flow; also states without a queue."""
    lanes: LanesReading
    troubles: TroublesReading
    meters: MetersReading
    group_members: Mapping[str, int]
    """How many living members there are by state, as this member sees them; a suspect one counts only as `suspect`."""
    disregarded: Mapping[str, int]
    """How many control messages did not count, by reason; also reasons that never occurred."""
    restriping: RestripingReading | None
    """The re-striping that is under way, if any."""
    keys: KeysReading
    parking: ParkingReading
    sidecar: SidecarReading | None
    """None if handlers are functions."""


@dataclass(frozen=True, slots=True)
class PublisherCounts:
    """What became of one publisher's messages. The last three counts add up to `sent` once it is closed."""

    sent: int
    confirmed: int
    refused: int
    unknown: int
    """Messages that may or may not be on the broker."""

    @property
    def unconfirmed(self) -> int:
        """Messages that were sent and have no answer yet."""
        return self.sent - self.confirmed - self.refused - self.unknown
