"""A guard over a dictionary: for values that live and die with the process, and for tests of handlers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Generic, TypeVar

from lbg_runtime.guard.protocol import place_of, refuse_awaitable
from lbg_runtime.model.message import Message

Value = TypeVar("Value")


@dataclass(slots=True)
class Entry(Generic[Value]):
    """The value and the marks of one key."""

    value: Value
    marks: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """The largest number whose effect is in `value`, by publisher."""


class MemoryGuard(Generic[Value]):
    """Keeps one value for each key. An effect is a function from the value, None at first, to the next one.

    A `Guard[Callable[[Value | None], Value]]` for handlers of one event loop. The effect must not wait. It must not
    change the value it is given either, as an exception could not undo that. Grows with the number of keys, and of
    publishers of each key.
    """

    def __init__(self) -> None:
        self.entries: dict[str, Entry[Value]] = {}
        """The entries by key."""

    async def once(self, message: Message, effect: Callable[[Value | None], Value]) -> bool:
        """Make the effect's value that of the key, with the mark of the message; False if that was done already.

        See `Guard.once`. Has no suspension point.
        """
        key, token = place_of(message)
        entry = self.entries.get(key)
        marks = {} if entry is None else entry.marks
        mark = marks.get(token.publisher)
        if mark is not None and token.number <= mark:
            return False
        value = effect(None if entry is None else entry.value)
        refuse_awaitable(value, "in memory")
        self.entries[key] = Entry(value, {**marks, token.publisher: token.number})
        return True
