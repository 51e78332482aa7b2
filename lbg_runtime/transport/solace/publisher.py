"""The publishing half of one session: persistent messages with a confirm for each, direct messages without."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any

from lbg_runtime.model.errors import PublishFailed, PublishRefused
from lbg_runtime.model.message import NO_HEADERS, Headers, Message, as_payload
from lbg_runtime.model.sendable import check_sendable
from lbg_runtime.transport.base import answer
from lbg_runtime.transport.solace import native
from lbg_runtime.transport.solace.errors import publish_failed
from lbg_runtime.transport.solace.inbox import Inbox
from lbg_runtime.transport.solace.library import CLIENT_ERRORS, MessagePublishReceiptListener, Topic
from lbg_runtime.transport.solace.native import LoginRight
from lbg_runtime.transport.solace.trace_context import TraceContexts

_MESSAGE_ID = "solace.messaging.message.application-message-id"
_CORRELATION_ID = "solace.messaging.message.correlation-id"
_MESSAGE_TYPE = "solace.messaging.message.application-message-type"
_SEQUENCE_NUMBER = "solace.messaging.message.persistent.sequence-number"
_PRIORITY = "solace.messaging.message.priority"


class _OwnName(str):
    """The name of a user property, which equals only itself.

    If the name of a property equals that of one of the client's own settings (priority, time-to-live, even the message
    id), the client takes it for that setting. With this class, a property comes through under any name, as on the fast
    path.
    """

    __slots__ = ()
    __eq__ = object.__eq__
    __hash__ = object.__hash__


class SolacePublisher(ABC):
    """Publishes for one session. `build` and `start` are called on a control thread, all else on the loop's thread."""

    def __init__(self, inbox: Inbox, traces: TraceContexts | None) -> None:
        """`traces`: None if no message is to have the vendor's trace context."""
        self.inbox = inbox
        self.service: Any = None
        self._traces = traces
        self.on_lacking: Callable[[str], object] = _do_nothing
        """Called with the reason when messages cannot be published because the session's login lacked the right."""
        self._messages: Any = None
        self._direct: Any = None

    def build(self, builder: Any) -> Any:
        """Build the client's service object, not yet connected; raises the client's errors."""
        self.service = builder.build()
        return self.service

    def start(self) -> None:
        """Prepare for publishing, now that the service is connected; raises the client's errors."""
        self._messages = self.service.message_builder()
        # Without a buffer: a message that cannot leave now is lost, and an outage fills no memory.
        self._direct = self.service.create_direct_message_publisher_builder().on_back_pressure_reject(0).build()
        self._direct.start()

    @abstractmethod
    def send(self, message: Message, future: asyncio.Future[None]) -> None:
        """See `Messenger.send`, which returns `future`."""

    @property
    @abstractmethod
    def is_waiting(self) -> bool:
        """Whether there are messages that the broker has not yet answered."""

    def logged_in(self) -> None:
        """The session has logged in, for the first time or after an outage."""
        # Without the right to publish, the client keeps what waits, and reports nothing.
        if self.is_waiting and (lack := native.missing_right(self.service, LoginRight.SEND)) is not None:
            self.on_lacking(lack)

    def failed(self, topic: str, error: BaseException) -> PublishFailed:
        """Why a message was not confirmed; see `publish_failed`."""
        failure = publish_failed(topic, error)
        lack = native.missing_right(self.service, LoginRight.SEND)
        if lack is None:
            return failure
        self.on_lacking(lack)
        return type(failure)(topic, f"{failure.reason}: {lack}")

    @abstractmethod
    def fail_all(self, reason: str) -> None:
        """Fail all unconfirmed messages: the session is gone. Nothing is sent after this."""

    def send_direct(self, message: Message) -> None:
        """See `Messenger.send_direct`."""
        # Delivered at most once, so it may be lost: it cannot be sent, there is no connection, or its buffer is full.
        with suppress(PublishRefused, *CLIENT_ERRORS):
            self._direct.publish(*self.prepare(message))

    def prepare(self, message: Message) -> tuple[Any, Any]:
        """Make the client's message and topic; raises `PublishRefused` for a message that would kill the client's
        sending thread."""
        check_sendable(message)
        properties: dict[str, Any] = {
            _OwnName(str.__str__(name)): bytearray(value) if isinstance(value, bytes) else value
            for name, value in message.properties.items()
        }
        if message.message_id is not None:
            properties[_MESSAGE_ID] = _plain(message.message_id)
        if message.headers is not NO_HEADERS:
            properties |= _settings_of(message.headers)
        try:
            outbound = self._messages.build(bytearray(as_payload(message.payload)), properties)
            if message.sent_at_ms is not None:
                native.set_sender_timestamp(outbound, message.sent_at_ms)
            if self._traces is not None:
                self._traces.write(outbound.solace_message.msg_p, message.properties)
            return outbound, Topic.of(message.topic)
        except CLIENT_ERRORS as error:
            raise PublishRefused(message.topic, str(error)) from error


def _settings_of(headers: Headers) -> dict[str, Any]:
    """The headers, as settings of the client."""
    said = {
        _CORRELATION_ID: headers.correlation_id,
        _MESSAGE_TYPE: headers.message_type,
        _SEQUENCE_NUMBER: headers.sequence_number,
        _PRIORITY: headers.priority,
    }
    return {name: _plain(value) for name, value in said.items() if value is not None}


def _plain(value: str | int) -> str | int:
    """The same value as a plain `str` or `int`: the client refuses subclasses, such as those of enums."""
    return str.__str__(value) if isinstance(value, str) else int(value)


MakePublisher = Callable[[Inbox], SolacePublisher]
"""Makes the publisher of a session; the answers come through the inbox."""


class PublicPublisher(SolacePublisher):
    """Publishes through the client's public interface alone: its sending thread, its receipts and their thread."""

    def __init__(self, inbox: Inbox, traces: TraceContexts | None = None) -> None:
        super().__init__(inbox, traces)
        self._persistent: Any = None
        self._numbers = count(1)
        self._unconfirmed: dict[int, tuple[str, asyncio.Future[None]]] = {}

    def start(self) -> None:
        super().start()
        # Elastic: the call only enqueues, whatever the state of the connection; the caller bounds how much.
        builder = self.service.create_persistent_message_publisher_builder().on_back_pressure_elastic()
        self._persistent = builder.build()
        self._persistent.start()
        self._persistent.set_message_publish_receipt_listener(_ReceiptListener(self))

    def send(self, message: Message, future: asyncio.Future[None]) -> None:
        try:
            outbound, topic = self.prepare(message)
        except PublishRefused as refusal:
            future.set_exception(refusal)
            return
        number = next(self._numbers)
        self._unconfirmed[number] = (message.topic, future)
        try:
            self._persistent.publish(outbound, topic, user_context=number)
        except (*CLIENT_ERRORS, RuntimeError) as error:
            # A `RuntimeError` comes from the client's sending thread, which ends with the client's session.
            self.answered((number, error))

    def answered(self, told: tuple[int, BaseException | None]) -> None:
        """Complete the message with this number: the broker, or the client on its own, has decided about it."""
        number, error = told
        entry = self._unconfirmed.pop(number, None)
        if entry is None or entry[1].done():
            return
        topic, future = entry
        answer(future, None if error is None else self.failed(topic, error))

    @property
    def is_waiting(self) -> bool:
        return bool(self._unconfirmed)

    def fail_all(self, reason: str) -> None:
        for topic, future in self._unconfirmed.values():
            answer(future, PublishFailed(topic, reason))
        self._unconfirmed.clear()


def _do_nothing(_: str) -> None:
    return


class _ReceiptListener(MessagePublishReceiptListener):  # type: ignore[misc]  # the client's classes have no types
    def __init__(self, publisher: PublicPublisher) -> None:
        self._publisher = publisher

    def on_publish_receipt(self, publish_receipt: Any) -> None:
        self._publisher.inbox.post(self._publisher.answered, (publish_receipt.user_context, publish_receipt.exception))
