from collections.abc import Callable
from typing import Any

CALLBACK: int
"""Address of what the client's network thread is to call with each message."""

class Intake:
    """The messages of a session's flows on their way to the loop. Called on any thread.

    What it gives out: pairs of a path and the addresses of its messages, in the order in which they came, whatever
    turns have ended meanwhile. Where it has no memory for that it raises `MemoryError`, and may have freed them.
    """

    def __init__(
        self,
        free: int,
        bell: int,
        blocked: Callable[[Any], object],
        broken: Callable[[Any, BaseException], object],
        full: int,
        patience_ms: int,
        /,
    ) -> None:
        """`bell`: the end of a pipe to which a byte is written when messages have gathered; closed by `close`."""

    @property
    def turn(self) -> int:
        """How many turns have ended."""
    def add(self, user: int, path: object, /) -> None:
        """Take the messages of this flow, for this path; one that had the same number before is forgotten."""

    def remove(self, user: int, path: object, /) -> None:
        """Take nothing more for this path of this flow; what has gathered is given out still."""

    def pop(self, turn: int, /) -> list[tuple[Any, list[int]]]:
        """What has gathered up to the end of this turn, and is not given out yet."""

    def cut(self) -> int | None:
        """Begin another turn; return the one that has ended, if anything waits to be given out."""

    def close(self) -> None:
        """Free what has gathered, and take nothing more."""
