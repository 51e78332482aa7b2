"""The only module that imports the official client, and the check that this project knows that client.

To import the client loads and starts its C library, and sets up logging for the whole process. So this module is not
imported before a transport is opened, and the client's set-up of logging is suppressed: it would close the
application's own handlers, print the client's lines on standard output, and hide them from the application. Suppressed
as well is Python's warning of an escape sequence in the client's source, which otherwise comes wherever no compiled
form is kept, from 3.12 on at each start.
"""

import logging.config
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any


@contextmanager
def _without_logging_setup() -> Iterator[None]:
    configure = logging.config.dictConfig

    def configure_others(config: Mapping[str, Any]) -> None:
        if not any(name.startswith("solace.") for name in config.get("loggers", {})):
            configure(dict(config))

    logging.config.dictConfig = configure_others
    try:
        yield
    finally:
        logging.config.dictConfig = configure


with _without_logging_setup(), warnings.catch_warnings():
    warnings.filterwarnings("ignore", ".*invalid escape sequence")
    import solace
    from solace.messaging.config._ccsmp_property_mapping import flow_props
    from solace.messaging.config._sol_constants import (
        SOLCLIENT_ENDPOINT_PROP_ACCESSTYPE,
        SOLCLIENT_ENDPOINT_PROP_ACCESSTYPE_EXCLUSIVE,
        SOLCLIENT_ENDPOINT_PROP_DURABLE,
        SOLCLIENT_ENDPOINT_PROP_ID,
        SOLCLIENT_ENDPOINT_PROP_NAME,
        SOLCLIENT_ENDPOINT_PROP_QUEUE,
        SOLCLIENT_EOS,
        SOLCLIENT_FLOW_PROP_START_STATE,
        SOLCLIENT_FLOW_PROP_WINDOWSIZE,
        SOLCLIENT_NOT_FOUND,
        SOLCLIENT_OK,
        SOLCLIENT_PROP_DISABLE_VAL,
        SOLCLIENT_PROP_ENABLE_VAL,
        SOLCLIENT_PROVISION_FLAGS_IGNORE_EXIST_ERRORS,
        SOLCLIENT_SUBSCRIBE_FLAGS_WAITFORCONFIRM,
    )
    from solace.messaging.config._sol_constants import _SolClientFlowEvent as FlowEventCode
    from solace.messaging.config._solace_message_constants import FLOW_RESUME_FAILURE
    from solace.messaging.config.message_acknowledgement_configuration import Outcome as ClientOutcome
    from solace.messaging.core._core_api_utility import prepare_array
    from solace.messaging.core._message import _SolClientDestination as Destination
    from solace.messaging.core._message import _SolClientField as Field
    from solace.messaging.core._message import _SolClientFieldType as FieldType
    from solace.messaging.core._message import map_stream_cleanup as close_map
    from solace.messaging.core._receive import _event_callback_func_type as flow_event_callback_type
    from solace.messaging.core._solace_session import _SolaceSession as ClientSession
    from solace.messaging.errors.pubsubplus_client_error import (
        IllegalArgumentError,
        IncompleteMessageDeliveryError,
        InvalidDataTypeError,
        PubSubPlusClientError,
        SolaceSDTError,
    )
    from solace.messaging.messaging_service import (
        MessagingService,
        ReconnectionAttemptListener,
        ReconnectionListener,
        ServiceInterruptionListener,
    )
    from solace.messaging.messaging_service import _BasicMessagingService as Service
    from solace.messaging.messaging_service import _MessagingServiceState as ServiceState
    from solace.messaging.publisher._outbound_message_utility import get_next_field
    from solace.messaging.publisher.persistent_message_publisher import MessagePublishReceiptListener
    from solace.messaging.receiver import _inbound_message_utility as native
    from solace.messaging.receiver._impl._inbound_message import _InboundMessage as InboundMessage
    from solace.messaging.receiver._impl._persistent_message_receiver import (
        _PersistentMessageReceiver as PersistentReceiver,
    )
    from solace.messaging.receiver.message_receiver import MessageHandler
    from solace.messaging.resources.queue import Queue
    from solace.messaging.resources.topic import Topic
    from solace.messaging.resources.topic_subscription import TopicSubscription
    from solace.messaging.utils._solace_utilities import _PubSubPlusQueue
    from solace.messaging.utils._solace_utilities import get_last_error_info as _get_last_error_info
    from solace.messaging.utils.manageable import Metric

# The client logs failures that mean nothing here. If nobody has set up logging, Python would print them on the
# terminal. The handlers of an application get them as before.
logging.getLogger("solace").addHandler(logging.NullHandler())

CORE = solace.CORE_LIB
"""The C library, as the client's own Python layer calls it."""

CLIENT_ERRORS = (PubSubPlusClientError, IllegalArgumentError, InvalidDataTypeError, SolaceSDTError, UnicodeDecodeError)
"""Everything that the client raises on purpose (there is no common base class), and what it raises instead when its
library has cut an error's text to 255 bytes within a character.
"""

START_METHOD = "_PersistentMessageReceiver__do_start"
"""The part of a receiver's `start` that creates the flow and opens its window."""

_PARTS = (
    (
        PersistentReceiver,
        (
            "flow_p",
            "receiver_queue",
            "msg_callback_func_type",
            "_event_callback_func_routine",
            "_flow_msg_callback_func_routine",
            "_flow_message_receive_callback_routine",
            "_handle_events_on_terminate",
            START_METHOD,
        ),
    ),
    (ClientSession, ("session_cleanup",)),
    (Service, ("state", "create_message_queue_browser_builder")),
    (ServiceState, ("RECONNECTING",)),
    (_PubSubPlusQueue, ("register_on_low_watermark", "register_on_high_watermark")),
    (InboundMessage, ("solace_message",)),
    (native, ("end_point_provision", "topic_endpoint_subscribe", "nack_message", "pause", "resume")),
    (
        CORE,
        (
            "solClient_msg_getApplicationMessageId",
            "solClient_msg_getApplicationMsgType",
            "solClient_msg_getCorrelationId",
            "solClient_msg_getDestination",
            "solClient_msg_getMsgId",
            "solClient_msg_getPriority",
            "solClient_msg_getSenderTimestamp",
            "solClient_msg_getSequenceNumber",
            "solClient_msg_isRedelivered",
            "solClient_msg_setSenderTimestamp",
            "solClient_flow_destroy",
            "solClient_session_disconnect",
            "solClient_session_endpointProvision",
            "solClient_session_endpointTopicSubscribe",
            "solClient_session_getProperty",
            "solClient_session_isCapable",
            "solClient_session_topicSubscribeExt",
        ),
    ),
)


def get_last_error_info(code: int, what: str) -> Exception:
    """Return the error of the native call that has just returned `code` on this thread; raises nothing."""
    try:
        error: Exception = _get_last_error_info(code, what)
    except UnicodeDecodeError as unreadable:
        unreadable.sub_code = CORE.solClient_getLastErrorInfo().contents.subCode  # type: ignore[attr-defined]
        return unreadable
    return error


def missing_parts() -> str | None:
    """The first thing that this transport uses beyond the client's public interface, and that the installed client
    lacks; None if it has all."""
    missing = [name for part, names in _PARTS for name in names if not hasattr(part, name)]
    if not missing and not _start_opens_by_resume():
        missing = ["a start that opens the window by `resume`"]
    if not missing and "_flow_arr" not in getattr(PersistentReceiver, START_METHOD).__code__.co_names:
        missing = ["a start with the properties in `_flow_arr`"]
    if not missing:
        return None
    return f"solace-pubsubplus {version('solace-pubsubplus')} lacks {', '.join(missing)}"


def _start_opens_by_resume() -> bool:
    """Whether `native.keep_window_closed` finds what it replaces, and the flow is created with its window closed."""
    start = getattr(PersistentReceiver, START_METHOD)
    opens_by_resume = "resume" in start.__code__.co_names and start.__globals__.get("resume") is native.resume
    return opens_by_resume and flow_props.get(SOLCLIENT_FLOW_PROP_START_STATE) == SOLCLIENT_PROP_DISABLE_VAL


__all__ = [
    "CLIENT_ERRORS",
    "CORE",
    "FLOW_RESUME_FAILURE",
    "SOLCLIENT_ENDPOINT_PROP_ACCESSTYPE",
    "SOLCLIENT_ENDPOINT_PROP_ACCESSTYPE_EXCLUSIVE",
    "SOLCLIENT_ENDPOINT_PROP_DURABLE",
    "SOLCLIENT_ENDPOINT_PROP_ID",
    "SOLCLIENT_ENDPOINT_PROP_NAME",
    "SOLCLIENT_ENDPOINT_PROP_QUEUE",
    "SOLCLIENT_EOS",
    "SOLCLIENT_FLOW_PROP_WINDOWSIZE",
    "SOLCLIENT_NOT_FOUND",
    "SOLCLIENT_OK",
    "SOLCLIENT_PROP_ENABLE_VAL",
    "SOLCLIENT_PROVISION_FLAGS_IGNORE_EXIST_ERRORS",
    "SOLCLIENT_SUBSCRIBE_FLAGS_WAITFORCONFIRM",
    "START_METHOD",
    "ClientOutcome",
    "ClientSession",
    "Destination",
    "Field",
    "FieldType",
    "FlowEventCode",
    "InboundMessage",
    "IncompleteMessageDeliveryError",
    "MessageHandler",
    "MessagePublishReceiptListener",
    "MessagingService",
    "Metric",
    "PersistentReceiver",
    "PubSubPlusClientError",
    "Queue",
    "ReconnectionAttemptListener",
    "ReconnectionListener",
    "ServiceInterruptionListener",
    "ServiceState",
    "Topic",
    "TopicSubscription",
    "close_map",
    "flow_event_callback_type",
    "get_last_error_info",
    "get_next_field",
    "missing_parts",
    "native",
    "prepare_array",
]
