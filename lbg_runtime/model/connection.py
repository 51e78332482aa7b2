"""What is known of every connection to a broker."""

LONGEST_SILENCE_MS = 12_000
"""So long a dead connection may be taken for alive: three of the client's keep-alives of 3 s that are not answered, and
a margin."""
