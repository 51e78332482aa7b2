"""A fact about every connection to a broker, which several rooms reckon with."""

LONGEST_SILENCE_MS = 12_000
"""How long a dead connection may count as alive: three unanswered keep-alives of the client, 3 s each, and a margin."""
