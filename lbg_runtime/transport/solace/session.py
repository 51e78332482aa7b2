"""One life of the client's service object: it is connected once, comes back by itself after outages, and is useless
once it has ended.

More than 400 lines, as all calls to the service object are here: each counts as a call under way, and its answer is
worth something only if the connection was the same from its beginning to its end.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import ExitStack, contextmanager, suppress
from enum import Enum
from functools import partial
from typing import Any

import structlog

from lbg_runtime.model.errors import ConfigError, ConnectFailed, RequestRefused, SubscribeFailed
from lbg_runtime.model.message import Message
from lbg_runtime.transport.base import DirectSink, IsLast
from lbg_runtime.transport.solace import native
from lbg_runtime.transport.solace.calls import Calls, Connecting, broken_off_after
from lbg_runtime.transport.solace.credentials import TokenFile
from lbg_runtime.transport.solace.errors import (
    connect_failed,
    has_queue_refused,
    is_subscription_refused,
    reason_of_text,
    request_failed,
    subcode_and_reason,
    subscribe_failed,
)
from lbg_runtime.transport.solace.inbound import UnreadableMessage, read_message
from lbg_runtime.transport.solace.inbox import Inbox
from lbg_runtime.transport.solace.library import (
    CLIENT_ERRORS,
    MessageHandler,
    MessagingService,
    Metric,
    PubSubPlusClientError,
    Queue,
    ReconnectionAttemptListener,
    ReconnectionListener,
    ServiceInterruptionListener,
    TopicSubscription,
)
from lbg_runtime.transport.solace.native import LoginRight
from lbg_runtime.transport.solace.publisher import MakePublisher, SolacePublisher
from lbg_runtime.transport.solace.settings import TOKEN_PROPERTY, SolaceSettings
from lbg_runtime.transport.solace.threads import ControlThreads
from lbg_runtime.transport.solace.transactions import Transactions

COMMIT_PATIENCE_S = 10.0
"""How long a session that must end waits for a commit, which by itself would last as long as an outage."""

BROWSER_PATIENCE_S = 60.0
"""How long a browser may take to start; the client gives up after 40 s, if it can."""

BROWSER_WINDOW = 255
"""How many messages may be in transit to a browser that reads: the client's maximum."""

_log = structlog.get_logger(__name__)


class SessionEvent(Enum):
    """What can happen to a session after it was connected."""

    LOST = "lost"
    """The connection broke; the client tries to restore it."""
    RESTORED = "restored"
    ENDED = "ended"
    """The session is over, and does not come back."""
    LACKING = "lacking"
    """Something could not be done because the last login lacked a right."""


SessionEventSink = Callable[[tuple[SessionEvent, str]], None]
"""Takes an event and the client's description of it, on the loop. Must not raise and must not block."""


class SolaceSession:
    """All methods block and run on control threads; `publisher` and `transactions` are used on the loop's thread."""

    def __init__(self, service: Any, publisher: SolacePublisher, transactions: Transactions, token: str = "") -> None:
        self.service = service
        self.publisher = publisher
        self.transactions = transactions
        self.token = token
        """The token presented to the broker, if there is a token file."""
        self._receivers: dict[tuple[str, DirectSink], Any] = {}
        """The receivers of direct messages, also of subscriptions that were refused; kept as long as the session."""
        self._held: set[Any] = set()
        """The receivers of flows that are not freed: the library calls them, even if nobody else refers to them."""
        self.calls = Calls()
        """The calls that this session, or a flow of it, has in the library."""
        self.is_cut: Future[None] = Future()
        """Done when `disconnect` has to wait, and the session can neither come back nor send any more."""

    @classmethod
    def connect(
        cls,
        settings: SolaceSettings,
        inbox: Inbox,
        take: SessionEventSink,
        make_publisher: MakePublisher,
        threads: ControlThreads,
        connecting: Connecting,
        former_token: str = "",
    ) -> "SolaceSession":
        """Build a service and connect it; raises `ConnectFailed`. Later events go to `take`.

        `threads`: on which transactions are committed. `connecting`: by which another thread can end this early.
        `former_token`: the previous session's, which is presented if the token file cannot be read now.
        """
        publisher = make_publisher(inbox)
        publisher.on_lacking = lambda lack: inbox.post(take, (SessionEvent.LACKING, lack))
        token = _token_of(settings, former_token)
        try:
            service = publisher.build(MessagingService.builder().from_properties(settings.properties(token)))
        except CLIENT_ERRORS as error:
            raise connect_failed(settings.host_list, error) from error
        listener = _ServiceListener(inbox, take)
        service.add_reconnection_attempt_listener(listener)
        service.add_reconnection_listener(listener)
        service.add_service_interruption_listener(listener)
        with ExitStack() as undo:
            # Whatever goes wrong from here on: the service may be connected already, and nobody would have it.
            undo.callback(native.release, service)
            try:
                with connecting.by(service):
                    service.connect()
                publisher.start()
            except CLIENT_ERRORS as error:
                raise connect_failed(settings.host_list, error) from error
            except TypeError as error:
                # It was broken off: the client then tries to raise an error that is None.
                raise ConnectFailed(settings.host_list, "the attempt was broken off") from error
            except RuntimeError as error:
                reason, expected = f"no thread for the client: {error}", "a limit of threads with room for more"
                raise ConnectFailed(settings.host_list, reason, expected=expected) from error
            undo.pop_all()
        transactions = Transactions(service, threads, publisher.prepare, publisher.on_lacking)
        return cls(service, publisher, transactions, token)

    def fail_all(self, reason: str) -> None:
        """Fail all unconfirmed messages: the session is gone. Called on the loop's thread.

        Whatever waits for the session ends as soon as it can, so that a thread is free for `disconnect`.
        """
        self.calls.end()
        self.publisher.fail_all(reason)
        self.transactions.fail_all(reason)

    def lack_to_bind(self) -> str | None:
        """The error text if the last login lacked the right to bind; None if it had it.

        Called on the loop's thread, and only before `disconnect` has begun.
        """
        return native.missing_right(self.service, LoginRight.RECEIVE)

    def hold(self, receiver: Any) -> None:
        """Keep a receiver that is about to be started, until `let_go`. Called within one of the `calls`."""
        self._held.add(receiver)

    def let_go(self, receiver: Any) -> None:
        """Keep a receiver that a flow has left only as long as the library may call it: perhaps as long as the session.

        Called on any thread.
        """
        # The client empties `flow_p` when it has freed the flow. After that, the library was seen to call only with the
        # news of a refused bind, for which we have waited. A flow that is not freed is told of the end of its session.
        if not receiver.flow_p:
            native.let_go(receiver)
            self._held.discard(receiver)

    def disconnect(self) -> None:
        """End the session and free what it holds, even if it has ended by itself; bound flows end with it.

        Waits for calls of other threads that are in the library, even if nobody needs their results: 10 s for each
        answer that a broker owes, also to a commit. Later calls are refused. If the answer to an unbind is owed, the
        library first waits for that, until the connection counts as lost.
        """
        self.calls.end()
        with broken_off_after(COMMIT_PATIENCE_S, self.service):
            self.transactions.close()
        if self.calls.are_under_way():
            # To free a session in which the library still waits would crash the process. This does not end the wait,
            # but the broker learns at once that the session is over.
            native.break_off(self.service)
            self.is_cut.set_result(None)
        self.calls.wait()
        for step in (self.service.disconnect, partial(native.release, self.service)):
            try:
                step()
            except (*CLIENT_ERRORS, RuntimeError) as error:
                # A `RuntimeError` comes from a thread that the system refuses, as the client starts one for each flow
                # that ends. Nobody needs the session any more, and the broker notices that the socket is closed.
                _log.info("disconnect_failed", reason=subcode_and_reason(error)[1])
        held, self._held = self._held, set()
        for receiver in (*held, *self._receivers.values()):
            native.let_go(receiver)

    def follow_token(self, source: TokenFile) -> None:
        """Have the client present the file's current token, if it has changed, when it next connects.

        Raises `ConfigError` if something is wrong with the file, or an error of the client's: then the former token is
        kept. Does nothing if the session is over, as the next session reads the file itself.
        """
        token = source.read()
        if token == self.token:
            return
        try:
            with self.calls.one():
                self.service.update_property(TOKEN_PROPERTY, token)
        except CLIENT_ERRORS:
            if self.calls.over.done():
                return
            raise
        self.token = token
        _log.info("token_renewed", file=source.path)

    def why_away(self, hosts: str) -> ConnectFailed | None:
        """During an outage: why the client's last attempt to reconnect failed; None if that is not known."""
        with suppress(PubSubPlusClientError), self.calls.one():
            error = native.newest_error(self.service)
            return None if error is None else connect_failed(hosts, error)
        return None

    def heard(self) -> tuple[int, int] | None:
        """The connection, and how much the broker has sent in it, keep-alives included; None if that is not known."""
        with suppress(PubSubPlusClientError), self.calls.one():
            return self.connection(), int(self.service.metrics().get_value(Metric.CONTROL_MESSAGES_RECEIVED))
        return None

    def heard_in(self) -> int | None:
        """Ask the broker for an answer; return the connection in which it comes, or None if it does not. The broker has
        then read everything that was sent before in that connection."""
        with suppress(*CLIENT_ERRORS), self.calls.one():
            connection = self.connection()
            if self._is_heard_in(connection):
                return connection
        return None

    def connection(self) -> int:
        """The number of the connection, which grows with each attempt to connect, and at once; the client's listeners
        hear of an outage late.

        Called within one of the `calls`.
        """
        return int(self.service.metrics().get_value(Metric.CONNECTION_ATTEMPTS))

    def _is_heard_in(self, connection: int) -> bool:
        """Whether the broker answers something sent now, in this connection and not in a later one."""
        if self.calls.over.done() or self.connection() != connection:
            # Do not ask during an outage: the answer may take as long as that.
            return False
        try:
            native.repeat_inbox(self.service)
        except CLIENT_ERRORS as error:
            if not is_subscription_refused(error):
                return False
        # The client takes what an outage leaves unanswered for done.
        return self.connection() == connection

    def provision(self, queue: str, subscriptions: Sequence[str]) -> None:
        """See `Transport.provision`; raises `TransportError` also if the connection was lost meanwhile."""
        try:
            with self.calls.one():
                connection = self.connection()
                try:
                    native.provision_queue(self.service, queue, subscriptions)
                except CLIENT_ERRORS:
                    if self.connection() == connection:
                        raise
                # For the client, a request that was cut off counts as done, and the next one may be refused because it
                # was not done. Either may be reported before the client begins to connect again; the next answer shows
                # that.
                if not self._is_heard_in(connection):
                    raise PubSubPlusClientError("the connection was lost")
        except CLIENT_ERRORS as error:
            raise request_failed(f"provision {queue}", error) from error

    def has_queue(self, queue: str) -> bool:
        """See `Browser.has_queue`."""
        tries_left = 2
        while True:
            try:
                with self.calls.one(), self._browsing("look for", queue, window=1):
                    return True
            except CLIENT_ERRORS as error:
                # The client was seen to lose the reason of a failed bind, and then gives a subcode of 0.
                if not tries_left or subcode_and_reason(error)[0] != 0:
                    return has_queue_refused(queue, error)
                tries_left -= 1

    def browse(self, queue: str, quiet_ms: int, is_last: IsLast | None) -> list[Message]:
        """Return the messages on a queue, reading until none has come for `quiet_ms`, or until one is the last one.

        Raises `TransportError`, also if the connection was lost before the end. `is_last` is asked on this thread.
        """
        found: list[Message] = []
        try:
            with self.calls.one(), self._browsing("browse", queue, BROWSER_WINDOW) as browser:
                connection = self.connection()
                while (inbound := self._next_of(browser, quiet_ms, connection)) is not None:
                    found.append(read_message(inbound))
                    if is_last is not None and is_last(found[-1]):
                        break
        except CLIENT_ERRORS as error:
            raise request_failed(f"browse {queue}", error) from error
        return found

    @contextmanager
    def _browsing(self, what: str, queue: str, window: int) -> Iterator[Any]:
        if (lack := native.missing_right(self.service, LoginRight.RECEIVE)) is not None:
            # The client would refuse it without saying what is missing.
            raise RequestRefused(f"{what} {queue}", lack)
        builder = self.service.create_message_queue_browser_builder().with_queue_browser_window_size(window)
        browser = builder.build(Queue.durable_exclusive_queue(queue))
        try:
            self._start(browser)
            yield browser
        finally:
            native.end_browser(browser)

    def _start(self, browser: Any) -> None:
        # Not by its own `start`, which waits without a bound: for ever if the session ends meanwhile.
        started = browser.start_async()
        wait([started, self.calls.over], BROWSER_PATIENCE_S, FIRST_COMPLETED)
        if not started.done():
            raise PubSubPlusClientError("the session ended" if self.calls.over.done() else "the broker did not answer")
        started.result()

    def _next_of(self, browser: Any, quiet_ms: int, connection: int) -> Any:
        """The next message, or None after a pause; raises `TransportError` unless the connection was there all the
        time."""
        inbound = browser.receive_message(quiet_ms)
        if inbound is None and browser.is_running() and self._is_heard_in(connection):
            # If it was only the network that paused, what it held up has come before the answer.
            inbound = browser.receive_message(0)
            if inbound is None and browser.is_running():
                return None
        # After an outage, a browser begins again; or it does not come back, which would look like the end of the queue.
        if inbound is None or self.calls.over.done() or self.connection() != connection:
            raise PubSubPlusClientError("the connection was lost")
        return inbound

    def subscribe(self, subscription: str, inbox: Inbox, sink: DirectSink) -> None:
        """Take direct messages until the session ends; if called again, have the broker confirm it once more. Raises
        `SubscribeFailed`."""
        try:
            with self.calls.one():
                receiver = self._receivers.get((subscription, sink))
                if receiver is None:
                    # Started without the subscription: the client keeps each receiver whose start fails, and a refused
                    # subscription is asked for again and again.
                    receiver = self.service.create_direct_message_receiver_builder().build()
                    receiver.start()
                    receiver.receive_async(_DirectListener(inbox, sink))
                    self._receivers[subscription, sink] = receiver
                # This asks the broker. If the broker has the subscription already, the client takes that for a yes.
                receiver.add_subscription(TopicSubscription.of(subscription))
        except (*CLIENT_ERRORS, RuntimeError) as error:
            # A `RuntimeError` comes from a thread that the system refuses: the client starts one for each receiver.
            raise subscribe_failed(subscription, error) from error

    def subscribe_anew(self, subscriptions: Sequence[tuple[str, DirectSink]], inbox: Inbox) -> None:
        """Make the subscriptions of the previous session; raises `SubscribeFailed`, but not for one that the broker
        refuses."""
        for subscription, sink in subscriptions:
            try:
                self.subscribe(subscription, inbox, sink)
            except SubscribeFailed as failure:
                # A refusal must not keep everything else from going on; nor does it after a reconnect.
                if not failure.permanent:
                    raise


def _token_of(settings: SolaceSettings, former: str) -> str:
    source = settings.token_file
    if source is None:
        return ""
    try:
        return source.read()
    except ConfigError as error:
        if not former:
            raise ConnectFailed(settings.host_list, str(error), permanent=True) from None
        _log.warning("token_not_renewed", file=source.path, reason=str(error))
        return former


class _ServiceListener(
    ReconnectionAttemptListener,  # type: ignore[misc]  # the client's classes have no types
    ReconnectionListener,  # type: ignore[misc]
    ServiceInterruptionListener,  # type: ignore[misc]
):
    """Only posts: the client joins the listeners' thread from its own network thread."""

    def __init__(self, inbox: Inbox, take: SessionEventSink) -> None:
        self._inbox = inbox
        self._take = take

    def on_reconnecting(self, event: Any) -> None:
        self._inbox.post(self._take, (SessionEvent.LOST, reason_of_text(event.get_message())))

    def on_reconnected(self, service_event: Any) -> None:
        self._inbox.post(self._take, (SessionEvent.RESTORED, reason_of_text(service_event.get_message())))

    def on_service_interrupted(self, event: Any) -> None:
        self._inbox.post(self._take, (SessionEvent.ENDED, reason_of_text(event.get_message())))


class _DirectListener(MessageHandler):  # type: ignore[misc]  # the client's classes have no types
    def __init__(self, inbox: Inbox, sink: DirectSink) -> None:
        self._inbox = inbox
        self._sink = sink

    def on_message(self, message: Any) -> None:
        try:
            received: Message = read_message(message)
        except UnreadableMessage as error:
            # A direct message is delivered at most once: it may be dropped.
            self._inbox.post(_log_unreadable, str(error))
        else:
            self._inbox.post(self._sink, received)


def _log_unreadable(reason: str) -> None:
    _log.warning("direct_message_dropped", reason=reason)
