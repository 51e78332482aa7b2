"""Carries the messages that the C callback (_intake.c) has gathered, for all flows of a session, to their paths.

One wake-up of the loop serves all flows, and comes by a pipe: to post to the inbox, the network thread would need the
interpreter, for which it would wait while the loop is busy, and the loop would then wait for what it has not gathered
meanwhile. A flow event comes through the inbox, behind the news up to where it comes, so that events and messages of a
flow keep the order in which they came. The messages stay in the intake until they are taken: another thread that has a
flow event to tell, as a session has that is being replaced, does not change their order.
"""

import asyncio
import os
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Protocol

from lbg_runtime.transport.solace.inbox import FULL, Inbox

if TYPE_CHECKING:
    # Does not exist without a compiler.
    from lbg_runtime.transport.solace.fast import _intake

Parts = list[tuple["GatheredPath", list[int]]]


class GatheredPath(Protocol):
    """The receive path of one flow, as the gathering sees it."""

    def take_each(self, messages: Iterable[int]) -> None:
        """Take native messages of the flow that have come. Called on the loop."""
        ...

    def loop_is_blocked(self) -> None:
        """The loop has taken nothing for a long time. Called on the client's network thread."""
        ...

    def broken(self, error: BaseException) -> None:
        """A message of the flow could not be taken, or the loop not told of it, or it is lost. Called on any thread."""
        ...


MOST_READ = 4_096
"""Bytes of the pipe; there is one for each turn that has begun since the last look, which serves them all."""


class Gathering:
    """Serves all flows whose messages come through one inbox, and ends with that. Used only if `compiled.INTAKE`
    exists."""

    def __init__(self, intake: "type[_intake.Intake]", inbox: Inbox, free: int, patience_s: float) -> None:
        """`free` is the address of the function that frees a native message. Called on the loop.

        Raises `OSError` if the process may open or watch no more files.
        """
        self._inbox = inbox
        self._paths: dict[int, GatheredPath] = {}
        self._loop = asyncio.get_running_loop()
        self._process = os.getpid()
        with ExitStack() as undo:
            self._bell, rung = os.pipe()
            for end in (self._bell, rung):
                undo.callback(os.close, end)
                os.set_blocking(end, False)
            self._loop.add_reader(self._bell, self._ring)
            undo.callback(self._loop.remove_reader, self._bell)
            self._intake = intake(
                free,
                rung,
                self._loop_is_blocked,
                # With the arguments that C passes: the path comes first.
                lambda path, error: path.broken(error),
                FULL,
                int(patience_s * 1_000),
            )
            undo.pop_all()
        inbox.at_close(self._close)

    def add(self, user: int, path: GatheredPath) -> None:
        """Hand this path the messages that the callback gets with `user` as its last argument.

        Call before the flow is started.
        """
        self._paths[user] = path
        self._intake.add(user, path)

    def remove(self, user: int, path: GatheredPath) -> None:
        """Take no more messages of this flow; those that have gathered are still handed over. Called on any thread."""
        if self._paths.get(user) is path:
            del self._paths[user]
        self._intake.remove(user, path)

    def seal(self) -> None:
        """Put what has gathered ahead of anything posted to the inbox later, and what gathers from now on behind what
        has been posted. Called on the client's network thread."""
        try:
            if (turn := self._intake.cut()) is not None:
                self._inbox.post(self._take, turn)
        except MemoryError as error:
            self._give_up_all(error)

    def look(self) -> None:
        """From now on the network thread waits for the loop anew, and tells flows anew if it does not come. Called on
        the loop, by a path that was told."""
        # It was told behind the end of the first turn, of which all has been taken by now: this takes nothing.
        self._take(0)

    def _loop_is_blocked(self, path: GatheredPath) -> None:
        # In this order: a loop that moves again takes what has gathered before it has more come, and may be blocked in
        # between, when nobody would wait for it again.
        self.seal()
        path.loop_is_blocked()

    def _ring(self) -> None:
        if os.getpid() != self._process:
            # A process that a handler has forked, and that is about to be ended (runtime/forked.py): the pipe is its
            # parent's, which would never hear of what is read here.
            return
        with suppress(BlockingIOError):
            os.read(self._bell, MOST_READ)
        # In this order: what comes behind an event that is posted from now on is of a later turn, and an event that was
        # posted before is either taken by now or seen to wait.
        turn = self._intake.turn
        if self._inbox.is_empty:
            self._take(turn)
            return
        try:
            self._inbox.post(self._take, turn)
        except MemoryError as error:
            self._give_up_all(error)
            # Of what lies there, those paths show nothing more; while it does, nothing rings for flows that come later.
            self._take(turn)

    def _take(self, turn: int) -> None:
        try:
            parts = self._intake.pop(turn)
        except MemoryError as error:
            self._give_up_all(error)
        else:
            self._hand_over(parts)

    def _give_up_all(self, error: MemoryError) -> None:
        """What had gathered is lost, and it is unknown which flows are affected."""
        for path in tuple(self._paths.values()):
            path.broken(error)

    def _hand_over(self, parts: Parts) -> None:
        try:
            for path, messages in parts:
                try:
                    path.take_each(messages)
                except Exception as error:  # noqa: BLE001 - the other flows are not affected
                    about = "a receive path failed, and has given its flow up"
                    asyncio.get_running_loop().call_exception_handler({"message": about, "exception": error})
        except MemoryError as error:
            self._give_up_all(error)

    def _close(self) -> None:
        self._intake.close()
        # If the loop was closed before, this is not its thread.
        if not self._loop.is_closed():
            self._loop.remove_reader(self._bell)
        os.close(self._bell)
