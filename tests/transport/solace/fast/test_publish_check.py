"""Every surprise that the installed client could have for the fast publish path is found and named, and decides."""

import asyncio
import threading
from collections.abc import Callable
from ctypes import CFUNCTYPE, c_char_p, c_int, c_void_p
from types import SimpleNamespace
from typing import Any

import pytest
import structlog.testing

from lbg_runtime.broker.server.server import BrokerServer
from lbg_runtime.config.settings import ClientPathChoice
from lbg_runtime.model.errors import ConfigError
from lbg_runtime.model.message import Message
from lbg_runtime.testing.flow_recorder import PATIENCE_S
from lbg_runtime.transport.solace import library, paths
from lbg_runtime.transport.solace.fast import check as fast_check
from lbg_runtime.transport.solace.fast import compiled
from lbg_runtime.transport.solace.fast import publish_calls as fast_publish_calls
from lbg_runtime.transport.solace.fast import publish_check as fast_publish_check
from lbg_runtime.transport.solace.fast.publish import FastPublisher
from lbg_runtime.transport.solace.fast.publish_session import MANY_AT_ONCE, build_heard
from lbg_runtime.transport.solace.fast.writer import message_writer
from lbg_runtime.transport.solace.inbox import Inbox
from lbg_runtime.transport.solace.publisher import PublicPublisher
from lbg_runtime.transport.solace.settings import SolaceSettings
from lbg_runtime.transport.solace.transport import SolaceTransport
from tests.transport.solace.fast.surprises import WithoutFunctions


def _without(name: str, answer: int = 0) -> Callable[[Any], Any]:
    """Writes with a call of the client's that does nothing, and answers this."""
    return lambda calls: message_writer(SimpleNamespace(**{**vars(calls), name: lambda *_: answer}))  # type: ignore[arg-type]


def _writing_nothing_usual(_: int, message: Message, __: int) -> bool:
    """Says that it has written what it has not."""
    return "raw" not in message.properties


def _building(**instead: Any) -> Callable[..., Any]:
    """Has a session be built that has this in place of what it has."""

    def build(builder: Any, hear: Any) -> Any:
        service = build_heard(builder, hear)
        for name, value in instead.items():
            setattr(service.session, name, value)
        return service

    return build


def _building_plainly(builder: Any, _: Any) -> Any:
    return builder.build()


def _building_greedy(builder: Any, hear: Any) -> Any:
    return build_heard(builder, lambda *event: hear(*event) or True)


def _refusing(_: Any, __: Any) -> Any:
    raise library.PubSubPlusClientError("unknown property")


def _keeping_more(name: str) -> Callable[[Any, str], str]:
    return lambda _, wanted: {name: "1000"}.get(wanted, MANY_AT_ONCE)


Surprise = tuple[object, str, object, str]
"""Where, what, what instead, and how the check says it."""

SURPRISES: dict[str, Surprise] = {
    "no native session": (
        library.ClientSession,
        "session_pointer",
        None,
        "a session does not show its native one",
    ),
    "other callbacks": (
        library.ClientSession,
        "_event_callback_func_type",
        CFUNCTYPE(c_int, c_void_p, c_void_p),
        "a session is made in another way: ",
    ),
    "other properties": (
        library.ClientSession,
        "_SolaceSession__prepare_session_props",
        lambda *_: (c_char_p * 1)(None),
        "a session is made in another way: the session's properties leave no room",
    ),
    "refused": (fast_publish_check, "build_heard", _refusing, "a session is made in another way: unknown property"),
    "one by one": (fast_publish_check, "build_heard", _building_plainly, "a session tells of every confirm"),
    "other window": (
        library.ClientSession,
        "get_session_property",
        _keeping_more("SESSION_PUB_WINDOW_SIZE"),
        "a session keeps other than 255 messages unconfirmed",
    ),
    "deaf": (
        fast_publish_check,
        "build_heard",
        _building(_event_callback=library.ClientSession._event_callback_func_type(lambda *_: 0)),
        "a session's events are told as something else",
    ),
    "bypassed": (
        fast_publish_check,
        "build_heard",
        _building_greedy,
        "a session's events do not reach the client as they should",
    ),
    "missing function": (
        fast_publish_calls,
        "PyDLL",
        WithoutFunctions,
        "the client or the interpreter lacks a function: undefined symbol: solClient_msg_alloc",
    ),
    **{
        f"without {name}": (fast_publish_check, "writer_of", _without(name), "a message was written as something else")
        for name in (
            "reset",
            "set_delivery_mode",
            "set_correlation_id",
            "set_message_type",
            "set_sequence_number",
            "set_priority",
        )
    },
    "compiled otherwise": (
        compiled,
        "WRITER",
        lambda *_: SimpleNamespace(write=_writing_nothing_usual),
        "a message was written as something else",
    ),
    "unwritable": (fast_publish_check, "writer_of", _without("set_payload", -1), "a message could not be written: "),
}


def test_others_that_open_at_the_same_moment_are_no_surprise(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a session is being built, the client's class is not as usual; 1 of 5 checks fell over that."""
    has_begun, may_end = threading.Event(), threading.Event()

    class Slow:
        def build(self) -> None:
            has_begun.set()
            may_end.wait(PATIENCE_S)

    other = threading.Thread(target=build_heard, args=(Slow(), lambda *_: False))

    def build(builder: Any, hear: Any) -> Any:
        service = build_heard(builder, hear)
        other.start()
        assert has_begun.wait(PATIENCE_S)
        return service

    monkeypatch.setattr(fast_publish_check, "build_heard", build)
    try:
        assert fast_publish_check.unexpected() is None
    finally:
        may_end.set()
        other.join(PATIENCE_S)


@pytest.fixture(params=SURPRISES)
def surprise(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    where, name, instead, words = SURPRISES[request.param]
    monkeypatch.setattr(where, name, instead)
    return words


async def made_by(choice: ClientPathChoice) -> type[object]:
    _, _, make_publisher = paths.choose_paths(choice)
    return type(make_publisher(Inbox(asyncio.get_running_loop())))


async def test_the_client_that_is_installed_has_no_surprise() -> None:
    with structlog.testing.capture_logs() as log:
        assert await made_by(ClientPathChoice.AUTO) is FastPublisher
        assert await made_by(ClientPathChoice.FAST) is FastPublisher
    assert log == []


async def test_a_surprise_means_the_public_path_and_one_line_that_names_it(surprise: str) -> None:
    with structlog.testing.capture_logs() as log:
        assert await made_by(ClientPathChoice.AUTO) is PublicPublisher
    [line] = log
    assert (line["event"], line["log_level"]) == ("publish_path_is_public", "warning")
    assert line["reason"].startswith(surprise)
    assert "\n" not in line["reason"]


async def test_who_wants_the_fast_path_or_nothing_gets_nothing_and_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_publish_check, "writer_of", _without("reset"))
    with pytest.raises(ConfigError) as refusal:
        await made_by(ClientPathChoice.FAST)
    assert refusal.value.where == "transport.client_path"
    assert refusal.value.found.startswith("fast, and a message was written as something else")


async def test_who_receives_by_the_public_path_publishes_by_it_and_nothing_more_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fast_publish_check, "writer_of", _without("reset"))
    with structlog.testing.capture_logs() as log:
        assert await made_by(ClientPathChoice.PUBLIC) is PublicPublisher
        monkeypatch.setattr(fast_check, "KNOWN_CLIENTS", frozenset())
        assert await made_by(ClientPathChoice.AUTO) is PublicPublisher
    assert [line["event"] for line in log] == ["receive_path_is_public"]


@pytest.mark.real_time
async def test_a_transport_that_fell_back_publishes_and_says_so_once(
    broker: BrokerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fast_publish_check, "writer_of", _without("reset"))
    private: list[Callable[..., Any]] = []
    monkeypatch.setattr(paths, "FastPublisher", private.append)
    transport = SolaceTransport(SolaceSettings(hosts=(broker.url,), client_name="first"))
    with structlog.testing.capture_logs() as log:
        await transport.open()
        await asyncio.wait_for(transport.send(Message("orders/new", b"a")), PATIENCE_S)
        await transport.close()
    assert [line["event"] for line in log if line["log_level"] == "warning"] == ["publish_path_is_public"]
    assert broker.engine.queue_depth("default", "orders/0") == 1  # type: ignore[arg-type]  # a queue's name
    assert private == []
