"""Collections: where the objects of one kind are."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Protocol

import orjson

from lbg_runtime.broker.semp.schema import Attribute, Row
from lbg_runtime.broker.semp.target import Key, Keys


class Kept(Protocol):
    """Where rows outlive the broker, once the changes that the same request made to the engine do."""

    def rows(self) -> list[tuple[str, bytes, bytes]]:
        """Kind, keys and body of every row, in the order in which they were first put."""
        ...

    def put_row(self, kind: str, keys: bytes, body: bytes | None) -> None:
        """Keep a row, or forget it if `body` is None."""
        ...


class Nowhere:
    """Rows end with the broker."""

    def rows(self) -> list[tuple[str, bytes, bytes]]:
        return []

    def put_row(self, kind: str, keys: bytes, body: bytes | None) -> None:
        """Nothing to do."""


class Collection(Protocol):
    """The objects of one kind, everywhere. Callers have found the objects above and checked the rows.

    Refusals are `SempFault`. A change is in force when the call returns.
    """

    def keys(self, above: Keys) -> Iterable[Key]:
        """The keys of all objects of this kind in one place."""
        ...

    def read(self, keys: Keys) -> Row | None:
        """An object's attributes, except its key; None if it does not exist."""
        ...

    def create(self, keys: Keys, row: Row) -> None:
        """Add an object that does not exist, with all its attributes."""
        ...

    def change(self, keys: Keys, before: Row, row: Row) -> None:
        """Change the attributes of an object that exists; `before` and `row` have all of them."""
        ...

    def delete(self, keys: Keys) -> None:
        """Remove an object that exists, with everything below it."""
        ...


class Rows:
    """A collection that consists only of its rows."""

    def __init__(self, noun: str, kept: Kept, noted: Sequence[Attribute] = ()) -> None:
        """`noted`: attributes without effect, which a row that an older version has kept may lack."""
        self._noun = noun
        self._kept = kept
        self._noted = noted
        self._rows: dict[Keys, Row] = {}

    def restore(self, keys: Keys, row: Row) -> None:
        """Add a row that is already kept."""
        self._rows[keys] = {**{each.name: each.default for each in self._noted}, **row}

    def keys(self, above: Keys) -> Iterator[Key]:
        return (keys[-1] for keys in self._rows if keys[:-1] == above)

    def read(self, keys: Keys) -> Row | None:
        return self._rows.get(keys)

    def create(self, keys: Keys, row: Row) -> None:
        self._rows[keys] = row
        keep_row(self._kept, self._noun, keys, row)

    def change(self, keys: Keys, before: Row, row: Row) -> None:  # noqa: ARG002  # others look at what changed
        self._rows[keys] = row
        keep_row(self._kept, self._noun, keys, row)

    def delete(self, keys: Keys) -> None:
        del self._rows[keys]
        keep_row(self._kept, self._noun, keys, None)

    def delete_below(self, above: Keys) -> None:
        """Remove every object below one place, at any depth."""
        for keys in [keys for keys in self._rows if keys[: len(above)] == above]:
            Rows.delete(self, keys)

    def row(self, keys: Keys) -> Row:
        """The attributes of an object that exists."""
        return self._rows[keys]


def keep_row(kept: Kept, noun: str, keys: Keys, row: Row | None) -> None:
    """Keep an object's row beyond the life of the broker, or forget it."""
    kept.put_row(noun, orjson.dumps(keys), None if row is None else orjson.dumps(row))


def only(keys: Keys, count: int) -> tuple[str, ...]:
    """The names along the path to an object, all of whose types have a key of one part."""
    return tuple(key[0] for key in islice(keys, count))
