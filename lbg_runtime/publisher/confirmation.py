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
