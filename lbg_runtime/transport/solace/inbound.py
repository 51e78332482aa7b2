"""From a message of the client, as its Python layer makes one, to values of the model."""

import time
from typing import Any

from lbg_runtime.model.errors import TransportError
from lbg_runtime.model.ids import DeliveryId, Epoch, QueueName
from lbg_runtime.model.message import PUBLISHER_PROPERTY, Delivery, Message
from lbg_runtime.transport.solace.library import CLIENT_ERRORS
from lbg_runtime.transport.solace.properties import read_properties


class UnreadableMessage(TransportError):
    """A message of a foreign publisher whose parts cannot be read; it stays on its queue."""


def read_delivery(queue: QueueName, epoch: Epoch, inbound: Any) -> Delivery:
    """Take everything out of a message of a flow. Called on the client's threads; raises `UnreadableMessage`."""
    received_at_ns = time.monotonic_ns()
    message = read_message(inbound)
    delivery_id = DeliveryId(inbound.message_id.value)
    return Delivery(queue, epoch, delivery_id, message, inbound.is_redelivered(), received_at_ns)


def read_message(inbound: Any) -> Message:
    """Take the message itself out. Called on the client's threads; raises `UnreadableMessage`."""
    try:
        properties = read_properties(inbound)
        payload = bytes(inbound.get_payload_as_bytes() or b"")
        # Our own publishers send bytes and nothing else, so what looks like a text of theirs is not one.
        if PUBLISHER_PROPERTY not in properties:
            payload = unwrap_text(payload)
        return Message(
            topic=inbound.get_destination_name() or "",
            payload=payload,
            properties=properties,
            message_id=inbound.get_application_message_id(),
            sent_at_ms=inbound.get_sender_timestamp(),
        )
    except (*CLIENT_ERRORS, UnicodeDecodeError) as error:
        raise UnreadableMessage(f"a message cannot be read: {error}") from error


def unwrap_text(payload: bytes) -> bytes:
    """UTF-8 text of a message that was published as a string: tag and length before it, a zero byte behind.

    Only for messages of foreign publishers. Other payloads come back as they are.
    """
    if not payload or payload[0] >> 2 != 7:
        return payload
    start = 2 + (payload[0] & 3)
    declared = int.from_bytes(payload[1:start], "big")
    return payload[start:-1] if declared == len(payload) and payload[-1] == 0 else payload
