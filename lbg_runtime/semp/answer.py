"""What a SEMP answer says, read once at the border."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import urlsplit

import orjson

from lbg_runtime.model.errors import SempUnreachable

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

V = TypeVar("V", bool, int, str)


@dataclass(frozen=True, slots=True)
class SempObject:
    """One object as the broker reported it. Attributes it lacks were not selected, or are newer than the broker."""

    url: str
    """Where the answer came from, for errors."""
    attributes: Mapping[str, Json]
    counts: Mapping[str, int] = field(default_factory=dict)
    """Members of the collections below it, by name; in answers of the monitor API only."""

    def text(self, name: str) -> str:
        """A text attribute; raises `SempUnreachable` if the answer has none of that name and kind."""
        return self._value(name, str)

    def number(self, name: str) -> int:
        """A whole number; raises as `text` does."""
        return self._value(name, int)

    def flag(self, name: str) -> bool:
        """A truth value; raises as `text` does."""
        return self._value(name, bool)

    def count(self, collection: str) -> int:
        """How many members a collection below it has; raises as `text` does."""
        if collection not in self.counts:
            raise SempUnreachable(self.url, f"the answer has no count of {collection}")
        return self.counts[collection]

    def _value(self, name: str, kind: type[V]) -> V:
        value = self.attributes.get(name)
        # True is an int in Python, and not in JSON.
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise SempUnreachable(self.url, f"the answer has no {name} of the kind expected")
        return value


@dataclass(frozen=True, slots=True)
class SempFailure:
    """`meta.error` of an answer."""

    code: int
    status: str
    description: str


@dataclass(frozen=True, slots=True)
class SempAnswer:
    """One answer: objects, or why there are none."""

    objects: tuple[SempObject, ...] = ()
    failure: SempFailure | None = None
    next_query: str | None = None
    """The query that brings the next page, encoded; None on the last one."""


def read_answer(url: str, body: bytes) -> SempAnswer | None:
    """The answer in a body, or None if it is not SEMP's.

    Raises `SempUnreachable` if its next page has no usable address.
    """
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    meta = document.get("meta") if isinstance(document, dict) else None
    if not isinstance(meta, dict):
        return None
    error = meta.get("error")
    if isinstance(error, dict) and isinstance(code := error.get("code"), int):
        return SempAnswer(
            failure=SempFailure(code, str(error.get("status", "")), _one_line(error.get("description", "")))
        )
    return SempAnswer(_objects(url, document.get("data"), document.get("collections")), None, _next_query(url, meta))


def _objects(url: str, data: Json, collections: Json) -> tuple[SempObject, ...]:
    items = data if isinstance(data, list) else [data]
    counts = collections if isinstance(collections, list) else [collections]
    counts += [None] * (len(items) - len(counts))
    return tuple(
        SempObject(url, item, _counts(count))
        for item, count in zip(items, counts, strict=False)
        if isinstance(item, dict)
    )


def _counts(collections: Json) -> dict[str, int]:
    if not isinstance(collections, dict):
        return {}
    return {
        name: count
        for name, entry in collections.items()
        if isinstance(entry, dict) and isinstance(count := entry.get("count"), int)
    }


def _next_query(url: str, meta: dict[str, Json]) -> str | None:
    # Not `cursorQuery`, which some brokers give encoded and others plain.
    paging = meta.get("paging")
    uri = paging.get("nextPageUri") if isinstance(paging, dict) else None
    if not isinstance(uri, str):
        return None
    try:
        return urlsplit(uri).query
    except ValueError:
        raise SempUnreachable(url, f"the next page is to be at {uri!r}") from None


def _one_line(text: object) -> str:
    return " ".join(str(text).split())
