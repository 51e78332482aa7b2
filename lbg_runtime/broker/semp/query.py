"""The query of a GET: which objects (`where`), which part of them (`count`, `cursor`), which attributes (`select`)."""

import base64
import binascii
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from operator import eq, ge, gt, le, lt, ne
from urllib.parse import unquote_plus

import orjson

from lbg_runtime.broker.engine.matching.wildcards import Pattern, Wild
from lbg_runtime.broker.semp.fault import SempFault
from lbg_runtime.broker.semp.schema import Json, Row
from lbg_runtime.model.semp_code import SempCode
from lbg_runtime.model.whole import whole_number

DEFAULT_COUNT = 10
LARGEST_COUNT = 100
LARGEST_SELECT = 256

_PARAMETERS = ("select", "where", "count", "cursor")
_COMPARISONS = {"==": eq, "!=": ne, "<": lt, ">": gt, "<=": le, ">=": ge}
_CONDITION = re.compile(r"([A-Za-z0-9.]+)(==|!=|<=|>=|<|>)(.*)", re.DOTALL)
_BEFORE_CONDITION = re.compile(r",(?=[A-Za-z0-9.]+(?:==|!=|<|>))")


@dataclass(frozen=True, slots=True)
class Item:
    """One object as a GET shows it."""

    path: tuple[str, ...]
    """Encoded segments, the collection's name and the object's key in turn; orders the items of a collection, messages
    by their number."""
    row: Row
    """None for an attribute that others of its kind have, and this object has not: it is not shown, and meets no
    condition."""
    below: tuple[str, ...] = ()
    """Names of the collections below it."""
    counts: Mapping[str, int] | None = None
    """How many members the collections below it have, if the API reports that."""


Listed = tuple[tuple[str, ...], Callable[[], Item]]
"""An object of a collection: the path of its item, and what looks at it, which may cost much. It is looked at only if a
condition asks for it, or its page shows it."""


@dataclass(frozen=True, slots=True)
class Page:
    """Some of a collection's items."""

    items: tuple[Item, ...]
    cursor: str | None
    """Leads to the next page; None on the last one."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One part of `where`."""

    name: str
    operator: str
    text: str

    def holds_for(self, row: Row) -> bool:
        """Whether an object meets it; raises `SempFault` if the object has no such attribute."""
        name, _, part = self.name.partition(".")
        value = row.get(name)
        parts = value if isinstance(value, dict) else {"": value}
        if name not in row or part not in parts:
            raise SempFault(SempCode.INVALID_PARAMETER, f"where: there is no attribute {self.name!r}")
        value = parts[part]
        if value is None:
            return False
        compare = _COMPARISONS[self.operator]
        if isinstance(value, bool):
            if self.text.lower() not in ("true", "false"):
                raise SempFault(SempCode.INVALID_PARAMETER, f"where: {self.text!r:.80} is not true or false")
            return bool(compare(str(value).lower(), self.text.lower()))
        if isinstance(value, int):
            return bool(compare(value, self._number()))
        if self.operator in ("==", "!=") and "*" in self.text:
            pattern = Pattern(Wild.TEXT if each == "*" else each for each in self.text)
            return pattern.matches(str(value)) is (self.operator == "==")
        return bool(compare(str(value), self.text))

    def _number(self) -> int:
        try:
            return int(self.text)
        except ValueError:
            raise SempFault(SempCode.INVALID_PARAMETER, f"where: {self.text!r} is not a number") from None


@dataclass(frozen=True, slots=True)
class Query:
    """The parameters that every GET understands."""

    select: tuple[str, ...] = ("*",)
    where: tuple[Condition, ...] = ()
    count: int = DEFAULT_COUNT
    cursor: str | None = None
    others: tuple[str, ...] = ()
    """All parameters but the cursor, as given, for the address of the next page."""

    @classmethod
    def parse(cls, text: str) -> "Query":
        """Parse a query; raises `SempFault` for what cannot be understood, and ignores unknown parameters.

        `opaquePassword` is refused: a backup that is made or restored with it would be without its passwords, or with
        others, and nobody would know.
        """
        parts = [part.partition("=") for part in text.split("&") if part]
        given: dict[str, str] = {}
        for name, _, value in parts:
            if name in _PARAMETERS and name in given:
                # One of them would count, and who asked would take the answer for one to both.
                raise SempFault(SempCode.INVALID_PARAMETER, f"{name} is given twice; expected once")
            given[name] = value
        if "opaquePassword" in given:
            raise SempFault(SempCode.NOT_SUPPORTED, "opaquePassword: no password is read or set in that form")
        # Split before decoding: an encoded comma may be part of a value. Many clients encode those between conditions,
        # too, so one that is followed by a comparison is taken for such.
        conditions = [
            condition
            for part in given.get("where", "").split(",")
            for condition in _BEFORE_CONDITION.split(unquote_plus(part))
        ]
        select = tuple(name for name in unquote_plus(given.get("select", "*")).split(",") if name)
        if len(select) > LARGEST_SELECT:
            raise SempFault(SempCode.INVALID_PARAMETER, f"select: more than {LARGEST_SELECT} attributes")
        return cls(
            select,
            tuple(_condition(each) for each in conditions if each),
            _count(unquote_plus(given["count"]) if "count" in given else None),
            unquote_plus(given["cursor"]) if "cursor" in given else None,
            tuple("".join(part) for part in parts if part[0] != "cursor"),
        )

    def next_page(self, cursor: str) -> str:
        return "&".join((*self.others, f"cursor={cursor}"))

    @property
    def behind(self) -> int:
        """The number of the last message on the page before; 0 for the first page, and in a list of anything else."""
        *_, last = ("0",) if self.cursor is None else _read_cursor(self.cursor)
        return number_of(last) or 0

    def page_of(self, objects: Iterable[Listed], *, are_in_order: bool = False) -> Page:
        """The requested page. Objects that come or go between pages neither repeat others nor make them be left out.

        Objects that are in order already are taken only as far as the page needs.
        """
        last = None if self.cursor is None else _place(_read_cursor(self.cursor))
        behind = ((path, look) for path, look in objects if last is None or _place(path) > last)
        in_order = behind if are_in_order else sorted(behind, key=lambda each: _place(each[0]))
        items = (look() for _, look in in_order)
        found = (item for item in items if all(part.holds_for(item.row) for part in self.where))
        page = tuple(islice(found, self.count))
        return Page(page, _cursor_after(page[-1]) if page and next(found, None) is not None else None)

    def shown(self, item: Item) -> tuple[Row, Row]:
        """The selected attributes of an object, and the selected ones of what is counted below it; raises `SempFault`
        for a name that selects nothing. Parts of an attribute, and counts, are selected as `attribute.part`."""
        counts: Row = {name: {"count": count} for name, count in (item.counts or {}).items()}
        names = (*_names_in(item.row), *_names_in(counts))
        kept = _chosen(self.select, names)
        return _only(item.row, kept), _only(counts, kept)


def number_of(text: str) -> int | None:
    """The number of a message, as a path has it; None if it is none."""
    return whole_number(text, 20)


def _condition(text: str) -> Condition:
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise SempFault(SempCode.INVALID_PARAMETER, f"where: {text!r} is not a comparison")
    return Condition(*match.groups())


def _count(text: str | None) -> int:
    if text is None:
        return DEFAULT_COUNT
    number = whole_number(text, 9)
    if number is not None and 1 <= number <= LARGEST_COUNT:
        return number
    raise SempFault(SempCode.INVALID_PARAMETER, f"count {text!r:.80} is not valid; expected 1 to {LARGEST_COUNT}")


_Name = tuple[str, str]
"""An attribute, and the part of it that is meant: empty if it has none."""


def _names_in(row: Row) -> Iterator[_Name]:
    for name, value in row.items():
        if isinstance(value, dict):
            yield from ((name, part) for part in value)
        else:
            yield name, ""


# Once for all objects of a page: there may be as many patterns as there are names, with a wildcard in each.
@lru_cache(maxsize=16)
def _chosen(select: tuple[str, ...], names: tuple[_Name, ...]) -> frozenset[_Name]:
    excluded = {name for part in select if part.startswith("-") for name in _meant(part[1:], names)}
    included = [part for part in select if not part.startswith("-")]
    if select and not included:
        included = ["*"]
    return frozenset(name for part in included for name in _meant(part, names)) - excluded


def _meant(text: str, names: tuple[_Name, ...]) -> list[_Name]:
    pattern = Pattern(Wild.TEXT if each == "*" else each for each in text)
    found = [name for name in names if pattern.matches(name[0]) or (name[1] and pattern.matches(".".join(name)))]
    if not found and text != "*":
        raise SempFault(SempCode.INVALID_PARAMETER, f"select: there is no attribute {text!r:.80}")
    return found


def _only(row: Row, kept: frozenset[_Name]) -> Row:
    shown: Row = {}
    for name, value in row.items():
        if not isinstance(value, dict):
            if value is not None and (name, "") in kept:
                shown[name] = value
        elif parts := {part: each for part, each in value.items() if (name, part) in kept}:
            shown[name] = parts
    return shown


def _place(path: tuple[str, ...]) -> tuple[int, tuple[str, ...]]:
    """Where an item stands in its collection."""
    # Whoever takes the first message off a queue means the oldest: of two numbers, the one with fewer digits.
    return (len(path[-1]) if path[-2:-1] == ("msgs",) else 0), path


def _cursor_after(item: Item) -> str:
    return base64.urlsafe_b64encode(orjson.dumps(item.path)).decode().rstrip("=")


def _read_cursor(text: str) -> tuple[str, ...]:
    try:
        value: Json = orjson.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (binascii.Error, ValueError):
        value = None
    if not value or not isinstance(value, list) or not all(isinstance(part, str) for part in value):
        raise SempFault(SempCode.INVALID_PARAMETER, "cursor: not one that this broker gave")
    return tuple(str(part) for part in value)
