"""The message as a user sees it, and the delivery that carries it through the runtime."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from lbg_runtime.model.ids import DeliveryId, Epoch, QueueName

PropertyValue = str | int | float | bool | bytes | None

NO_PROPERTIES: Mapping[str, PropertyValue] = MappingProxyType({})

PARTITION_KEY_PROPERTY = "JMSXGroupID"
"""User property that carries the key; the name PubSub+ itself reads for partitioned queues."""

PUBLISHER_PROPERTY = "lbg_publisher"
"""User property with the publisher's id: one life of one hashed publisher."""

KEY_SEQUENCE_PROPERTY = "lbg_key_sequence"
"""User property with the publisher's number of this message within its key, from 1."""

_STAMPS = frozenset({PUBLISHER_PROPERTY, KEY_SEQUENCE_PROPERTY})
"""What says which message of a publisher one is."""


def as_payload(value: object) -> bytes:
    """A payload as bytes of its own; raises `TypeError` for what is none: other buffers count items, not bytes."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, bytearray) or (isinstance(value, memoryview) and value.itemsize == 1):
        return bytes(value)
    raise TypeError(f"a payload is bytes, and no {type(value).__name__}")


@dataclass(frozen=True, slots=True)
class FencingToken:
    """The place of a message among those that one publisher published under one key.

    Every copy of a message has the same token, whoever it is delivered to, however often, from whichever queue. Later
    messages of the same key and publisher have larger numbers. Tokens of different publishers, and of different keys,
    say nothing about each other.
    """

    publisher: str
    """One life of one hashed publisher."""
    number: int
    """Its number of the message within the key, from 1."""


@dataclass(frozen=True, slots=True)
class Message:
    """What was published. Immutable, free of any handle of the client library, safe to keep."""

    topic: str
    """Full topic, hash prefix and shard included."""
    payload: bytes
    properties: Mapping[str, PropertyValue] = field(default_factory=lambda: NO_PROPERTIES)
    """User properties. Change nothing in them, as nothing hinders you: further attempts and copies have the same."""
    message_id: str | None = None
    """Application message id."""
    sent_at_ms: int | None = None
    """Sender's wall clock, milliseconds since the epoch, where the sender stamped it."""
    is_first_of_key: bool = field(default=False, compare=False)
    """Set by the member for its handler: the first message of its key, or where it has none of its shard, that this
    member handles since its flow on the queue became active, in every attempt of it. What the member knows of the key
    from before may be out of date. True a second time for a key of which nothing came while the member handled more
    than 10,000 others (at the latest after 20,000): better reloaded once too often. Says nothing of the message, so is
    no part of equality."""

    def as_first_of_key(self) -> "Message":
        """A copy that says so; for the member alone."""
        # With many keys one is made for every message.
        draft = MessageDraft()
        draft.topic = self.topic
        draft.payload = self.payload
        draft.properties = self.properties
        draft.message_id = self.message_id
        draft.sent_at_ms = self.sent_at_ms
        draft.is_first_of_key = True
        draft.__class__ = Message  # type: ignore[assignment]
        return draft  # type: ignore[return-value]

    def without_token(self) -> "Message":
        """Itself, or a copy that has no fencing token; for the member alone."""
        if self.properties.keys().isdisjoint(_STAMPS):
            return self
        return replace(self, properties={name: value for name, value in self.properties.items() if name not in _STAMPS})

    @property
    def key(self) -> str | None:
        """The key that the publisher stamped (`JMSXGroupID`), or None."""
        value = self.properties.get(PARTITION_KEY_PROPERTY)
        return value if isinstance(value, str) else None

    @property
    def publisher_id(self) -> str | None:
        """The stamping publisher's id, or None for messages of other publishers."""
        value = self.properties.get(PUBLISHER_PROPERTY)
        return value if isinstance(value, str) else None

    @property
    def key_sequence(self) -> int | None:
        """The publisher's number of this message within its key, from 1, or None."""
        value = self.properties.get(KEY_SEQUENCE_PROPERTY)
        return value if isinstance(value, int) else None

    @property
    def fencing_token(self) -> FencingToken | None:
        """What tells a copy, or a message from before, from a later one of its key; None for other publishers' ones.

        Its scope is `key`, as the publisher stamped it.
        """
        publisher, number = self.publisher_id, self.key_sequence
        return None if publisher is None or number is None or self.key is None else FencingToken(publisher, number)


class MessageDraft:
    """A `Message` in the making, for where one is made for every message: when all fields are set, `__class__` is.

    The constructor of a frozen dataclass sets each field by a function call of its own, four times the price of all the
    rest. This has the same layout, so it becomes the frozen one, which it then does not differ from in anything.
    """

    __slots__ = Message.__slots__

    topic: str
    payload: bytes
    properties: Mapping[str, PropertyValue]
    message_id: str | None
    sent_at_ms: int | None
    is_first_of_key: bool


@dataclass(frozen=True, slots=True)
class Delivery:
    """One arrival of a message on one flow. Ends exactly once: settled or fenced (law L8)."""

    queue: QueueName
    epoch: Epoch
    delivery_id: DeliveryId
    message: Message
    redelivered: bool
    received_at_ns: int
    """Monotonic clock of this member when the transport handed the message over, nanoseconds."""
