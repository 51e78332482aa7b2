"""The broker's objects that make a group: how each is named and found, and what a group wants of them. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from lbg_runtime.admin.queues import Permission, QueueAccess, attributes_of_new_queue
from lbg_runtime.admin.spec import GroupSpec
from lbg_runtime.model.ids import QueueName
from lbg_runtime.semp.address import Segment
from lbg_runtime.semp.answer import Json


class ObjectKind(Enum):
    """Kinds of objects, by the collection that they are in; in the order in which they refer to each other."""

    ACL_PROFILE = "aclProfiles"
    CLIENT_PROFILE = "clientProfiles"
    CLIENT_USERNAME = "clientUsernames"
    QUEUE = "queues"
    SUBSCRIPTION = "subscriptions"
    MARKER = "jndiQueues"


KEY_NAMES: Mapping[ObjectKind, str] = {
    ObjectKind.ACL_PROFILE: "aclProfileName",
    ObjectKind.CLIENT_PROFILE: "clientProfileName",
    ObjectKind.CLIENT_USERNAME: "clientUsername",
    ObjectKind.QUEUE: "queueName",
    ObjectKind.SUBSCRIPTION: "subscriptionTopic",
    ObjectKind.MARKER: "queueName",
}
"""The attribute that holds an object's name."""

NOUNS: Mapping[ObjectKind, str] = {
    ObjectKind.ACL_PROFILE: "ACL profile",
    ObjectKind.CLIENT_PROFILE: "client profile",
    ObjectKind.CLIENT_USERNAME: "client username",
    ObjectKind.QUEUE: "queue",
    ObjectKind.SUBSCRIPTION: "subscription",
    ObjectKind.MARKER: "stored settings",
}

Attributes = Mapping[str, Json]

NEVER_READ = frozenset({"password"})
"""What a broker takes and never tells: set when an object is created, and not compared."""

SWITCHES: Mapping[ObjectKind, tuple[str, ...]] = {
    ObjectKind.CLIENT_USERNAME: ("enabled",),
    ObjectKind.QUEUE: ("ingressEnabled", "egressEnabled"),
}
"""Attributes that are off until everything else is there."""

INTERRUPTING: Mapping[ObjectKind, frozenset[str]] = {
    ObjectKind.CLIENT_USERNAME: frozenset({"aclProfileName", "clientProfileName"}),
    ObjectKind.QUEUE: frozenset({"accessType", "owner", "permission", "respectMsgPriorityEnabled"}),
}
"""Attributes that a broker changes by disabling the object for a moment, which ends clients or flows."""


@dataclass(frozen=True, slots=True)
class Ref:
    """One object of a VPN."""

    kind: ObjectKind
    name: str
    queue: QueueName | None = None
    """Of a subscription: the queue that has it."""

    def __str__(self) -> str:
        where = f" of queue {self.queue}" if self.queue is not None else ""
        return f"{NOUNS[self.kind]} {self.name}{where}"

    def collection(self, vpn: str) -> tuple[Segment, ...]:
        """Path of the collection that it is in."""
        if self.queue is not None:
            return ("msgVpns", vpn, ObjectKind.QUEUE.value, self.queue, self.kind.value)
        return ("msgVpns", vpn, self.kind.value)

    def path(self, vpn: str) -> tuple[Segment, ...]:
        """Its own path."""
        return (*self.collection(vpn), self.name)


State = Mapping[Ref, Attributes]
"""Objects with those of their attributes that matter; an object that is missing is not in it."""


def desired_state(spec: GroupSpec) -> dict[Ref, Attributes]:
    """Every object of a group that is well, with the attributes it has to have."""
    state: dict[Ref, Attributes] = {}
    if spec.has_account:
        allow = ("clientConnectDefaultAction", "publishTopicDefaultAction", "subscribeTopicDefaultAction")
        state[Ref(ObjectKind.ACL_PROFILE, spec.profile_name)] = dict.fromkeys(allow, "allow")
        if spec.manages_client_profile:
            state[Ref(ObjectKind.CLIENT_PROFILE, spec.profile_name)] = {
                "allowGuaranteedMsgReceiveEnabled": True,
                "allowGuaranteedMsgSendEnabled": True,
                "allowGuaranteedEndpointCreateEnabled": spec.creates_queues,
            }
        state[username_ref(spec)] = {
            "aclProfileName": spec.profile_name,
            "clientProfileName": spec.client_profile_name,
            "password": spec.password,
            "enabled": True,
        }
    access = QueueAccess(spec.username, Permission.NO_ACCESS if spec.has_account else Permission.CONSUME)
    for index, queue in enumerate(spec.shape.queue_names()):
        state[Ref(ObjectKind.QUEUE, queue)] = {
            **attributes_of_new_queue(access),
            "maxMsgSpoolUsage": spec.queue_spool_mb,
            # It would take messages out of the order of their keys.
            "respectMsgPriorityEnabled": False,
        }
        for topic in spec.shape.subscriptions(index):
            state[Ref(ObjectKind.SUBSCRIPTION, topic, queue)] = {}
    state[marker_ref(spec)] = {"physicalName": spec.marker()}
    return state


def username_ref(spec: GroupSpec) -> Ref:
    """Of the group's client username."""
    return Ref(ObjectKind.CLIENT_USERNAME, spec.username)


def marker_ref(spec: GroupSpec) -> Ref:
    """Of its stored settings."""
    return Ref(ObjectKind.MARKER, spec.marker_name)
