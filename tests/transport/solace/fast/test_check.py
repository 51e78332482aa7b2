"""Every surprise that the installed client could have for the fast path is found and named, and decides the path."""

import asyncio
import platform
from collections.abc import Callable
from ctypes import CFUNCTYPE, c_int
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import structlog.testing

from lbg_runtime.broker.server.server import BrokerServer
from lbg_runtime.config.settings import ClientPathChoice
from lbg_runtime.model.errors import ConfigError, ConnectFailed
from lbg_runtime.model.ids import Epoch, QueueName
from lbg_runtime.model.message import Delivery, Message
from lbg_runtime.smf.contents import relay_of
from lbg_runtime.smf.message import Relay
from lbg_runtime.testing.flow_recorder import FlowRecorder
from lbg_runtime.transport.solace import library, paths
from lbg_runtime.transport.solace.fast import calls as fast_calls
from lbg_runtime.transport.solace.fast import check as fast_check
from lbg_runtime.transport.solace.fast.path import FastPath
from lbg_runtime.transport.solace.fast.reader import message_reader
from lbg_runtime.transport.solace.inbox import Inbox
from lbg_runtime.transport.solace.public_path import PublicPath
from lbg_runtime.transport.solace.settings import SolaceSettings
from lbg_runtime.transport.solace.transport import SolaceTransport
from tests.transport.solace.fast.surprises import WithoutFunctions


def _start_without_callbacks() -> None:
    return


def _misreading(calls: Any) -> Callable[..., Delivery]:
    read = message_reader(calls)
    return lambda *message: replace(read(*message), redelivered=False)


def _not_reading(name: str) -> Callable[[Any], Callable[..., Delivery]]:
    return lambda calls: message_reader(SimpleNamespace(**{**vars(calls), name: lambda *_: 0}))  # type: ignore[arg-type]


def _cut_short(_: Message) -> Relay:
    relay = relay_of(Message("t", b"", {"name": "abcd"}))
    # The text says that it is longer than there is.
    return Relay.of(relay.head, relay.carried, relay.body.replace(b"\x1c\x07abcd", b"\x1c\xf0abcd"), relay.contents)


Surprise = tuple[object, str, object, str]
"""Where, what, what instead, and how the check says it."""

SURPRISES: dict[str, Surprise] = {
    "interpreter": (
        fast_check.platform,
        "python_implementation",
        lambda: "PyPy",
        "the interpreter is PyPy, not CPython",
    ),
    "free threads": (
        fast_check.sysconfig,
        "get_config_var",
        lambda _: 1,
        "this Python is a free-threaded build (no GIL)",
    ),
    "newer Python": (fast_check, "NEWEST_PYTHON", (3, 10), f"Python {platform.python_version()} is newer than 3.10"),
    "another client": (
        fast_check,
        "KNOWN_CLIENTS",
        frozenset({"pubsubplus-python-client 1.12.0 / C API 7.33.0.3"}),
        "the client is 'pubsubplus-python-client 1.11.0 / C API 7.33.0.3'",
    ),
    "another start": (
        library.PersistentReceiver,
        library.START_METHOD,
        _start_without_callbacks,
        "a receiver starts without _flow_msg_callback_func_routine",
    ),
    "another callback": (
        library.PersistentReceiver,
        "msg_callback_func_type",
        CFUNCTYPE(c_int),
        "a message callback has another signature",
    ),
    "missing function": (
        fast_calls,
        "PyDLL",
        WithoutFunctions,
        "the client or the interpreter lacks a function: undefined symbol: solClient_msg_getBinaryAttachmentPtr",
    ),
    "no message": (
        fast_check,
        "relay_of",
        lambda _: Relay.of(b"none", b"", b"", None),
        "a message could not be read: the client makes no message of a frame",
    ),
    "unreadable": (
        fast_check,
        "relay_of",
        _cut_short,
        "a message could not be read: a message cannot be read: ",
    ),
    "misread": (fast_check, "reader_of", _misreading, "a message was read as something else"),
    **{
        f"unread {name}": (fast_check, "reader_of", _not_reading(name), "a message was read as something else")
        for name in ("correlation_id", "message_type", "sequence_number", "priority")
    },
}


@pytest.fixture(params=SURPRISES)
def surprise(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    where, name, instead, words = SURPRISES[request.param]
    monkeypatch.setattr(where, name, instead)
    return words


def owner() -> Any:
    return SimpleNamespace(queue=QueueName("q"), epoch=Epoch(1))


async def made_by(choice: ClientPathChoice) -> type[object]:
    _, make_path, _ = paths.choose_paths(choice)
    return type(make_path(Inbox(asyncio.get_running_loop()), owner()))


async def test_the_client_that_is_installed_has_no_surprise() -> None:
    with structlog.testing.capture_logs() as log:
        assert await made_by(ClientPathChoice.AUTO) is FastPath
        assert await made_by(ClientPathChoice.FAST) is FastPath
    assert log == []


async def test_a_surprise_means_the_public_path_and_one_line_that_names_it(surprise: str) -> None:
    with structlog.testing.capture_logs() as log:
        assert await made_by(ClientPathChoice.AUTO) is PublicPath
    [line] = log
    assert (line["event"], line["log_level"]) == ("receive_path_is_public", "warning")
    assert line["reason"].startswith(surprise)
    assert "\n" not in line["reason"]


async def test_the_public_path_asks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_check, "KNOWN_CLIENTS", frozenset())
    with structlog.testing.capture_logs() as log:
        assert await made_by(ClientPathChoice.PUBLIC) is PublicPath
    assert log == []


@pytest.mark.real_time
async def test_a_transport_that_fell_back_works_and_says_so_once(
    broker: BrokerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fast_check, "KNOWN_CLIENTS", frozenset())
    settings = SolaceSettings(hosts=(broker.url,), client_name="first")
    transport = SolaceTransport(settings)
    with structlog.testing.capture_logs() as log:
        await broker.stop()
        with pytest.raises(ConnectFailed):
            await transport.open()
        await broker.start()
        await transport.open()
        recorder = FlowRecorder()
        (await transport.bind(QueueName("orders/0"), Epoch(1), recorder)).start_intake()
        await transport.send(Message("orders/new", b"a"))
        await recorder.until_received(1)
        await transport.close()
    assert [line["event"] for line in log if line["log_level"] == "warning"] == ["receive_path_is_public"]


@pytest.mark.real_time
async def test_a_transport_that_may_not_fall_back_does_not_open(
    broker: BrokerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fast_check, "KNOWN_CLIENTS", frozenset())
    transport = SolaceTransport(
        SolaceSettings(
            hosts=(broker.url,),
            client_name="first",
            client_path=ClientPathChoice.FAST,
        )
    )
    with pytest.raises(ConfigError, match=r"transport\.client_path: fast, and the client is"):
        await transport.open()
    await transport.close()
    assert broker.client_names() == []
