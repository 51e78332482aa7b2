"""The broker's objects that make up a group: how each is named and found, and what a group wants of them. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from lbg_runtime.admin.queues import KEEPS_ALL, QueueAccess, attributes_of_new_queue
from lbg_runtime.admin.roles import Role
from lbg_runtime.admin.spec import GroupSpec
from lbg_runtime.core.parking.records import PARKING_PREFIX, SHOWN_UNSETTLED
from lbg_runtime.model.failure import ERROR_TOPIC_PREFIX
from lbg_runtime.model.ids import QueueName
from lbg_runtime.semp.address import Segment
from lbg_runtime.semp.answer import Json


class ObjectKind(Enum):
    """Kinds of objects, by the collection that they are in; in the order in which they refer to each other."""

    ACL_PROFILE = "aclProfiles"
    PUBLISH_TOPIC = "publishTopicExceptions"
    SUBSCRIBE_TOPIC = "subscribeTopicExceptions"
    CONNECT_ADDRESS = "clientConnectExceptions"
    CLIENT_PROFILE = "clientProfiles"
    CLIENT_USERNAME = "clientUsernames"
    QUEUE = "queues"
    SUBSCRIPTION = "subscriptions"
    MARKER = "jndiQueues"


KEY_NAMES: Mapping[ObjectKind, str] = {
    ObjectKind.ACL_PROFILE: "aclProfileName",
    ObjectKind.PUBLISH_TOPIC: "publishTopicException",
    ObjectKind.SUBSCRIBE_TOPIC: "subscribeTopicException",
    ObjectKind.CONNECT_ADDRESS: "clientConnectExceptionAddress",
    ObjectKind.CLIENT_PROFILE: "clientProfileName",
    ObjectKind.CLIENT_USERNAME: "clientUsername",
    ObjectKind.QUEUE: "queueName",
    ObjectKind.SUBSCRIPTION: "subscriptionTopic",
    ObjectKind.MARKER: "queueName",
}
"""The attribute that holds an object's name."""

NOUNS: Mapping[ObjectKind, str] = {
    ObjectKind.ACL_PROFILE: "ACL profile",
    ObjectKind.PUBLISH_TOPIC: "allowed publish topic",
    ObjectKind.SUBSCRIBE_TOPIC: "allowed subscription",
    ObjectKind.CONNECT_ADDRESS: "refused client address",
    ObjectKind.CLIENT_PROFILE: "client profile",
    ObjectKind.CLIENT_USERNAME: "client username",
    ObjectKind.QUEUE: "queue",
    ObjectKind.SUBSCRIPTION: "subscription",
    ObjectKind.MARKER: "stored settings",
}

TOPIC_RULES = (ObjectKind.PUBLISH_TOPIC, ObjectKind.SUBSCRIBE_TOPIC)
"""Parts of an ACL profile: exceptions from its rule that nothing is allowed."""

PARTS = frozenset({*TOPIC_RULES, ObjectKind.CONNECT_ADDRESS, ObjectKind.SUBSCRIPTION})
"""Kinds that are part of another object, and go with it."""

SYNTAX = "smf"
"""The syntax that topics are written in; first part of a topic rule's name."""

Attributes = Mapping[str, Json]

NEVER_READ = frozenset({"password"})
"""Attributes that a broker accepts and never returns: set when an object is created, and not compared."""

SWITCHES: Mapping[ObjectKind, tuple[str, ...]] = {
    ObjectKind.CLIENT_USERNAME: ("enabled",),
    ObjectKind.QUEUE: ("ingressEnabled", "egressEnabled"),
}
"""Attributes that are off until everything else is there."""

NEWER = frozenset({"redeliveryEnabled"})
"""Attributes that a broker may be too old for; it then behaves as a group wants."""

INTERRUPTING: Mapping[ObjectKind, frozenset[str]] = {
    ObjectKind.ACL_PROFILE: frozenset({"publishTopicDefaultAction", "subscribeTopicDefaultAction"}),
    ObjectKind.CLIENT_USERNAME: frozenset({"aclProfileName", "clientProfileName"}),
    ObjectKind.QUEUE: frozenset({"accessType", "owner", "permission", "respectMsgPriorityEnabled"}),
}
"""Attributes that cannot change without a moment in which clients are refused, or are ended with their flows."""


@dataclass(frozen=True, slots=True)
class Ref:
    """One object of a VPN."""

    kind: ObjectKind
    name: str
    queue: QueueName | None = None
    """Of a subscription: the queue that has it."""
    profile: str | None = None
    """Of a topic rule or an address: the ACL profile that has it."""

    def __str__(self) -> str:
        own = f"{NOUNS[self.kind]} {self.name}"
        return own if (whole := self.whole) is None else f"{own} of {whole}"

    @property
    def whole(self) -> "Ref | None":
        """The object that it is part of, and goes with; None if it is an object of its own."""
        if self.queue is not None:
            return Ref(ObjectKind.QUEUE, self.queue)
        return None if self.profile is None else Ref(ObjectKind.ACL_PROFILE, self.profile)

    def collection(self, vpn: str) -> tuple[Segment, ...]:
        """Path of the collection that it is in."""
        above = ("msgVpns", vpn) if (whole := self.whole) is None else whole.path(vpn)
        return (*above, self.kind.value)

    def path(self, vpn: str) -> tuple[Segment, ...]:
        return (*self.collection(vpn), (SYNTAX, self.name) if self.kind in TOPIC_RULES else self.name)


State = Mapping[Ref, Attributes]
"""Objects with the attributes that matter; a missing object is not in it."""


def desired_state(spec: GroupSpec) -> dict[Ref, Attributes]:
    """Every object of a group in good order, with the attributes that it must have.

    The first queue is the last one, as publishers that may make queues take it for the sign that all others are whole.
    """
    state: dict[Ref, Attributes] = {}
    for role in spec.logins:
        state |= _account(spec, role)
    access = QueueAccess(spec.username, others_consume=not spec.has_account)
    subscriptions = {queue: spec.shape.subscriptions(index) for index, queue in enumerate(spec.shape.queue_names())}
    subscriptions |= {queue: (queue,) for queue in spec.aside}
    for queue, topics in reversed(subscriptions.items()):
        # Messages in an error queue may have a time to live, if whoever empties it likes.
        is_ordered = not queue.startswith(ERROR_TOPIC_PREFIX)
        state[Ref(ObjectKind.QUEUE, queue)] = {
            **attributes_of_new_queue(access, spec.queue_spool_mb),
            **(KEEPS_ALL if is_ordered else {}),
        }
        for topic in topics:
            state[Ref(ObjectKind.SUBSCRIPTION, topic, queue)] = {}
    state[marker_ref(spec)] = {"physicalName": spec.marker()}
    return state


_LIMITS_OF_NEW_QUEUE: Attributes = {
    "maxBindCount": 1_000,
    "maxDeliveredUnackedMsgsPerFlow": 10_000,
    "maxMsgSpoolUsage": 0,
}
"""What a broker gives a queue that is made without them; but each queue of a group is made with a quota."""


def with_limits(desired: State, actual: State, spec: GroupSpec) -> dict[Ref, Attributes]:
    """The desired state, in which limits of queues that are too low are raised; one that is enough is left alone.

    Somebody may have raised it by hand, and what lies in a queue may need that.
    """
    wanted = dict(desired)
    for ref, attributes in desired.items():
        if ref.kind is ObjectKind.QUEUE:
            there, least = actual.get(ref, _LIMITS_OF_NEW_QUEUE), _least_limits(ref.name, spec)
            low = {name: count for name, count in least.items() if _is_below(there.get(name), count)}
            wanted[ref] = {name: value for name, value in attributes.items() if name not in least} | low
    return wanted


def _least_limits(queue: str, spec: GroupSpec) -> dict[str, int]:
    least = {"maxMsgSpoolUsage": spec.queue_spool_mb}
    if queue in spec.shape.queue_names():
        least["maxBindCount"] = spec.binds
    elif queue.startswith(PARKING_PREFIX):
        least["maxDeliveredUnackedMsgsPerFlow"] = SHOWN_UNSETTLED
    return least


def _is_below(limit: Json, count: int) -> bool:
    # A broker does not act on a limit that it does not have.
    return isinstance(limit, int) and limit < count


def account_refs(spec: GroupSpec) -> tuple[Ref, ...]:
    """The ACL profiles, client profiles and client usernames of all accounts; not the topic rules."""
    refs: list[Ref] = []
    for role, login in spec.logins.items():
        refs += [
            Ref(ObjectKind.ACL_PROFILE, spec.profile_name(role)),
            Ref(ObjectKind.CLIENT_PROFILE, spec.client_profile_name(role)),
            Ref(ObjectKind.CLIENT_USERNAME, login.username),
        ]
    return tuple(dict.fromkeys(refs))


def _account(spec: GroupSpec, role: Role) -> dict[Ref, Attributes]:
    """What one role has: nothing is allowed but what its work needs."""
    grant, profile, login = spec.grant(role), spec.profile_name(role), spec.logins[role]
    state: dict[Ref, Attributes] = {
        Ref(ObjectKind.ACL_PROFILE, profile): {
            "clientConnectDefaultAction": "allow",
            "publishTopicDefaultAction": "disallow",
            "subscribeTopicDefaultAction": "disallow",
        }
    }
    for kind, topics in zip(TOPIC_RULES, (grant.publish, grant.subscribe), strict=True):
        state |= {Ref(kind, topic, profile=profile): {} for topic in topics}
    if spec.manages_client_profile:
        state[Ref(ObjectKind.CLIENT_PROFILE, profile)] = {
            "allowGuaranteedMsgReceiveEnabled": grant.may_receive,
            "allowGuaranteedMsgSendEnabled": True,
            "allowGuaranteedEndpointCreateEnabled": grant.may_create_queues,
        }
    state[Ref(ObjectKind.CLIENT_USERNAME, login.username)] = {
        "aclProfileName": profile,
        "clientProfileName": spec.client_profile_name(role),
        "password": login.password,
        "enabled": True,
    }
    return state


def marker_ref(spec: GroupSpec) -> Ref:
    """The object that holds the group's stored settings."""
    return Ref(ObjectKind.MARKER, spec.marker_name)
