"""One attempt to make a session: it is there, with its subscriptions, or nothing of it is left."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, TypeVar

from lbg_runtime.model.errors import ConnectFailed
from lbg_runtime.transport.base import DirectSink
from lbg_runtime.transport.solace.inbox import Inbox
from lbg_runtime.transport.solace.settings import SolaceSettings
from lbg_runtime.transport.solace.threads import ControlThreads, wait_to_the_end

if TYPE_CHECKING:
    # These import the client, which must not happen before `SolaceTransport.open`.
    from lbg_runtime.transport.solace.calls import Connecting
    from lbg_runtime.transport.solace.publisher import MakePublisher
    from lbg_runtime.transport.solace.session import SessionEventSink, SolaceSession

BREAK_OFF_S = 0.05
"""Between two attempts to end a connect that is under way."""

_Step = TypeVar("_Step")


class SessionMaking:
    """Belongs to a transport, which calls it on its loop; `make` once."""

    def __init__(self, settings: SolaceSettings, threads: ControlThreads, session_threads: ControlThreads) -> None:
        """`session_threads`: on which the session is made, apart from those for what is asked of it."""
        self._settings = settings
        self._threads = threads
        self._session_threads = session_threads
        loop = asyncio.get_running_loop()
        self._unwanted: asyncio.Future[str] = loop.create_future()
        """Done, with a reason, when nobody wants the session any more."""
        self._fallen: asyncio.Future[str] = loop.create_future()
        """The same, also if its connection was lost."""

    def give_up(self, reason: str) -> None:
        """Nobody wants the session any more. Idempotent, and of no effect when it is made."""
        _tell(self._unwanted, reason)
        _tell(self._fallen, reason)

    def fall(self, reason: str) -> None:
        """The session has lost its connection: what was asked of it meanwhile may be left undone, or wait as long as
        the outage."""
        _tell(self._fallen, reason)

    async def make(
        self,
        inbox: Inbox,
        take: "SessionEventSink",
        make_publisher: "MakePublisher",
        former_token: str,
        direct: Sequence[tuple[str, DirectSink]],
    ) -> "SolaceSession":
        """Connect, and subscribe anew; raises `ConnectFailed`, and then, as when it is cancelled, there is none.

        The parameters are those of `SolaceSession.connect`, and the subscriptions of the session before.
        """
        from lbg_runtime.transport.solace.calls import Connecting
        from lbg_runtime.transport.solace.session import SolaceSession

        connecting = Connecting()
        beginning = self._session_threads.begin(
            SolaceSession.connect,
            self._settings,
            inbox,
            take,
            make_publisher,
            self._threads,
            connecting,
            former_token,
        )
        async with AsyncExitStack() as undo:
            # Whatever goes wrong: it would stay connected, and nobody would have it.
            undo.push_async_callback(self._abandon, beginning, connecting)
            # If the connection is lost meanwhile, this says best why.
            session = await self._done_before(self._unwanted, beginning)
            # This was seen to wait as long as an outage.
            subscribing = self._session_threads.begin(session.subscribe_anew, tuple(direct), inbox)
            await self._done_before(self._fallen, subscribing)
            undo.pop_all()
        return session

    async def _done_before(self, unwanted: "asyncio.Future[str]", step: "asyncio.Future[_Step]") -> _Step:
        """The outcome of a step to a session; raises `ConnectFailed` as soon as nobody is to have that session."""
        # Mark it as retrieved: it may not matter any more.
        step.add_done_callback(lambda ended: ended.exception())
        both: tuple[asyncio.Future[Any], ...] = (step, unwanted)
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if unwanted.done():
            raise ConnectFailed(self._settings.host_list, unwanted.result(), permanent=self._unwanted.done())
        return step.result()

    async def _abandon(self, beginning: "asyncio.Future[SolaceSession]", connecting: "Connecting") -> None:
        """End a session that is being made, even if the caller is cancelled; returns as `until_cut` does."""
        await wait_to_the_end(asyncio.ensure_future(self._end_half_made(beginning, connecting)))

    async def _end_half_made(self, beginning: "asyncio.Future[SolaceSession]", connecting: "Connecting") -> None:
        # The client alone would go on connecting until its timeout.
        while not beginning.done():
            # Again and again: it may have been about to begin.
            await self._session_threads.run(connecting.break_off)
            await asyncio.wait([beginning], timeout=BREAK_OFF_S)
        if beginning.exception() is None:
            session = beginning.result()
            await until_cut(session, self._session_threads.begin(session.disconnect))


async def until_cut(session: "SolaceSession", ending: "asyncio.Future[None]") -> None:
    """Wait until a session can neither come back nor send: it has ended, or waits for calls that are under way.

    One that can would come back under the same name, which ends the next one, and send what is unconfirmed after that
    one's messages.
    """
    await asyncio.wait([ending, asyncio.wrap_future(session.is_cut)], return_when=asyncio.FIRST_COMPLETED)


def _tell(unwanted: "asyncio.Future[str]", reason: str) -> None:
    if not unwanted.done():
        unwanted.set_result(reason)
