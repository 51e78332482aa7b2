"""What a broker reads inside a message from the wire to find its partition or group."""

from lbg_runtime.broker.engine.effects import Published
from lbg_runtime.model.errors import ProtocolError
from lbg_runtime.model.message import PARTITION_KEY_PROPERTY
from lbg_runtime.smf.contents import decode_contents
from lbg_runtime.smf.message import Relay
from lbg_runtime.smf.sdt import SdtValue

GROUP_SEQUENCE_PROPERTY = "JMSXGroupSeq"
"""User property that ends a group if it is -1; otherwise a number that publishers may set."""


def key_of(message: Published) -> str | None:
    """The user property `JMSXGroupID`; None for a message without one, or with contents that cannot be read."""
    key = _property_of(message, PARTITION_KEY_PROPERTY)
    return key if isinstance(key, str) else None


def closes_group(message: Published) -> bool:
    """Whether the user property `JMSXGroupSeq` says that this is the last message of its group for now."""
    return _property_of(message, GROUP_SEQUENCE_PROPERTY) == -1


def _property_of(message: Published, name: str) -> SdtValue:
    relay = message.content
    # Searched for first: most messages on most queues lack it, and decoding takes ten times as long.
    if not isinstance(relay, Relay) or name.encode() not in relay.rest:
        return None
    try:
        return decode_contents(relay.contents, relay.body).properties.get(name)
    except ProtocolError:
        return None
