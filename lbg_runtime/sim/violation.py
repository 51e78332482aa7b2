"""What a law reports about a history that breaks it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

Breach = tuple[int, str]
"""When a law was broken, in ms, and the story of it."""


@dataclass(frozen=True, slots=True)
class Violation:
    law: str
    at_ms: int
    story: str


def violations_of(law: Callable[..., Iterator[Breach]], *facts: object) -> list[Violation]:
    """The breaches of a law, under its name."""
    return [Violation(law.__name__, at_ms, story) for at_ms, story in law(*facts)]
