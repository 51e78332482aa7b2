"""The fast publish path: messages are written and sent in batches on the loop's thread, confirms come in batches.

It involves no thread and no message object of the client's Python layer. Messages sent in one turn of the loop leave at
its end, many with one call to the library; the broker's answers that come meanwhile are taken with one wake-up of the
loop. The library identifies an answer by the tag of its message, an address of our choice: here that of the message's
place in a table. A confirm covers all messages up to that one, a refusal covers that one alone. The table is as long as
the library's window, so the library is never asked for more than it can keep. Messages that it does not take for
another reason wait here, in order, for the next event of the session.

The library keeps a message that it has taken until it is confirmed, even across outages, and sends it again by itself.
"""

import asyncio
import weakref
from collections import deque
from ctypes import addressof, byref, c_uint32, c_void_p, create_string_buffer
from itertools import islice
from typing import Any

from lbg_runtime.model.errors import PublishFailed, PublishRefused
from lbg_runtime.model.message import Message
from lbg_runtime.transport.base import answer
from lbg_runtime.transport.solace.fast.publish_calls import NOT_READY, WOULD_BLOCK, PublishCalls
from lbg_runtime.transport.solace.fast.publish_session import Hear, build_heard
from lbg_runtime.transport.solace.fast.writer import TAG_BYTES, WriteMessage
from lbg_runtime.transport.solace.inbox import Inbox
from lbg_runtime.transport.solace.library import SOLCLIENT_OK, get_last_error_info
from lbg_runtime.transport.solace.publisher import SolacePublisher
from lbg_runtime.transport.solace.trace_context import TraceContexts

WINDOW = 255
"""The most messages in transit; as many as the library keeps unconfirmed with the client's settings."""

BATCH = 50
"""The most messages sent with one call; the library takes no more."""

ACKNOWLEDGED = 6
"""The event for confirmed messages. Any other event with a tag of ours means that its message was refused."""

Sending = tuple[Message, asyncio.Future[None]]


class FastPublisher(SolacePublisher):
    """A `SolacePublisher` for the clients that `publish_check` knows.

    There is no lock: the network thread only appends answers, and the loop clears the flag that it has been notified
    before it looks, as in `Inbox`.
    """

    def __init__(
        self, calls: PublishCalls, write: WriteMessage, inbox: Inbox, traces: TraceContexts | None = None
    ) -> None:
        """`traces` is for what does not go through `write`: direct messages, and those of a transaction."""
        super().__init__(inbox, traces)
        self._calls = calls
        self._write = write
        self._tags = create_string_buffer(WINDOW * TAG_BYTES)
        self._first_tag = addressof(self._tags)
        self._unconfirmed: list[tuple[str, asyncio.Future[None]] | None] = [None] * WINDOW
        """Topic and future of the message in each place."""
        self._order: deque[int] = deque()
        """The places that are taken, in the order of sending."""
        self._untaken = 0
        """How many of the last of them the library has not taken; 0 between two calls of `_flush` without an error."""
        self._room = deque(range(WINDOW))
        """Free places."""
        self._waiting: deque[Sending] = deque()
        self._is_flush_due = False
        self._answers: deque[int | tuple[int, Exception]] = deque()
        """A place: this message and all before it are confirmed. A place with an error: this message is refused."""
        self._is_told = False
        self._natives: list[c_void_p] = []
        self._batch = (c_void_p * BATCH)()
        """The same native messages, as the array that C needs."""
        self._taken = c_uint32()

    # -- on a control thread

    def build(self, builder: Any) -> Any:
        """See `SolacePublisher.build`."""
        self.service = build_heard(builder, self._hearer())
        return self.service

    # -- on the client's network thread

    def _hearer(self) -> Hear:
        # The client keeps its sessions, and so this callback, for the life of the process. The callback must not keep
        # the whole transport alive through us, but only the tags, which the library may read until the session is
        # freed.
        publisher = weakref.ref(self)
        answers, tags, first_tag, pin = self._answers, self._tags, self._first_tag, self._calls.pin
        is_pinned = False

        def hear(event: int, response_code: int, tag: int) -> bool:
            nonlocal is_pinned
            if not 0 <= tag - first_tag < len(tags):
                # Whatever it is, the library may have room again, or a connection.
                if (ours := publisher()) is not None:
                    ours.inbox.post(ours._flush, None)
                return False
            if not is_pinned:
                # As in `FastPath`: otherwise a thread state is made and discarded for each event.
                pin()
                is_pinned = True
            place = (tag - first_tag) // TAG_BYTES
            if event == ACKNOWLEDGED:
                answers.append(place)
            else:
                answers.append((place, _reason(response_code)))
            if (ours := publisher()) is not None and not ours._is_told:
                ours._is_told = True
                try:
                    ours.inbox.post(ours._take_answers, None)
                except BaseException:
                    # The next answer notifies the loop.
                    ours._is_told = False
                    raise
            return True

        return hear

    # -- on the loop's thread

    def send(self, message: Message, future: asyncio.Future[None]) -> None:
        """See `SolacePublisher.send`."""
        # In this order: if one of these raises, no message is left that nobody flushes, or that is sent all the same.
        if not self._is_flush_due:
            future.get_loop().call_soon(self._flush, None)
            self._is_flush_due = True
        self._waiting.append((message, future))

    @property
    def is_waiting(self) -> bool:
        """See `SolacePublisher.is_waiting`."""
        return bool(self._order or self._waiting)

    def fail_all(self, reason: str) -> None:
        """See `SolacePublisher.fail_all`."""
        left = [entry for entry in self._unconfirmed if entry is not None]
        left += [(message.topic, future) for message, future in self._waiting]
        self._unconfirmed = [None] * WINDOW
        self._order.clear()
        self._untaken = 0
        self._waiting.clear()
        for topic, future in left:
            answer(future, PublishFailed(topic, reason))
        for native in self._natives:
            self._calls.free(byref(native))
        self._natives.clear()

    def _flush(self, _: None) -> None:
        """Hand waiting messages to the library, as far as there is room.

        If anything raises meanwhile, as when memory runs out, the messages that the library has not taken fail: there
        may never be another event to flush them.
        """
        self._is_flush_due = False
        try:
            if self._untaken:
                # There was no memory to note that a message has failed: a confirm of a later one would count for it.
                self._fail_untaken("it could not be sent")
            while self._waiting and self._room:
                batch = self._write_batch()
                if batch and not self._send_batch(batch):
                    return
        except BaseException as error:
            reason = str(error) or type(error).__name__
            self._fail_untaken(reason)
            while self._waiting:
                message, future = self._waiting[0]
                answer(future, PublishFailed(message.topic, reason))
                self._waiting.popleft()
            raise

    def _write_batch(self) -> list[Sending]:
        """Write the first waiting messages into native ones, and give each its place. Refuse what cannot be written."""
        waiting, room, write, first_tag = self._waiting, self._room, self._write, self._first_tag
        unconfirmed, order = self._unconfirmed, self._order
        natives = self._natives if len(self._natives) == BATCH else self._make_natives()
        batch: list[Sending] = []
        while waiting and room and len(batch) < BATCH:
            # Left in the line until it has its place, or has ended.
            sending = message, future = waiting[0]
            # A message that nobody wants any more is not sent: a later message may be the same one again.
            if not future.cancelled():
                place = room[0]
                try:
                    write(natives[len(batch)], message, first_tag + place * TAG_BYTES)
                except PublishRefused as refusal:
                    answer(future, refusal)
                else:
                    batch.append(sending)
                    unconfirmed[place] = (message.topic, future)
                    order.append(place)
                    self._untaken += 1
                    room.popleft()
            waiting.popleft()
        return batch

    def _send_batch(self, batch: list[Sending]) -> bool:
        """Hand over what was written, and take back what the library refuses now; return whether it may take more."""
        session = self.service.session_pointer
        self._taken.value = 0
        # Without a session, messages wait for `fail_all`, which is about to be called.
        code = self._calls.send(session, self._batch, len(batch), byref(self._taken)) if session else NOT_READY
        self._untaken = 0 if code == SOLCLIENT_OK else len(batch) - self._taken.value
        if not self._untaken:
            return True
        left = batch[-self._untaken :]
        is_blocked = code in (WOULD_BLOCK, NOT_READY)
        if not is_blocked:
            # The library would never take the first of them.
            message, future = left[0]
            answer(future, self.failed(message.topic, get_last_error_info(code, "publish")))
            del left[0]
        self._waiting.extendleft(reversed(left))
        self._take_back()
        return not is_blocked

    def _take_back(self) -> None:
        """Free the places of what was written and not taken."""
        while self._untaken:
            self._untaken -= 1
            place = self._order.pop()
            self._unconfirmed[place] = None
            self._room.appendleft(place)

    def _fail_untaken(self, reason: str) -> None:
        for place in islice(self._order, len(self._order) - self._untaken, None):
            if (entry := self._unconfirmed[place]) is not None:
                answer(entry[1], PublishFailed(entry[0], reason))
        self._take_back()

    def _take_answers(self, _: None) -> None:
        self._is_told = False
        answers = self._answers
        while answers:
            told = answers.popleft()
            if isinstance(told, int):
                self._confirm(told)
            else:
                self._refuse(*told)
        self._flush(None)

    def _confirm(self, last: int) -> None:
        """Complete the messages up to the one in this place, in the order of sending: they were confirmed."""
        unconfirmed, order, room = self._unconfirmed, self._order, self._room
        # If the place is empty, `fail_all` came first.
        while unconfirmed[last] is not None:
            place = order.popleft()
            entry, unconfirmed[place] = unconfirmed[place], None
            room.append(place)
            if entry is not None and not entry[1].done():
                entry[1].set_result(None)

    def _refuse(self, place: int, error: Exception) -> None:
        """Fail the message in this place, and no other: it was refused."""
        entry, self._unconfirmed[place] = self._unconfirmed[place], None
        if entry is not None:
            self._order.remove(place)
            self._room.append(place)
            answer(entry[1], self.failed(entry[0], error))

    def _make_natives(self) -> list[c_void_p]:
        # Some may be left from an attempt that failed.
        for index in range(len(self._natives), BATCH):
            native = c_void_p()
            if self._calls.alloc(byref(native)) != SOLCLIENT_OK:
                raise MemoryError("the client makes no message")
            self._natives.append(native)
            self._batch[index] = native.value
        return self._natives


def _reason(response_code: int) -> Exception:
    """Why a message was refused. Ask at once: the library keeps the reason per thread, until the thread's next call."""
    try:
        return get_last_error_info(response_code, "publish")
    except Exception as failure:  # noqa: BLE001 - without a note, the next confirm would count for this message too
        return failure
