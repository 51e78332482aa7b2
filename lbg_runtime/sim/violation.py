"""What a law reports about a history that breaks it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Violation:
    law: str
    at_ms: int
    story: str
