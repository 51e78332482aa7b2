"""What callers give to a publisher, as it must be; everything else is refused in one line."""

from collections.abc import Mapping

from lbg_runtime.model.errors import UserError
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.keys import KeySource, is_sendable
from lbg_runtime.model.message import NO_PROPERTIES, PropertyValue, as_payload


def as_text(where: str, value: object) -> str:
    """The text of a key or topic that is a `str`, or a kind of it; raises `UserError`."""
    if not isinstance(value, str):
        raise UserError(where, f"{type(value).__name__} {ascii(value)[:100]}", "a str")
    # What a class of its own makes of it in a format or a comparison is another text: an enum's member gives its name.
    return str.__str__(value)


def found_key(source: KeySource | None, topic: str, payload: bytes, properties: Mapping[str, PropertyValue]) -> str:
    """The key that the source finds for a message that was given none; raises `UserError` where there is none."""
    key = None if source is None else source.extract(topic, properties, payload)
    if key is None:
        found = "" if source is None else f", or one that {source} (`group.key`) finds"
        # A sidecar gives this to an application, which has no keyword arguments.
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
        # The cause says more of a memoryview that was released.
        raise UserError("payload", type(value).__name__, "bytes") from error


def check_mapping(properties: object) -> None:
    """Raise `UserError` for properties that are no mapping."""
    if properties is not NO_PROPERTIES and not isinstance(properties, Mapping):
        raise UserError("properties", type(properties).__name__, "a mapping, such as a dict")


def topic_refused(topic: str, group: GroupShape) -> UserError:
    """The error for a topic that has no place behind hash prefix and shard, or brings them with it."""
    expected = "1 to 250 bytes, hash prefix and shard included"
    if group.split_topic(topic) is not None:
        # No handler would take it, and its key would wait for one for good.
        expected = f"a topic without {group.hash_prefix}/ and the shard, which the publisher puts before it"
    return UserError("topic", ascii(topic), expected)
