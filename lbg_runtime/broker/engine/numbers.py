"""The numbers that messages get when they are accepted."""

from lbg_runtime.broker.engine.effects import Published


class Numbers:
    """One per engine, for all of its VPNs: with the broker's own id a number names a message for good."""

    def __init__(self) -> None:
        self.last = 0

    def give(self, message: Published) -> None:
        """Number a message that is accepted: above all numbers that were given before."""
        self.last = message.number = self.last + 1

    def skip_to(self, number: int) -> None:
        """Give no number up to this one."""
        self.last = max(self.last, number)
