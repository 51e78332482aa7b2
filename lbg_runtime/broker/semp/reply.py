"""The form of every request, and the envelope of every answer."""

from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from lbg_runtime.broker.semp.fault import SempFault
from lbg_runtime.broker.semp.query import Item, Page, Query
from lbg_runtime.broker.semp.schema import Json, Row
from lbg_runtime.model.semp_code import SempCode

REFUSED = 400
"""HTTP status of every error that has a SEMP code; clients branch on the code."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request, as far as SEMP is concerned."""

    method: str
    uri: str
    """The URI as requested, query included."""
    base: str
    """The address of its API, with which every link begins."""
    segments: tuple[str, ...]
    """The encoded path below `base`."""
    query: str
    body: bytes


def read_body(body: bytes) -> dict[str, Json]:
    """The attributes in a request's body; raises `SempFault`."""
    try:
        document: Json = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise SempFault(SempCode.PARSE_ERROR, f"the body is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise SempFault(SempCode.PARSE_ERROR, "the body is not an object")
    return document


def done(request: Request) -> Row:
    """The answer to a deletion or an action."""
    return {"meta": _meta(request, 200)}


def one(request: Request, item: Item, query: Query) -> Row:
    """The answer with a single object."""
    row, counts = query.shown(item)
    answer: Row = {"data": row, "links": _links(request, item), "meta": _meta(request, 200)}
    if item.counts is not None:
        answer["collections"] = counts
    return answer


def many(request: Request, page: Page, query: Query) -> Row:
    """The answer with one page of a collection."""
    meta = _meta(request, 200)
    if page.cursor is not None:
        next_uri = f"{request.base}/{'/'.join(request.segments)}?{query.next_page(page.cursor)}"
        meta["paging"] = {"cursorQuery": page.cursor, "nextPageUri": next_uri}
    shown = [query.shown(item) for item in page.items]
    answer: Row = {
        "data": [row for row, _ in shown],
        "links": [_links(request, item) for item in page.items],
        "meta": meta,
    }
    if any(item.counts is not None for item in page.items):
        answer["collections"] = [counts for _, counts in shown]
    return answer


def failed(request: Request, fault: SempFault) -> Row:
    """The answer that reports a fault."""
    meta = _meta(request, REFUSED)
    meta["error"] = {"code": int(fault.code), "status": fault.code.name, "description": fault.description}
    return {"meta": meta}


def _meta(request: Request, code: int) -> Row:
    return {"request": {"method": request.method, "uri": request.uri}, "responseCode": code}


def _links(request: Request, item: Item) -> Json:
    uri = "/".join((request.base, *item.path))
    links: Row = {f"{name}Uri": f"{uri}/{name}" for name in item.below}
    return {**links, "uri": uri}


def segments_of(path: str) -> tuple[str, ...]:
    """The encoded segments of a path; a slash at the end is ignored."""
    parts: Sequence[str] = path.strip("/").split("/")
    return tuple(part for part in parts if part)
