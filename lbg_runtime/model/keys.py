"""Finds the key of a message, by a rule that publishers and members share."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from lbg_runtime.model.errors import UserError
from lbg_runtime.model.message import PARTITION_KEY_PROPERTY, PropertyValue
from lbg_runtime.model.nesting import is_nested_too_deep
from lbg_runtime.model.sendable import is_sendable

_LEVEL = re.compile(r"[0-9]{1,3}")
_POINTER = re.compile(r"(/([^~/]|~[01])*)+")
_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")


KEY_RULES = "topic, topic_level:NUMBER, property:NAME or json:/POINTER"
"""The written forms of a key rule."""


class KeyOrigin(Enum):
    """The places from which a key can be read."""

    TOPIC = "topic"
    TOPIC_LEVEL = "topic_level"
    PROPERTY = "property"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class KeySource:
    """A parsed key rule, written `topic`, `topic_level:2`, `property:NAME` or `json:/order/id` (RFC 6901 pointer).

    Topic levels count from 0, in the original topic. A key is a text, or an integer, whose decimal form is used. Text
    that UTF-8 cannot hold (a lone surrogate) is no key, and JSON that is nested more than `MAX_NESTING` levels deep has
    none.
    """

    origin: KeyOrigin
    argument: str = ""

    def __str__(self) -> str:
        """The written form."""
        return f"{self.origin.value}:{self.argument}" if self.argument else self.origin.value

    @classmethod
    def parse(cls, text: str) -> "KeySource":
        """Parse the written form; raises `UserError` for anything else."""
        name, _, argument = text.partition(":")
        valid = {
            "topic": argument == "" and ":" not in text,
            "topic_level": _LEVEL.fullmatch(argument) is not None,
            "property": argument != "",
            "json": _POINTER.fullmatch(argument) is not None,
        }
        if not valid.get(name, False):
            raise UserError("key", repr(text), KEY_RULES)
        return cls(KeyOrigin(name), argument)

    def extract(self, topic: str, properties: Mapping[str, PropertyValue], payload: bytes) -> str | None:
        """The key as text, or None if the message has none. `topic` is the original one, without the hash levels."""
        match self.origin:
            case KeyOrigin.TOPIC:
                return topic
            case KeyOrigin.TOPIC_LEVEL:
                levels = topic.split("/")
                position = int(self.argument)
                return levels[position] if position < len(levels) else None
            case KeyOrigin.PROPERTY:
                return _sendable(_as_key(properties.get(self.argument)))
            case KeyOrigin.JSON:
                return _sendable(_as_key(_follow_pointer(payload, self.argument)))


PARTITION_KEY = KeySource(KeyOrigin.PROPERTY, PARTITION_KEY_PROPERTY)
"""The key rule for messages stamped by our publisher."""


def _as_key(value: object) -> str | None:
    # By the base class, as the message will carry it: the text of an enum's member would be its name.
    if isinstance(value, str):
        return str.__str__(value)
    # bool is an int in Python, but True is not a sensible key.
    return int.__repr__(value) if isinstance(value, int) and not isinstance(value, bool) else None


def _sendable(key: str | None) -> str | None:
    return key if key is not None and is_sendable(key) else None


def _follow_pointer(payload: bytes, pointer: str) -> object:
    try:
        # As `json.loads` does it.
        text = payload.decode(json.detect_encoding(payload), "surrogatepass")
        node: object = None if is_nested_too_deep(text) else json.loads(text)
    except ValueError:
        return None
    for raw in pointer.split("/")[1:]:
        token = raw.replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict):
            node = node.get(token)
        elif isinstance(node, list) and _INDEX.fullmatch(token) and int(token) < len(node):
            node = node[int(token)]
        else:
            return None
    return node
