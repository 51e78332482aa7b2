"""Describes which process of which member a start creates."""

from dataclasses import dataclass

from lbg_runtime.sim.history import Life


@dataclass(frozen=True, slots=True)
class Start:
    """One start of a planned member, and how its process differs from others with the same id."""

    index: int
    number: int
    """Its number among all starts in a run."""
    incarnation: int
    """What the process reports as its life; larger than earlier ones if the clocks are right."""
    client_name: str
    """Two processes with the same name throw each other out at the broker."""

    @property
    def name(self) -> str:
        return member_name(self.index)

    @property
    def life(self) -> Life:
        """The process's name in the history."""
        return Life(f"{self.name}#{self.number}")


def member_name(index: int) -> str:
    return f"m{index}"
