"""What may stand in config.yaml. Every value is checked when the file is loaded, none later."""

from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, model_validator

from lbg_runtime.config.fields import (
    MAX_INTERVAL_MS,
    Count,
    DurationMs,
    Host,
    PositiveDurationMs,
    Secret,
    Section,
    SettingProblem,
    Text,
    all_is_none,
    management_url,
    no_rejection,
    off_is_a_word,
    off_is_none,
    off_or_address,
    parsed_by,
    sendable_token,
    split_hosts,
    unlimited_is_none,
)
from lbg_runtime.config.listen_address import ListenAddress
from lbg_runtime.config.sidecar_settings import SidecarSettings
from lbg_runtime.model.errors import UserError
from lbg_runtime.model.failure import ERROR_TOPIC_PREFIX, Then
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.hashing import HashFunction
from lbg_runtime.model.ids import GroupName, QueueName
from lbg_runtime.model.keys import PARTITION_KEY, KeySource


class TransportKind(Enum):
    """Where the broker is."""

    EMBEDDED = "embedded"
    """A development broker inside this process, listening on `connection.host`."""
    SOLACE = "solace"
    """The broker at `connection.host`."""


class ReceivePathChoice(Enum):
    """How a transport on the official client takes messages from it."""

    AUTO = "auto"
    """The fast path where the installed client is as it needs it, else the public one, said once in the log."""
    FAST = "fast"
    """The fast path, or no start."""
    PUBLIC = "public"
    """By the client's public interface alone."""


class TransportSettings(Section):
    """How messages are moved; what is said of them is the same in every way."""

    receive_path: ReceivePathChoice = ReceivePathChoice.AUTO


class TlsSettings(Section):
    """How the broker of a `tcps://` address proves who it is."""

    trust_store: Text | None = None
    """Directory with the certificates of trusted authorities; the client's default otherwise."""
    verify: bool = True


class ConnectionSettings(Section):
    """The session with the broker."""

    transport: TransportKind = TransportKind.EMBEDDED
    host: Annotated[tuple[Host, ...], BeforeValidator(split_hosts), Field(min_length=1)] = ("tcp://127.0.0.1:55555",)
    """Where the broker listens, in order of preference; for `embedded` the one address to listen on."""
    vpn: Text = "default"
    username: Text = "default"
    password: Secret = SecretStr("")
    client_name: Annotated[str, Field(min_length=1, max_length=160)] | None = None
    """Unique on the broker; made from group, member, host and process where it is not given."""
    tls: TlsSettings = TlsSettings()

    @model_validator(mode="after")
    def _embedded_listens_on_one_address(self) -> Self:
        if self.transport is TransportKind.EMBEDDED and len(self.host) > 1:
            raise SettingProblem(
                ("host",), f"{len(self.host)} hosts", "one address to listen on, as transport is embedded"
            )
        return self


class SempSettings(Section):
    """The administrator's account on the broker, for what changes queues and looks into them; members need none."""

    url: Annotated[str, BeforeValidator(management_url)]
    """Scheme, host and port of the management API; its VPN is `connection.vpn`."""
    username: Text = "admin"
    password: Secret = SecretStr("")
    tls: TlsSettings = TlsSettings()
    queue_spool_mb: Annotated[Count, Field(ge=1, le=6_000_000)] = 5_000
    """What a queue of the group may hold, in megabytes."""
    client_profile: Annotated[str, Field(min_length=1, max_length=32)] | None = None
    """An existing client profile for the group's client username; without it the group gets its own, which takes an
    administrator of the whole broker."""


class Provision(Enum):
    """What a member does about missing queues before it binds."""

    NONE = "none"
    CREATE_MISSING = "create_missing"


class GroupSettings(Section):
    """The group as its publishers and members must agree on it."""

    name: str
    hash_prefix: str
    hash_count: Count
    queue_count: Count
    hash_function: HashFunction = HashFunction.CRC32
    key: Annotated[KeySource, BeforeValidator(parsed_by(KeySource.parse))] = PARTITION_KEY
    """Where the key of a message is read from, for its lane."""
    provision: Provision = Provision.NONE
    control_topic: Text | None = None
    """Topic on which members talk to each other; `lbg-control/<name>` where it is not given."""

    @model_validator(mode="after")
    def _shape_is_possible(self) -> Self:
        try:
            self.shape()
        except UserError as error:
            raise SettingProblem((error.where.removeprefix("group."),), error.found, error.expected) from None
        return self

    @property
    def control_topic_name(self) -> str:
        """The topic on which members of this group talk to each other."""
        return self.control_topic or f"lbg-control/{self.name}"

    def shape(self) -> GroupShape:
        """The numbers alone."""
        return GroupShape(GroupName(self.name), self.hash_prefix, self.hash_count, self.queue_count)


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


class RebindMode(Enum):
    """How queues come to the members they belong to."""

    COOPERATIVE = "cooperative"
    """Members offer and accept queues, one by one; nobody else pauses."""
    CYCLE = "cycle"
    """Every secondary gives way now and then, whoever is there."""


class RebindCycleSettings(Section):
    """How queues move between members."""

    mode: RebindMode = RebindMode.COOPERATIVE
    standbys: Annotated[Annotated[int, Field(ge=0)] | None, BeforeValidator(all_is_none)] = 2
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


class DispatchSettings(Section):
    """How much one member handles at a time."""

    max_in_flight: Annotated[Count, Field(ge=1, le=10_000)] = 256
    """Deliveries per queue that are received and not settled."""
    runners: Annotated[Count, Field(ge=1, le=10_000)] = 64
    """Handlers that run at the same time, each for another key."""


class BackoffSettings(Section):
    """The wait before the next attempt: doubles from `initial` to `maximum`, less a random part of up to a half."""

    initial_ms: Annotated[PositiveDurationMs, Field(alias="initial")] = 100
    maximum_ms: Annotated[PositiveDurationMs, Field(alias="maximum")] = 30_000

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
    then: Annotated[Then | None, BeforeValidator(no_rejection)] = None
    """What follows the last attempt. None: there is none; terminal failures are tried again as seldom as can be."""
    error_queue: Text | None = None
    """The queue for what is moved away; without it, it is named as its topic, `lbg-errors/<group>`."""


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
        Annotated[int, Field(ge=100, le=MAX_INTERVAL_MS)] | None, BeforeValidator(off_is_none), Field(alias="watchdog")
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
    def _one_who_handles(self) -> Self:
        if self.sidecar is not None and self.handlers:
            raise SettingProblem(("sidecar",), "given with handlers", "one of the two")
        return self

    @property
    def error_topic(self) -> str:
        """Where messages are published that are moved to the error queue."""
        return f"{ERROR_TOPIC_PREFIX}{self.group.name}"

    @property
    def error_queue(self) -> QueueName:
        """The queue that has to subscribe to `error_topic`, if there is a handler that needs it."""
        return QueueName(self.failure.error_queue or self.error_topic)

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
