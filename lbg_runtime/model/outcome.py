"""How a delivery ends."""

from enum import Enum


class Outcome(Enum):
    """What the broker is told about a delivery. FAILED is never used in key order (law L6)."""

    ACCEPTED = "accepted"
    FAILED = "failed"
    REJECTED = "rejected"
