"""What became of the events and publications of one life of a sidecar."""

from dataclasses import dataclass


@dataclass(slots=True)
class Counts:
    """Written and read on the member's loop."""

    accepted: int = 0
    """Events that the application took."""
    dropped: int = 0
    """Events dropped because of the application's answer."""
    failed: int = 0
    """Attempts that failed, so that another follows."""
    published: int = 0
    """Messages from the application that the broker confirmed."""
    unpublished: int = 0
    """Messages from the application that were refused, or may not be on the broker."""
    refused: int = 0
    """Requests that were not let in: no token, a foreign page, another host, too large."""
