"""The identity that all copies of a message share; by it, the owner of a parking queue and the kit recognize them."""

from collections.abc import Iterable

from lbg_runtime.model.message import Message

MessageIdentity = tuple[str, str, int]
"""The stamped key, the publisher, and its number within the key: the same in every copy of a message."""


def identity_of(message: Message) -> MessageIdentity | None:
    """The identity of a message; None if its publisher does not stamp it."""
    token, key = message.fencing_token, message.key
    return None if token is None or key is None else (key, token.publisher, token.number)


def is_before(identity: MessageIdentity, parked: Iterable[MessageIdentity]) -> bool:
    """Whether messages of its key and publisher are parked, and all of them are later than this one."""
    numbers = [number for key, publisher, number in parked if (key, publisher) == identity[:2]]
    return bool(numbers) and identity[2] < min(numbers)
