"""What can be wrong with a connection, ordered by a fault switch."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Trouble:
    """The faults of one connection."""

    is_stalled: bool = False
    """Nothing is read and nothing written, as if the network had swallowed it; TCP stays."""
    delay_ms: int = 0
    """How much later everything is written."""
    withholds_acks: bool = False
    """Publishers hear of nothing that is accepted; of refusals they do."""
    stops_egress: bool = False
    """Messages are kept back; answers are not."""


NO_TROUBLE = Trouble()
