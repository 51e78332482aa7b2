"""What a publisher tells of its messages: one by one, and counted."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Confirmation:
    """The broker has taken the message over; it lies in every queue that subscribes to its topic.

    Where no queue does, PubSub+ confirms and drops it, unless the client profile says to reject such messages.
    """

    key: str
    shard: int
    key_sequence: int
    """Number of the message within its key, from 1."""
    topic: str
    """Full topic, hash prefix and shard included."""
    message_id: str


@dataclass(frozen=True, slots=True)
class PublisherCounts:
    """What became of the messages of one publisher. The last three add up to `sent` once it is closed."""

    sent: int
    confirmed: int
    refused: int
    unknown: int
    """Messages that may or may not be on the broker."""

    @property
    def unconfirmed(self) -> int:
        """Messages on their way: sent, and nothing heard of them yet."""
        return self.sent - self.confirmed - self.refused - self.unknown
