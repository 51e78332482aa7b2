"""Facts about every connection to a broker."""

LONGEST_SILENCE_MS = 12_000
"""How long a dead connection may be taken for alive: three unanswered keep-alives of the client, 3 s each, and a
margin."""
