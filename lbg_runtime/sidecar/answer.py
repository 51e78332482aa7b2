"""Reads an application's answer to an event: by Dapr's contract, and what follows from an answer outside it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import orjson

from lbg_runtime.sidecar.event import is_json_type

MAX_SHOWN = 80
"""How many characters of a foreign text a log line shows."""

MARK = b"\xef\xbb\xbf"
"""The byte order mark, which some programs put before a text in UTF-8; PHP does if its source file begins with it."""

_TEXT = re.compile(rb"(?!\s*\{)[^\x00-\x08\x0e-\x1f]+")
"""A text that is not the beginning of an object; nor does it match compressed data or UTF-16."""


class Status(Enum):
    """What becomes of the event."""

    SUCCESS = "SUCCESS"
    RETRY = "RETRY"
    DROP = "DROP"


@dataclass(frozen=True, slots=True)
class Answer:
    status: Status
    reason: str = ""
    """The reason, for the log; empty for a success."""


SUCCESS = Answer(Status.SUCCESS)
NO_ROUTE = Answer(Status.DROP, "HTTP 404")
"""The one instance for 404, compared by identity: the application may be asked whether it still wants the route."""


def read_answer(http_status: int, content_type: str, body: bytes | None) -> Answer:
    """The answer to one event; `body` is None if it was too long to be read.

    2xx: what the `status` of the JSON object in the body says. An empty body, another JSON value, or an object without
    a status is a success; so is text that is not JSON, if its content type says that it is text (`text/*`, the "OK" of
    many frameworks). Everything else that cannot be read is tried again, also a body that is too long or an object that
    was cut short, as those may ask for it. 404: dropped. Any other code: tried again.
    """
    if body is None or not _is_2xx(http_status):
        return _without_body(http_status)
    body = body.removeprefix(MARK)
    if not body.strip():
        return SUCCESS
    try:
        told = orjson.loads(body)
    except orjson.JSONDecodeError:
        if content_type.strip().lower().startswith("text/") and _TEXT.fullmatch(body):
            return SUCCESS
        kind = "no JSON" if is_json_type(content_type) else f"neither empty nor JSON (type {_shown(content_type)})"
        return Answer(Status.RETRY, f"HTTP {http_status} with a body that is {kind}")
    if not isinstance(told, dict):
        return SUCCESS
    status = _member(told, "status")
    return SUCCESS if status is None or status == "" else read_status(status)


def read_bulk_answer(http_status: int, body: bytes | None, entry_ids: Sequence[str]) -> dict[str, Answer]:
    """The answers to the entries of a bulk, by entry id. Entries that the body does not mention are tried again."""
    if body is None or not _is_2xx(http_status):
        return dict.fromkeys(entry_ids, _without_body(http_status))
    try:
        told = orjson.loads(body.removeprefix(MARK))
    except orjson.JSONDecodeError:
        return dict.fromkeys(entry_ids, Answer(Status.RETRY, f"HTTP {http_status} with a body that is no JSON"))
    found: dict[str, Answer] = {}
    statuses = _member(told, "statuses") if isinstance(told, dict) else None
    for said in statuses if isinstance(statuses, list) else ():
        if isinstance(said, dict) and isinstance(entry_id := _member(said, "entryId"), str):
            answer = read_status(_member(said, "status"))
            before = found.setdefault(entry_id, answer)
            if before.status is not answer.status:
                found[entry_id] = Answer(Status.RETRY, "two different statuses for the entry")
    silence = Answer(Status.RETRY, "no status for the entry")
    return {entry_id: found.get(entry_id, silence) for entry_id in entry_ids}


def read_status(status: object) -> Answer:
    """The answer for one of the three words of Dapr's contract; anything else is tried again."""
    match status:
        case "SUCCESS":
            return SUCCESS
        case "RETRY":
            return Answer(Status.RETRY, "status RETRY")
        case "DROP":
            return Answer(Status.DROP, "status DROP")
        case _:
            return Answer(Status.RETRY, f"unknown status {_shown(status)}; expected SUCCESS, RETRY or DROP")


def _member(told: Mapping[str, object], name: str) -> object:
    """The object's member of this name or, if there is none, of this name in other letters: Dapr reads both, and some
    applications write `Status`. As in Dapr, null counts as missing."""
    said = {other: value for other, value in told.items() if value is not None}
    if name in said:
        return said[name]
    return next((value for other, value in said.items() if other.casefold() == name.casefold()), None)


def _is_2xx(http_status: int) -> bool:
    return 200 <= http_status <= 299


def _without_body(http_status: int) -> Answer:
    """The answer if the body does not count: because of the code, or because the body is too long."""
    if http_status == 404:
        return NO_ROUTE
    if _is_2xx(http_status):
        return Answer(Status.RETRY, f"HTTP {http_status} with a body of more than 1 MB")
    return Answer(Status.RETRY, f"HTTP {http_status}")


def _shown(value: object) -> str:
    return ascii(value)[:MAX_SHOWN]
