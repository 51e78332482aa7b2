"""The faults that a fault switch can set on a connection."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Trouble:
    is_stalled: bool = False
    """Nothing is read or written, as if the network swallowed it; the TCP connection stays."""
    delay_ms: int = 0
    """How much everything written is delayed."""
    withholds_acks: bool = False
    """Publishers are told only of refusals, not of accepted messages."""
    stops_egress: bool = False
    """Messages are held back; answers are not."""


NO_TROUBLE = Trouble()
