"""One attempt to make a session: at its end there is one with all its subscriptions, or nothing is left of it."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, TypeVar

from lbg_runtime.model.errors import ConnectFailed
from lbg_runtime.transport.base import DirectSink
from lbg_runtime.transport.solace.inbox import Inbox
from lbg_runtime.transport.solace.settings import SolaceSettings
from lbg_runtime.transport.solace.threads import ControlThreads
from lbg_runtime.transport.to_the_end import wait_to_the_end

if TYPE_CHECKING:
    # These import the client, which must not happen before `SolaceTransport.open`.
    from lbg_runtime.transport.solace.calls import Connecting
    from lbg_runtime.transport.solace.publisher import MakePublisher
    from lbg_runtime.transport.solace.session import SessionEventSink, SolaceSession

BREAK_OFF_S = 0.05
"""The time between two attempts to break off a connect that is under way."""

_Step = TypeVar("_Step")


class SessionMaking:
    """Made by a transport for each session, and called on its loop; `make` once."""

    def __init__(self, settings: SolaceSettings, threads: ControlThreads, session_threads: ControlThreads) -> None:
        """`session_threads`: on which the session is made; apart from `threads`, which make the calls to it."""
        self._settings = settings
        self._threads = threads
        self._session_threads = session_threads
        loop = asyncio.get_running_loop()
        self._unwanted: asyncio.Future[str] = loop.create_future()
        """Done, with a reason, when nobody wants the session any more."""
        self._fallen: asyncio.Future[str] = loop.create_future()
        """Like `_unwanted`, and also done if the session's connection was lost."""

    def give_up(self, reason: str) -> None:
        """Give the session up: nobody wants it any more. Idempotent, and without effect once it is made."""
        _tell(self._unwanted, reason)
        _tell(self._fallen, reason)

    def fall(self, reason: str) -> None:
        """The session has lost its connection while it was being made: what was asked of it may be left undone, or wait
        as long as the outage."""
        _tell(self._fallen, reason)

    async def make(
        self,
        inbox: Inbox,
        take: "SessionEventSink",
        make_publisher: "MakePublisher",
        former_token: str,
        direct: Sequence[tuple[str, DirectSink]],
    ) -> "SolaceSession":
        """Connect, and make the subscriptions of the previous session (`direct`). Raises `ConnectFailed`; if so, and
        also if this is cancelled, no session is left.

        The other parameters are those of `SolaceSession.connect`.
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
            # Whatever goes wrong from here on: the session would stay connected, and nobody would have it.
            undo.push_async_callback(lambda: wait_to_the_end(self._end_half_made(beginning, connecting)))
            # Not before `_fallen`: if the connection is lost meanwhile, the error of the step says best why.
            session = await self._done_before(self._unwanted, beginning)
            # During an outage, this was seen to wait for its end.
            subscribing = self._session_threads.begin(session.subscribe_anew, tuple(direct), inbox)
            await self._done_before(self._fallen, subscribing)
            undo.pop_all()
        return session

    async def _done_before(self, unwanted: "asyncio.Future[str]", step: "asyncio.Future[_Step]") -> _Step:
        """The outcome of a step towards a session; raises `ConnectFailed` as soon as `unwanted` is done."""
        # Retrieves its exception, which may not matter any more.
        step.add_done_callback(lambda ended: ended.exception())
        both: tuple[asyncio.Future[Any], ...] = (step, unwanted)
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if unwanted.done():
            raise ConnectFailed(self._settings.host_list, unwanted.result(), permanent=self._unwanted.done())
        return step.result()

    async def _end_half_made(self, beginning: "asyncio.Future[SolaceSession]", connecting: "Connecting") -> None:
        """End a session that is being made; returns when `until_cut` would."""
        # By itself the client would go on connecting until its timeout.
        while not beginning.done():
            # Again and again, as the connect may only have been about to begin.
            await self._session_threads.run(connecting.break_off)
            await asyncio.wait([beginning], timeout=BREAK_OFF_S)
        if beginning.exception() is None:
            session = beginning.result()
            await until_cut(session, self._session_threads.begin(session.disconnect))


async def until_cut(session: "SolaceSession", ending: "asyncio.Future[None]") -> None:
    """Wait until a session can neither come back nor send: it has ended, or waits for calls that are under way.

    Otherwise it could come back under the same name, which ends the next session, and send its unconfirmed messages
    after those of the next session.
    """
    await asyncio.wait([ending, asyncio.wrap_future(session.is_cut)], return_when=asyncio.FIRST_COMPLETED)


def _tell(unwanted: "asyncio.Future[str]", reason: str) -> None:
    if not unwanted.done():
        unwanted.set_result(reason)
