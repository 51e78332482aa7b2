"""The choice of how queues move, in a module of its own: a command that offers it need not load all settings."""

from enum import Enum


class RebindMode(Enum):
    """How queues reach the members that they belong to."""

    COOPERATIVE = "cooperative"
    """Members offer and accept queues one by one; nobody else pauses."""
    CYCLE = "cycle"
    """Every secondary gives way from time to time, whether or not there is a member to take the queue."""
