"""From the settings to a member's flows: their first places, their delays, their machines, and the queues they need."""

from lbg_runtime.config.settings import GroupBackend, Provision, RebindMode, Settings
from lbg_runtime.core.chance import RandomSource
from lbg_runtime.core.flow.machine import FlowMachine
from lbg_runtime.core.flow.rebind import RebindSettings
from lbg_runtime.core.group.rebalance import AWAY
from lbg_runtime.core.restripe.gate import StripeGate
from lbg_runtime.core.restripe.records import record_prefix
from lbg_runtime.core.roles import Place
from lbg_runtime.runtime.clock import now_ms
from lbg_runtime.runtime.membership import Membership

ON_SHARED_QUEUE = Place(rank=0, gives_way=False)
"""Every member's place on a partitioned queue: it binds and stays, and the broker decides what it gets."""

BIND_BACKOFF_MIN_MS = 200
BIND_BACKOFF_MAX_MS = 10_000

QUIET_GAP_MS = 50
"""How long a drained flow waits for messages under way: more than a round trip to any broker in practice."""

RANK_DELAY_MS = 100
"""The time between the binds of a queue's standbys: more than a bind takes, including the way to the broker."""


def first_place(queue_index: int, membership: Membership, settings: Settings) -> Place:
    """A member's place on a queue before it has heard of any other member."""
    if settings.group.backend is GroupBackend.PARTITIONED:
        return ON_SHARED_QUEUE
    if settings.rebind.mode is RebindMode.CYCLE and membership.place is not None:
        return membership.place.on(queue_index)
    return AWAY


def rebind_settings(settings: Settings) -> RebindSettings:
    """The delays of the flow machines."""
    return RebindSettings(
        interval_ms=settings.rebind.interval_ms,
        jitter=settings.rebind.jitter,
        drain_timeout_ms=settings.rebind.drain_timeout_ms,
        bind_backoff_min_ms=BIND_BACKOFF_MIN_MS,
        bind_backoff_max_ms=BIND_BACKOFF_MAX_MS,
        quiet_gap_ms=QUIET_GAP_MS,
        rank_delay_ms=RANK_DELAY_MS,
    )


def make_machine(queue_index: int, place: Place, settings: Settings, chance: RandomSource) -> FlowMachine:
    """The machine of one queue's flow; that of a cooperative member has a gate, as its group may be re-striped."""
    shape = settings.group.shape()
    gate: StripeGate | None = None
    if settings.is_cooperative:
        gate = StripeGate(queue_index, shape, record_prefix(settings.group.control_topic_name))
    return FlowMachine(
        shape.queue_name(queue_index),
        place,
        rebind_settings(settings),
        max_in_flight=settings.dispatch.max_in_flight,
        random=chance,
        now_ms=now_ms(),
        gate=gate,
        max_held=settings.dispatch.held_limit,
    )


def bindable(settings: Settings) -> str:
    """What a group must have if a member is to bind any of its queues."""
    if settings.group.backend is GroupBackend.PARTITIONED:
        return "a partitioned queue of this name, made beforehand, that may be bound"
    if settings.group.provision is Provision.CREATE_MISSING:
        return (
            "a queue that this user may bind: those that were missing were created a moment ago, so it was deleted "
            "since, or it may not be bound"
        )
    return (
        "queues that exist and may be bound, as `lbg group create` or `apply` makes them, or group.provision: "
        "create_missing"
    )
