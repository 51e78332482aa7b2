"""How queues move, on its own: a command line that offers the choice need not load all settings."""

from enum import Enum


class RebindMode(Enum):
    """How queues come to the members they belong to."""

    COOPERATIVE = "cooperative"
    """Members offer and accept queues, one by one; nobody else pauses."""
    CYCLE = "cycle"
    """Every secondary gives way now and then, whoever is there."""
