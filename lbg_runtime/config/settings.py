"""The shape of config.yaml. Every value is checked when the file is loaded, none later.

One file of more than 400 lines, so that all sections are in one place, in the order of the file.
"""

from enum import Enum
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from lbg_runtime.config.broker_names import check_names, check_outside_topic, queue_name
from lbg_runtime.config.connection_settings import ConnectionSettings, TransportKind
from lbg_runtime.config.fields import (
    MAX_INTERVAL_MS,
    Count,
    DurationMs,
    PositiveDurationMs,
    Secret,
    Section,
    SettingProblem,
    Text,
    all_is_none,
    member_name,
    no_longer_than,
    off_is_a_word,
    off_is_none,
    off_or_address,
    parsed_by,
    sendable_token,
    unlimited_is_none,
)
from lbg_runtime.config.listen_address import ListenAddress
from lbg_runtime.config.rebind_mode import RebindMode as RebindMode
from lbg_runtime.config.semp_settings import SempSettings
from lbg_runtime.config.sidecar_settings import SidecarSettings
from lbg_runtime.model.errors import UserError
from lbg_runtime.model.failure import DEAD_MESSAGE_QUEUE, ERROR_TOPIC_PREFIX, QUEUE_ADDRESS_PREFIX, Then
from lbg_runtime.model.group import LARGEST_HASH_COUNT, GroupShape, queue_index
from lbg_runtime.model.hashing import HashFunction
from lbg_runtime.model.ids import GroupName, QueueName
from lbg_runtime.model.keys import PARTITION_KEY, KeySource
from lbg_runtime.model.topic import LARGEST_TOPIC_BYTES


class ClientPathChoice(Enum):
    """How a transport on the official client receives and publishes."""

    AUTO = "auto"
    """The fast path if the installed client is one that it knows, otherwise the public one, which is logged once."""
    FAST = "fast"
    """The fast path; if the installed client does not allow it, the start fails."""
    PUBLIC = "public"
    """Only the client's public interface."""


class TransportSettings(Section, frozen=True):
    """How messages pass through the official client. All guarantees are the same on either path."""

    client_path: ClientPathChoice = ClientPathChoice.AUTO


class Provision(Enum):
    """What members, before they bind, and publishers, before they send, do about missing queues."""

    NONE = "none"
    """Nothing; the queues have to be made beforehand."""
    CREATE_MISSING = "create_missing"
    """They create them, once. A queue that is deleted while they run is not created again: somebody may have meant
    that. Members do not start where the group has another number of queues."""


class GroupBackend(Enum):
    """What keeps each key with one member."""

    EXCLUSIVE = "exclusive"
    """Exclusive queues, moved by the members."""
    PARTITIONED = "partitioned"
    """One partitioned queue, `<name>/0`. The broker moves its partitions, without asking the members."""


class GroupSource(Enum):
    """Where `hash_prefix`, `hash_count`, `queue_count`, `hash_function` and `key` are kept."""

    FILE = "file"
    """In this file."""
    SEMP = "semp"
    """On the broker, where `lbg group create` has stored them. The section `semp` then names an account that may read
    them. This file still has the `name` of the group and a member's own settings: `provision`, `control_topic`,
    `cache`."""


STORED_IN_SEMP = ("hash_prefix", "hash_count", "queue_count", "hash_function", "key")
"""The settings of `group` that come from the broker with `from: semp`."""


def _group_name(text: str) -> str:
    return GroupShape(GroupName(text), "any", 1, 1).name


def _hash_prefix(text: str) -> str:
    return GroupShape(GroupName("any"), text, 1, 1).hash_prefix


class GroupSettings(Section, frozen=True):
    """The group. Its publishers and members must agree on these settings."""

    # Each is looked at by itself, so that all mistakes are told at once; `_shape_is_possible` looks at them together.
    name: Annotated[str, AfterValidator(parsed_by(_group_name))]
    """Name of the group, without spaces and with no `#` at its beginning. Its queues are `<name>/0` and so on."""
    hash_prefix: Annotated[str, AfterValidator(parsed_by(_hash_prefix))]
    """First part of the topic of every message of the group: `<hash prefix>/<shard>/<topic>`."""
    hash_count: Annotated[Count, Field(le=LARGEST_HASH_COUNT)]
    """Number of shards, at least as many as queues; a multiple of their number keeps the queues even. It stays for the
    life of the group."""
    queue_count: Annotated[Count, Field(ge=1)]
    """Number of queues, at least as many as members. `lbg group restripe` changes it. With `backend: partitioned`, the
    number of partitions of the one queue."""
    backend: GroupBackend = GroupBackend.EXCLUSIVE
    hash_function: HashFunction = HashFunction.CRC32
    """How the shard of a key is computed, with n shards."""
    key: Annotated[KeySource, BeforeValidator(parsed_by(KeySource.parse))] = PARTITION_KEY
    """Where the key of a message is read from; the key decides the lane."""
    provision: Provision = Provision.NONE
    control_topic: Text | None = None
    """Topic on which members talk to each other. Without it, `lbg-control/<name>`."""
    source: Annotated[GroupSource, Field(alias="from")] = GroupSource.FILE
    cache: Text | None = None
    """With `from: semp`: file in which the settings are kept once they were read, for a start at which the management
    API does not answer. Each group needs its own: the file of another group, or of another VPN, is not used."""

    @model_validator(mode="after")
    def _shape_is_possible(self) -> Self:
        try:
            shape = self.shape()
        except UserError as error:
            raise SettingProblem((error.where.removeprefix("group."),), error.found, error.expected) from None
        check_names(shape, self.control_topic_name)
        return self

    @property
    def control_topic_name(self) -> str:
        """The topic on which members of this group talk to each other."""
        return self.control_topic or f"lbg-control/{self.name}"

    def shape(self) -> GroupShape:
        """Names and numbers only."""
        queue_count = self.queue_count if self.backend is GroupBackend.EXCLUSIVE else 1
        return GroupShape(GroupName(self.name), self.hash_prefix, self.hash_count, queue_count)

    def shared(self) -> dict[str, str]:
        """The settings, by path, that are to be the same for all members and publishers of the group."""
        return shared_settings(self.shape(), self.hash_function, str(self.key))


def shared_settings(shape: GroupShape, hash_function: HashFunction, key: str) -> dict[str, str]:
    """The settings of a group that decide where keys go, by path, wherever they are kept.

    Not `queue_count`: of a re-striping members learn from the queues themselves, and publishers need not know.
    """
    return {
        "group.hash_prefix": shape.hash_prefix,
        "group.hash_count": str(shape.hash_count),
        "group.hash_function": hash_function.value,
        "group.key": key,
    }


class MembershipMode(Enum):
    """How a member learns its place among the members."""

    DISCOVERED = "discovered"
    """Members find each other on the group's control topic; there are no numbers to configure."""
    STATIC = "static"
    """From `membership.index`."""
    ORDINAL = "ordinal"
    """From the number at the end of the host name (`orders-3`, as stateful sets name their pods)."""


class MembershipSettings(Section, frozen=True):
    """This member's place among the others. The environment and the command line take precedence over this section."""

    mode: MembershipMode = MembershipMode.DISCOVERED
    id: Annotated[str, Field(min_length=1, max_length=100), AfterValidator(member_name)] | None = None
    """Discovered: this member's name, the same in every life. Without it, it is made from host and process."""
    weight: Annotated[Count, Field(ge=0, le=1000)] = 1
    """This member's share of the queues, relative to the weights of the others."""
    index: Annotated[Count, Field(ge=0)] | None = None
    """Static: this member's number, from 0."""
    count: Annotated[Count, Field(ge=1)] | None = None
    """Static and ordinal: number of planned members."""
    heartbeat_ms: Annotated[DurationMs, Field(alias="heartbeat", ge=50, le=60_000)] = 1_000
    """Interval at which members announce that they are alive. After three missed heartbeats a member is suspect, after
    five it counts as gone."""
    settle_ms: Annotated[DurationMs, Field(alias="settle", ge=0, le=600_000)] = 2_000
    """How long no member must have come or gone before queues move."""

    @model_validator(mode="after")
    def _numbers_are_for_counted_members(self) -> Self:
        if self.mode is MembershipMode.DISCOVERED:
            for name, value in (("index", self.index), ("count", self.count)):
                if value is not None:
                    raise SettingProblem((name,), str(value), "none with mode: discovered, or mode: static")
        return self


class RebindCycleSettings(Section, frozen=True):
    """How queues move between members."""

    mode: RebindMode = RebindMode.COOPERATIVE
    standbys: Annotated[Annotated[int, Field(ge=0, le=9_999)] | None, BeforeValidator(all_is_none)] = 2
    """Cooperative: how many members are bound to each queue besides its owner. None, in the file `all`: every
    member."""
    min_tenure_ms: Annotated[DurationMs, Field(alias="min_tenure", ge=0, le=MAX_INTERVAL_MS)] = 10_000
    """Cooperative: shortest time for which an owner keeps a queue, unless it leaves."""
    max_moves: Annotated[Count, Field(ge=1)] = 4
    """Cooperative: how many queues a member hands over at the same time."""
    interval_ms: Annotated[PositiveDurationMs, Field(alias="interval")] = 30_000
    """Cycle: longest time for which a secondary stays active before it gives way. Cooperative: the same, while the
    control topic does not reach this member."""
    jitter: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Share of the interval that is random, so that members that were started together do not give way together."""
    drain_timeout_ms: Annotated[PositiveDurationMs, Field(alias="drain_timeout")] = 30_000
    """How long handlings may go on after their flow began to drain; also the deadline of a shutdown."""


class MissingKey(Enum):
    """What happens to a message in which the rule of `group.key` finds no key."""

    SHARD = "shard"
    """All such messages of a shard are handled in their order, one after another."""
    ERROR = "error"
    """It counts as a terminal failure; the failure policy decides what follows."""
    NO_ORDER = "no_order"
    """It is handled when a runner is free, in no order, and possibly at the same time as an earlier copy of itself."""


HELD_FACTOR = 4
"""Bounds what is held of a queue with hot keys, by `max_in_flight`: all of it is handled before a hand-over."""


class DispatchSettings(Section, frozen=True):
    """How much one member handles at a time."""

    max_in_flight: Annotated[Count, Field(ge=1, le=10_000)] = 256
    """Largest number of deliveries of a queue that are received and not settled. Half as many more, but at least 32 and
    at most 255, may be on their way to the member."""
    runners: Annotated[Count, Field(ge=1, le=10_000)] = 64
    """How many handlers run at the same time, each for another key; in addition, as many batches."""
    missing_key: MissingKey = MissingKey.SHARD
    max_waiting_per_key: Annotated[Count, Field(ge=1, le=10_000)] = 64
    """How many deliveries of a key may wait behind the one that is handled and count for `max_in_flight`. Further ones
    do not count, so that other keys can pass them. Never more than a quarter of `max_in_flight`."""
    max_held: Annotated[Count, Field(ge=1, le=100_000)] | None = None
    """Largest number of deliveries of a queue that are received and not settled, including those of hot keys, of stuck
    keys and of shards that move. At the bound, other keys of the queue wait too. Without it, four times
    `max_in_flight`."""
    slow_handler_ms: Annotated[
        Annotated[DurationMs, Field(ge=1, le=MAX_INTERVAL_MS)] | None,
        BeforeValidator(off_is_none),
        Field(alias="slow_handler"),
    ] = 10_000
    """An attempt that takes longer is reported while it runs. None, in the file `off`: it is not."""
    stuck_key_ms: Annotated[
        Annotated[DurationMs, Field(ge=1, le=MAX_INTERVAL_MS)] | None,
        BeforeValidator(off_is_none),
        Field(alias="stuck_key"),
    ] = 60_000
    """A key is reported if its next message has been the same one for longer. If the handler of that message has run
    for as long, the messages behind it count only for `max_held`. None, in the file `off`: neither is done, and what
    waits behind a handler that hangs keeps its places in `max_in_flight`."""

    @property
    def held_limit(self) -> int:
        """`max_held` or its default; never less than `max_in_flight`."""
        return max(self.max_in_flight, self.max_held or HELD_FACTOR * self.max_in_flight)

    @property
    def waiting_limit(self) -> int:
        """`max_waiting_per_key`, or less if `max_in_flight` is small."""
        # Intake opens again when half of its places are free: a key with more than that could keep it shut.
        return max(1, min(self.max_waiting_per_key, self.max_in_flight // 4))


class BackoffSettings(Section, frozen=True):
    """The wait before the next attempt: it doubles from `initial` to `maximum`, less a random part of up to a half."""

    initial_ms: Annotated[PositiveDurationMs, Field(alias="initial")] = 100
    """The wait after the first attempt."""
    maximum_ms: Annotated[PositiveDurationMs, Field(alias="maximum")] = 30_000
    """The longest wait, however many attempts there were."""

    @model_validator(mode="after")
    def _maximum_is_not_smaller(self) -> Self:
        if self.maximum_ms < self.initial_ms:
            raise SettingProblem(
                ("maximum",), f"{self.maximum_ms}ms", f"at least failure.backoff.initial, {self.initial_ms}ms"
            )
        return self


class FailureSettings(Section, frozen=True):
    """What follows when a handler raises or takes too long: another attempt, while its key waits.

    Values that a handler's decorator gives take precedence.
    """

    timeout_ms: Annotated[PositiveDurationMs, Field(alias="timeout")] = 30_000
    """How long one attempt may take."""
    backoff: BackoffSettings = BackoffSettings()
    attempts: Annotated[Annotated[int, Field(ge=1)] | None, BeforeValidator(unlimited_is_none)] = None
    """Number of attempts after which `then` follows. None, in the file `unlimited`: there is no such number."""
    retriable: tuple[Text, ...] = ()
    """Exceptions, as `module.Name`, after which a message is tried again. If any are listed, all others are
    terminal."""
    terminal: tuple[Text, ...] = ()
    """Exceptions, as `module.Name`, that end the attempts at once."""
    then: Then | None = None
    """What follows the last attempt. Without it, no attempt is the last: after a terminal failure, too, the message is
    tried again, every `backoff.maximum`."""
    error_queue: Annotated[Text, AfterValidator(queue_name)] | None = None
    """Name of the error queue. Without it, the name is that of its topic, `lbg-errors/<group>`."""
    dead_message_queue: Annotated[
        Text,
        AfterValidator(queue_name),
        # Messages are published to the queue itself, by a topic of this.
        AfterValidator(no_longer_than(LARGEST_TOPIC_BYTES - len(QUEUE_ADDRESS_PREFIX))),
    ] = DEAD_MESSAGE_QUEUE
    """Queue that `then: dmq` moves messages to; by default the broker's own."""


class JournalSettings(Section, frozen=True):
    """The records that a member leaves of its work."""

    path: Text | None = None
    """Directory for the record files. Without it, none are written."""
    republish_topic: Text | None = None
    """Topic to which a small note about every handled message is sent as a direct message, for `lbg validate
    --live`."""


class Tracing(Enum):
    """Which OpenTelemetry spans a member or publisher makes, for the tracer provider that the program has set up."""

    OFF = "off"
    SPANS = "spans"
    SPANS_WITH_KEYS = "spans_with_keys"
    """Spans that contain the keys of messages, which may be personal data."""


class OpsSettings(Section, frozen=True):
    """What operators see of the member."""

    journal: JournalSettings = JournalSettings()
    watchdog_ms: Annotated[
        Annotated[DurationMs, Field(ge=100, le=MAX_INTERVAL_MS)] | None,
        BeforeValidator(off_is_none),
        Field(alias="watchdog"),
    ] = 15_000
    """A member whose event loop is blocked for longer, once it may get queues, ends its process, if the process is its
    own (`App.run_sync`).

    None, in the file `off`: nothing watches the loop, as is useful under a debugger, and nothing notices that the whole
    process was stopped.
    """
    status: Annotated[ListenAddress | None, BeforeValidator(off_or_address)] = None
    """Address of the member's status API. It has to be on loopback, unless there is a token. None, in the file `off`:
    there is no status API."""
    status_token: Annotated[Secret, AfterValidator(sendable_token)] | None = None
    """Bearer token for the status API. Requests without it learn only whether the probes pass. Without this setting,
    anybody on the machine may ask everything."""
    tracing: Annotated[Tracing, BeforeValidator(off_is_a_word)] = Tracing.OFF

    @model_validator(mode="after")
    def _others_need_a_token(self) -> Self:
        if self.status is not None and not self.status.is_loopback and self.status_token is None:
            raise SettingProblem(
                ("status",),
                f"{self.status}, and no ops.status_token",
                "an address on loopback, such as 127.0.0.1:9280, or a token",
            )
        return self


class Settings(Section, frozen=True):
    """The whole of config.yaml."""

    connection: ConnectionSettings = ConnectionSettings()
    transport: TransportSettings = TransportSettings()
    semp: SempSettings | None = None
    group: GroupSettings
    membership: MembershipSettings = MembershipSettings()
    rebind: RebindCycleSettings = RebindCycleSettings()
    dispatch: DispatchSettings = DispatchSettings()
    failure: FailureSettings = FailureSettings()
    handlers: tuple[Text, ...] = ()
    """Modules whose `Handlers` are used, in this order: in the current folder, wherever this file is, or installed."""
    sidecar: SidecarSettings | None = None
    """Instead of handlers."""
    ops: OpsSettings = OpsSettings()

    @model_validator(mode="after")
    def _a_cycle_needs_counted_members(self) -> Self:
        if self.rebind.mode is RebindMode.CYCLE and self.membership.mode is MembershipMode.DISCOVERED:
            raise SettingProblem(
                ("rebind", "mode"), "cycle", "cooperative, or membership.mode static or ordinal: a cycle counts members"
            )
        return self

    @model_validator(mode="after")
    def _notes_are_no_messages_of_the_group(self) -> Self:
        if (topic := self.ops.journal.republish_topic) is not None:
            path = ("ops", "journal", "republish_topic")
            check_outside_topic(self.group.shape(), path, topic)
            if topic == self.group.control_topic_name:
                raise SettingProblem(path, topic, "another topic than the one on which members talk to each other")
        return self

    @model_validator(mode="after")
    def _failed_messages_leave_the_group(self) -> Self:
        shape, failure = self.group.shape(), self.failure
        for setting, queue in (
            ("error_queue", failure.error_queue),
            ("dead_message_queue", failure.dead_message_queue),
        ):
            index = None if queue is None else queue_index(shape.name, queue)
            if index is not None and index < shape.queue_count:
                # They would come to members again, who have no handler for them, and their keys would wait for ever.
                raise SettingProblem(("failure", setting), str(queue), "a queue that is none of the group's own")
        return self

    @model_validator(mode="after")
    def _one_who_handles(self) -> Self:
        if self.sidecar is not None and self.handlers:
            raise SettingProblem(("sidecar",), "given with handlers", "one of the two")
        return self

    @model_validator(mode="after")
    def _a_shared_queue_is_made_beforehand(self) -> Self:
        if self.group.backend is GroupBackend.EXCLUSIVE:
            return self
        if self.group.provision is not Provision.NONE:
            expected = "none with backend: partitioned, whose queue only an administrator can make"
            raise SettingProblem(("group", "provision"), self.group.provision.value, expected)
        if self.group.source is not GroupSource.FILE:
            expected = "file with backend: partitioned, as only groups of exclusive queues are stored"
            raise SettingProblem(("group", "from"), self.group.source.value, expected)
        return self

    @model_validator(mode="after")
    def _a_shared_queue_keeps_the_order_of_its_partition_keys_only(self) -> Self:
        if self.group.backend is GroupBackend.EXCLUSIVE:
            return self
        if self.group.key != PARTITION_KEY:
            expected = f"{PARTITION_KEY} with backend: partitioned, as the broker chooses partitions by it"
            raise SettingProblem(("group", "key"), str(self.group.key), expected)
        if self.dispatch.missing_key is MissingKey.SHARD:
            expected = "error or no_order with backend: partitioned, where a message without a key is in any partition"
            raise SettingProblem(("dispatch", "missing_key"), MissingKey.SHARD.value, expected)
        return self

    @property
    def is_cooperative(self) -> bool:
        """Whether members talk to each other about who has which queue."""
        return self.rebind.mode is RebindMode.COOPERATIVE and self.group.backend is GroupBackend.EXCLUSIVE

    @property
    def carries_traces(self) -> bool:
        """Whether messages carry the vendor's trace context as well: for spans, or for the application of a sidecar."""
        return self.ops.tracing is not Tracing.OFF or self.sidecar is not None

    @property
    def beside_connection(self) -> ConnectionSettings:
        """The session of a program that is no member: it runs no broker, and has a client name of its own.

        A group with the embedded broker has it in a member's process; and the client name of the settings is that of a
        member, whose session a second client of that name would end.
        """
        return self.connection.model_copy(update={"transport": TransportKind.SOLACE, "client_name": None})

    @property
    def outside_connection(self) -> ConnectionSettings:
        """The session for looking at the group from outside, or re-striping it: as `semp.conductor` if there is one.

        A conductor without a password shows the certificate or token of `connection`: it comes as whoever these name.
        """
        connection = self.beside_connection
        account = None if self.semp is None else self.semp.conductor
        if account is None:
            return connection
        shown: dict[str, object] = {"username": account.username, "password": account.password}
        if account.password.get_secret_value():
            shown |= {"client_certificate": None, "oauth": None}
        return connection.model_copy(update=shown)

    @property
    def error_topic(self) -> str:
        """The topic of messages that are moved to the error queue."""
        return f"{ERROR_TOPIC_PREFIX}{self.group.name}"

    @property
    def error_queue(self) -> QueueName:
        """The queue that has to subscribe to `error_topic`, if there is a handler that needs it."""
        return QueueName(self.failure.error_queue or self.error_topic)

    @property
    def dead_message_queue(self) -> QueueName:
        """The queue to which `then: dmq` moves messages; it needs no subscription."""
        return QueueName(self.failure.dead_message_queue)

    def with_status(self, address: ListenAddress) -> "Settings":
        """The same settings with another address of the status API."""
        return self.model_copy(update={"ops": self.ops.model_copy(update={"status": address})})

    def with_journal(self, path: Path) -> "Settings":
        """The same settings with another directory for the journal."""
        journal = self.ops.journal.model_copy(update={"path": str(path)})
        return self.model_copy(update={"ops": self.ops.model_copy(update={"journal": journal})})
