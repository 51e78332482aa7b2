"""Messages that become visible together: local transactions of one session, one after another.

A commit takes as long as a confirm, and the client makes one at a time. So the next transaction takes all bundles that
wait by then, as far as it has room. If the broker refuses it, each bundle is tried alone, so that none fails because of
another.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

import structlog

from lbg_runtime.model.errors import PublishFailed, PublishRefused
from lbg_runtime.model.message import Message
from lbg_runtime.transport.base import MAX_TOGETHER, answer, too_many_together
from lbg_runtime.transport.solace import native
from lbg_runtime.transport.solace.errors import is_commit_refused, subcode_and_reason
from lbg_runtime.transport.solace.library import CLIENT_ERRORS
from lbg_runtime.transport.solace.native import LoginRight
from lbg_runtime.transport.solace.threads import ControlThreads

ANSWER_PATIENCE_MS = 60_000
"""How long a broker may take to answer a commit. If there is no answer by then, the client takes the connection for
broken and ends it, with all flows on it. So this is long: keep-alives tell whether a connection is alive, and a slow
disk is no broken connection.
"""

_log = structlog.get_logger(__name__)

Prepared = Sequence[tuple[Any, Any]]
"""The client's messages and topics."""


class _Bundle:
    """Messages that are published together."""

    def __init__(self, topic: str, prepared: Prepared, future: asyncio.Future[None]) -> None:
        self.topic = topic
        """The topic of the first message, for errors."""
        self.prepared = prepared
        self.future = future
        self.error: PublishFailed | None = None


class Transactions:
    """The transactions of one session. `send` and `fail_all` are called on the loop's thread, `close` on a control
    thread."""

    def __init__(
        self,
        service: Any,
        threads: ControlThreads,
        prepare: Callable[[Message], tuple[Any, Any]],
        on_lacking: Callable[[str], object],
    ) -> None:
        """`prepare` makes the client's message and topic, or raises `PublishRefused`.

        `on_lacking` is called, on any thread, with the reason when the session's login lacked the right to transactions
        or to publish.
        """
        self._service = service
        self._threads = threads
        self._prepare = prepare
        self._on_lacking = on_lacking
        self._waiting: deque[_Bundle] = deque()
        self._is_committing = False
        # On control threads:
        self._lock = Lock()
        """Held during a commit, as the client's session must not be closed meanwhile."""
        self._session: Any = None
        self._publisher: Any = None
        self._given_up: list[Any] = []
        """The client's sessions that must be closed, but must not be closed yet."""
        self._is_closed = False

    def send(self, messages: Sequence[Message], future: asyncio.Future[None]) -> None:
        """See `Messenger.send_together`, which returns `future`."""
        topic = messages[0].topic
        if len(messages) > MAX_TOGETHER:
            future.set_exception(PublishRefused(topic, too_many_together(len(messages))))
            return
        try:
            prepared = [self._prepare(message) for message in messages]
        except PublishRefused as refusal:
            future.set_exception(refusal)
            return
        self._waiting.append(_Bundle(topic, prepared, future))
        self._commit_next()

    def fail_all(self, reason: str) -> None:
        """Fail the bundles that wait: the session is gone. A commit under way ends by itself."""
        for bundle in self._waiting:
            answer(bundle.future, PublishFailed(bundle.topic, reason))
        self._waiting.clear()

    def close(self) -> None:
        """Begin no more transactions; waits for the one under way, for as long as the client waits for its answer."""
        with self._lock:
            self._is_closed = True
            self._give_up()
            self._close_given_up()

    def _commit_next(self) -> None:
        if self._is_committing:
            return
        bundles: list[_Bundle] = []
        room = MAX_TOGETHER
        while self._waiting and len(self._waiting[0].prepared) <= room:
            bundle = self._waiting.popleft()
            # A bundle whose future is done is left out: its handler was cancelled, and nobody waits for it any more.
            if not bundle.future.done():
                bundles.append(bundle)
                room -= len(bundle.prepared)
        if bundles:
            self._is_committing = True
            try:
                committing = self._threads.begin(self._commit, bundles)
            except MemoryError as error:
                # Otherwise these bundles would wait for ever, and so would all later ones.
                committing = asyncio.get_running_loop().create_future()
                committing.set_exception(error)
            committing.add_done_callback(lambda ended: self._committed(bundles, ended))

    def _committed(self, bundles: Sequence[_Bundle], ended: "asyncio.Future[None]") -> None:
        self._is_committing = False
        unexpected = None if ended.cancelled() else ended.exception()
        for bundle in bundles:
            error = bundle.error
            if error is None and (unexpected is not None or ended.cancelled()):
                error = PublishFailed(bundle.topic, f"the commit ended with {unexpected!r}")
            answer(bundle.future, error)
        self._commit_next()

    # -- on a control thread

    def _commit(self, bundles: Sequence[_Bundle]) -> None:
        with self._lock:
            if self._is_closed:
                for bundle in bundles:
                    bundle.error = PublishFailed(bundle.topic, "the session has ended")
                return
            # Without those that were cancelled while this waited for a thread: nobody wants them, and they may have
            # been sent again by now.
            bundles = [bundle for bundle in bundles if not bundle.future.cancelled()]
            if not bundles:
                return
            # There may be sessions that were given up during an outage, and that may be over.
            self._close_what_may_be_closed()
            if not self._is_published(bundles) and len(bundles) > 1 and isinstance(bundles[0].error, PublishRefused):
                # Not if its handler was cancelled meanwhile: another attempt may have published it by now.
                for bundle in bundles:
                    if not bundle.future.cancelled():
                        self._is_published([bundle])

    def _is_published(self, bundles: Sequence[_Bundle]) -> bool:
        """Commit one transaction with these bundles; return whether that succeeded. If not, they get their errors: a
        refusal if it is certain that nothing was published.
        """
        if (lack := native.missing_right(self._service, LoginRight.SEND)) is not None:
            # Otherwise the client would take the messages, send nothing, and wait for an answer to the commit until it
            # ends the connection.
            self._on_lacking(lack)
            for bundle in bundles:
                bundle.error = PublishRefused(bundle.topic, lack)
            return False
        is_asked_to_commit = False
        try:
            self._open()
            for bundle in bundles:
                for outbound, topic in bundle.prepared:
                    self._publisher.publish(outbound, topic)
            is_asked_to_commit = True
            self._session.commit()
        except CLIENT_ERRORS as error:
            # This discards what the transaction already holds, so that the next one begins empty.
            self._give_up()
            kind = PublishRefused if not is_asked_to_commit or is_commit_refused(error) else PublishFailed
            reason = subcode_and_reason(error)[1]
            if (lack := native.missing_right(self._service, LoginRight.TRANSACT)) is not None:
                reason = f"{reason}: {lack}"
                self._on_lacking(lack)
            for bundle in bundles:
                bundle.error = kind(bundle.topic, reason)
            return False
        except BaseException:
            # So that half of a bundle does not end up in the next transaction.
            self._give_up()
            raise
        for bundle in bundles:
            bundle.error = None
        return True

    def _open(self) -> None:
        if self._session is None:
            builder = self._service.create_transactional_service_builder()
            builder.set_transaction_request_timeout(ANSWER_PATIENCE_MS)
            self._session = builder.build().connect()
            self._publisher = self._session.create_transactional_message_publisher_builder().build().start()

    def _give_up(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            self._given_up.append(session)
            self._close_what_may_be_closed()

    def _close_what_may_be_closed(self) -> None:
        # After an outage, the client opens its transacted sessions again, and reports that it is back when it has all
        # of them: never, if one is closed meanwhile (docs/protocol.md).
        if not native.is_coming_back(self._service):
            self._close_given_up()

    def _close_given_up(self) -> None:
        given_up, self._given_up = self._given_up, []
        for session in given_up:
            try:
                session.disconnect()
            except CLIENT_ERRORS as error:
                # Nobody commits it any more, and the broker forgets it with the connection.
                _log.info("transacted_session_not_closed", reason=subcode_and_reason(error)[1])
