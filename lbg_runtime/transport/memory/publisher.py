"""The publishing half of a memory transport: one publisher flow, resumed after a reconnect."""

import asyncio
from collections import deque
from dataclasses import replace
from types import NoneType
from typing import Any

from lbg_runtime.broker.engine.answers import PublisherFlow
from lbg_runtime.broker.engine.effects import ClientId, Published
from lbg_runtime.model.errors import BrokerRefusal, PublishFailed, PublishRefused
from lbg_runtime.model.message import DEFAULT_PRIORITY, Headers, Message, as_payload
from lbg_runtime.model.sendable import check_sendable
from lbg_runtime.transport.base import answer
from lbg_runtime.transport.memory.broker import MemoryBroker

_UNANSWERED = "Service Unavailable"
"""The refusal of a broker that has not looked at the message: it has ended the connection, and the news is still on its
way."""


_PLAIN = frozenset({str, int, float, bool, bytes, NoneType})


def published(message: Message) -> Published:
    """Convert a message to the form in which the engine keeps it; raises `MessageUnsendable`."""
    check_sendable(message)
    payload = as_payload(message.payload)
    if payload is not message.payload:
        message = replace(message, payload=payload)
    if message.headers.priority == DEFAULT_PRIORITY:
        # A default priority counts as none, as on the wire, where every message has one.
        message = replace(message, headers=replace(message.headers, priority=None))
    texts, headers = (message.topic, message.message_id), message.headers
    said = (headers.correlation_id, headers.message_type, headers.sequence_number, headers.priority)
    if not _PLAIN.issuperset(map(type, (*texts, *message.properties, *message.properties.values(), *said))):
        message = replace(
            message,
            topic=_plain(message.topic),
            properties={_plain(name): _plain(value) for name, value in message.properties.items()},
            message_id=_plain(message.message_id),
            headers=Headers(*map(_plain, said)),
        )
    return Published(message.topic, message, len(payload))


# Any, as it is of the type that it was of.
def _plain(value: Any) -> Any:
    """A sendable value as it comes from the wire, which knows nothing of enums and other classes derived from its
    own."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    return float.__float__(value) if isinstance(value, float) else b"".join((value,))


class MemoryPublisher:
    """Confirms in the order of the calls, one turn of the loop later. Driven by its `MemoryTransport`."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker
        self._flow: PublisherFlow | None = None
        self._resume_name = ""
        self._sent_count = 0
        self._waiting: deque[tuple[Published, asyncio.Future[None]]] = deque()
        self._unanswered: dict[int, tuple[Published, asyncio.Future[None]]] = {}

    def send(self, message: Message) -> asyncio.Future[None]:
        """See `Messenger.send`; while the connection is lost, messages wait here."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            self._waiting.append((published(message), future))
        except PublishRefused as refusal:
            future.set_exception(refusal)
            return future
        self._publish_waiting()
        return future

    def connected(self, client: ClientId) -> None:
        """Open the flow, or resume it, and publish the waiting messages."""
        self._flow = self._broker.engine.open_publisher(client, self._resume_name, self._sent_count)
        self._resume_name = self._flow.name
        # Numbering continues where the broker stands: a flow that it has forgotten starts over.
        self._sent_count = self._flow.last_answered_id
        self._publish_waiting()

    def away(self) -> None:
        """The connection is lost. By then every message sent has been answered, even if the answer has not arrived."""
        self._flow = None

    def close(self) -> None:
        """Fail all unconfirmed messages: nobody will learn how they ended."""
        self._flow = None
        for message, future in (*self._unanswered.values(), *self._waiting):
            answer(future, PublishFailed(message.topic, "the transport was closed"))
        self._unanswered.clear()
        self._waiting.clear()

    def _publish_waiting(self) -> None:
        while self._flow is not None and self._waiting:
            message, future = self._waiting[0]
            refusal: PublishRefused | None = None
            try:
                effects = self._broker.engine.publish(self._flow.flow, self._sent_count + 1, message)
                self._broker.post(effects)
            except BrokerRefusal as error:
                if error.text == _UNANSWERED:
                    return
                refusal = PublishRefused(message.topic, error.text)
            self._waiting.popleft()
            self._sent_count += 1
            self._unanswered[self._sent_count] = (message, future)
            asyncio.get_running_loop().call_soon(self._answer, self._sent_count, refusal)

    def _answer(self, number: int, refusal: PublishRefused | None) -> None:
        entry = self._unanswered.pop(number, None)
        if entry is not None:
            answer(entry[1], refusal)
