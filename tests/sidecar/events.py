"""Events for tests, a gate for them, and the attempts that their handlings are."""

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace

from lbg_runtime.model.ids import Epoch, QueueName
from lbg_runtime.model.message import (
    KEY_SEQUENCE_PROPERTY,
    NO_HEADERS,
    PARTITION_KEY_PROPERTY,
    PUBLISHER_PROPERTY,
    Message,
)
from lbg_runtime.runtime.runners.handling import CURRENT_HANDLING
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


class Attempts:
    """Of a member whose process may have been stopped meanwhile; keeps what is said of one of them, in order."""

    def __init__(self, *, is_theirs: bool = False) -> None:
        """`is_theirs`: others may have what they are attempts at."""
        self.said: list[str] = []
        self._is_theirs = is_theirs

    def put_off(self, _: object) -> None:
        self.said.append("put off")

    def look_before_begin(self, _: object) -> None:
        if self._is_theirs:
            raise asyncio.CancelledError

    def may_begin(self, _: object) -> bool:
        return not self._is_theirs

    def begin(self, _: object) -> None:
        self.said.append("begun")


def attempted(attempts: Attempts, delivering: Coroutine[None, None, object]) -> "asyncio.Task[object]":
    """A delivery within a handling of its own."""

    async def handle() -> object:
        CURRENT_HANDLING.set(SimpleNamespace(route=SimpleNamespace(attempts=attempts)))  # type: ignore[arg-type] # a stand-in
        return await delivering

    return asyncio.ensure_future(handle())
