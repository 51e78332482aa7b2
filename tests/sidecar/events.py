"""Events for tests, and a gate for them."""

from collections.abc import Callable

from lbg_runtime.model.ids import Epoch, QueueName
from lbg_runtime.model.message import (
    KEY_SEQUENCE_PROPERTY,
    NO_HEADERS,
    PARTITION_KEY_PROPERTY,
    PUBLISHER_PROPERTY,
    Message,
)
from lbg_runtime.sidecar.event import Event
from lbg_runtime.sidecar.gate import Gate


def make_event(payload: bytes = b'{"a": 1}', *, key: str | None = "k", topic: str = "orders/new", **given) -> Event:
    """An event as a member would make it; `properties` are the message's, others those of the event."""
    properties = given.pop("properties", {})
    message_id = given.pop("message_id", "id-1")
    sent_at_ms = given.pop("sent_at_ms", None)
    headers = given.pop("headers", NO_HEADERS)
    facts = {
        "shard": 3,
        "queue": QueueName("orders/1"),
        "epoch": Epoch(2),
        "attempt": 1,
        "redelivered": False,
        "event_id": "made",
        "source": "/orders",
    }
    message = Message(f"h/3/{topic}", payload, properties, message_id, sent_at_ms, headers)
    return Event(message=message, topic=topic, key=key, **{**facts, **given})


def stamps(key: str, number: int) -> dict[str, str | int]:
    """As the hashed publisher puts them on a message."""
    return {PARTITION_KEY_PROPERTY: key, PUBLISHER_PROPERTY: "p", KEY_SEQUENCE_PROPERTY: number}


def make_gate(on_open: Callable[[], None] = lambda: None) -> Gate:
    """A gate of no member."""
    return Gate(lambda _: None, on_open)
