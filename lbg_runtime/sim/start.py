"""Which process of which member one start brings."""

from dataclasses import dataclass

from lbg_runtime.sim.history import Life


@dataclass(frozen=True, slots=True)
class Start:
    """One start of a planned member, and how its process differs from others with the same id."""

    index: int
    number: int
    """Of all starts in a run."""
    incarnation: int
    """What the process says of its life; larger than those before where the clocks are right."""
    client_name: str
    """Two processes with one name throw each other out at the broker."""

    @property
    def name(self) -> str:
        """The member's id."""
        return member_name(self.index)

    @property
    def life(self) -> Life:
        """What the history calls the process."""
        return Life(f"{self.name}#{self.number}")


def member_name(index: int) -> str:
    """The id of a planned member."""
    return f"m{index}"
