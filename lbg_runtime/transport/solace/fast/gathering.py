"""Carries the messages that the C callback (_intake.c) has gathered, for all flows of a session, to their paths.

One wake-up of the loop serves all flows: all that comes through the inbox is the news that messages have gathered. A
flow event cuts off what has come before it, so that events and messages of a flow keep the order in which they came.
"""

import asyncio
from collections.abc import Iterable
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

    def drop_each(self, messages: Iterable[int]) -> None:
        """Free these native messages. Called on any thread."""
        ...

    def loop_is_blocked(self) -> None:
        """The loop has taken nothing for a long time. Called on the client's network thread."""
        ...

    def broken(self, error: BaseException) -> None:
        """A message of the flow could not be taken or announced, or is lost. Called on any thread."""
        ...


class Gathering:
    """Serves all flows whose messages come through one inbox. Used only if `compiled.INTAKE` exists."""

    def __init__(self, intake: "type[_intake.Intake]", inbox: Inbox, free: int, patience_s: float) -> None:
        """`free` is the address of the function that frees a native message."""
        self.inbox = inbox
        self._paths: dict[int, GatheredPath] = {}
        self._intake = intake(
            free,
            self._announce,
            # With the arguments that C passes: the path comes first.
            lambda path: path.loop_is_blocked(),
            lambda path, error: path.broken(error),
            FULL,
            int(patience_s * 1_000),
        )

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
        """Put what has gathered ahead of anything posted to the inbox later. Called on the client's network thread."""
        try:
            if parts := self._intake.cut():
                self.inbox.post(self._hand_over, parts, _drop)
        except MemoryError as error:
            self._give_up_all(error)

    def _announce(self, turn: int) -> None:
        self.inbox.post(self._take, turn, self._close)

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

    def _close(self, _: int) -> None:
        # The inbox is closed, and nothing will be announced any more.
        self._intake.close()


def _drop(parts: Parts) -> None:
    for path, messages in parts:
        path.drop_each(messages)
