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
"""User property with the publisher's number of this message within its key, counted from 1."""

_LARGEST_NUMBER = (1 << 63) - 1
"""The largest number of a message within its key: larger ones fit in no store of a guard, and in no control message."""

_STAMPS = frozenset({PUBLISHER_PROPERTY, KEY_SEQUENCE_PROPERTY})
"""The properties that identify a message among those of its publisher."""


def as_payload(value: object) -> bytes:
    """A payload as bytes that nobody else can change. Raises `TypeError` for anything but bytes and buffers of bytes:
    other buffers count items, not bytes."""
    if isinstance(value, bytes):
        return value
    try:
        if isinstance(value, bytearray) or (isinstance(value, memoryview) and value.itemsize == 1):
            return bytes(value)
    except ValueError:
        raise TypeError("a payload is bytes, and no memoryview that was released") from None
    raise TypeError(f"a payload is bytes, and no {type(value).__name__}")


DEFAULT_PRIORITY = 4
"""The priority that a message has on the wire if its publisher names none; so this one is read as None."""


@dataclass(frozen=True, slots=True)
class Headers:
    """What a message says about itself to other applications; the runtime does not act on it.

    None: the publisher said nothing. A publisher may set any of them. If one has the wrong type or is out of its range,
    publishing the message raises `MessageUnsendable`.
    """

    correlation_id: str | None = None
    """What the message belongs to: a conversation, or the request that it answers."""
    message_type: str | None = None
    """Application message type."""
    sequence_number: int | None = None
    """The application's own number, 0 to 2**64 - 1; the one that the runtime counts is `Message.key_sequence`."""
    priority: int | None = None
    """0 to 255. A queue that respects priorities hands out the highest first, so the queues of a group must not: keys
    would lose their order. `DEFAULT_PRIORITY` comes as None: nobody can tell it from one that was never set."""


NO_HEADERS = Headers()
"""What every message without headers has: this one object."""


@dataclass(frozen=True, slots=True)
class FencingToken:
    """The position of a message among those that one publisher published under one key.

    Every copy of a message has the same token, no matter to whom, how often and from which queue it is delivered. Later
    messages of the same key and publisher have larger numbers. Tokens of different publishers, or of different keys,
    are not comparable.
    """

    publisher: str
    """One life of one hashed publisher."""
    number: int
    """Its number of the message within the key, counted from 1."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message as it was published. Immutable, holds no handle of the client library, safe to keep."""

    topic: str
    """Full topic, including hash prefix and shard."""
    payload: bytes
    properties: Mapping[str, PropertyValue] = field(default_factory=lambda: NO_PROPERTIES)
    """User properties. Do not change them, although nothing prevents it: further attempts and copies share them."""
    message_id: str | None = None
    """Application message id."""
    sent_at_ms: int | None = None
    """Sender's wall clock, milliseconds since the epoch, if the sender stamped it."""
    headers: Headers = NO_HEADERS
    """What else it carries besides its user properties."""
    is_first_of_key: bool = field(default=False, compare=False)
    """Set by the member for its handler, in every attempt: this is the first message of its key (without a key, of its
    shard) that this member handles since its flow on the queue became active. What the member knew about the key before
    may be out of date. It may be True again for a key of which nothing came while the member handled more than 10,000
    others (and is, after 20,000): better to reload once too often. Says nothing about the message itself, so it does
    not take part in equality."""

    def as_first_of_key(self) -> "Message":
        """A copy with `is_first_of_key` set; only for the member's own use."""
        # With many keys, such a copy is made for every message.
        return make_message(
            self.topic, self.payload, self.properties, self.message_id, self.sent_at_ms, self.headers, is_first=True
        )

    def in_lane_of(self, key: str) -> "Message":
        """A copy whose `key` is this one, by which the message is kept in order; only for the member's own use.

        It has no fencing token: the number counts within another key, and guards could take the message for an old one.
        """
        properties = self.without_token().properties
        return _InLane(
            self.topic, self.payload, properties, self.message_id, self.sent_at_ms, self.headers, lane_key=key
        )

    def without_token(self) -> "Message":
        """The message itself, or a copy without its fencing token; only for the member's own use."""
        if self.properties.keys().isdisjoint(_STAMPS):
            return self
        return replace(self, properties={name: value for name, value in self.properties.items() if name not in _STAMPS})

    @property
    def key(self) -> str | None:
        """In a handler: the key by which the message is kept in order, as `group.key` finds it.

        If that finds none, and outside of handlers: the key that the publisher stamped (`JMSXGroupID`), or None.
        """
        value = self.properties.get(PARTITION_KEY_PROPERTY)
        return value if isinstance(value, str) else None

    @property
    def publisher_id(self) -> str | None:
        """The stamping publisher's id, or None for messages of other publishers."""
        value = self.properties.get(PUBLISHER_PROPERTY)
        return value if isinstance(value, str) else None

    @property
    def key_sequence(self) -> int | None:
        """The publisher's number of this message within its key, counted from 1, or None."""
        value = self.properties.get(KEY_SEQUENCE_PROPERTY)
        # Not isinstance: publishers other than ours may send anything, and to Python a boolean is an integer.
        return value if type(value) is int and 0 <= value <= _LARGEST_NUMBER else None

    @property
    def fencing_token(self) -> FencingToken | None:
        """Tells a copy or an earlier message from a later one of its key; None if no hashed publisher stamped it.

        The token counts within the key that the publisher stamped.
        """
        publisher, number = self.publisher_id, self.key_sequence
        return None if publisher is None or number is None or self.key is None else FencingToken(publisher, number)


@dataclass(frozen=True, slots=True)
class _InLane(Message):
    """A message for a handler whose lane's key is not the stamped one, or that has no stamp: see `in_lane_of`.

    A class of its own, as another field would cost every message that is read or published.
    """

    lane_key: str = field(kw_only=True)

    @property
    def key(self) -> str:
        """The key of its lane."""
        return self.lane_key

    def as_first_of_key(self) -> Message:
        return replace(self, is_first_of_key=True)

    def without_token(self) -> Message:
        """A copy that has no lane either, so that a handler that publishes its input publishes the key that came."""
        own = Message(self.topic, self.payload, {**self.properties}, self.message_id, self.sent_at_ms, self.headers)
        return own.without_token()


class MessageDraft:
    """A `Message` under construction, for code that makes one per message: set all fields, then `__class__`.

    The constructor of a frozen dataclass sets each field by a function call, which costs four times as much as
    everything else. This class has the same layout, so that an object of it can become one of the frozen class.
    """

    __slots__ = Message.__slots__

    topic: str
    payload: bytes
    properties: Mapping[str, PropertyValue]
    message_id: str | None
    sent_at_ms: int | None
    headers: Headers
    is_first_of_key: bool


def make_message(
    topic: str,
    payload: bytes,
    properties: Mapping[str, PropertyValue],
    message_id: str | None,
    sent_at_ms: int | None,
    headers: Headers,
    *,
    is_first: bool = False,
) -> Message:
    """A `Message` with these fields, without its constructor (`MessageDraft`)."""
    draft = MessageDraft()
    draft.topic = topic
    draft.payload = payload
    draft.properties = properties
    draft.message_id = message_id
    draft.sent_at_ms = sent_at_ms
    draft.headers = headers
    draft.is_first_of_key = is_first
    draft.__class__ = Message  # type: ignore[assignment]  # of the same layout, which is all it needs
    return draft  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class Delivery:
    """One arrival of a message on one flow. Ends exactly once: settled or fenced (law L8)."""

    queue: QueueName
    epoch: Epoch
    """The flow handle that it came on: a number that grows with each one that the member binds to the queue."""
    delivery_id: DeliveryId
    message: Message
    """As it is before any middleware."""
    redelivered: bool
    """The broker's flag: it may have been handed out before, to this member or another one."""
    received_at_ns: int
    """When the transport handed the message over, on this member's monotonic clock, in nanoseconds."""
