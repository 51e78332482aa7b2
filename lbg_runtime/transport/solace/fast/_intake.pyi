from collections.abc import Callable
from typing import Any

CALLBACK: int
"""Address of what the client's network thread is to call with each message."""

class Intake:
    """The messages of a session's flows on their way to the loop. Called on any thread.

    What it gives out: pairs of a path and the addresses of its messages, in the order in which they came. Where it has
    no memory for that it frees the messages and raises `MemoryError`.
    """

    def __init__(
        self,
        free: int,
        announce: Callable[[int], object],
        blocked: Callable[[Any], object],
        broken: Callable[[Any, BaseException], object],
        full: int,
        patience_ms: int,
        /,
    ) -> None: ...
    def add(self, user: int, path: object, /) -> None:
        """Take the messages of this flow, for this path; one that had the same number before is forgotten."""

    def remove(self, user: int, path: object, /) -> None:
        """Take nothing more for this path of this flow; what has gathered is given out still."""

    def pop(self, turn: int, /) -> list[tuple[Any, list[int]]]:
        """What has gathered since this turn was announced; nothing where it was cut."""

    def cut(self) -> list[tuple[Any, list[int]]]:
        """What has gathered; what comes from now on is announced anew."""

    def close(self) -> None:
        """Free what has gathered, and take nothing more."""
