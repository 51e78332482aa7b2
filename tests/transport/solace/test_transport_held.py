"""Messages that were sent while there was no session, on virtual time and with sessions that tests play."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, cast

import pytest

from lbg_runtime.model.errors import PublishFailed
from lbg_runtime.model.message import Message
from lbg_runtime.transport.solace.inbox import Inbox
from lbg_runtime.transport.solace.session import SolaceSession
from lbg_runtime.transport.solace.settings import SolaceSettings
from lbg_runtime.transport.solace.transport import SolaceTransport


class Session:
    """Confirms at once what it is given, but for one message, for which there is no memory."""

    def __init__(self) -> None:
        self.publisher = self
        self.transactions = self
        self.token = ""
        self.is_cut = Future[None]()

    def send(self, message: Message, future: asyncio.Future[None]) -> None:
        if message.payload == b"2":
            raise MemoryError
        future.set_result(None)

    def heard_in(self) -> int | None:
        return 1

    def subscribe_anew(self, *_: object) -> None: ...

    def logged_in(self) -> None: ...

    def fail_all(self, _: str) -> None: ...

    def disconnect(self) -> None: ...


class Threads:
    """Every call ends at once."""

    def begin(self, call: Callable[..., Any], *args: object) -> asyncio.Future[Any]:
        ended = asyncio.get_running_loop().create_future()
        ended.set_result(call(*args))
        return ended

    async def run(self, call: Callable[..., Any], *args: object) -> None:
        call(*args)

    async def close(self) -> None: ...


async def test_a_waiting_message_for_which_there_is_no_memory_keeps_neither_others_nor_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What waited behind it had no end, and the transport counted as away for as long as the session lasted."""
    transport = SolaceTransport(SolaceSettings(("tcp://127.0.0.1:1",), "first"))
    transport._inbox = Inbox(asyncio.get_running_loop())
    transport._make_publisher = cast(Any, Session)
    transport._session, transport._session_threads = cast(Any, Session()), cast(Any, Threads())
    monkeypatch.setattr(SolaceSession, "connect", lambda *_: Session())
    told = asyncio.Queue[bool]()
    transport.watch_connection(told.put_nowait)
    transport._log_in_again("for a test")
    ends = [transport.send(Message("t", payload)) for payload in (b"1", b"2", b"3")]
    while not await told.get():
        pass
    assert (ends[0].done(), ends[2].done(), transport.is_connected) == (True, True, True)
    with pytest.raises(PublishFailed, match="MemoryError"):
        await ends[1]
    await transport.close()
