"""What the client's Python layer does to a flow but has no public method for.

Only `provision_queue` and `destroy` block. `library.missing_parts` has checked, when the transport was opened, that all
of it is there.
"""

from collections.abc import Sequence
from ctypes import byref, c_int64, c_uint64
from typing import Any

from lbg_runtime.model.ids import DeliveryId
from lbg_runtime.model.outcome import Outcome
from lbg_runtime.transport.solace.library import (
    CORE,
    SOLCLIENT_ENDPOINT_PROP_ACCESSTYPE,
    SOLCLIENT_ENDPOINT_PROP_ACCESSTYPE_EXCLUSIVE,
    SOLCLIENT_ENDPOINT_PROP_DURABLE,
    SOLCLIENT_ENDPOINT_PROP_ID,
    SOLCLIENT_ENDPOINT_PROP_NAME,
    SOLCLIENT_ENDPOINT_PROP_QUEUE,
    SOLCLIENT_OK,
    SOLCLIENT_PROP_ENABLE_VAL,
    ClientOutcome,
    get_last_error_info,
    native,
    prepare_array,
)

_OUTCOMES = {
    Outcome.ACCEPTED: ClientOutcome.ACCEPTED,
    Outcome.FAILED: ClientOutcome.FAILED,
    Outcome.REJECTED: ClientOutcome.REJECTED,
}

WATERMARK = 1
"""Any value will do: it only says when the handlers that do nothing are called."""


def take_window_over(receiver: Any) -> None:
    """Keep the client from closing and opening the window by the length of its own queue. Before `start`.

    Its queue is emptied at once into ours, so that its length says nothing; and an opening of its own would undo ours.
    """
    receiver.receiver_queue.register_on_high_watermark(_do_nothing, WATERMARK)
    receiver.receiver_queue.register_on_low_watermark(_do_nothing, WATERMARK)


def close_window(receiver: Any) -> None:
    """Ask for no more messages; closing a closed window only flushes acknowledgements."""
    native.pause(receiver.flow_p)


def open_window(receiver: Any) -> None:
    """Ask for messages again."""
    native.resume(receiver.flow_p)


def settle(receiver: Any, delivery_id: DeliveryId, outcome: Outcome) -> bool:
    """Settle by number, so that no native message need be kept for it; False when the client did not take it."""
    return bool(native.nack_message(receiver.flow_p, c_uint64(delivery_id), _OUTCOMES[outcome]) == SOLCLIENT_OK)


def destroy(receiver: Any) -> None:
    """Take the flow away from under a receiver that could not terminate, lest it be bound again at the reconnect."""
    CORE.solClient_flow_destroy(byref(receiver.flow_p))


def forget_failed(receiver: Any) -> None:
    """Undo the registration with the session that a receiver leaves behind when its `start` failed."""
    receiver._handle_events_on_terminate()


def set_sender_timestamp(outbound: Any, sent_at_ms: int) -> None:
    """Stamp a message to be published; milliseconds since the epoch."""
    CORE.solClient_msg_setSenderTimestamp(outbound.solace_message.msg_p, c_int64(sent_at_ms))


def provision_queue(service: Any, queue: str, subscriptions: Sequence[str]) -> None:
    """Create an exclusive durable queue and its subscriptions where missing. Blocks; raises the client's errors.

    The client does the same when a receiver starts; but starting one would take messages, to be given back flagged.
    """
    properties = prepare_array(
        {
            SOLCLIENT_ENDPOINT_PROP_ID: SOLCLIENT_ENDPOINT_PROP_QUEUE,
            SOLCLIENT_ENDPOINT_PROP_DURABLE: SOLCLIENT_PROP_ENABLE_VAL,
            SOLCLIENT_ENDPOINT_PROP_ACCESSTYPE: SOLCLIENT_ENDPOINT_PROP_ACCESSTYPE_EXCLUSIVE,
            SOLCLIENT_ENDPOINT_PROP_NAME: queue,
        }
    )
    session = service.session_pointer
    code = native.end_point_provision(properties, session, ignore_already_provisioned=True)
    if code != SOLCLIENT_OK:
        raise get_last_error_info(code, "provision")
    for subscription in subscriptions:
        code = native.topic_endpoint_subscribe(properties, session, subscription)
        if code != SOLCLIENT_OK:
            raise get_last_error_info(code, f"subscribe {subscription}")


def _do_nothing() -> None:
    return
