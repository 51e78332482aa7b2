"""Local transactions as values: what a client asks of a transacted session, and the bodies that answer it."""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from lbg_runtime.model.errors import ProtocolError
from lbg_runtime.smf.assured_ctrl import WINDOW
from lbg_runtime.smf.assured_items import AssuredKind, ItemKind, Items, assured_body, decode_assured
from lbg_runtime.smf.text import close_text

_PUBLISHED_PART = struct.Struct(">IIQ")
_ACCEPTED_PART = struct.Struct(">IQI")
_CONSUMED_PART = struct.Struct(">IQQIQI")

_NEW = b"\0"

_NONE: Mapping[int, int] = {}


class TransactionKind(IntEnum):
    """What a request asks, or an answer says."""

    OPEN = 0
    CLOSE = 1
    COMMIT = 2
    ROLLBACK = 3
    OPENED = 4
    RESUME = 6
    RESUMED = 7


ANSWERS: dict[TransactionKind, TransactionKind] = {
    TransactionKind.OPEN: TransactionKind.OPENED,
    TransactionKind.RESUME: TransactionKind.RESUMED,
}
"""The answers that do not repeat the kind of their request.

5, 8 and 9 are answers as well, to a close, a commit and a rollback; the C library takes either, but the vendor's Java
client waits in vain for a commit that is answered so, and falls over a close.
"""


@dataclass(frozen=True, slots=True)
class PublishedPart:
    flow_id: int
    count: int
    last_id: int


@dataclass(frozen=True, slots=True)
class ConsumedPart:
    """What was consumed on one flow: ids `first` to `last`, both included."""

    flow_id: int
    first: int
    last: int
    count: int
    received_id: int
    """Transport acknowledgement: everything up to this id has arrived, and `window` more may come."""
    window: int


@dataclass(frozen=True, slots=True)
class TransactionRequest:
    """A request about a transacted session."""

    kind: TransactionKind
    session_id: int
    transaction: bytes
    """The transaction's id in it, if there is one; returned in the answer unchanged."""
    published: tuple[PublishedPart, ...]
    consumed: tuple[ConsumedPart, ...]
    name: str


def read_transaction(body: bytes) -> TransactionRequest:
    """Read a client's body; raises `ProtocolError`."""
    items = Items(decode_assured(body).items)
    published, consumed = items.every(ItemKind.PUBLISHED_PARTS), items.every(ItemKind.CONSUMED_PARTS)
    try:
        kind = TransactionKind((items.value(ItemKind.TRANSACTION_REQUEST) or b"")[0])
    except (IndexError, ValueError) as error:
        raise ProtocolError("transaction control without a valid request kind") from error
    return TransactionRequest(
        kind=kind,
        session_id=items.number(ItemKind.TRANSACTED_SESSION, 4) or 0,
        transaction=items.value(ItemKind.TRANSACTION) or b"",
        published=tuple(PublishedPart(*part) for each in published for part in _unpack_all(_PUBLISHED_PART, each)),
        consumed=tuple(ConsumedPart(*part) for each in consumed for part in _unpack_all(_CONSUMED_PART, each)),
        name=items.text(ItemKind.TRANSACTED_SESSION_NAME),
    )


def answer_body(
    kind: TransactionKind,
    request: TransactionRequest,
    session_id: int,
    name: str = "",
    last_ids: Mapping[int, int] = _NONE,
) -> bytes:
    """The body that answers a request, with the last id accepted on each publisher flow; a refusal has the same parts,
    or a client drops the connection.

    A refused commit is answered as rolled back: a client ignores a refusal that says committed, and waits in vain. The
    state of a session that is open is always that of a new one, as none outlives its connection.
    Closing a session names no transaction, and a client that is answered with an empty one drops the connection too.
    """
    items = [
        (ItemKind.TRANSACTION_REQUEST, bytes((kind,))),
        (ItemKind.TRANSACTED_SESSION, session_id.to_bytes(4, "big")),
    ]
    if request.transaction:
        items.append((ItemKind.TRANSACTION, request.transaction))
    if name:
        items += [
            (ItemKind.TRANSACTED_SESSION_STATE, _NEW),
            (ItemKind.TRANSACTED_SESSION_NAME, close_text(name)),
        ]
    items += [(ItemKind.ACCEPTED_PART, _ACCEPTED_PART.pack(flow, last, WINDOW)) for flow, last in last_ids.items()]
    return assured_body(AssuredKind.TRANSACTION, *items)


def _unpack_all(layout: struct.Struct, value: bytes) -> list[tuple[int, ...]]:
    """The parts in one item, one behind the other: the official client has those of all its flows in one."""
    if not value or len(value) % layout.size:
        raise ProtocolError(f"parts of a transaction in {len(value)} bytes, not in multiples of {layout.size}")
    return list(layout.iter_unpack(value))
