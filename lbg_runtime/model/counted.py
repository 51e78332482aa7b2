"""Counts with their nouns, for people."""


def counted(number: int, noun: str) -> str:
    """The number and its noun, with an s unless it is one: `1 message`, `2 messages`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
