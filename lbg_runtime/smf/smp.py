"""Subscriptions: topics that a client attracts to itself, into a queue, or to another client."""

from dataclasses import dataclass
from enum import IntEnum, IntFlag

from lbg_runtime.model.errors import ProtocolError
from lbg_runtime.smf.text import close_text, closed_text

_HEAD_BYTES = 6


class SubscriptionKind(IntEnum):
    """What a request asks for."""

    ADD = 0
    REMOVE = 1
    ADD_TO_QUEUE = 2
    REMOVE_FROM_QUEUE = 3
    ADD_TO_CLIENT = 4
    REMOVE_FROM_CLIENT = 5


class SubscriptionFlag(IntFlag):
    TOPIC = 0x04
    ANSWER_WANTED = 0x08


@dataclass(frozen=True, slots=True)
class SubscriptionRequest:
    """A subscription to add or to remove."""

    kind: SubscriptionKind
    flags: int
    topic: str
    holder: str = ""
    """The queue or the other client; empty if it is the client's own."""
    mark: int = 1

    @property
    def answer_wanted(self) -> bool:
        """Whether the client waits for an answer; it does not when it restores subscriptions after a reconnect."""
        return bool(self.flags & SubscriptionFlag.ANSWER_WANTED)


def decode_subscription(body: bytes) -> SubscriptionRequest:
    """Read a subscription body; raises `ProtocolError`."""
    if len(body) < _HEAD_BYTES:
        raise ProtocolError(f"a subscription body of {len(body)} bytes")
    size = int.from_bytes(body[1:5], "big")
    if size != len(body):
        raise ProtocolError(f"a subscription body says it is {size} bytes long and is {len(body)}", 1)
    try:
        kind = SubscriptionKind(body[0] & 0x7F)
    except ValueError as error:
        raise ProtocolError(f"subscription request {body[0] & 0x7F}") from error
    mark, flags = body[0] >> 7, body[5]
    if kind in (SubscriptionKind.ADD, SubscriptionKind.REMOVE):
        return SubscriptionRequest(kind, flags, closed_text(body[_HEAD_BYTES:]), mark=mark)
    holder, position = _counted_text(body, _HEAD_BYTES)
    topic, position = _counted_text(body, position)
    if position != size:
        raise ProtocolError("bytes behind a subscription", position)
    return SubscriptionRequest(kind, flags, topic, holder, mark)


def encode_subscription(request: SubscriptionRequest) -> bytes:
    """The bytes of a subscription body; answers repeat the request."""
    if request.kind in (SubscriptionKind.ADD, SubscriptionKind.REMOVE):
        rest = close_text(request.topic)
    else:
        rest = b"".join(bytes((len(text),)) + text for text in (close_text(request.holder), close_text(request.topic)))
    head = bytes((request.mark << 7 | request.kind,)) + (_HEAD_BYTES + len(rest)).to_bytes(4, "big")
    return head + bytes((request.flags,)) + rest


def _counted_text(body: bytes, position: int) -> tuple[str, int]:
    if position >= len(body):
        raise ProtocolError("a subscription cut short", position)
    end = position + 1 + body[position]
    if end > len(body):
        raise ProtocolError("a text longer than its subscription", position)
    return closed_text(body[position + 1 : end]), end
