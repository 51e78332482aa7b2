"""The numbers that messages get when they are accepted."""

from lbg_runtime.broker.engine.effects import Published


class Numbers:
    """One per engine, for all its VPNs: together with the broker's id, a number identifies a message permanently."""

    def __init__(self) -> None:
        self.last = 0

    def give(self, message: Published) -> None:
        """Number an accepted message, above all numbers given before."""
        self.last = message.number = self.last + 1

    def skip_to(self, number: int) -> None:
        """Give no number up to this one."""
        self.last = max(self.last, number)
