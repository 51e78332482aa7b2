"""What a publisher reports about a message."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Confirmation:
    """The broker has taken over the message; it is in every queue that subscribes to its topic.

    If no queue subscribes to it, PubSub+ confirms and drops it, unless the client profile says to reject such messages.
    """

    key: str
    shard: int
    key_sequence: int
    """Number of the message within its key, counted from 1."""
    topic: str
    """Full topic, including hash prefix and shard."""
    message_id: str


class _ConfirmationDraft:
    """A `Confirmation` under construction: see `MessageDraft`."""

    __slots__ = Confirmation.__slots__

    key: str
    shard: int
    key_sequence: int
    topic: str
    message_id: str


def make_confirmation(key: str, shard: int, key_sequence: int, topic: str, message_id: str) -> Confirmation:
    """A `Confirmation` with these fields, without its constructor: one is made for every message."""
    draft = _ConfirmationDraft()
    draft.key = key
    draft.shard = shard
    draft.key_sequence = key_sequence
    draft.topic = topic
    draft.message_id = message_id
    draft.__class__ = Confirmation  # type: ignore[assignment]  # of the same layout, which is all it needs
    return draft  # type: ignore[return-value]
