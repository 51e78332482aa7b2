"""What may stand in config.yaml. Every value is checked when the file is loaded, none later.

One file of more than 400 lines, so that all sections are read in one place, in the order of the file.
"""

from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from lbg_runtime.config.broker_names import check_names, check_outside_topic
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
from lbg_runtime.model.failure import ERROR_TOPIC_PREFIX, Then
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.hashing import HashFunction
from lbg_runtime.model.ids import GroupName, QueueName
from lbg_runtime.model.keys import PARTITION_KEY, KeySource


class ClientPathChoice(Enum):
    """How a transport on the official client receives and publishes."""

    AUTO = "auto"
    """The fast path where the installed client is as it needs it, else the public one, said once in the log."""
    FAST = "fast"
    """The fast path, or no start."""
    PUBLIC = "public"
    """By the client's public interface alone."""


class TransportSettings(Section):
    """How messages are moved; what is said of them is the same in every way."""

    client_path: ClientPathChoice = ClientPathChoice.AUTO


class Provision(Enum):
    """What a member does about missing queues before it binds."""

    NONE = "none"
    """Nothing: they are made beforehand."""
    CREATE_MISSING = "create_missing"
    """It creates them, once. One that is deleted while the member runs stays away, as somebody may have meant that."""


class GroupBackend(Enum):
    """What keeps each key with one member."""

    EXCLUSIVE = "exclusive"
    """Exclusive queues, moved by the members."""
    PARTITIONED = "partitioned"
    """One partitioned queue, `<name>/0`: the broker moves its partitions, without asking the members."""


class GroupSource(Enum):
    """Where it stands how the group is cut."""

    FILE = "file"
    """Here."""
    SEMP = "semp"
    """On the broker, where `lbg group create` has stored it: `semp` then names an account that may read it. Of the
    group, `name` stands here, and what is a member's own: `provision`, `control_topic`, `cache`."""


STORED_IN_SEMP = ("hash_prefix", "hash_count", "queue_count", "hash_function", "key")
"""Of `group`: what the broker tells with `from: semp`."""


class GroupSettings(Section):
    """The group as its publishers and members must agree on it."""

    name: str
    """The group's; its queues are `<name>/0` and so on."""
    hash_prefix: str
    """Begins the topic of every message of the group: `<hash prefix>/<shard>/<topic>`."""
    hash_count: Count
    """Shards, at least as many as queues; a multiple keeps queues even. It stays for the life of the group."""
    queue_count: Count
    """Queues, at least as many as members. `lbg group restripe` changes it. With `backend: partitioned` the
    partitions of the one queue."""
    backend: GroupBackend = GroupBackend.EXCLUSIVE
    hash_function: HashFunction = HashFunction.CRC32
    key: Annotated[KeySource, BeforeValidator(parsed_by(KeySource.parse))] = PARTITION_KEY
    """Where the key of a message is read from, for its lane."""
    provision: Provision = Provision.NONE
    control_topic: Text | None = None
    """Topic on which members talk to each other; `lbg-control/<name>` where it is not given."""
    source: Annotated[GroupSource, Field(alias="from")] = GroupSource.FILE
    cache: Text | None = None
    """With `from: semp`: a file that keeps what was read, for a start at which the management API does not answer. Each
    group has its own: that of another group, or of another VPN, is not taken."""

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
        """The numbers alone."""
        queue_count = self.queue_count if self.backend is GroupBackend.EXCLUSIVE else 1
        return GroupShape(GroupName(self.name), self.hash_prefix, self.hash_count, queue_count)


class MembershipMode(Enum):
    """How a member learns its place among the members."""

    DISCOVERED = "discovered"
    """Members hear of each other on the group's control topic; there is no number to configure."""
    STATIC = "static"
    """`membership.index` says it."""
    ORDINAL = "ordinal"
    """The number at the end of the host name says it (`orders-3`, as stateful sets name their pods)."""


class MembershipSettings(Section):
    """This member among the others. The environment and the command line win over what stands here."""

    mode: MembershipMode = MembershipMode.DISCOVERED
    id: Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[\w.:-]+$")] | None = None
    """Discovered: this member's name, the same in every life; made from host and process where it is not given."""
    weight: Annotated[Count, Field(ge=0, le=1000)] = 1
    """This member's part of the queues, relative to the others'."""
    index: Annotated[Count, Field(ge=0)] | None = None
    """Static: this member's number, from 0."""
    count: Annotated[Count, Field(ge=1)] | None = None
    """Static and ordinal: planned members."""
    heartbeat_ms: Annotated[DurationMs, Field(alias="heartbeat", ge=50, le=60_000)] = 1_000
    """How often members say that they live. One is suspect after three that did not come, and gone after five."""
    settle_ms: Annotated[DurationMs, Field(alias="settle", ge=0, le=600_000)] = 2_000
    """How long nobody must come or go before queues move."""

    @model_validator(mode="after")
    def _numbers_are_for_counted_members(self) -> Self:
        if self.mode is MembershipMode.DISCOVERED:
            for name, value in (("index", self.index), ("count", self.count)):
                if value is not None:
                    raise SettingProblem((name,), str(value), "none with mode: discovered, or mode: static")
        return self


class RebindCycleSettings(Section):
    """How queues move between members."""

    mode: RebindMode = RebindMode.COOPERATIVE
    standbys: Annotated[Annotated[int, Field(ge=0, le=9_999)] | None, BeforeValidator(all_is_none)] = 2
    """Cooperative: members bound to each queue besides its owner; None, in the file `all`: every member."""
    min_tenure_ms: Annotated[DurationMs, Field(alias="min_tenure", ge=0, le=MAX_INTERVAL_MS)] = 10_000
    """Cooperative: how long an owner keeps a queue at least, unless it leaves."""
    max_moves: Annotated[Count, Field(ge=1)] = 4
    """Cooperative: queues that a member hands over at the same time."""
    interval_ms: Annotated[PositiveDurationMs, Field(alias="interval")] = 30_000
    """Cycle: longest time that a secondary stays active before it gives way. Cooperative: the same, while the control
    topic does not reach this member."""
    jitter: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Share of the interval that is left to chance, so that members started together do not give way together."""
    drain_timeout_ms: Annotated[PositiveDurationMs, Field(alias="drain_timeout")] = 30_000
    """How long handlings may go on after a flow began to drain; also the deadline of a shutdown."""


class MissingKey(Enum):
    """What becomes of a message in which the rule of `group.key` finds no key."""

    SHARD = "shard"
    """All of its shard are handled in their order, one after another."""
    ERROR = "error"
    """It counts as failed, terminally: what follows is the failure policy's to say."""
    NO_ORDER = "no_order"
    """It is handled when a runner is free, in no order, and also beside an earlier copy of itself."""


HELD_FACTOR = 4
"""Of `dispatch.max_in_flight`: what a queue holds at most with hot keys, as all of it is handled before a hand-over."""


class DispatchSettings(Section):
    """How much one member handles at a time."""

    max_in_flight: Annotated[Count, Field(ge=1, le=10_000)] = 256
    """Deliveries per queue that are received and not settled. Half as many more, 32 to 255, may be under way."""
    runners: Annotated[Count, Field(ge=1, le=10_000)] = 64
    """Handlers that run at the same time, each for another key; and as many batches."""
    missing_key: MissingKey = MissingKey.SHARD
    max_waiting_per_key: Annotated[Count, Field(ge=1, le=10_000)] = 64
    """Deliveries of one key that wait behind the one that is handled, beyond which they count no more for
    `max_in_flight`, so that other keys come past them; never more than a quarter of that."""
    max_held: Annotated[Count, Field(ge=1, le=100_000)] | None = None
    """Deliveries per queue that are received and not settled, with those of hot keys, of stuck keys and of shards that
    move: where it is reached, other keys of the queue wait too. Four times `max_in_flight` where it is not given."""
    slow_handler_ms: Annotated[
        Annotated[DurationMs, Field(ge=1, le=MAX_INTERVAL_MS)] | None,
        BeforeValidator(off_is_none),
        Field(alias="slow_handler"),
    ] = 10_000
    """An attempt that takes longer is told of while it runs. None, in the file `off`."""
    stuck_key_ms: Annotated[
        Annotated[DurationMs, Field(ge=1, le=MAX_INTERVAL_MS)] | None,
        BeforeValidator(off_is_none),
        Field(alias="stuck_key"),
    ] = 60_000
    """A key of which the same message is the next one for longer is told of; where its handler has run for that long,
    what waits behind it counts for `max_held` alone. None, in the file `off`."""

    @property
    def held_limit(self) -> int:
        """`max_held`, or what stands for it; never less than `max_in_flight`."""
        return max(self.max_in_flight, self.max_held or HELD_FACTOR * self.max_in_flight)

    @property
    def waiting_limit(self) -> int:
        """`max_waiting_per_key`, or less where `max_in_flight` is small."""
        # Intake opens again when half of its places are free: a key with more than that could keep it shut.
        return max(1, min(self.max_waiting_per_key, self.max_in_flight // 4))


class BackoffSettings(Section):
    """The wait before the next attempt: doubles from `initial` to `maximum`, less a random part of up to a half."""

    initial_ms: Annotated[PositiveDurationMs, Field(alias="initial")] = 100
    """After the first attempt."""
    maximum_ms: Annotated[PositiveDurationMs, Field(alias="maximum")] = 30_000
    """However many there were."""

    @model_validator(mode="after")
    def _maximum_is_not_smaller(self) -> Self:
        if self.maximum_ms < self.initial_ms:
            raise SettingProblem(
                ("maximum",), f"{self.maximum_ms}ms", f"at least failure.backoff.initial, {self.initial_ms}ms"
            )
        return self


class FailureSettings(Section):
    """What follows when a handler raises or takes too long: another attempt, while its key waits.

    What a handler's decorator says of itself wins.
    """

    timeout_ms: Annotated[PositiveDurationMs, Field(alias="timeout")] = 30_000
    """Of one attempt."""
    backoff: BackoffSettings = BackoffSettings()
    attempts: Annotated[Annotated[int, Field(ge=1)] | None, BeforeValidator(unlimited_is_none)] = None
    """After so many, `then` follows. None, in the file `unlimited`."""
    retriable: tuple[Text, ...] = ()
    """Exceptions, as `module.Name`, that are tried again; where there are any, all others are terminal."""
    terminal: tuple[Text, ...] = ()
    """Exceptions that end the attempts at once."""
    then: Then | None = None
    """What follows the last attempt. None: there is none; terminal failures are tried again as seldom as can be."""
    error_queue: Text | None = None
    """The queue for what is moved away; without it, it is named as its topic, `lbg-errors/<group>`."""
    dead_message_queue: Text = "#DEAD_MSG_QUEUE"
    """The queue that `then: dmq` moves to; by default that of the broker."""


class JournalSettings(Section):
    """What a member leaves behind of its work."""

    path: Text | None = None
    """Directory of the record files; none are written without it."""
    republish_topic: Text | None = None
    """Topic to which a small note of every handled message is sent directly, for `lbg validate --live`."""


class Tracing(Enum):
    """Which spans a member or a publisher makes (OpenTelemetry), to be kept by whoever sets up a tracer provider."""

    OFF = "off"
    SPANS = "spans"
    SPANS_WITH_KEYS = "spans_with_keys"
    """Spans that tell the keys of messages, which may be those of persons."""


class OpsSettings(Section):
    """What those who run the member see of it."""

    journal: JournalSettings = JournalSettings()
    watchdog_ms: Annotated[
        Annotated[DurationMs, Field(ge=100, le=MAX_INTERVAL_MS)] | None,
        BeforeValidator(off_is_none),
        Field(alias="watchdog"),
    ] = 15_000
    """A member whose event loop is blocked for longer ends its process, where that is its own (`App.run_sync`).

    None, in the file `off`: nobody looks, as under a debugger.
    """
    status: Annotated[ListenAddress | None, BeforeValidator(off_or_address)] = None
    """Where the member answers over HTTP how it stands; on loopback, unless there is a token. None, in the file `off`:
    nowhere."""
    status_token: Annotated[Secret, AfterValidator(sendable_token)] | None = None
    """Who asks there shows it as a bearer token."""
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


class Settings(Section):
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
    """Modules whose `Handlers` are used, in this order."""
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
            check_outside_topic(self.group.shape(), ("ops", "journal", "republish_topic"), topic)
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
            expected = "file with backend: partitioned, as what is stored are exclusive queues"
            raise SettingProblem(("group", "from"), self.group.source.value, expected)
        return self

    @model_validator(mode="after")
    def _a_shared_queue_keeps_the_order_of_its_partition_keys_only(self) -> Self:
        if self.group.backend is GroupBackend.EXCLUSIVE:
            return self
        if self.group.key != PARTITION_KEY:
            expected = f"{PARTITION_KEY} with backend: partitioned, as that is what the broker deals partitions by"
            raise SettingProblem(("group", "key"), str(self.group.key), expected)
        if self.dispatch.missing_key is MissingKey.SHARD:
            expected = "error or no_order with backend: partitioned, where a message without key is in any partition"
            raise SettingProblem(("dispatch", "missing_key"), MissingKey.SHARD.value, expected)
        return self

    @property
    def is_cooperative(self) -> bool:
        """Whether members talk to each other about who has which queue."""
        return self.rebind.mode is RebindMode.COOPERATIVE and self.group.backend is GroupBackend.EXCLUSIVE

    @property
    def outside_connection(self) -> ConnectionSettings:
        """The session of who looks at the group from outside, or re-stripes it: as `semp.conductor` if there is one."""
        connection = self.connection.model_copy(update={"transport": TransportKind.SOLACE, "client_name": None})
        account = None if self.semp is None else self.semp.conductor
        if account is None:
            return connection
        shown = {"username": account.username, "password": account.password}
        return connection.model_copy(update={**shown, "client_certificate": None, "oauth": None})

    @property
    def error_topic(self) -> str:
        """Where messages are published that are moved to the error queue."""
        return f"{ERROR_TOPIC_PREFIX}{self.group.name}"

    @property
    def error_queue(self) -> QueueName:
        """The queue that has to subscribe to `error_topic`, if there is a handler that needs it."""
        return QueueName(self.failure.error_queue or self.error_topic)

    @property
    def dead_message_queue(self) -> QueueName:
        """The queue to which messages are moved that end so; it needs no subscription."""
        return QueueName(self.failure.dead_message_queue)

    def with_status_port(self, port: int) -> "Settings":
        """The same settings with another port of `ops.status`; without that they stay as they are."""
        if self.ops.status is None:
            return self
        ops = self.ops.model_copy(update={"status": replace(self.ops.status, port=port)})
        return self.model_copy(update={"ops": ops})

    def with_journal(self, path: Path) -> "Settings":
        """The same settings with another directory for the journal."""
        journal = self.ops.journal.model_copy(update={"path": str(path)})
        return self.model_copy(update={"ops": self.ops.model_copy(update={"journal": journal})})
