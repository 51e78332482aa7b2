"""The end of a session, while the library still waits for something on another thread.

More than 400 lines, as all of it stands on one imitation of the library.
"""

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from ctypes import c_void_p
from pathlib import Path
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from lbg_runtime.model.errors import BindFailed, ConnectFailed, SubscribeFailed, TransportError
from lbg_runtime.model.ids import Epoch, QueueName
from lbg_runtime.model.message import Message
from lbg_runtime.transport.solace import native
from lbg_runtime.transport.solace import session as session_module
from lbg_runtime.transport.solace.calls import Connecting
from lbg_runtime.transport.solace.credentials import TokenFile
from lbg_runtime.transport.solace.flow import SolaceFlow
from lbg_runtime.transport.solace.library import PubSubPlusClientError
from lbg_runtime.transport.solace.session import SolaceSession
from lbg_runtime.transport.solace.settings import SolaceSettings
from tests.patience import PATIENCE_S


class Library:
    """Notes what it is asked, in order; an answer comes when it is let. It is the service and all that comes of it."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.is_asked = threading.Event()
        self.is_cut = threading.Event()
        self.may_answer = threading.Event()
        self.session_pointer = 1
        self.session = self
        self.started: Future[Any] = Future()
        self.is_there = True
        """Whether the flow of the browser is."""
        self.connection = 1
        """How often it has connected."""
        self.receivers_built = 0

    def wait(self, *_: object, **__: object) -> None:
        self.is_asked.set()
        assert self.may_answer.wait(PATIENCE_S)
        self.calls.append("answered")

    def break_off(self, _: object) -> None:
        self.calls.append("cut")
        self.is_cut.set()

    def disconnect(self) -> None:
        self.calls.append("disconnected")

    def session_cleanup(self) -> None:
        self.calls.append("freed")

    def close(self) -> None:
        """That of the transactions."""

    def fail_all(self, _: str) -> None:
        """That of the transactions and of the publisher."""

    # -- what a session is connected with; the listeners are never called

    def connect(self) -> None: ...

    def metrics(self) -> "Library":
        return self

    def get_value(self, _: object) -> int:
        return self.connection

    def add_reconnection_attempt_listener(self, _: object) -> None: ...

    def add_reconnection_listener(self, _: object) -> None: ...

    def add_service_interruption_listener(self, _: object) -> None: ...

    # -- receivers of direct messages

    def create_direct_message_receiver_builder(self) -> "Direct":
        self.receivers_built += 1
        return Direct(self)

    def add_subscription(self, _: object) -> None:
        self.wait()

    # -- receivers of a queue

    def create_persistent_message_receiver_builder(self) -> "Flows":
        return Flows(self)

    # -- browsers

    def create_message_queue_browser_builder(self) -> "Library":
        return self

    def with_queue_browser_window_size(self, _: int) -> "Library":
        return self

    def build(self, *_: object) -> "Library":
        return self

    def start_async(self) -> "Future[Any]":
        self.is_asked.set()
        return self.started

    def receive_message(self, _: int) -> None:
        self.wait()

    def is_running(self) -> bool:
        return self.is_there and self.started.done()

    def terminate(self) -> None:
        """Only the finalizer is sure to free the flow."""

    def _finalizer(self) -> None:
        self.calls.append("browser freed")


class Direct:
    """A builder of receivers of direct messages, and the receiver."""

    def __init__(self, library: Library) -> None:
        self._library = library

    def build(self) -> "Direct":
        return self

    def start(self) -> None: ...

    def receive_async(self, _: object) -> None: ...

    def add_subscription(self, subscription: object) -> None:
        self._library.add_subscription(subscription)


class Flows:
    """A builder of receivers of a queue, and the receiver."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self.flow_p = c_void_p(1)
        self._finalizer = weakref.finalize(self, library.calls.append, "freed by the collector")

    def with_message_client_acknowledgement(self) -> "Flows":
        return self

    def build(self, _: object) -> "Flows":
        return self

    def start(self) -> None:
        self._library.wait()

    def terminate(self, grace_period: int) -> None:
        assert grace_period == 0
        self._library.wait()


class QuietPath:
    """A receive path that does nothing."""

    def __init__(self, *, is_poor: bool = False) -> None:
        """`is_poor`: there is no memory for the whole of its end."""
        self.has_ended = False
        self._is_poor = is_poor

    def attach(self, _: object) -> None: ...

    def begin(self, _: object) -> None: ...

    def end(self) -> None:
        self.has_ended = True
        if self._is_poor:
            raise MemoryError


class BusyThreads:
    """Control threads of which none has a turn for this flow."""

    def __init__(self) -> None:
        self.turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def begin(self, _: object) -> asyncio.Future[None]:
        return self.turn

    async def run(self, _: object) -> None:
        await self.turn


def bound_answer(*_: object) -> native.BindAnswer:
    answer = native.BindAnswer()
    answer.bound.set()
    return answer


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    library = Library()
    monkeypatch.setattr(native, "set_window", lambda *_: None)
    monkeypatch.setattr(native, "keep_window_closed", lambda _: None)
    monkeypatch.setattr(native, "watch_events", bound_answer)
    monkeypatch.setattr(native, "destroy", lambda *_: None)
    monkeypatch.setattr(native, "repeat_inbox", library.wait)
    monkeypatch.setattr(native, "provision_queue", library.wait)
    monkeypatch.setattr(native, "break_off", library.break_off)
    monkeypatch.setattr(native, "missing_right", lambda *_: None)
    return library


def session_of(library: Library) -> SolaceSession:
    return SolaceSession(library, cast(Any, library), cast(Any, library))


def ask(session: SolaceSession) -> object:
    return session.heard_in()


def subscribe(session: SolaceSession) -> object:
    session.subscribe("control/x", cast(Any, None), print)
    return None


def subscribe_anew(session: SolaceSession) -> object:
    session.subscribe_anew([("control/x", print)], cast(Any, None))
    return None


def provision(session: SolaceSession) -> object:
    session.provision("orders/0", [])
    return None


def look(session: SolaceSession) -> object:
    return session.has_queue("orders/0")


def browse(session: SolaceSession) -> object:
    return session.browse("orders/0", 1_000, None)


def new_flow(path: QuietPath | None = None, threads: BusyThreads | None = None) -> SolaceFlow:
    async def heard_in() -> None: ...

    inbox, made, called = cast(Any, None), cast(Any, path or QuietPath()), cast(Any, threads)
    return SolaceFlow(inbox, called, QueueName("q"), Epoch(1), lambda _: None, lambda *_: made, heard_in, 255)


def bind(session: SolaceSession) -> object:
    new_flow().start(session)
    return None


def flow_bound_to(
    session: SolaceSession, path: QuietPath | None = None, threads: BusyThreads | None = None
) -> SolaceFlow:
    library = session.service
    flow = new_flow(path, threads)
    library.may_answer.set()
    flow.start(session)
    library.may_answer.clear()
    library.is_asked.clear()
    library.calls.clear()
    return flow


class Caller(threading.Thread):
    """Another thread, in a call."""

    def __init__(self, call: Callable[[SolaceSession], object], session: SolaceSession) -> None:
        super().__init__(daemon=True)
        self._call = call
        self._session = session
        self.outcome: object = None

    def run(self) -> None:
        try:
            self.outcome = self._call(self._session)
        except TransportError as error:
            self.outcome = error


@pytest.mark.parametrize("call", [ask, subscribe, subscribe_anew, provision, browse, bind])
def test_a_session_is_not_freed_while_the_library_waits_in_it(
    library: Library, call: Callable[[SolaceSession], object]
) -> None:
    # It crashed the process: nobody waited for the answer, or everybody did, and the member left or logged in again.
    library.started.set_result(None)
    session = session_of(library)
    expect_to_be_freed_after(library, session, call)


def test_a_session_is_not_freed_while_a_flow_of_it_is(library: Library) -> None:
    session = session_of(library)
    flow = flow_bound_to(session)
    expect_to_be_freed_after(library, session, lambda _: flow.terminate())


def expect_to_be_freed_after(library: Library, session: SolaceSession, call: Callable[[SolaceSession], object]) -> None:
    calling = Caller(call, session)
    calling.start()
    assert library.is_asked.wait(PATIENCE_S)
    ending = threading.Thread(target=session.disconnect, daemon=True)
    ending.start()
    assert library.is_cut.wait(PATIENCE_S)
    library.may_answer.set()
    ending.join(PATIENCE_S)
    calling.join(PATIENCE_S)
    noted = [each for each in library.calls if each in {"cut", "answered", "disconnected", "freed"}]
    assert noted == ["cut", "answered", "disconnected", "freed"]


def test_a_session_that_is_over_is_not_asked(library: Library) -> None:
    session = session_of(library)
    session.disconnect()
    assert session.heard_in() is None
    for call in (subscribe, subscribe_anew):
        with pytest.raises(SubscribeFailed, match="the session ended") as failure:
            call(session)
        assert not failure.value.permanent
    for call in (provision, look, browse):
        with pytest.raises(TransportError, match="the session ended"):
            call(session)
    with pytest.raises(BindFailed, match="the session ended"):
        bind(session)
    assert library.calls == ["disconnected", "freed"]


def test_a_flow_that_is_left_when_its_session_is_over_is_freed_by_nobody_else(library: Library) -> None:
    """Neither here nor when its receiver is collected: on whatever thread, while the session is being freed."""
    session = session_of(library)
    flows = [flow_bound_to(session) for _ in range(2)]
    flows[0].session_ended("logs in again")
    session.fail_all("logs in again")
    for flow in flows:
        flow.terminate()
    del flows, flow
    gc.collect()
    assert library.calls == []
    session.disconnect()
    gc.collect()
    assert library.calls == ["disconnected", "freed"]


@pytest.mark.parametrize("how", ["unbound", "given up", "discarded", "lost with its session", "silenced"])
async def test_a_flow_touches_no_window_from_its_end_on(library: Library, how: str) -> None:
    """A loop that moves again would open it; before the flow is unbound, and as soon as it is, the session may be freed
    by another thread."""
    path, threads = QuietPath(is_poor=True), BusyThreads()
    flow = flow_bound_to(session_of(library), path, threads)
    flow.handed_over()
    ending: asyncio.Future[object] | None = None
    match how:
        case "unbound":
            ending = asyncio.ensure_future(flow.unbind())
        case "given up":
            flow.give_up("for a test")
        case "discarded":
            ending = asyncio.ensure_future(flow.discard())
        case "lost with its session":
            flow.session_ended("for a test")
        case "silenced":
            flow.silence()
    await asyncio.sleep(0)
    assert path.has_ended
    threads.turn.set_result(None)
    if ending is not None:
        await ending
    assert library.calls == []


def test_a_flow_that_is_left_can_be_told_of_the_end_until_its_session_is_freed(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library calls what the receiver holds; it was being collected then, which crashed the process."""
    session = session_of(library)
    receivers: list[weakref.ref[object]] = []
    monkeypatch.setattr(native, "watch_events", lambda made, _: receivers.append(weakref.ref(made)) or bound_answer())
    flows = [flow_bound_to(session) for _ in range(3)]
    flows[0].session_ended("logs in again")
    flows[1].silence()
    session.fail_all("logs in again")
    flows[2].terminate()
    del flows
    at_the_end: list[object] = []

    def free() -> None:
        gc.collect()
        at_the_end.extend(receiver() for receiver in receivers)

    monkeypatch.setattr(library, "session_cleanup", free)
    session.disconnect()
    assert len(at_the_end) == 3
    assert None not in at_the_end
    at_the_end.clear()
    gc.collect()
    assert [receiver() for receiver in receivers] == [None, None, None]


def test_a_session_whose_end_gets_no_thread_is_freed_all_the_same(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client starts one for each flow that ends with its session, and its `disconnect` raised what that raised."""

    def disconnect() -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(library, "disconnect", disconnect)
    session = session_of(library)
    flow = flow_bound_to(session)
    flow.session_ended("logs in again")
    session.disconnect()
    del flow
    gc.collect()
    assert library.calls == ["freed"], "and the flow not by the collector"


def test_a_receiver_is_kept_until_the_news_of_its_refusal_has_come(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[int] = []

    class Refused(native.BindAnswer):
        def reason_of(self, raised: Exception) -> Exception:
            kept.append(len(session._held))
            return raised

    def refuse() -> None:
        raise PubSubPlusClientError("refused")

    session = session_of(library)
    monkeypatch.setattr(native, "watch_events", lambda *_: Refused())
    monkeypatch.setattr(native, "forget_failed", lambda _: None)
    monkeypatch.setattr(library, "wait", refuse)
    with pytest.raises(BindFailed):
        flow_bound_to(session)
    assert kept == [1]


@pytest.mark.parametrize(("call", "what"), [(browse, "browse"), (look, "look for")])
def test_a_browser_that_never_starts_ends_with_the_session(
    library: Library, call: Callable[[SolaceSession], object], what: str
) -> None:
    """The client forgets it then, and its own `start` waited for ever, and so did everything that closed."""
    session = session_of(library)
    browsing = Caller(call, session)
    browsing.start()
    assert library.is_asked.wait(PATIENCE_S)
    session.fail_all("logs in again")
    browsing.join(PATIENCE_S)
    assert str(browsing.outcome) == f"cannot {what} orders/0: the session ended"
    session.disconnect()
    assert library.calls == ["browser freed", "disconnected", "freed"]


@pytest.mark.parametrize("lost", ["flow", "answer", "connection", "session"])
def test_what_was_read_before_the_connection_was_lost_is_not_the_whole_queue(
    library: Library, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    session = session_of(library)
    library.started.set_result(None)
    library.may_answer.set()
    assert browse(session) == []

    def refuse(_: object) -> None:
        raise PubSubPlusClientError("no session", 12)

    def reconnect(_: object) -> None:
        # The client takes that for an answer.
        library.connection += 1

    def end(_: int) -> object:
        session.fail_all("logs in again")
        # A message, as from a queue that is fed for ever.
        return object()

    if lost == "flow":
        library.is_there = False
    elif lost == "answer":
        monkeypatch.setattr(native, "repeat_inbox", refuse)
    elif lost == "connection":
        monkeypatch.setattr(native, "repeat_inbox", reconnect)
    else:
        monkeypatch.setattr(library, "receive_message", end)
    with pytest.raises(TransportError, match="cannot browse orders/0: the connection was lost"):
        browse(session)
    assert library.calls[-1] == "browser freed"


def test_what_a_silent_network_held_up_is_not_left_out(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of the queue, longer than a pause: it was told as whole without it."""
    library.started.set_result(None)
    come, held_up = [b"one"], [b"two", b"three"]

    def answer(_: object) -> None:
        come.extend(held_up)
        held_up.clear()

    monkeypatch.setattr(library, "receive_message", lambda _: come.pop(0) if come else None)
    monkeypatch.setattr(native, "repeat_inbox", answer)
    monkeypatch.setattr(session_module, "read_message", lambda payload: Message("orders/new", payload))
    found = session_of(library).browse("orders/0", 1_000, None)
    assert [message.payload for message in found] == [b"one", b"two", b"three"]


def test_a_subscription_that_is_refused_leaves_nothing_behind_each_time(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client keeps every receiver; whoever may not hear asks again for as long as it lives."""

    def refuse(_: object) -> None:
        raise PubSubPlusClientError("Subscription ACL Denied", 68)

    session = session_of(library)
    with monkeypatch.context() as patched:
        patched.setattr(library, "add_subscription", refuse)
        for _ in range(3):
            with pytest.raises(SubscribeFailed, match="cannot subscribe to control/x: Subscription ACL") as failure:
                subscribe(session)
            assert failure.value.permanent
    library.may_answer.set()
    subscribe(session)
    assert library.calls == ["answered"]
    assert library.receivers_built == 1


def test_a_commit_that_nobody_answers_does_not_keep_a_session(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits as long as an outage lasts, and so did everything that closed."""

    def commit() -> None:
        assert library.is_cut.wait(PATIENCE_S)

    monkeypatch.setattr(session_module, "COMMIT_PATIENCE_S", 0.0)
    monkeypatch.setattr(library, "close", commit)
    session_of(library).disconnect()
    assert library.calls == ["cut", "disconnected", "freed"]


def test_a_session_that_is_over_is_given_no_token(library: Library, tmp_path: Path) -> None:
    """It may be freed at that moment; and there is nothing to tell, because the next one reads the file itself."""
    (tmp_path / "token").write_text("new")
    session = session_of(library)
    session.disconnect()
    with capture_logs() as logs:
        session.follow_token(TokenFile(str(tmp_path / "token")))
    assert logs == []
    assert session.token == ""


def test_a_connect_that_is_broken_off_is_one_that_failed(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client raises None then, and whoever renews a session goes on only after errors of ours."""

    def connect() -> None:
        raise cast(Any, None)

    monkeypatch.setattr(library, "connect", connect)
    settings, nobody = SolaceSettings(("tcp://127.0.0.1:1",), "c"), cast(Any, None)
    with pytest.raises(ConnectFailed, match="broken off") as failure:
        SolaceSession.connect(settings, nobody, nobody, cast(Any, lambda _: library), nobody, Connecting())
    assert not failure.value.permanent
    assert library.calls == ["freed"]


def test_a_connect_that_gets_no_thread_is_one_that_failed(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client starts some of its own, beside ours; the start of a member ended with a traceback."""
    monkeypatch.setattr(library, "connect", refuse_thread)
    settings, nobody = SolaceSettings(("tcp://127.0.0.1:1",), "c"), cast(Any, None)
    with pytest.raises(ConnectFailed, match="no thread for the client: can't start new thread") as failure:
        SolaceSession.connect(settings, nobody, nobody, cast(Any, lambda _: library), nobody, Connecting())
    assert (failure.value.permanent, failure.value.expected) == (False, "a limit of threads with room for more")
    assert library.calls == ["freed"]


def test_a_subscription_that_gets_no_thread_is_asked_for_again(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who keeps one goes on only after errors of ours: the member ended."""
    session = session_of(library)
    with monkeypatch.context() as refusing:
        refusing.setattr(Direct, "receive_async", refuse_thread)
        with pytest.raises(SubscribeFailed, match="can't start new thread") as failure:
            subscribe(session)
    assert not failure.value.permanent
    library.may_answer.set()
    subscribe(session)
    assert library.calls == ["answered"]


def refuse_thread(*_: object) -> None:
    raise RuntimeError("can't start new thread")
