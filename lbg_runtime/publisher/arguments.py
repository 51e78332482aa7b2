"""Checks what callers give to a publisher, and turns it into values of its own; each fault is refused in one line."""

from collections.abc import Mapping

from lbg_runtime.model.errors import UserError
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.keys import KeySource
from lbg_runtime.model.message import NO_PROPERTIES, PropertyValue, as_payload
from lbg_runtime.model.sendable import is_sendable


def as_text(where: str, value: object) -> str:
    """A key or topic as a plain `str`; raises `UserError` if it is none, nor of a subclass."""
    if not isinstance(value, str):
        raise UserError(where, f"{type(value).__name__} {ascii(value)[:100]}", "a str")
    # By the base class: a subclass may give another text, as a member of an enum gives its name.
    return str.__str__(value)


def found_key(source: KeySource | None, topic: str, payload: bytes, properties: Mapping[str, PropertyValue]) -> str:
    """The key that the source finds in a message that was given none; raises `UserError` if there is none."""
    key = None if source is None else source.extract(topic, properties, payload)
    if key is None:
        found = "" if source is None else f", or one that {source} (`group.key`) finds"
        # A sidecar passes this on to its application, which has headers and no keyword arguments.
        raise UserError("key", f"none in a message to {topic}", f"one beside it (`key=`, or a header `lbg-key`){found}")
    return key


def sendable_key(key: str) -> str:
    """A key that a message can carry; raises `UserError`."""
    if not is_sendable(key):
        raise UserError("key", ascii(key), "text that UTF-8 can carry")
    return key


def own_payload(value: object) -> bytes:
    """A payload as bytes that nobody else can change; raises `UserError`."""
    try:
        return as_payload(value)
    except TypeError as error:
        # The cause says more, if it is a memoryview that was released.
        raise UserError("payload", type(value).__name__, "bytes") from error


def check_mapping(properties: object) -> None:
    """Raise `UserError` unless the properties are a mapping."""
    if properties is not NO_PROPERTIES and not isinstance(properties, Mapping):
        raise UserError("properties", type(properties).__name__, "a mapping, such as a dict")


def topic_refused(topic: str, group: GroupShape) -> UserError:
    """The error for a topic that cannot follow hash prefix and shard, or already begins with them."""
    expected = "1 to 250 bytes, hash prefix and shard included"
    if group.split_topic(topic) is not None:
        # No handler would take the message, and its key would wait for one for ever.
        expected = f"a topic without {group.hash_prefix}/ and the shard, which the publisher puts before it"
    return UserError("topic", ascii(topic), expected)
