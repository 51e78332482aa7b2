"""What tests with a real client look at."""

from collections.abc import Iterable

from solace.messaging.receiver.inbound_message import InboundMessage


def payloads(messages: Iterable[InboundMessage]) -> list[str]:
    return [message.get_payload_as_string() for message in messages]
