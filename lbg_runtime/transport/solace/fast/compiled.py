"""The parts of the fast path that are written in C, where the package was built with a compiler at hand.

That is optional: without them the fast path does the same in Python, at about twice the cost of a message.
"""

from types import ModuleType
from typing import Any, Protocol

INTAKE: ModuleType | None
"""_intake.c: the message callback."""
READER: ModuleType | None
"""_reader.c: reads native messages."""
SETTLER: ModuleType | None
"""_settler.c: settles deliveries."""
WRITER: ModuleType | None
"""_writer.c: writes native messages."""

try:
    from lbg_runtime.transport.solace.fast import _intake, _reader, _settler, _writer
except ImportError:
    INTAKE = READER = SETTLER = WRITER = None
else:
    INTAKE, READER, SETTLER, WRITER = _intake, _reader, _settler, _writer


class Intake(Protocol):
    """What `INTAKE` makes: the messages of a session's flows on their way to the loop. Called on any thread.

    What it gives out: pairs of a path and the addresses of its messages, in the order in which they came.
    """

    def add(self, user: int, path: object, /) -> None:
        """Take the messages of this flow, for this path; one that had the same number before is forgotten."""
        ...

    def remove(self, user: int, path: object, /) -> None:
        """Take nothing more for this path of this flow; what has gathered is given out still."""
        ...

    def pop(self, turn: int, /) -> list[tuple[Any, list[int]]]:
        """What has gathered since this turn was announced; nothing where it was cut."""
        ...

    def cut(self) -> list[tuple[Any, list[int]]]:
        """What has gathered; what comes from now on is announced anew."""
        ...

    def close(self) -> None:
        """Free what has gathered, and take nothing more."""
        ...
