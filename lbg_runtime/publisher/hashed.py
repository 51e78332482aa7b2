"""The hashed publisher: puts each message on the shard of its key, in order, and accounts for every one.

More than 400 lines, because the way of a message, from its check to its confirm, can be read in one place.
"""

import asyncio
import functools
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from threading import get_ident
from time import monotonic_ns
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

import structlog

from lbg_runtime.metrics.durations import Durations, DurationsReading
from lbg_runtime.metrics.reading import PublisherCounts
from lbg_runtime.model.errors import PublisherClosed, PublishFailed, PublishRefused, UserError
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.hash_vectors import verify_hashing
from lbg_runtime.model.hashing import HashFunction, shard_of
from lbg_runtime.model.keys import KeySource
from lbg_runtime.model.message import (
    KEY_SEQUENCE_PROPERTY,
    NO_HEADERS,
    NO_PROPERTIES,
    PARTITION_KEY_PROPERTY,
    PUBLISHER_PROPERTY,
    Headers,
    PropertyValue,
    make_message,
)
from lbg_runtime.model.record import UnconfirmedRecord
from lbg_runtime.model.topic import is_valid_topic
from lbg_runtime.publisher.arguments import as_text, check_mapping, found_key, own_payload, sendable_key, topic_refused
from lbg_runtime.publisher.confirmation import Confirmation, make_confirmation
from lbg_runtime.publisher.ledger import Ledger, wall_clock_us
from lbg_runtime.publisher.window import UnconfirmedWindow
from lbg_runtime.transport.base import Messenger

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from lbg_runtime.metrics.spans import MessageSpans

MAX_UNCONFIRMED = 1000
MAX_UNCONFIRMED_BYTES = 64 * 1024 * 1024
LEDGER_FLUSH_MS = 500
CLOSE_TIMEOUT_MS = 30_000

Fate = Literal["refused", "unknown"]
"""As in `UnconfirmedRecord`."""

_LOG_EVENTS: Mapping[Fate, str] = {"refused": "publish_refused", "unknown": "publish_unknown"}

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Key:
    shard: int
    sequence: int = 0
    """The number of its newest message; 0 before the first one is sent."""


@dataclass(slots=True)
class _Sent:
    """A message that has been sent and has no answer yet."""

    number: int
    """Its number within the publisher, from 1."""
    key: str
    shard: int
    key_sequence: int
    topic: str
    message_id: str
    size_bytes: int
    sent_mono_ns: int
    answer: asyncio.Future[Confirmation]
    span: "Span | None"


class HashedPublisher:
    """Publishes to a load-balanced group; messages of one key reach the broker in the order of the calls.

    Called from one event loop. The messenger's owner opens it before and closes it after this publisher:

        async with HashedPublisher(messenger, shape, HashFunction.CRC32, publisher_id=new_publisher_id()) as publisher:
            await publisher.publish("orders/created", b"...", key="4711")

    `publish` waits for the confirm, `submit` only for room to send, so that many messages are under way at once.

    What happens to a message:

    - *confirmed*: the broker has taken it over.
    - *refused*: the broker refused it; it is nowhere. `PublishRefused`.
    - *unknown*: the session ended permanently before an answer came, or `close` timed out. `PublishFailed`.

    An outage is none of these: the transport reconnects, resends what is unconfirmed in the original order, and the
    broker drops what it already has. This class never resends a message by itself: successors of the same key may be on
    the broker by now, and the resent message would come after them. For the same reason, a refused message does not
    stop its successors; if you need that, await `publish` for each message of a key.

    Refused and unknown messages are counted, logged and written to the ledger, whether or not anyone looks at the
    exception. If messages become unknown at the end of the context, it ends with a `PublishFailed`, unless another
    exception ends it.

    Memory: at most `max_unconfirmed` messages and `max_unconfirmed_bytes` of payload under way, and two integers for
    each key ever used, for as long as the publisher lives.
    """

    def __init__(
        self,
        messenger: Messenger,
        group: GroupShape,
        hash_function: HashFunction,
        *,
        publisher_id: str,
        key_source: KeySource | None = None,
        ledger: Ledger | None = None,
        max_unconfirmed: int = MAX_UNCONFIRMED,
        max_unconfirmed_bytes: int = MAX_UNCONFIRMED_BYTES,
        clock_us: Callable[[], int] = wall_clock_us,
        spans: "MessageSpans | None" = None,
    ) -> None:
        """`publisher_id` must be unique to this life of the publisher; see `new_publisher_id`.

        `key_source` says where to find the key if `publish` is not given one. The publisher owns the ledger from here
        on, and closes it. `spans`, from `open_spans`, makes a span for each message, from its sending to its answer,
        whose context the message carries. Raises `InvariantViolated` if this process does not compute the golden
        vectors of the hash function.
        """
        verify_hashing(hash_function)
        self.publisher_id = publisher_id
        self._messenger = messenger
        self._group = group
        self._hash_level = f"{group.hash_prefix}/"
        self._hash_function = hash_function
        self._key_source = key_source
        self.ledger = ledger
        """The record of what the broker has confirmed; None if there is none."""
        self._clock_us = clock_us
        self._spans = spans
        self._window = UnconfirmedWindow(max_unconfirmed, max_unconfirmed_bytes)
        self._keys: dict[str, _Key] = {}
        self._unanswered: dict[int, _Sent] = {}
        """Messages without an answer, by number."""
        self._confirms = Durations()
        self._sent_count = 0
        self._confirmed_count = 0
        self._refused_count = 0
        self._unknown_count = 0
        self._last_unknown = ""
        """The topic of the last message that became unknown."""
        self._idle = asyncio.Event()
        self._idle.set()
        self._thread = 0
        """The thread of the first message, 0 before it; nothing here may be used from two threads."""
        self._ledger_timer: asyncio.TimerHandle | None = None

    @property
    def counts(self) -> PublisherCounts:
        """What has become of the messages so far."""
        return PublisherCounts(self._sent_count, self._confirmed_count, self._refused_count, self._unknown_count)

    @property
    def confirm_durations(self) -> DurationsReading:
        """How long confirms took so far, each from the sending of its message."""
        return self._confirms.read()

    async def publish(
        self,
        topic: str,
        payload: bytes | bytearray | memoryview,
        *,
        key: str | None = None,
        properties: Mapping[str, PropertyValue] = NO_PROPERTIES,
        headers: Headers = NO_HEADERS,
    ) -> Confirmation:
        """Return when the broker has confirmed the message; bounding the wait is up to the caller.

        Raises `PublishRefused` or `PublishFailed`, and what `submit` raises. If cancelled while waiting for room, it
        has sent nothing; if cancelled later, the message is on its way and still accounted for.
        """
        return await (await self.submit(topic, payload, key=key, properties=properties, headers=headers))

    async def submit(
        self,
        topic: str,
        payload: bytes | bytearray | memoryview,
        *,
        key: str | None = None,
        properties: Mapping[str, PropertyValue] = NO_PROPERTIES,
        headers: Headers = NO_HEADERS,
    ) -> "asyncio.Future[Confirmation]":
        """Return when the message is sent, with the future of its confirm; waits only while too much is unconfirmed.

        The message gets its place in its key when this is called, not when it is sent: concurrent callers are served
        in order. `properties` are the user's; those stamped by this class override them. Raises `UserError` for a
        message without a key, or with key, topic, payload or properties that cannot be used, and for a call from
        another thread than the first; raises `PublisherClosed`. In all these cases, or if cancelled while waiting, it
        has sent nothing.
        """
        if get_ident() != self._thread:
            self._insist_on_one_thread()
        if type(payload) is not bytes:
            # Copy it: it may be sent later, and a buffer may have changed by then.
            payload = own_payload(payload)
        if type(topic) is not str:
            # Before the key is looked for in it.
            topic = as_text("topic", topic)
        if type(properties) is not dict:
            check_mapping(properties)
        if key is None:
            key = found_key(self._key_source, topic, payload, properties)
        elif type(key) is not str:
            key = as_text("key", key)
        known = self._keys.get(key)
        if known is None:
            known = self._add_key(key)
        hashed_topic = self._hashed_topic(known.shard, topic)
        size_bytes = len(payload)
        if not self._window.take(size_bytes):
            # Copied like the payload: the key was found in these, and they must not change while this waits.
            properties = dict(properties)
            if not await self._window.reserve(size_bytes):
                raise PublisherClosed(topic)
        return self._send(key, known, hashed_topic, payload, properties, headers)

    def refuse_more(self) -> None:
        """Take no more messages; those that were sent are still answered. Idempotent."""
        self._window.close()

    async def close(self, timeout_ms: int = CLOSE_TIMEOUT_MS) -> PublisherCounts:
        """Take no more messages, wait for the answers to all sent ones, and write the ledger's last line. Idempotent.

        Messages without an answer after `timeout_ms`, or when the caller is cancelled, become unknown, and the ledger
        says that it was not closed cleanly.
        """
        self.refuse_more()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._idle.wait()
        except TimeoutError:
            pass  # the messages left are reported one by one
        finally:
            self._finish()
        return self.counts

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        before = self._unknown_count
        await self.close()
        lost = self._unknown_count - before
        # If an exception is under way, it may be the cause, and says more.
        if lost and kind is None:
            raise PublishFailed(self._last_unknown, f"the publisher has ended; messages of unknown fate: {lost}")

    def _insist_on_one_thread(self) -> None:
        if self._thread:
            raise UserError("publisher", "a call from another thread", "calls from its event loop's thread alone")
        self._thread = get_ident()

    def _add_key(self, key: str) -> _Key:
        known = self._keys[key] = _Key(shard_of(self._hash_function, sendable_key(key), self._group.hash_count))
        return known

    def _hashed_topic(self, shard: int, topic: str) -> str:
        hashed_topic = self._group.hashed_topic(shard, topic)
        is_hashed = topic.startswith(self._hash_level) and self._group.split_topic(topic) is not None
        if topic and not is_hashed and is_valid_topic(hashed_topic):
            return hashed_topic
        raise topic_refused(topic, self._group)

    def _send(
        self,
        key: str,
        known: _Key,
        topic: str,
        payload: bytes,
        properties: Mapping[str, PropertyValue],
        headers: Headers,
    ) -> asyncio.Future[Confirmation]:
        """Stamp the message and hand it to the transport, without a suspension point in between."""
        number, key_sequence, size_bytes = self._sent_count + 1, known.sequence + 1, len(payload)
        message_id = f"{self.publisher_id}-{number}"
        span = None
        try:
            stamped: dict[str, PropertyValue] = {
                **properties,
                PARTITION_KEY_PROPERTY: key,
                PUBLISHER_PROPERTY: self.publisher_id,
                KEY_SEQUENCE_PROPERTY: key_sequence,
            }
            if self._spans is not None:
                span = self._spans.begin_publish(
                    topic,
                    key=key,
                    shard=known.shard,
                    message_id=message_id,
                    headers=headers,
                    size_bytes=size_bytes,
                    properties=stamped,
                )
            sent_at_ms = self._clock_us() // 1000
            sent_mono_ns = monotonic_ns()
            answer = self._messenger.send(make_message(topic, payload, stamped, message_id, sent_at_ms, headers))
        except BaseException as error:
            _end_span(span, error)
            # Nothing was sent, so the number stays free for the key's next message: a gap would count as a loss.
            self._window.release(size_bytes)
            raise
        known.sequence = key_sequence
        self._sent_count = number
        future: asyncio.Future[Confirmation] = answer.get_loop().create_future()
        sent = _Sent(number, key, known.shard, key_sequence, topic, message_id, size_bytes, sent_mono_ns, future, span)
        if not self._unanswered:
            self._idle.clear()
        self._unanswered[number] = sent
        answer.add_done_callback(functools.partial(self._on_answer, sent))
        return future

    def _on_answer(self, sent: _Sent, answer: "asyncio.Future[None]") -> None:
        error = PublishFailed(sent.topic, "given up") if answer.cancelled() else answer.exception()
        if self._unanswered.pop(sent.number, None) is None:
            return  # an answer after close has given the message up
        self._window.release(sent.size_bytes)
        if not self._unanswered:
            self._idle.set()
        if error is None:
            self._on_confirmed(sent)
        elif isinstance(error, PublishRefused):
            self._on_unconfirmed(sent, error, "refused", error.reason)
        else:
            reason = error.reason if isinstance(error, PublishFailed) else str(error)
            self._on_unconfirmed(sent, error, "unknown", reason)

    def _on_confirmed(self, sent: _Sent) -> None:
        self._confirmed_count += 1
        self._confirms.count(monotonic_ns() - sent.sent_mono_ns)
        if not sent.answer.done():  # its caller may have been cancelled
            sent.answer.set_result(
                make_confirmation(sent.key, sent.shard, sent.key_sequence, sent.topic, sent.message_id)
            )
        if self.ledger is not None:
            self.ledger.confirmed(sent.key, sent.shard, sent.key_sequence, self._clock_us())
            if self._ledger_timer is None:
                self._ledger_timer = asyncio.get_running_loop().call_later(LEDGER_FLUSH_MS / 1000, self._flush_ledger)
        if sent.span is not None:
            # Last, as in `_on_unconfirmed`.
            _end_span(sent.span, None)

    def _on_unconfirmed(self, sent: _Sent, error: BaseException, fate: Fate, reason: str) -> None:
        if fate == "refused":
            self._refused_count += 1
        else:
            self._unknown_count += 1
            self._last_unknown = sent.topic
        if not sent.answer.done():
            sent.answer.set_exception(error)
            # Retrieves the exception: the log line below reports it even if nobody looks at the future.
            sent.answer.exception()
        if self.ledger is not None:
            self.ledger.unconfirmed(
                UnconfirmedRecord(sent.key, sent.shard, sent.key_sequence, fate, reason, self._clock_us())
            )
        # Last, as log and spans are the program's own, and may raise: nobody must be left waiting because of that.
        _end_span(sent.span, error)
        _log.error(
            _LOG_EVENTS[fate],
            publisher=self.publisher_id,
            topic=sent.topic,
            key=sent.key,
            key_sequence=sent.key_sequence,
            reason=reason,
        )

    def _finish(self) -> None:
        # Idempotent; answers that come later are ignored.
        left, self._unanswered = self._unanswered, {}
        self._idle.set()
        if self._ledger_timer is not None:
            self._ledger_timer.cancel()
        with ExitStack() as ending:
            # Each of these steps is taken, whatever the others raise.
            if self.ledger is not None:
                ending.callback(self.ledger.close, clean=not left)
            for sent in reversed(left.values()):
                reason = "no answer before the publisher was closed"
                ending.callback(self._on_unconfirmed, sent, PublishFailed(sent.topic, reason), "unknown", reason)

    def _flush_ledger(self) -> None:
        self._ledger_timer = None
        if self.ledger is not None:
            self.ledger.flush()


def _end_span(span: "Span | None", error: BaseException | None) -> None:
    if span is not None:
        from lbg_runtime.metrics.spans import end_publish

        end_publish(span, error)
