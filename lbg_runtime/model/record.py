"""What a run leaves behind, one JSON object per line: member journals and publisher ledgers.

The validator proves the laws from these records alone. A record reaches the operating system before the settlement
that it describes leaves the process, so that a SIGKILL cannot lose the record of a message that is gone from its queue.

Times named `t` and `t_*` are wall clock, microseconds since the epoch, UTC. `*_mono_ns` is the monotonic clock, in
nanoseconds: exact order between processes on one host. The first line of a file is its header, the last its close; a
file without a close is torn. The header also has `is_whole`, which is true until a record could not be written.
The writer adds `mono_ns` to a status and to the close, as a wall clock that is set does not show when a life ended.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

RECORD_SCHEMA = 1

FileKind = Literal["journal", "ledger"]
"""The kind of a file of records, as its header names it."""

FILE_SUFFIXES: Mapping[FileKind, str] = {"journal": ".member.jsonl", "ledger": ".ledger.jsonl"}
"""How the names of files end, by kind."""

LARGEST_NUMBER = 1 << 60
"""The largest time or sequence number that is read; none of ours comes near it."""

LONGEST_LINE_BYTES = 16 << 20
"""The longest line of a record, including its end. A longer one is not written, as nothing after it would be read."""


@dataclass(frozen=True, slots=True)
class JournalHeader:
    """First line of a member's journal; one file per life of a member."""

    run_id: str
    group: str
    hash_prefix: str
    hash_count: int
    queue_count: int
    member: str
    incarnation: int
    """Increases with every life of the member."""
    host: str
    pid: int
    t_start: int
    kind: Literal["journal"] = "journal"
    schema: int = RECORD_SCHEMA
    backend: Literal["exclusive", "partitioned"] = "exclusive"
    """`partitioned`: all members have flows on one queue, and the broker decides which member gets which key."""
    boot_id: str | None = None
    """Identifies the start of the host, with which its monotonic clock begins. None if the host has no such id."""


@dataclass(frozen=True, slots=True)
class DispatchRecord:
    """One handling of one delivery, written after its handler ended."""

    queue: int
    """Index of the queue in the group."""
    bind_epoch: int
    shard: int | None
    key: str | None
    topic: str
    publisher: str | None
    seq: int | None
    """The publisher's number of the message within its key, counted from 1."""
    message_id: str | None
    delivery_id: int
    redelivered: bool
    attempts: int
    local_seq: int
    """The number, from 1, of this handling in the order in which a life of a member started them."""
    receive_mono_ns: int
    start_mono_ns: int
    done_mono_ns: int
    t_done: int
    t_settle: int | None
    """When the settlement was handed to the transport; None if it was fenced or there was none."""
    outcome: Literal["accepted", "failed", "rejected", "cancelled"]
    size_bytes: int
    kind: Literal["dispatch"] = "dispatch"


@dataclass(frozen=True, slots=True)
class FlowRecord:
    """A change of one flow of the member."""

    queue: int
    bind_epoch: int
    event: Literal["bound", "active", "inactive", "draining", "released", "down"]
    role: Literal["primary", "secondary"]
    cause: str
    """Why: a `ReleaseCause` value for draining and released, the transport's text for down, otherwise empty."""
    t: int
    mono_ns: int
    kind: Literal["flow"] = "flow"


@dataclass(frozen=True, slots=True)
class OwnerRecord:
    """The member took or gave up a queue: what it knows about that. No law reads this record; the validator only checks
    that the members named have journals, and that the clocks of giver and taker agree with it.

    The other side of a change is in the other member's journal; a crash leaves no `given`.
    """

    queue: int
    bind_epoch: int
    event: Literal["taken", "given"]
    move_id: str | None
    """Identifies the hand-over for both sides; None if no member decided it."""
    from_member: str | None
    """Taken: the member that offered it, or else the last known owner; None if there was none. Given: the member
    itself."""
    to_member: str | None
    """Given: the member that was to have it; None if that was left to the broker. Taken: the member itself."""
    cause: str
    """Given: a `ReleaseCause` value. Taken: `handback`, or `elected` if the broker chose by itself."""
    decided_by: Literal["offer", "broker", "stop", "cycle", "stand_aside", "restripe"]
    """An offer of `from_member`; the broker, or what broke the connection; the stop of the member; the rebind cycle;
    the member, which found that another process has its id; a re-striping, which removes the queue."""
    is_leaving: bool
    """Given: whether the member was leaving."""
    drain_ms: int | None
    """Given: the time from the order to give it up to the end of what was in flight; None for taken."""
    held_ms: int | None
    """Given: the time since it was taken; None for taken."""
    in_flight: int
    """Given: deliveries that had come and not ended when the flow died; 0 for one that was given up in good order."""
    t: int
    mono_ns: int
    asked_mono_ns: int | None = None
    """Given: when the broker was asked to release the queue; nobody can have taken it earlier. None if the broker did
    not confirm the release, or had taken the queue away before; also for taken, and in older records."""
    kind: Literal["owner"] = "owner"


@dataclass(frozen=True, slots=True)
class StripesRecord:
    """What one queue of the member said about a re-striping: its plan, that a shard has left the queue, or its finish.

    The record has reached the operating system before anybody acts on the fact. A member that binds a queue in mid-move
    may write the same record again; the earliest record of a fact counts.
    """

    queue: int
    bind_epoch: int
    event: Literal["planned", "left", "finished"]
    """`left`: every message of the shard before its marker is settled, and the broker knows; also written if there was
    none. Only for shards whose queue changes, and by the owner of the queue they leave."""
    generation: int
    """Identifies the re-striping; larger than that of any earlier one of the group."""
    from_count: int
    """Queue counts before and after."""
    to_count: int
    shard: int | None
    """The shard that has left; None for other events."""
    t: int
    mono_ns: int
    kind: Literal["stripes"] = "stripes"


@dataclass(frozen=True, slots=True)
class StatusRecord:
    """The state of one queue of the member, about once a second; only for live tables. No law reads it."""

    queue: int
    bind_epoch: int
    role: Literal["primary", "secondary"]
    state: str
    in_flight: int
    handled: int
    t: int
    kind: Literal["status"] = "status"


@dataclass(frozen=True, slots=True)
class PauseRecord:
    """The process, or its event loop, stood still: nothing was written for several seconds, not even a status.

    Written when it goes on, before anything that follows. What was settled just before may not have left the process
    while it stood still, and what was received just after may have been sent long before.
    """

    from_mono_ns: int
    """When it was last seen running."""
    to_mono_ns: int
    t: int
    kind: Literal["pause"] = "pause"


@dataclass(frozen=True, slots=True)
class LedgerHeader:
    """First line of a publisher's ledger; one file per life of a publisher."""

    run_id: str
    group: str
    hash_prefix: str
    hash_count: int
    hash_function: str
    publisher: str
    host: str
    pid: int
    t_start: int
    kind: Literal["ledger"] = "ledger"
    schema: int = RECORD_SCHEMA


@dataclass(frozen=True, slots=True)
class ConfirmedRecord:
    """The broker has confirmed messages `first_seq` to `last_seq` of a key, both included."""

    key: str
    shard: int
    first_seq: int
    last_seq: int
    t_first: int
    t_last: int
    kind: Literal["confirmed"] = "confirmed"


@dataclass(frozen=True, slots=True)
class UnconfirmedRecord:
    """One message that the broker refused (`refused`), or whose fate is unknown (`unknown`)."""

    key: str
    shard: int
    seq: int
    fate: Literal["refused", "unknown"]
    reason: str
    t: int
    kind: Literal["unconfirmed"] = "unconfirmed"


@dataclass(frozen=True, slots=True)
class CloseRecord:
    """Last line of a journal or ledger. `dropped` > 0 makes the file incomplete, and the verdict unknown."""

    written: int
    """Number of records before this one, including the header."""
    dropped: int
    clean: bool
    """Whether the process ended as requested, with nothing left in flight."""
    t: int
    kind: Literal["close"] = "close"


Record = (
    JournalHeader
    | DispatchRecord
    | FlowRecord
    | OwnerRecord
    | StripesRecord
    | StatusRecord
    | PauseRecord
    | LedgerHeader
    | ConfirmedRecord
    | UnconfirmedRecord
    | CloseRecord
)
