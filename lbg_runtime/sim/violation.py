"""What a law says of a history that breaks it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Violation:
    """One law broken once."""

    law: str
    at_ms: int
    story: str
