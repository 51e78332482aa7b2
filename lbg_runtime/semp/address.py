"""Where an object is: its path, with every name in it encoded so that nothing in a name can look like a path."""

from collections.abc import Sequence
from enum import Enum
from urllib.parse import quote

Segment = str | tuple[str, ...]
"""One part of a path: a name, or a key of several (`("smf", topic)`), which SEMP joins by commas."""


class SempApi(Enum):
    """The three APIs of SEMPv2, by the end of their base path."""

    CONFIG = "config"
    MONITOR = "monitor"
    ACTION = "action"


def path_of(api: SempApi, segments: Sequence[Segment]) -> str:
    """The encoded path of an object or a collection: `/` in a name is `%2F`, a space `%20`."""
    return "/".join(("/SEMP/v2", api.value, *(_encoded(segment) for segment in segments)))


def _encoded(segment: Segment) -> str:
    parts = (segment,) if isinstance(segment, str) else segment
    encoded = ",".join(quote(part, safe="") for part in parts)
    # Whatever normalizes paths on the way would take these for steps up, and a deletion would hit what is above.
    return encoded.replace(".", "%2E") if encoded in (".", "..") else encoded
