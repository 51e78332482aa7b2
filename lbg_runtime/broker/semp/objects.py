"""The kinds of objects that the configuration API knows. Names, limits and defaults are PubSub+'s (10.26)."""

import string
from enum import Enum

from lbg_runtime.broker.engine.settings import (
    LARGEST_MESSAGE_BYTES,
    LARGEST_QUOTA_MEGABYTES,
    AccessType,
    Permission,
    RejectOnDiscard,
)
from lbg_runtime.broker.semp.grouping import GROUPING_QUEUE_ATTRIBUTES
from lbg_runtime.broker.semp.schema import Attribute, Choice, Flag, Level, Number, ObjectType, Text, Threshold
from lbg_runtime.model.failure import DEAD_MESSAGE_QUEUE
from lbg_runtime.model.group import LARGEST_QUEUE_NAME, NOT_IN_QUEUE_NAMES

_U32 = 2**32 - 1
_WORD = string.ascii_letters + string.digits + "-_"
_SYNTAX = ("smf", "mqtt")
_ACTION = ("allow", "disallow")


def _choice(name: str, default: Enum) -> Choice:
    """One of the words of the engine's setting."""
    return Choice(name, default.value, tuple(each.value for each in type(default)))


ENFORCED_QUEUE_ATTRIBUTES: tuple[Attribute, ...] = (
    _choice("accessType", AccessType.EXCLUSIVE),
    Flag("egressEnabled"),
    Flag("ingressEnabled"),
    Number("maxBindCount", 1_000, 0, 10_000),
    Number("maxDeliveredUnackedMsgsPerFlow", 10_000, 1, 1_000_000),
    Number("maxMsgSize", 10_000_000, 0, LARGEST_MESSAGE_BYTES),
    Number("maxMsgSpoolUsage", 5_000, 0, LARGEST_QUOTA_MEGABYTES),
    Text("owner", "", 189),
    Number("partitionCount", 0, 0, 1_000),
    Number("partitionRebalanceDelay", 5, 0, _U32),
    Number("partitionRebalanceMaxHandoffTime", 3, 0, _U32),
    _choice("permission", Permission.NO_ACCESS),
    _choice("rejectMsgToSenderOnDiscardBehavior", RejectOnDiscard.WHEN_QUEUE_ENABLED),
    Text("deadMsgQueue", DEAD_MESSAGE_QUEUE, LARGEST_QUEUE_NAME),
    Number("maxRedeliveryCount", 0, 0, 255),
    Number("maxTtl", 0, 0, _U32),
    Flag("redeliveryDelayEnabled"),
    Number("redeliveryDelayInitialInterval", 1_000, 1, 3_600_000),
    Number("redeliveryDelayMaxInterval", 64_000, 1, 10_800_000),
    Number("redeliveryDelayMultiplier", 200, 100, 500),
    Flag("redeliveryEnabled", default=True),
    Flag("respectDmqEligibleEnabled"),
    Flag("respectMsgPriorityEnabled"),
    Flag("respectTtlEnabled"),
)
"""Attributes that the engine acts on; `queues.py` says how."""

NOTED_QUEUE_ATTRIBUTES: tuple[Attribute, ...] = (
    Flag("consumerAckPropagationEnabled", default=True),
    Flag("deliveryCountEnabled"),
    Number("deliveryDelay", 0, 0, _U32),
    Threshold("eventBindCountThreshold", 60, 80),
    Threshold("eventMsgSpoolUsageThreshold", 18, 25),
    Threshold("eventRejectLowPriorityMsgLimitThreshold", 60, 80),
    Flag("rejectLowPriorityMsgEnabled"),
    Number("rejectLowPriorityMsgLimit", 0, 0, _U32),
)
"""Attributes that are kept but have no effect here."""

SUBSCRIPTION = ObjectType("queue subscription", "subscriptions", (Text("subscriptionTopic", "", 250, least=1),))

QUEUE = ObjectType(
    "queue",
    "queues",
    (Text("queueName", "", LARGEST_QUEUE_NAME, least=1, forbidden=NOT_IN_QUEUE_NAMES, has_levels=True),),
    ENFORCED_QUEUE_ATTRIBUTES + NOTED_QUEUE_ATTRIBUTES + GROUPING_QUEUE_ATTRIBUTES,
    (SUBSCRIPTION,),
)

CLIENT_USERNAME = ObjectType(
    "client username",
    "clientUsernames",
    (Text("clientUsername", "", 189, least=1, forbidden="*?"),),
    (
        Text("aclProfileName", "default", 32, least=1),
        Text("clientProfileName", "default", 32, least=1),
        Flag("enabled"),
        Flag("guaranteedEndpointPermissionOverrideEnabled"),
        Text("password", "", 128, is_secret=True),
        Flag("subscriptionManagerEnabled"),
    ),
)

ENFORCED_PROFILE_ATTRIBUTES: tuple[Attribute, ...] = (
    Flag("allowGuaranteedEndpointCreateEnabled"),
    Flag("allowGuaranteedMsgReceiveEnabled"),
    Flag("allowGuaranteedMsgSendEnabled"),
    Flag("allowTransactedSessionsEnabled"),
)
"""Attributes that the engine acts on; `accounts.py` says how."""

NOTED_PROFILE_ATTRIBUTES: tuple[Attribute, ...] = (
    Flag("allowBridgeConnectionsEnabled"),
    Flag("allowCutThroughForwardingEnabled"),
    Choice("allowGuaranteedEndpointCreateDurability", "all", ("all", "durable", "non-durable")),
    Flag("allowSharedSubscriptionsEnabled"),
    Text("apiQueueManagementCopyFromOnCreateName", "", 200),
    Text("apiQueueManagementCopyFromOnCreateTemplateName", "", 255),
    Text("apiTopicEndpointManagementCopyFromOnCreateName", "", 200),
    Text("apiTopicEndpointManagementCopyFromOnCreateTemplateName", "", 255),
    Flag("compressionEnabled", default=True),
    Number("elidingDelay", 0, 0, 60_000),
    Flag("elidingEnabled"),
    Number("elidingMaxTopicCount", 256, 1, 32_000),
    Threshold("eventClientProvisionedEndpointSpoolUsageThreshold", 18, 25),
    Threshold("eventConnectionCountPerClientUsernameThreshold", 60, 80),
    Threshold("eventEgressFlowCountThreshold", 60, 80),
    Threshold("eventEndpointCountPerClientUsernameThreshold", 60, 80),
    Threshold("eventIngressFlowCountThreshold", 60, 80),
    Threshold("eventServiceSmfConnectionCountPerClientUsernameThreshold", 60, 80),
    Threshold("eventServiceWebConnectionCountPerClientUsernameThreshold", 60, 80),
    Threshold("eventSubscriptionCountThreshold", 60, 80),
    Threshold("eventTransactedSessionCountThreshold", 60, 80),
    Threshold("eventTransactionCountThreshold", 60, 80),
    Number("maxAmqpLinkCount", 146_625, 0, 146_625),
    Number("maxConnectionCountPerClientUsername", 100, 0, 200_000),
    Number("maxEgressFlowCount", 1_000, 0, 200_000),
    Number("maxEndpointCountPerClientUsername", 1_000, 0, 200_000),
    Number("maxIngressFlowCount", 1_000, 0, 1_000_000),
    Number("maxMsgsPerTransaction", 256, 1, 20_000),
    Number("maxSubscriptionCount", 500_000, 0, _U32),
    Number("maxTransactedSessionCount", 10, 0, 100_000),
    Number("maxTransactionCount", 5_000, 0, 100_000),
    *(
        attribute
        for line, burst in (("Control1", 4), ("Direct1", 4), ("Direct2", 4), ("Direct3", 4), ("Guaranteed1", 255))
        for attribute in (
            Number(f"queue{line}MaxDepth", 20_000, 2, 262_144),
            Number(f"queue{line}MinMsgBurst", burst, 0, 262_144),
        )
    ),
    Flag("rejectMsgToSenderOnNoSubscriptionMatchEnabled"),
    Flag("replicationAllowClientConnectWhenStandbyEnabled"),
    Number("serviceMinKeepaliveTimeout", 30, 3, 3_600),
    Number("serviceSmfMaxConnectionCountPerClientUsername", 200_000, 0, 200_000),
    Flag("serviceSmfMinKeepaliveEnabled"),
    Number("serviceWebInactiveTimeout", 30, 1, _U32),
    Number("serviceWebMaxConnectionCountPerClientUsername", 200_000, 0, 200_000),
    Number("serviceWebMaxPayload", 1_000_000, 300, 10_000_000),
    Number("tcpCongestionWindowSize", 2, 2, 7_826),
    Number("tcpKeepaliveCount", 5, 2, 5),
    Number("tcpKeepaliveIdleTime", 3, 3, 120),
    Number("tcpKeepaliveInterval", 1, 1, 30),
    Number("tcpMaxSegmentSize", 1_460, 256, 1_460),
    Number("tcpMaxWindowSize", 256, 16, 65_536),
    Flag("tlsAllowDowngradeToPlainTextEnabled", default=True),
)
"""Attributes that are kept but have no effect here."""

CLIENT_PROFILE = ObjectType(
    "client profile",
    "clientProfiles",
    (Text("clientProfileName", "", 32, least=1, allowed=_WORD),),
    ENFORCED_PROFILE_ATTRIBUTES + NOTED_PROFILE_ATTRIBUTES,
    write_level=Level.GLOBAL,
)

CONNECT_EXCEPTION = ObjectType(
    "client connect exception", "clientConnectExceptions", (Text("clientConnectExceptionAddress", "", 43, least=1),)
)
PUBLISH_EXCEPTION = ObjectType(
    "publish topic exception",
    "publishTopicExceptions",
    (Choice("publishTopicExceptionSyntax", "", _SYNTAX), Text("publishTopicException", "", 250, least=1)),
)
SUBSCRIBE_EXCEPTION = ObjectType(
    "subscribe topic exception",
    "subscribeTopicExceptions",
    (Choice("subscribeTopicExceptionSyntax", "", _SYNTAX), Text("subscribeTopicException", "", 250, least=1)),
)

ACL_PROFILE = ObjectType(
    "ACL profile",
    "aclProfiles",
    (Text("aclProfileName", "", 32, least=1, allowed=_WORD),),
    (
        Choice("clientConnectDefaultAction", "disallow", _ACTION),
        Choice("publishTopicDefaultAction", "disallow", _ACTION),
        Choice("subscribeShareNameDefaultAction", "allow", _ACTION),
        Choice("subscribeTopicDefaultAction", "disallow", _ACTION),
    ),
    (CONNECT_EXCEPTION, PUBLISH_EXCEPTION, SUBSCRIBE_EXCEPTION),
)

JNDI_QUEUE = ObjectType(
    "JNDI queue",
    "jndiQueues",
    (Text("queueName", "", 256, least=1, forbidden="?* "),),
    (Text("physicalName", "", 200),),
)

REPLAY_LOG = ObjectType(
    "replay log",
    "replayLogs",
    (Text("replayLogName", "", 185, least=1, forbidden="#<>*?&;"),),
    (
        Flag("egressEnabled"),
        Flag("ingressEnabled"),
        Number("maxSpoolUsage", 0, 0, LARGEST_QUOTA_MEGABYTES),
        Flag("topicFilterEnabled"),
    ),
    write_level=Level.GLOBAL,
)

NOTED_VPN_ATTRIBUTES: tuple[Attribute, ...] = (
    Number("maxConnectionCount", 200_000, 0, 200_000),
    Number("maxEgressFlowCount", 200_000, 0, 200_000),
    Number("maxEndpointCount", 200_000, 0, 200_000),
    Number("maxIngressFlowCount", 1_000_000, 0, 1_000_000),
    Number("maxMsgSpoolUsage", 6_000_000, 0, 6_000_000),
    Number("maxSubscriptionCount", _U32, 0, _U32),
    Number("maxTransactedSessionCount", 100_000, 0, 100_000),
    Number("maxTransactionCount", 100_000, 0, 100_000),
)
"""Attributes that are kept but have no effect here: a VPN of this broker has none of these limits, so each is as large
as can be."""

VPN = ObjectType(
    "message VPN",
    "msgVpns",
    (Text("msgVpnName", "", 32, least=1, forbidden="*?"),),
    (
        Choice("authenticationBasicType", "none", ("none", "internal")),
        Flag("authenticationBasicEnabled", True),
        Flag("authenticationClientCertEnabled"),
        Flag("enabled", True),
        *NOTED_VPN_ATTRIBUTES,
    ),
    (QUEUE, CLIENT_USERNAME, CLIENT_PROFILE, ACL_PROFILE, JNDI_QUEUE, REPLAY_LOG),
    write_level=Level.GLOBAL,
    is_fixed=True,
)
