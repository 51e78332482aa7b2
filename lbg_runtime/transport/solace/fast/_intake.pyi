from collections.abc import Callable
from typing import Any

CALLBACK: int

class Intake:
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
    def add(self, user: int, path: object, /) -> None: ...
    def remove(self, user: int, path: object, /) -> None: ...
    def pop(self, turn: int, /) -> list[tuple[Any, list[int]]]: ...
    def cut(self) -> list[tuple[Any, list[int]]]: ...
    def close(self) -> None: ...
