"""A transport on the official client: one session at a time with many flows; everything it reports comes to the loop.

More than 400 lines, as everything here either asks the one session for something or replaces it.
"""

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING

import structlog

from lbg_runtime.model.errors import (
    NOT_CONNECTED,
    BindFailed,
    ConnectFailed,
    PublishFailed,
    SubscribeFailed,
    TransportError,
)
from lbg_runtime.model.ids import Epoch, QueueName
from lbg_runtime.model.message import Message
from lbg_runtime.transport.base import BoundFlow, ConnectionSink, DirectSink, FlowSink, IsLast, answer
from lbg_runtime.transport.solace.barrier import Barrier
from lbg_runtime.transport.solace.client import CLIENT, load_client
from lbg_runtime.transport.solace.inbox import Inbox
from lbg_runtime.transport.solace.relogin import Relogin
from lbg_runtime.transport.solace.session_making import SessionMaking, until_cut
from lbg_runtime.transport.solace.settings import SolaceSettings
from lbg_runtime.transport.solace.threads import THREAD_COUNT, ControlThreads
from lbg_runtime.transport.solace.token_follower import TokenFollower
from lbg_runtime.transport.to_the_end import wait_to_the_end

if TYPE_CHECKING:
    # These import the client, which must not happen before `open`.
    from lbg_runtime.transport.solace.flow import SolaceFlow
    from lbg_runtime.transport.solace.publisher import MakePublisher
    from lbg_runtime.transport.solace.receive_path import MakePath
    from lbg_runtime.transport.solace.session import SessionEvent, SolaceSession

OUTAGE_PATIENCE_S = 10.0
"""How long a bind waits for a connection: as long as the client waits for the broker's answer."""

BINDS_AT_ONCE = 4
"""How many binds are under way in the client. Others wait here, so that an outage that begins ends their wait, and
control threads are left for everything else."""

SESSION_THREADS = 16
"""A session whose connection breaks while it is made can occupy two threads for 10 s. So there may be eight such
attempts in that time before one has to wait for a thread."""

RESTORE_WAIT_S = 0.1
"""The time from the client's report of a restored connection to the next bind; a fifth of it was seen to suffice."""

OUTAGE_LOOK_S = 10.0
"""How often the client is asked why it is still not back."""

UNTOLD_LOOKS = 2
"""If at so many looks in a row the broker has sent more on the same connection, that is up, although the client does
not report it. More than one, as the client opens its flows again before it reports that."""

CLOSED = "the transport was closed"

_ACCEPTED_NOW = (
    "credentials that the broker accepts now: a token or certificate is read again from its file, a password only when "
    "this process is started again"
)
"""For a login that is refused though one like it was not: something has been changed since."""

_log = structlog.get_logger(__name__)


class SolaceTransport:
    """`Transport`, `Browser` and `Messenger`. All methods are called on one loop, that of `open`.

    The client deals with outages: it retries forever and binds the flows again. If a session ends nevertheless, its
    flows get `FlowDown`, and the transport tries to make a new session until there is one or `close` is called; but not
    if the settings want no reconnects.
    """

    def __init__(self, settings: SolaceSettings) -> None:
        self._settings = settings
        self._threads = ControlThreads()
        """For calls to a session."""
        self._session_threads = ControlThreads(SESSION_THREADS)
        """For ending a session and making the next, so that these do not wait behind calls that wait for a broker."""
        self._binding = asyncio.Semaphore(BINDS_AT_ONCE)
        self._opening = asyncio.Lock()
        self._inbox: Inbox | None = None
        self._path = settings.client_path
        """The path for receiving; no longer `auto` once the client is loaded."""
        self._make_path: MakePath | None = None
        self._make_publisher: MakePublisher | None = None
        self._session: SolaceSession | None = None
        self._barrier: Barrier | None = None
        """The barrier of the present session."""
        self._connected = asyncio.Event()
        """Set while there is a connection."""
        self._restoring: asyncio.TimerHandle | None = None
        self._outage: asyncio.Task[None] | None = None
        """Logs why the client does not come back, until it has."""
        self._why_away: str | None = None
        self._relogin = Relogin(self._log_in_again)
        self._watcher: ConnectionSink | None = None
        self._making: SessionMaking | None = None
        """The making of the newest session; reports of older sessions are ignored."""
        self._flows: list[SolaceFlow] = []
        self._direct: list[tuple[str, DirectSink]] = []
        self._renewal: asyncio.Task[None] | None = None
        self._tokens: TokenFollower | None = None
        """None if there is no token file."""
        self._following: asyncio.Task[None] | None = None
        """The task that runs it."""
        self._former_token = ""
        """The token that the previous session presented."""
        self._held: list[tuple[Message, asyncio.Future[None]]] = []
        """Messages sent while there was no session; they go first when there is one."""
        self._closed = False

    # -- Transport

    async def open(self) -> None:
        """See `Transport.open`. Every host is tried once; after a failure it can be called again.

        Raises `ConfigError` if the settings ask for the fast receive path and the client does not support it.
        """
        # `close` waits for this lock, as a session that is half open is ended on the threads.
        async with self._opening:
            await self._open()

    async def _open(self) -> None:
        host = self._settings.host_list
        if self._session is not None or self._renewal is not None or self._closed:
            raise ConnectFailed(host, "a transport is opened once", permanent=True)
        if self._inbox is None:
            self._inbox = Inbox(asyncio.get_running_loop())
        with ExitStack() as undo:
            # A caller whose `open` failed need not call `close`, so end the threads here.
            for threads in (self._threads, self._session_threads):
                undo.callback(threads.refuse_more)
            try:
                for threads in (self._threads, self._session_threads):
                    threads.start()
            except RuntimeError as error:
                expected = f"a limit of threads with room for {THREAD_COUNT + SESSION_THREADS} more"
                raise ConnectFailed(host, f"no thread for the client: {error}", expected=expected) from error
            try:
                if self._make_path is None:
                    loading = self._session_threads.run(
                        load_client, self._settings.client_path, carries_traces=self._settings.carries_traces
                    )
                    self._path, self._make_path, self._make_publisher = await loading
            except ImportError as error:
                raise ConnectFailed(host, str(error), permanent=True, expected=CLIENT) from error
            await self._connect(self._inbox)
            undo.pop_all()
        if self._settings.max_in_flight is not None:
            self._tell_path()
        if self._settings.token_file is not None:
            self._tokens = TokenFollower(self._settings.token_file, self._threads, lambda: self._session)
            self._following = asyncio.create_task(self._tokens.run())

    def _tell_path(self) -> None:
        """Log the path, but only for members: other commands come and go, and their output is short."""
        from lbg_runtime.transport.solace.fast import compiled

        is_compiled = compiled.INTAKE is not None
        _log.info("session_opened", host=self._settings.host_list, path=self._path.value, compiled=is_compiled)

    async def close(self) -> None:
        """See `Transport.close`. Waits for calls to the client that are under way, even if it is cancelled."""
        if self._closed:
            return
        self._closed = True
        if self._making is not None:
            self._making.give_up(CLOSED)
        tasks = [task for task in (self._renewal, self._following, self._outage) if task is not None]
        for task in tasks:
            task.cancel()
        self._watcher = None
        session, self._session = self._session, None
        self._disconnected()
        # This wakes those who wait for a connection: they find that there is none, and will be none.
        self._connected.set()
        self._connected.clear()
        if self._inbox is not None:
            self._inbox.close()
        for flow in self._flows:
            flow.silence()
        if session is not None:
            session.fail_all(CLOSED)
        for message, future in self._held:
            answer(future, PublishFailed(message.topic, CLOSED))
        await wait_to_the_end(self._end_all(session, tasks))

    async def _end_all(self, session: "SolaceSession | None", tasks: "Sequence[asyncio.Task[None]]") -> None:
        try:
            if tasks:
                await asyncio.wait(tasks)
            async with self._opening:
                # If `open` was under way, it has ended what was half open by now.
                pass
            if session is not None:
                await self._session_threads.run(session.disconnect)
        finally:
            await self._session_threads.close()
            await self._threads.close()

    async def bind(self, queue: QueueName, epoch: Epoch, sink: FlowSink) -> BoundFlow:
        """See `Transport.bind`. During an outage it waits up to `OUTAGE_PATIENCE_S` for the connection, but not after
        `close`.

        If it is cancelled while the client binds, it lasts until the flow is bound and given up again.
        """
        if self._closed or (self._session is None and self._renewal is None):
            # The transport is not open; or a session has ended, and the settings want no reconnects.
            raise BindFailed(queue, NOT_CONNECTED)
        # Waits here and not in the client, which would occupy a control thread meanwhile.
        with suppress(TimeoutError):
            async with asyncio.timeout(OUTAGE_PATIENCE_S):
                await self._connected.wait()
        async with self._binding:
            return await self._bind(queue, epoch, sink)

    async def _bind(self, queue: QueueName, epoch: Epoch, sink: FlowSink) -> BoundFlow:
        from lbg_runtime.transport.solace.flow import GhostFlow, SolaceFlow

        session, inbox, make_path = self._session, self._inbox, self._make_path
        if session is None or inbox is None or make_path is None or not self._connected.is_set():
            raise BindFailed(queue, NOT_CONNECTED)
        window, heard_in = self._settings.flow_window, partial(self._heard_in, session)
        try:
            flow = SolaceFlow(inbox, self._threads, queue, epoch, sink, make_path, heard_in, window)
        except OSError as error:
            # The first path needs a pipe, and the process may open no more files.
            raise BindFailed(queue, f"no pipe for its messages: {error}") from error
        # Dead handles are dropped when new ones come: rebind cycles must not fill the memory.
        self._flows = [*(known for known in self._flows if known.is_live), flow]
        starting = self._threads.begin(flow.start, session)
        try:
            await wait_to_the_end(starting)
        except asyncio.CancelledError:
            await self._discard(flow)
            raise
        except BindFailed as refusal:
            flow.silence()
            if session is not self._session:
                # The client's own error then names its clean-up, or nothing.
                raise BindFailed(queue, "the session ended") from refusal
            if (lack := session.lack_to_bind()) is None:
                raise
            self._relogin.lacks(lack)
            raise BindFailed(queue, f"{refusal.reason}: {lack}") from refusal
        finally:
            failure = starting.exception()
            if isinstance(failure, GhostFlow) and session is self._session:
                self._replace(session, failure.reason)
        if not flow.is_live:
            await self._discard(flow)
        flow.handed_over()
        return flow

    async def _discard(self, flow: "SolaceFlow") -> None:
        if self._closed:
            # The flow ends with the session.
            flow.silence()
        else:
            await flow.discard()

    async def provision(self, queue: QueueName, subscriptions: Sequence[str]) -> None:
        await self._threads.run(self._session_to("provision", queue).provision, queue, subscriptions)

    async def has_queue(self, queue: QueueName) -> bool:
        return await self._threads.run(self._session_to("look for", queue).has_queue, queue)

    async def browse(self, queue: QueueName, quiet_s: float, is_last: IsLast | None = None) -> list[Message]:
        is_wanted = True

        def is_enough(message: Message) -> bool:
            return not is_wanted or (is_last is not None and is_last(message))

        session = self._session_to("browse", queue)
        browsing = self._threads.begin(session.browse, queue, round(quiet_s * 1_000), is_enough)
        try:
            await asyncio.wait([browsing])
        except asyncio.CancelledError:
            is_wanted = False
            # It ends at its next message, or at the next pause.
            await wait_to_the_end(asyncio.gather(browsing, return_exceptions=True))
            raise
        return browsing.result()

    # -- Messenger

    def send(self, message: Message) -> asyncio.Future[None]:
        """See `Messenger.send`. While a new session is being made, messages wait for it."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._session is not None:
            self._session.publisher.send(message, future)
        elif self._renewal is not None and not self._closed:
            self._held.append((message, future))
        else:
            future.set_exception(PublishFailed(message.topic, NOT_CONNECTED))
        return future

    def send_together(self, messages: Sequence[Message]) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._session is not None:
            self._session.transactions.send(messages, future)
        else:
            future.set_exception(PublishFailed(messages[0].topic, NOT_CONNECTED))
        return future

    def send_direct(self, message: Message) -> None:
        if self._session is not None:
            self._session.publisher.send_direct(message)

    def watch_connection(self, sink: ConnectionSink) -> None:
        self._watcher = sink
        sink(self._connected.is_set())

    async def subscribe(self, subscription: str, sink: DirectSink) -> None:
        session, inbox = self._session, self._inbox
        # During an outage, the client as a rule fails at once, but was also seen to wait for the end of the outage.
        if session is None or inbox is None or not self._connected.is_set():
            raise SubscribeFailed(subscription, NOT_CONNECTED)
        await self._threads.run(session.subscribe, subscription, inbox, sink)
        if session is not self._session:
            # There may be a next session already, without this subscription.
            raise SubscribeFailed(subscription, "the session ended")
        if (subscription, sink) not in self._direct:
            self._direct.append((subscription, sink))

    # -- Connection

    @property
    def is_connected(self) -> bool:
        return self._connected.is_set()

    @property
    def why_away(self) -> str | None:
        return self._why_away

    # -- the session

    def _session_to(self, what: str, queue: QueueName) -> "SolaceSession":
        if self._session is None:
            raise TransportError(f"cannot {what} {queue}: {NOT_CONNECTED}")
        return self._session

    async def _connect(self, inbox: Inbox) -> None:
        """Make a session; raises `ConnectFailed`. If so, and also if this is cancelled, there is none."""
        if self._closed:
            raise ConnectFailed(self._settings.host_list, CLOSED, permanent=True)
        if self._make_publisher is None:
            raise TransportError("the client is not loaded")
        self._making = making = SessionMaking(self._settings, self._threads, self._session_threads)
        take = partial(self._session_event, making)
        session = await making.make(inbox, take, self._make_publisher, self._former_token, self._direct)
        self._session = session
        self._barrier = Barrier(self._threads, session.heard_in)
        held, self._held = self._held, []
        for message, future in held:
            if future.done():
                continue
            try:
                session.publisher.send(message, future)
            except Exception as error:  # noqa: BLE001 - whatever it is (no memory, say), the later messages must go on
                future.set_exception(PublishFailed(message.topic, str(error) or type(error).__name__))
        # After the messages that waited, as the watcher may publish at once.
        self._is_up()

    def _session_event(self, making: SessionMaking, happened: tuple["SessionEvent", str]) -> None:
        from lbg_runtime.transport.solace.session import SessionEvent

        event, reason = happened
        client_name = self._settings.client_name
        if making is not self._making:
            return
        if self._session is None:
            if event in (SessionEvent.LOST, SessionEvent.ENDED):
                making.fall(f"the connection was lost at once: {reason}")
            return
        match event:
            case SessionEvent.LOST:
                _log.warning("connection_lost", client_name=client_name, reason=reason)
                if self._tokens is not None:
                    self._tokens.look_now()
                self._disconnected()
                self._why_away = reason
                self._outage = asyncio.get_running_loop().create_task(self._follow_outage(self._session))
            case SessionEvent.RESTORED:
                _log.info("connection_restored", client_name=client_name, reason=reason)
                self._end_outage()
                # The library is not yet done with the reconnect, and a bind now could go wrong (see `GhostFlow`).
                self._restoring = asyncio.get_running_loop().call_later(RESTORE_WAIT_S, self._is_up)
            case SessionEvent.ENDED:
                self._replace(self._session, reason)
            case SessionEvent.LACKING:
                self._relogin.lacks(reason)

    def _is_up(self) -> None:
        self._why_away = None
        self._connected.set()
        self._relogin.logged_in()
        if self._session is not None:
            self._session.publisher.logged_in()
        if self._watcher is not None:
            self._watcher(True)

    def _log_in_again(self, lack: str) -> None:
        if self._session is not None and self._settings.reconnects:
            self._replace(self._session, f"logs in again: {lack}")

    async def _heard_in(self, session: "SolaceSession") -> int | None:
        # The answer in another session would say nothing about what this one has sent.
        if session is not self._session or self._barrier is None or not self._connected.is_set():
            return None
        asked = self._barrier.ask()
        # Others share the future, so our cancellation must not reach it.
        await asyncio.wait([asked])
        return asked.result()

    def _disconnected(self) -> None:
        if self._barrier is not None:
            self._barrier.fall()
        if self._connected.is_set() and self._watcher is not None:
            self._watcher(False)
        self._connected.clear()
        self._relogin.disconnected()
        self._end_outage()
        if self._restoring is not None:
            self._restoring.cancel()

    def _end_outage(self) -> None:
        if self._outage is not None:
            self._outage.cancel()

    async def _follow_outage(self, session: "SolaceSession") -> None:
        """Log why the client does not come back. It does not report that by itself: it tries again, whatever the broker
        answers."""
        told: str | None = None
        heard: tuple[int, int] | None = None
        untold = 0
        while True:
            await asyncio.sleep(OUTAGE_LOOK_S)
            before, heard = heard, await self._threads.run(session.heard)
            is_up = before is not None and heard is not None and heard[0] == before[0] and heard[1] > before[1]
            untold = untold + 1 if is_up else 0
            if untold == UNTOLD_LOOKS:
                # The client waits for something that it does not get, such as a transacted session without the right to
                # one.
                self._replace(session, "the client is connected again, and does not say so")
                return
            failure = await self._threads.run(session.why_away, self._settings.host_list)
            if failure is not None and failure.reason != told:
                told = self._why_away = failure.reason
                expected = failure.expected or (_ACCEPTED_NOW if failure.permanent else None)
                more = {} if expected is None else {"expected": expected}
                _log.warning("connection_not_restored", client_name=self._settings.client_name, reason=told, **more)

    def _replace(self, session: "SolaceSession", reason: str) -> None:
        _log.error("session_ended", client_name=self._settings.client_name, reason=reason)
        self._session = None
        self._former_token = session.token
        self._disconnected()
        self._why_away = reason
        session.fail_all(reason)
        flows, self._flows = self._flows, []
        for flow in flows:
            flow.session_ended(reason)
        ending = self._session_threads.begin(session.disconnect)
        if self._settings.reconnects:
            self._renewal = asyncio.get_running_loop().create_task(self._renew(session, ending))

    async def _renew(self, former: "SolaceSession", ending: "asyncio.Future[None]") -> None:
        await until_cut(former, ending)
        # No bound: whoever opened the transport wants a session until `close`, which cancels this.
        while self._session is None and self._inbox is not None:
            await asyncio.sleep(self._settings.reconnect_wait_ms / 1000)
            try:
                await self._connect(self._inbox)
            except Exception as error:  # noqa: BLE001 - whatever it is: nobody else would try again
                reason = self._why_away = str(error) or type(error).__name__
                _log.warning("session_not_renewed", client_name=self._settings.client_name, reason=reason)
