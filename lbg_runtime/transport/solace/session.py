"""One life of the client's service object: connected once, back by itself after outages, useless once it has ended.

More than 400 lines, as whatever is asked of the service object is one call at a time, and is worth something only if
the connection was the same from its beginning to its end.
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
"""How long a session that is to end waits for its commit, which alone would wait as long as an outage."""

BROWSER_PATIENCE_S = 60.0
"""How long a browser may take to start; the client gives up after 40 s, if it can."""

BROWSER_WINDOW = 255
"""How many messages are on their way to one that reads: the client's maximum."""

_log = structlog.get_logger(__name__)


class SessionEvent(Enum):
    """What can happen to a session after it was connected."""

    LOST = "lost"
    """The connection broke; the client tries to restore it."""
    RESTORED = "restored"
    ENDED = "ended"
    """The session is over, and does not come back."""
    LACKING = "lacking"
    """Something could not be done for want of a right that the last login did not have."""


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
        """The receivers of direct messages, also of those refused so far, for as long as the session lasts."""
        self._held: set[Any] = set()
        """The receivers of flows that are not freed: the library calls them, whoever has left them."""
        self.calls = Calls()
        """Those that this session, or a flow of it, has in the library."""
        self.is_cut: Future[None] = Future()
        """Done if `disconnect` has to wait, by when the session can neither come back nor send any more."""

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

        `threads`: where transactions are committed. `connecting`: ends this early. `former_token`: that of the previous
        session, presented if the file's token cannot be read now.
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
            # Whatever goes wrong: it may be connected already, and nobody would have it.
            undo.callback(native.release, service)
            try:
                with connecting.by(service):
                    service.connect()
                publisher.start()
            except CLIENT_ERRORS as error:
                raise connect_failed(settings.host_list, error) from error
            except TypeError as error:
                # It was broken off: the client raises what was wrong, which is None then.
                raise ConnectFailed(settings.host_list, "the attempt was broken off") from error
            except RuntimeError as error:
                reason, expected = f"no thread for the client: {error}", "a limit of threads with room for more"
                raise ConnectFailed(settings.host_list, reason, expected=expected) from error
            undo.pop_all()
        transactions = Transactions(service, threads, publisher.prepare, publisher.on_lacking)
        return cls(service, publisher, transactions, token)

    def fail_all(self, reason: str) -> None:
        """The session is gone: unconfirmed messages will never be confirmed. Called on the loop's thread.

        What waits for the session ends as soon as it can, so that a thread is free for `disconnect`.
        """
        self.calls.end()
        self.publisher.fail_all(reason)
        self.transactions.fail_all(reason)

    def lack_to_bind(self) -> str | None:
        """What there is to say if the last login had no right to bind; None if it had.

        Called on the loop's thread, which must not have begun `disconnect`.
        """
        return native.missing_right(self.service, LoginRight.RECEIVE)

    def hold(self, receiver: Any) -> None:
        """Keep a receiver that is about to be started, until `let_go`. Called within one of the `calls`."""
        self._held.add(receiver)

    def let_go(self, receiver: Any) -> None:
        """A flow has left its receiver: keep that no longer than the library calls it, perhaps as long as the session.

        Called on any thread.
        """
        # The client empties it when it has freed the flow. After that the library was seen to call with the news of a
        # refused bind alone, which is waited for first; but it tells flows that are left of the end of their session.
        if not receiver.flow_p:
            native.let_go(receiver)
            self._held.discard(receiver)

    def disconnect(self) -> None:
        """End the session and free what it holds, even if it has ended by itself; bound flows end with it.

        Waits for calls of other threads that are in the library, which nobody may need any more: 10 s for each answer
        that a broker owes, a commit's included. Calls that come later are refused. If the answer to an unbind is owed,
        the library waits for that first, until the connection counts as lost.
        """
        self.calls.end()
        with broken_off_after(COMMIT_PATIENCE_S, self.service):
            self.transactions.close()
        if self.calls.are_under_way():
            # Freeing what the library still waits in would crash the process. This does not end the wait, but the
            # broker learns at once that the session is over.
            native.break_off(self.service)
            self.is_cut.set_result(None)
        self.calls.wait()
        for step in (self.service.disconnect, partial(native.release, self.service)):
            try:
                step()
            except (*CLIENT_ERRORS, RuntimeError) as error:
                # The latter of a thread that the system refuses: the client starts one for each flow that ends. Nobody
                # needs the session any more; the broker notices that the socket is closed.
                _log.info("disconnect_failed", reason=subcode_and_reason(error)[1])
        held, self._held = self._held, set()
        for receiver in (*held, *self._receivers.values()):
            native.let_go(receiver)

    def follow_token(self, source: TokenFile) -> None:
        """Have the client present the file's current token, if it has changed, when it next connects.

        Raises `ConfigError` if something is wrong with the file, or the client's error: the former token is kept. Does
        nothing if the session is over, as the next one reads the file itself.
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
        """Why the client, which is away, could not come back when it last tried; None if that is not known."""
        with suppress(PubSubPlusClientError), self.calls.one():
            error = native.newest_error(self.service)
            return None if error is None else connect_failed(hosts, error)
        return None

    def heard(self) -> tuple[int, int] | None:
        """The connection, and how much the broker has said so far, keep-alives included; None if that is not known."""
        with suppress(PubSubPlusClientError), self.calls.one():
            return self.connection(), int(self.service.metrics().get_value(Metric.CONTROL_MESSAGES_RECEIVED))
        return None

    def heard_in(self) -> int | None:
        """The connection in which the broker answers something sent now, and so has read what was sent in it before;
        None if it does not answer."""
        with suppress(*CLIENT_ERRORS), self.calls.one():
            connection = self.connection()
            if self._is_heard_in(connection):
                return connection
        return None

    def connection(self) -> int:
        """Grows with each attempt to connect; unlike the client's listeners, who hear of an outage late, in time.

        Called within one of the `calls`.
        """
        return int(self.service.metrics().get_value(Metric.CONNECTION_ATTEMPTS))

    def _is_heard_in(self, connection: int) -> bool:
        """Whether the broker answers something sent now, in this connection and not in a later one."""
        if self.calls.over.done() or self.connection() != connection:
            # Not asked then: the answer may take as long as an outage.
            return False
        try:
            native.repeat_inbox(self.service)
        except CLIENT_ERRORS as error:
            if not is_subscription_refused(error):
                return False
        # What an outage leaves unanswered passes for done in the client.
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
                # A request that was cut off passes for done, and the next one may be refused for want of it. The client
                # may say so before it begins to connect again: that shows when the next answer is there.
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
                # The client was seen to lose why a bind failed, as it says by a subcode of 0.
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
            # The client would refuse it, and not say what is missing.
            raise RequestRefused(f"{what} {queue}", lack)
        builder = self.service.create_message_queue_browser_builder().with_queue_browser_window_size(window)
        browser = builder.build(Queue.durable_exclusive_queue(queue))
        try:
            self._start(browser)
            yield browser
        finally:
            native.end_browser(browser)

    def _start(self, browser: Any) -> None:
        # Not its own `start`, which waits without a bound: for ever if the session ends meanwhile.
        started = browser.start_async()
        wait([started, self.calls.over], BROWSER_PATIENCE_S, FIRST_COMPLETED)
        if not started.done():
            raise PubSubPlusClientError("the session ended" if self.calls.over.done() else "the broker did not answer")
        started.result()

    def _next_of(self, browser: Any, quiet_ms: int, connection: int) -> Any:
        """The next message, or None after a pause, in a connection that has been there all the time."""
        inbound = browser.receive_message(quiet_ms)
        if inbound is None and browser.is_running() and self._is_heard_in(connection):
            # If it was the network that paused, what it held up has come with the answer.
            inbound = browser.receive_message(0)
            if inbound is None and browser.is_running():
                return None
        # A browser that comes back after an outage begins again; one that does not would pass for the end of the queue.
        if inbound is None or self.calls.over.done() or self.connection() != connection:
            raise PubSubPlusClientError("the connection was lost")
        return inbound

    def subscribe(self, subscription: str, inbox: Inbox, sink: DirectSink) -> None:
        """Take direct messages until the session ends, or have that confirmed; raises `SubscribeFailed`."""
        try:
            with self.calls.one():
                receiver = self._receivers.get((subscription, sink))
                if receiver is None:
                    # Without the subscription: the client keeps each receiver whose start fails, and a refused
                    # subscription is asked for again and again.
                    receiver = self.service.create_direct_message_receiver_builder().build()
                    receiver.start()
                    receiver.receive_async(_DirectListener(inbox, sink))
                    self._receivers[subscription, sink] = receiver
                # This asks the broker, and the client takes it for a yes if that has the subscription already.
                receiver.add_subscription(TopicSubscription.of(subscription))
        except (*CLIENT_ERRORS, RuntimeError) as error:
            # The latter of a thread that the system refuses: the client starts one for each receiver.
            raise subscribe_failed(subscription, error) from error

    def subscribe_anew(self, subscriptions: Sequence[tuple[str, DirectSink]], inbox: Inbox) -> None:
        """Make the subscriptions of the session before; raises `SubscribeFailed`, but not for one that is refused."""
        for subscription, sink in subscriptions:
            try:
                self.subscribe(subscription, inbox, sink)
            except SubscribeFailed as failure:
                # It must not keep everything else from going on: as after a reconnect.
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
            # Delivered at most once: nobody waits for it.
            self._inbox.post(_log_unreadable, str(error))
        else:
            self._inbox.post(self._sink, received)


def _log_unreadable(reason: str) -> None:
    _log.warning("direct_message_dropped", reason=reason)
