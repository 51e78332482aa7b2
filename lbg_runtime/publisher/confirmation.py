"""What a publisher reports about its messages: one by one, and as counts."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Confirmation:
    """The broker has taken over the message; it is in every queue that subscribes to its topic.

    If no queue does, PubSub+ confirms and drops it, unless the client profile says to reject such messages.
    """

    key: str
    shard: int
    key_sequence: int
    """Number of the message within its key, counted from 1."""
    topic: str
    """Full topic, including hash prefix and shard."""
    message_id: str


@dataclass(frozen=True, slots=True)
class PublisherCounts:
    """What became of one publisher's messages. The last three counts add up to `sent` once it is closed."""

    sent: int
    confirmed: int
    refused: int
    unknown: int
    """Messages that may or may not be on the broker."""

    @property
    def unconfirmed(self) -> int:
        """Messages that were sent and have no answer yet."""
        return self.sent - self.confirmed - self.refused - self.unknown
