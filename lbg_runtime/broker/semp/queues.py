"""Queues and their subscriptions: the engine has them, so nothing of them is kept here."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import cast

from lbg_runtime.broker.engine.effects import CarryOut
from lbg_runtime.broker.engine.engine import Engine
from lbg_runtime.broker.engine.settings import (
    BYTES_PER_MEGABYTE,
    AccessType,
    Permission,
    QueueSettings,
    RejectOnDiscard,
)
from lbg_runtime.broker.semp.collection import only
from lbg_runtime.broker.semp.fault import SempFault
from lbg_runtime.broker.semp.grouping import changed_grouping, grouping_row
from lbg_runtime.broker.semp.objects import NOTED_QUEUE_ATTRIBUTES
from lbg_runtime.broker.semp.schema import Json, Row
from lbg_runtime.broker.semp.target import Key, Keys
from lbg_runtime.model.errors import BrokerRefusal
from lbg_runtime.model.ids import QueueName
from lbg_runtime.model.semp_code import SempCode


@dataclass(frozen=True, slots=True)
class _Field:
    """The engine's setting for an attribute, and how each is converted to the other."""

    name: str
    to_setting: Callable[[Json], object]
    to_attribute: Callable[[object], Json]


def _as_it_is(attribute: str) -> _Field:
    return _Field(attribute, lambda value: value, lambda value: cast(Json, value))


def _seconds(setting: str) -> _Field:
    return _Field(setting, lambda value: cast(int, value) * 1_000, lambda value: cast(int, value) // 1_000)


_FIELDS = {
    "accessType": _Field("access_type", AccessType, lambda kind: cast(AccessType, kind).value),
    "egressEnabled": _as_it_is("egress_enabled"),
    "ingressEnabled": _as_it_is("ingress_enabled"),
    "maxBindCount": _as_it_is("max_bind_count"),
    "maxDeliveredUnackedMsgsPerFlow": _as_it_is("max_unacked_per_flow"),
    "maxMsgSize": _as_it_is("max_message_bytes"),
    "maxMsgSpoolUsage": _Field(
        "quota_bytes",
        lambda value: cast(int, value) * BYTES_PER_MEGABYTE,
        lambda value: cast(int, value) // BYTES_PER_MEGABYTE,
    ),
    "owner": _Field("owner", lambda value: value or None, lambda value: cast(str | None, value) or ""),
    "partitionCount": _as_it_is("partition_count"),
    "partitionRebalanceDelay": _seconds("partition_rebalance_delay_ms"),
    "partitionRebalanceMaxHandoffTime": _seconds("partition_max_handoff_ms"),
    "permission": _Field("permission", Permission, lambda kind: cast(Permission, kind).value),
    "deadMsgQueue": _as_it_is("dead_message_queue"),
    "maxRedeliveryCount": _as_it_is("max_redelivery_count"),
    "maxTtl": _as_it_is("max_ttl_s"),
    "redeliveryDelayEnabled": _as_it_is("redelivery_delay_enabled"),
    "redeliveryDelayInitialInterval": _as_it_is("redelivery_delay_initial_ms"),
    "redeliveryDelayMaxInterval": _as_it_is("redelivery_delay_max_ms"),
    "redeliveryDelayMultiplier": _as_it_is("redelivery_delay_multiplier_percent"),
    "redeliveryEnabled": _as_it_is("redelivery_enabled"),
    "respectDmqEligibleEnabled": _as_it_is("respect_dead_message_eligible"),
    "respectMsgPriorityEnabled": _as_it_is("respect_priority"),
    "respectTtlEnabled": _as_it_is("respect_time_to_live"),
    "rejectMsgToSenderOnDiscardBehavior": _Field(
        "reject_on_discard", RejectOnDiscard, lambda kind: cast(RejectOnDiscard, kind).value
    ),
}
_NOTED_DEFAULTS: Row = {attribute.name: attribute.default for attribute in NOTED_QUEUE_ATTRIBUTES}


def row_of(settings: QueueSettings) -> Row:
    acted_on = {name: field.to_attribute(getattr(settings, field.name)) for name, field in _FIELDS.items()}
    return {**acted_on, **grouping_row(settings.grouping), **_NOTED_DEFAULTS, **cast(Row, settings.remarks)}


def changed_settings(settings: QueueSettings, row: Row) -> QueueSettings:
    """The settings changed by a row; unchanged ones keep the precision that the row lacks (a quota in bytes)."""
    before = row_of(settings)
    changes = {field.name: field.to_setting(row[name]) for name, field in _FIELDS.items() if row[name] != before[name]}
    remarks = {name: row[name] for name, default in _NOTED_DEFAULTS.items() if row[name] != default}
    grouping = changed_grouping(settings.grouping, row)
    # The table has the right types; a test converts every attribute in it.
    return replace(settings, **changes, grouping=grouping, remarks=remarks)  # type: ignore[arg-type]  # see above


class Queues:
    """Durable queues; temporary ones belong to a connection and are not configuration."""

    def __init__(self, engine: Engine, carry_out: CarryOut) -> None:
        self._engine = engine
        self._carry_out = carry_out

    def keys(self, above: Keys) -> Iterable[Key]:
        (vpn,) = only(above, 1)
        names = self._engine.queue_names(vpn)
        return ((name,) for name in names if self._engine.queue_settings(vpn, name).durable)

    def read(self, keys: Keys) -> Row | None:
        vpn, queue = only(keys, 2)
        if queue not in self._engine.queue_names(vpn):
            return None
        settings = self._engine.queue_settings(vpn, QueueName(queue))
        return row_of(settings) if settings.durable else None

    def create(self, keys: Keys, row: Row) -> None:
        vpn, queue = only(keys, 2)
        _check_supported(row)
        if queue in self._engine.queue_names(vpn):  # A temporary one, which is not shown here.
            raise SempFault(SempCode.ALREADY_EXISTS, f"queue {queue} is temporary and in use")
        settings = changed_settings(QueueSettings(), row)
        self._engine.create_queue(vpn, QueueName(queue), settings)

    def change(self, keys: Keys, before: Row, row: Row) -> None:  # noqa: ARG002  # the engine's own settings say more
        vpn, queue = only(keys, 2)
        _check_supported(row)
        changed = changed_settings(self._engine.queue_settings(vpn, QueueName(queue)), row)
        self._carry_out(self._engine.administration.change_queue(vpn, QueueName(queue), changed))

    def delete(self, keys: Keys) -> None:
        vpn, queue = only(keys, 2)
        self._carry_out(self._engine.delete_queue(vpn, QueueName(queue)))


class Subscriptions:
    """The subscriptions of queues; each call takes effect at once."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def keys(self, above: Keys) -> Iterable[Key]:
        vpn, queue = only(above, 2)
        return ((topic,) for topic in self._engine.queue_subscriptions(vpn, QueueName(queue)))

    def read(self, keys: Keys) -> Row | None:
        return {} if keys[-1] in self.keys(keys[:-1]) else None

    def create(self, keys: Keys, row: Row) -> None:  # noqa: ARG002  # it has no attributes
        vpn, queue, topic = only(keys, 3)
        try:
            self._engine.add_queue_subscription(vpn, QueueName(queue), topic)
        except BrokerRefusal as refusal:
            raise SempFault(SempCode.INVALID_PARAMETER, f"subscriptionTopic {topic!r}: {refusal.text}") from None

    def change(self, keys: Keys, before: Row, row: Row) -> None:
        """A subscription has no attributes."""

    def delete(self, keys: Keys) -> None:
        vpn, queue, topic = only(keys, 3)
        self._engine.remove_queue_subscription(vpn, QueueName(queue), topic)


def _check_supported(row: Row) -> None:
    """Refuse attributes that would make it another kind of queue: keeping them as remarks would be a lie."""
    if row["maxMsgSpoolUsage"] == 0:
        raise SempFault(SempCode.NOT_SUPPORTED, "maxMsgSpoolUsage 0: this broker has no last value queues")
