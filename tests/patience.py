"""How long a test waits for what must come."""

PATIENCE_S = 100
"""Real time, within the limit of a whole test: what takes longer hangs, also on the slowest machine. A bound is shorter
only where time is what a test is about."""

PATIENCE_MS = 1_000 * PATIENCE_S
"""The same, as the official client is told it."""
