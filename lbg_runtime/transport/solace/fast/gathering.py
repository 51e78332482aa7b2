"""Carries the messages that the C callback (_intake.c) has gathered, for all flows of a session, to their paths.

One wake-up of the loop serves all flows. It comes by a pipe, because to post to the inbox the network thread would need
the interpreter: while the loop is busy, the thread would wait for that and gather nothing, and then the loop would wait
for messages. A flow event comes through the inbox, and before it, an item that says up to where messages came earlier;
so events and messages of a flow keep their order. The messages stay in the intake until they are taken, so a flow event
from another thread, as a session has that is being replaced, does not change their order.
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
        """Called on the client's network thread if the loop has taken nothing for a long time."""
        ...

    def broken(self, error: BaseException) -> None:
        """Called on any thread if a message of the flow could not be taken, or is lost, or the loop could not be told
        of it."""
        ...


MOST_READ = 4_096
"""How many bytes one look reads from the pipe. There is a byte for each turn that has begun since the last look, which
serves them all."""


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
        """Take no more messages of this flow; those that have gathered are still handed over. Called on any thread, and
        perhaps on two at once."""
        with suppress(KeyError):
            if self._paths[user] is path:
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
        """From now on, the network thread waits for the loop again, and tells flows again if it does not come. Called
        on the loop, by a path that was told."""
        # The path was told after the end of the first turn, of which everything has been taken by now. So this only
        # counts as a look, and takes nothing.
        self._take(0)

    def _loop_is_blocked(self, path: GatheredPath) -> None:
        # In this order: a loop that moves again first takes what has gathered, and only then lets more come. In the
        # other order it could be blocked again in between, with nobody waiting for it.
        self.seal()
        path.loop_is_blocked()

    def _ring(self) -> None:
        if os.getpid() != self._process:
            # This is a process that a handler has forked, and that is about to be ended (runtime/forked.py). The pipe
            # is its parent's, which would never learn of what is read here.
            return
        with suppress(BlockingIOError):
            os.read(self._bell, MOST_READ)
        # In this order: whatever comes after an event that is posted from now on belongs to a later turn, and an event
        # that was posted before has either been taken by now, or is seen to wait.
        turn = self._intake.turn
        if self._inbox.is_empty:
            self._take(turn)
            return
        try:
            self._inbox.post(self._take, turn)
        except MemoryError as error:
            self._give_up_all(error)
            # Those paths show nothing of what has gathered. Take it all the same: until then, nothing rings for flows
            # that are bound later.
            self._take(turn)

    def _take(self, turn: int) -> None:
        try:
            parts = self._intake.pop(turn)
        except MemoryError as error:
            self._give_up_all(error)
        else:
            self._hand_over(parts)

    def _give_up_all(self, error: MemoryError) -> None:
        """Give all flows up: what had gathered is lost, and it is not known which flows are affected."""
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
        # If the loop is closed already, this may be another thread.
        if not self._loop.is_closed():
            self._loop.remove_reader(self._bell)
        os.close(self._bell)
