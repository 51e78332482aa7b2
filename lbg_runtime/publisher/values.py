"""Makes the two values that every message needs without their constructors, which are slow (`MessageDraft`)."""

from collections.abc import Mapping

from lbg_runtime.model.message import Headers, Message, MessageDraft, PropertyValue
from lbg_runtime.publisher.confirmation import Confirmation


class _ConfirmationDraft:
    __slots__ = Confirmation.__slots__

    key: str
    shard: int
    key_sequence: int
    topic: str
    message_id: str


def make_message(
    topic: str,
    payload: bytes,
    properties: Mapping[str, PropertyValue],
    message_id: str,
    sent_at_ms: int,
    headers: Headers,
) -> Message:
    """A `Message` with these fields."""
    draft = MessageDraft()
    draft.topic = topic
    draft.payload = payload
    draft.properties = properties
    draft.message_id = message_id
    draft.sent_at_ms = sent_at_ms
    draft.headers = headers
    draft.is_first_of_key = False
    draft.__class__ = Message  # type: ignore[assignment]  # of the same layout, which is all it needs
    return draft  # type: ignore[return-value]


def make_confirmation(key: str, shard: int, key_sequence: int, topic: str, message_id: str) -> Confirmation:
    """A `Confirmation` with these fields."""
    draft = _ConfirmationDraft()
    draft.key = key
    draft.shard = shard
    draft.key_sequence = key_sequence
    draft.topic = topic
    draft.message_id = message_id
    draft.__class__ = Confirmation  # type: ignore[assignment]  # as above
    return draft  # type: ignore[return-value]
